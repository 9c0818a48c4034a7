import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import Corrupt, Incompatible
from store.ids import CommitId, ObjectId
from store.naming.reflog import ReflogLine, applied, decode_lines, encode_line, logged_ids, unapplied_bytes

A, B, C = (CommitId(ObjectId(bytes([value]) * 32)) for value in b"abc")

values = st.sampled_from([None, A, B, C])


def line(old: CommitId | None, new: CommitId | None, message: str = "") -> ReflogLine:
    return ReflogLine(old, new, 1_700_000_000_000_000_000, "commit", message)


MADE, MOVED, UNAPPLIED = line(None, A), line(A, B), line(B, C)


@pytest.mark.parametrize("message", ["", "plain", 'quo"te\\', "two\nlines\r\t", "é\u2028\x00", "\ud800 alone"])
def test_a_line_stays_one_line_whatever_its_message(message: str) -> None:
    encoded = encode_line(line(A, None, message))
    assert encoded.count(b"\n") == 1
    assert decode_lines(encoded, "log") == [line(A, None, message)]


def test_action_is_one_word() -> None:
    with pytest.raises(Incompatible, match="one lower-case word"):
        encode_line(ReflogLine(A, B, 0, "two words", ""))


def test_every_torn_tail_is_left_out() -> None:
    whole, last = encode_line(MADE), encode_line(MOVED)
    for kept in range(len(last)):
        assert decode_lines(whole + last[:kept], "log") == [MADE]
    # Of a line torn by a power cut its end may have reached the disk and its beginning not.
    assert decode_lines(whole + bytes(40) + last[40:], "log") == [MADE]


def test_damage_before_the_end_is_corrupt_and_names_the_line() -> None:
    with pytest.raises(Corrupt, match="logs/HEAD: line 2 is damaged"):
        decode_lines(encode_line(MADE) + b"garbage\n" + encode_line(MOVED), "logs/HEAD")


@given(st.lists(st.builds(line, values, values, st.text(max_size=8)), max_size=5), st.binary(max_size=80))
def test_ids_without_the_messages_are_those_of_the_lines(lines: list[ReflogLine], torn: bytes) -> None:
    data = b"".join(map(encode_line, lines)) + torn.replace(b"\n", b"")
    assert logged_ids(data, "log") == {commit for each in lines for commit in (each.old, each.new) if commit}
    assert decode_lines(data, "log") == lines


def test_ids_of_a_damaged_log_are_corrupt() -> None:
    with pytest.raises(Corrupt, match="line 1 is damaged"):
        logged_ids(b"garbage\n" + encode_line(MADE), "logs/HEAD")


def test_lines_that_never_came_true_are_left_out() -> None:
    lines = [MADE, MOVED, UNAPPLIED]
    assert applied(lines, C) == lines
    assert applied(lines, B) == [MADE, MOVED]
    assert applied([MADE], None) == []
    assert applied([], A) == []


def test_lines_of_a_later_value_than_the_reader_saw_are_left_out() -> None:
    assert applied([MADE, MOVED, UNAPPLIED], A) == [MADE]


def test_a_log_that_lost_its_beginning_is_kept() -> None:
    assert applied([line(B, C)], A) == [line(B, C)]


@pytest.mark.parametrize("torn", [b"", b"torn", b"torn and longer than a line " * 20])
def test_next_writer_cuts_off_what_never_came_true(torn: bytes) -> None:
    log = encode_line(MADE) + encode_line(MOVED)
    assert unapplied_bytes(log + torn, B) == len(torn)
    assert unapplied_bytes(log + encode_line(UNAPPLIED), B) == len(encode_line(UNAPPLIED))
    assert unapplied_bytes(log + b"damaged\n", B) == len(b"damaged\n")
    assert unapplied_bytes(torn, None) == len(torn)


def test_a_line_that_came_true_is_never_cut_off() -> None:
    log = encode_line(MADE) + encode_line(MOVED)
    assert unapplied_bytes(log, B) == 0
    assert unapplied_bytes(log, C) == 0  # the ref was set by hand
