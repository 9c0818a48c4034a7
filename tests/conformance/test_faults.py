"""What storages do when servers and networks fail: each fault by the proxy, on an emulator and on a real server."""

from collections.abc import Iterator
from threading import Thread
from typing import NamedTuple

import pytest

from store.errors import Conflict, Corrupt, RemoteUnavailable
from store.limits import MIB
from store.remotes.storages.conditional import is_atomic
from store.remotes.storages.s3 import S3Storage
from tests.s3servers import bucket, server
from tests.storages import PART_BYTES, Bytes, Heard, keys_of, noise, read, s3_storage
from tools.s3.proxy import FaultProxy
from tools.s3.rules import Answer, CutBody, Delay, DropReply, EqualParts, IgnoreConditions, Kill, MangleChunked, Match

PACK = "packs/" + "cd" * 32 + ".pack"
pytestmark = pytest.mark.usefixtures("small_parts")

DATA = noise(2 * PART_BYTES + 12_345)
LOST = Match(times=1)


class Faulty(NamedTuple):
    storage: S3Storage
    proxy: FaultProxy

    def count(self, method: str, query: str | None = None) -> int:
        """Requests of a method since the log was emptied, those with an argument if one is named."""
        return sum(each.method == method and (query is None or query in each.query) for each in self.proxy.requests)


@pytest.fixture(params=["moto", "ceph"])
def faulty(request: pytest.FixtureRequest) -> Iterator[Faulty]:
    account = server(request.param)
    with FaultProxy(account) as proxy, s3_storage(proxy.account, bucket(account)) as storage:
        yield Faulty(storage, proxy)


def test_f5_bodies_cut_in_half_are_read_from_there(faulty: Faulty) -> None:
    storage, proxy = faulty
    data = DATA[: 3 * MIB]
    storage.upload(PACK, Bytes(data), Heard())
    proxy.place(CutBody(0.5))
    proxy.forget()
    assert read(storage, PACK, 1, 2 * MIB) == data[1 : 1 + 2 * MIB]
    received_bytes = sum(each.sent_bytes for each in proxy.requests)
    assert received_bytes == 2 * MIB  # nothing twice
    got = storage.get(PACK, 3 * MIB)
    assert got is not None and got[0] == data


def test_f5_listings_cut_in_half_are_asked_for_again(faulty: Faulty) -> None:
    storage, proxy = faulty
    storage.put("format", b"1")
    proxy.place(CutBody(0.5, Match(method="GET", query="list-type", times=2)))
    assert keys_of(storage) == ["format"]


def test_a_body_that_never_comes_ends_in_an_error(faulty: Faulty) -> None:
    storage, proxy = faulty
    storage.put("format", b"12345")
    proxy.place(CutBody(0.0))
    with pytest.raises(RemoteUnavailable, match="format: answers end early again and again, now at byte 0"):
        read(storage, "format", 0, 5)
    with pytest.raises(RemoteUnavailable, match="format"):
        storage.get("format", 5)


def test_f5_every_third_request_slows_down(faulty: Faulty) -> None:
    storage, proxy = faulty
    proxy.place(Answer(503, "SlowDown", on=Match(after=2, every=3)))
    heard = Heard()
    storage.upload(PACK, Bytes(DATA), heard)
    assert heard.total_bytes == len(DATA)
    assert read(storage, PACK, 0, len(DATA)) == DATA
    version = storage.put_if("refs/branches/main", b"1", None)
    assert storage.put_if("refs/branches/main", b"2", version) != version
    assert keys_of(storage) == [PACK, "refs/branches/main"]
    storage.delete([PACK, "refs/branches/main"])
    assert not keys_of(storage)
    assert any(each.status == 503 for each in proxy.requests)


@pytest.mark.parametrize(
    ("status", "code"), [(500, "InternalError"), (409, "OperationAborted"), (403, "RequestTimeTooSkewed")]
)
def test_what_passes_is_waited_for(faulty: Faulty, status: int, code: str) -> None:
    faulty.proxy.place(Answer(status, code, on=Match(times=3)))
    faulty.storage.put("format", b"1")
    assert faulty.count("PUT") == 4


def test_a_server_that_stays_busy_is_given_up(faulty: Faulty) -> None:
    faulty.proxy.place(Answer(503, "SlowDown"))
    with pytest.raises(RemoteUnavailable, match=r"format: the server failed, also when asked again.*SlowDown"):
        faulty.storage.put("format", b"1")
    assert faulty.count("PUT") == 8


def test_a_server_that_is_down_is_given_up(faulty: Faulty) -> None:
    storage, proxy = faulty
    proxy.go_down()
    with pytest.raises(RemoteUnavailable, match="format: no answer of use"):
        storage.put("format", b"1")
    proxy.revive()
    storage.put("format", b"1")


def test_a_server_that_dies_within_an_upload_leaves_nothing_there(faulty: Faulty) -> None:
    storage, proxy = faulty
    proxy.place(Kill(Match(method="PUT", query="partNumber", times=1)))
    with pytest.raises(RemoteUnavailable):
        storage.upload(PACK, Bytes(DATA), Heard())
    proxy.place()
    proxy.revive()
    assert storage.stat(PACK) is None
    (upload,) = storage.unfinished()
    assert upload.key == PACK
    storage.abort(upload)
    assert not list(storage.unfinished())
    storage.abort(upload)


def test_a_slow_answer_holds_up_nobody_else(faulty: Faulty) -> None:
    storage, proxy = faulty
    delay = Delay(Match(method="PUT", key="*slow"))
    proxy.place(delay)
    slow = Thread(target=storage.put, args=("slow", b"1"))
    slow.start()
    assert delay.arrived.wait(60)
    storage.put("fast", b"1")
    assert keys_of(storage) == ["fast"]
    delay.release.set()
    slow.join()
    assert keys_of(storage) == ["fast", "slow"]


def test_a_write_whose_answer_was_lost_is_made_again(faulty: Faulty) -> None:
    faulty.proxy.place(DropReply(Match(method="PUT", times=1)))
    assert faulty.storage.get("format", 1) is None
    version = faulty.storage.put("format", b"1")
    assert faulty.storage.get("format", 1) == (b"1", version)


def test_a_conditional_write_whose_answer_was_lost_is_seen_as_ours(faulty: Faulty) -> None:
    storage, proxy = faulty
    storage.put_if("refs/branches/other", b"0", None)
    proxy.place(DropReply(Match(method="PUT", key="*main", times=1)))
    version = storage.put_if("refs/branches/main", b"1", None)
    assert storage.get("refs/branches/main", 1) == (b"1", version)
    newer = storage.put_if("refs/branches/main", b"2", version)  # lets Ceph's spelling be found out
    proxy.place(DropReply(Match(method="PUT", key="*main", times=1)))
    newest = storage.put_if("refs/branches/main", b"3", newer)
    assert storage.get("refs/branches/main", 1) == (b"3", newest)


def test_what_another_wrote_alike_is_a_conflict_unless_an_answer_was_lost(faulty: Faulty) -> None:
    faulty.storage.put_if("refs/branches/main", b"1", None)
    with pytest.raises(Conflict):
        faulty.storage.put_if("refs/branches/main", b"1", None)


def test_an_upload_whose_last_answer_was_lost_is_there(faulty: Faulty) -> None:
    storage, proxy = faulty
    proxy.place(DropReply(Match(method="POST", query="uploadId", times=1)))
    storage.upload(PACK, Bytes(DATA), Heard())
    assert read(storage, PACK, 0, len(DATA)) == DATA
    assert faulty.count("PUT", "partNumber") == 3  # nothing was sent anew


@pytest.mark.parametrize(("status", "code"), [(404, "NoSuchUpload"), (500, "InternalError")])
def test_an_upload_is_there_whatever_its_second_completion_is_told(faulty: Faulty, status: int, code: str) -> None:
    storage, proxy = faulty
    completing = Match(method="POST", query="uploadId")
    proxy.place(Answer(status, code, on=Match(method="POST", query="uploadId", after=1)), DropReply(completing))
    storage.upload(PACK, Bytes(DATA), Heard())
    assert read(storage, PACK, 0, len(DATA)) == DATA
    assert faulty.count("PUT", "partNumber") == 3


def test_lengths_are_asked_for_once_for_each_way_of_uploading(faulty: Faulty) -> None:
    for number in range(3):
        faulty.storage.upload(f"packs/{number}", Bytes(DATA), Heard())
        faulty.storage.upload(f"packs/small-{number}", Bytes(DATA[:1000]), Heard())
    assert faulty.count("HEAD") == 2


def test_an_upload_that_a_server_forgot_is_begun_anew(faulty: Faulty) -> None:
    storage, proxy = faulty
    proxy.place(Answer(404, "NoSuchUpload", on=Match(method="PUT", query="partNumber", after=1, times=1)))
    heard = Heard()
    storage.upload(PACK, Bytes(DATA), heard)
    assert heard.total_bytes == len(DATA)  # each byte is told of once
    assert read(storage, PACK, 0, len(DATA)) == DATA
    assert faulty.count("POST", "uploads") == 2


def test_an_upload_that_is_forgotten_each_time_fails(faulty: Faulty) -> None:
    faulty.proxy.place(Answer(404, "NoSuchUpload", on=Match(method="PUT", query="partNumber")))
    with pytest.raises(RemoteUnavailable, match="NoSuchUpload"):
        faulty.storage.upload(PACK, Bytes(DATA), Heard())
    assert faulty.storage.stat(PACK) is None


def test_what_was_there_before_is_not_taken_for_an_upload_that_failed(faulty: Faulty) -> None:
    storage, proxy = faulty
    storage.upload(PACK, Bytes(bytes(len(DATA))), Heard())
    proxy.place(Answer(500, "InternalError", on=Match(method="POST", query="uploadId")))
    with pytest.raises(RemoteUnavailable):
        storage.upload(PACK, Bytes(DATA), Heard())


def test_parts_are_of_one_size(faulty: Faulty) -> None:
    faulty.proxy.place(EqualParts())
    faulty.storage.upload(PACK, Bytes(DATA), Heard())
    assert read(faulty.storage, PACK, 0, len(DATA)) == DATA


def test_f1_servers_that_store_framing_get_none(faulty: Faulty) -> None:
    faulty.proxy.place(MangleChunked())
    faulty.storage.put("format", b"12345")
    faulty.storage.upload(PACK, Bytes(DATA), Heard())
    assert faulty.storage.get("format", 5) == (b"12345", faulty.storage.put("format", b"12345"))
    assert read(faulty.storage, PACK, 0, len(DATA)) == DATA


def test_f2_a_server_that_ignores_conditions_is_found_out(faulty: Faulty) -> None:
    assert is_atomic(faulty.storage)
    faulty.proxy.place(IgnoreConditions())
    assert not is_atomic(faulty.storage)


def test_f2_writes_that_race_are_decided_by_the_server(faulty: Faulty) -> None:
    faulty.proxy.place(Answer(409, "ConditionalRequestConflict", on=Match(method="PUT", times=2)))
    faulty.storage.put_if("refs/branches/main", b"1", None)
    faulty.proxy.place(Answer(409, "ConditionalRequestConflict", on=Match(method="PUT")))
    with pytest.raises(Conflict):
        faulty.storage.put_if("refs/branches/other", b"1", None)


def test_a_server_that_alters_what_it_stores_is_noticed(faulty: Faulty) -> None:
    other = noise(len(DATA) - 1)
    original = faulty.storage.upload

    class Lying(Bytes):
        @property
        def size_bytes(self) -> int:
            return len(self.data) + 1

    with pytest.raises(Corrupt, match="alters"):
        original(PACK, Lying(other), Heard())
