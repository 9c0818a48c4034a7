"""Host memory for captured states: whole copies, two arenas, nothing of the last save overwritten too early."""

import os
import resource
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from moonclip.capture.copying import Copier, _stretches
from moonclip.capture.prefault import Pages
from moonclip.capture.staging import Staging
from moonclip.state.entries import FlatState, FlatTensor
from moonclip.state.flattening import flatten
from store.errors import NoRoom
from store.limits import MIB, PAGE_BYTES, WORKER_BYTES
from store.parallel import Threads
from store.saving.arenas import Arena
from store.saving.inputs import ItemInput, Span, TensorInput, located


@pytest.fixture
def staging() -> Iterator[Staging]:
    threads = Threads(3)
    yield Staging(threads)
    threads.close()


def capture(staging: Staging, **items: Any) -> dict[str, memoryview]:
    captured = staging.capture({name: flatten(obj, item=name) for name, obj in items.items()})
    inputs = located(captured.items, captured.arena.memory)
    return {f"{item.name}/{name}": data.data for item in inputs for name, data in tensors(item)}


def tensors(item: ItemInput) -> list[tuple[str, TensorInput]]:
    return [(name, given) for name, given in item.entries.items() if isinstance(given, TensorInput)]


def address(view: memoryview) -> int:
    return torch.frombuffer(view, dtype=torch.uint8).data_ptr()


def test_every_kind_of_tensor_is_copied_as_its_bytes_in_c_order(staging: Staging) -> None:
    big = torch.randn(3_000_001)  # three tasks and a bit
    state = {
        "big": big,
        "odd": big[1:],
        "transposed": torch.arange(12.0).view(3, 4).t(),
        "scalar": torch.tensor(5, dtype=torch.int64),
        "empty": torch.zeros(0, 3),
        "many": [torch.full((5,), n, dtype=torch.int16) for n in range(1000)],
    }
    captured = capture(staging, state=state)
    expected = {f"state/{name}": state[name] for name in ("big", "odd", "transposed", "scalar", "empty")}
    expected |= {f"state/many/{n}": tensor for n, tensor in enumerate(state["many"])}
    assert captured.keys() == expected.keys()
    assert all(bytes(captured[name]) == expected[name].contiguous().numpy().tobytes() for name in expected)


def test_memory_is_page_aligned_reused_and_alternates(staging: Staging) -> None:
    x = torch.arange(1000)
    addresses = [address(capture(staging, x=x)["x/"]) for _ in range(6)]
    assert addresses[0] % PAGE_BYTES == 0
    assert addresses == [*addresses[:2]] * 3
    assert addresses[0] != addresses[1]


def test_the_capture_before_stays_until_the_one_after_next(staging: Staging) -> None:
    first = capture(staging, x=torch.full((1000,), 1))
    second = capture(staging, x=torch.full((2_000_000,), 2))
    assert bytes(first["x/"]) == torch.full((1000,), 1).numpy().tobytes()
    capture(staging, x=torch.full((1000,), 3))
    assert bytes(second["x/"]) == torch.full((2_000_000,), 2).numpy().tobytes()


def test_a_capture_that_fails_leaves_the_last_one_alone(staging: Staging) -> None:
    last = capture(staging, x=torch.full((1000,), 1))
    states = {"x": flatten(torch.full((10, 100), 2).t())}
    (entry,) = states["x"].entries.values()
    entry.source.tensor = None  # type: ignore[union-attr, assignment]
    for _ in range(3):
        with pytest.raises(AttributeError):
            staging.capture(states)
        assert bytes(last["x/"]) == torch.full((1000,), 1).numpy().tobytes()


def test_after_a_failure_its_arena_is_not_used_again(staging: Staging) -> None:
    """Threads that were interrupted may still be writing into it."""
    written: list[memoryview] = []

    class Interrupting:
        def copy_into(self, out: memoryview) -> None:
            written.append(out)
            raise KeyboardInterrupt

    states = {"x": flatten(torch.zeros(1000))}
    (entry,) = states["x"].entries.values()
    source = Interrupting()
    source.size_bytes, source.dtype, source.shape = 4000, "float32", (1000,)  # type: ignore[attr-defined]
    source.tensor, source.address = torch.zeros(1000), 0  # type: ignore[attr-defined]
    source.stored, source.by_row = None, False  # type: ignore[attr-defined]
    entry.source = source  # type: ignore[union-attr, assignment]
    with pytest.raises(KeyboardInterrupt):
        staging.capture(states)
    captured = capture(staging, x=torch.full((1000,), 1.0))
    written[0][:] = b"\xff" * 4000
    assert bytes(captured["x/"]) == torch.full((1000,), 1.0).numpy().tobytes()


def test_tied_names_share_one_copy(staging: Staging) -> None:
    x = torch.ones(100)
    captured = capture(staging, state={"a": x, "b": x, "c": x.clone()})
    assert address(captured["state/a"]) == address(captured["state/b"]) != address(captured["state/c"])


@pytest.mark.parametrize(
    "where",
    [
        "staging._places",
        "staging.Copier",
        "staging._inputs",
        "devices.Moment.__init__",
        "copying._tasks",
        "copying._held",
    ],
)
def test_an_interrupt_anywhere_leaves_the_last_capture_alone(
    staging: Staging, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    last = capture(staging, x=torch.full((1000,), 1))

    def interrupt(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    for _ in range(3):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(f"moonclip.capture.{where}", interrupt)
            capture(staging, x=torch.full((1000,), 2))
        assert bytes(last["x/"]) == torch.full((1000,), 1).numpy().tobytes()
    assert address(capture(staging, x=torch.full((1000,), 3))["x/"]) != address(last["x/"])


# --- memory ---------------------------------------------------------------------------------------------------------


def ones(size_bytes: int) -> dict[str, FlatState]:
    return {"x": flatten(torch.ones(size_bytes, dtype=torch.uint8))}


def pages_made() -> None:
    """Wait until pages are made ahead."""
    for thread in threading.enumerate():
        if thread.name == "moonclip-pages":
            thread.join()


@pytest.fixture
def bounded() -> Iterator[Callable[[int], Staging]]:
    """A staging that may take so many bytes beside what the worker does."""
    threads = Threads(2)
    yield lambda max_bytes: Staging(threads, max_bytes=max_bytes + WORKER_BYTES)
    threads.close()


def test_with_room_for_one_arena_it_is_written_anew_and_the_last_save_is_lost(
    bounded: Callable[[int], Staging],
) -> None:
    staging = bounded(3 * MIB)
    captures = [staging.capture(ones(2 * MIB)) for _ in range(3)]
    assert len({capture.arena.number for capture in captures}) == 1
    assert [capture.keeps_last for capture in captures] == [False, False, False]


def test_with_room_for_two_they_alternate(bounded: Callable[[int], Staging]) -> None:
    staging = bounded(4 * MIB)
    captures = [staging.capture(ones(2 * MIB)) for _ in range(3)]
    assert [capture.keeps_last for capture in captures] == [False, True, True]
    assert captures[0].arena is captures[2].arena is not captures[1].arena


def test_a_state_that_grows_beyond_half_the_room_gives_the_last_one_up(bounded: Callable[[int], Staging]) -> None:
    staging = bounded(6 * MIB)
    sizes = [2, 3, 4, 2, 2]
    captures = [staging.capture(ones(size * MIB)) for size in sizes]
    assert [capture.keeps_last for capture in captures] == [False, True, False, True, True]


def test_a_state_that_does_not_fit_is_refused_with_the_numbers_and_costs_nothing(
    bounded: Callable[[int], Staging],
) -> None:
    staging = bounded(2 * MIB)
    kept = staging.capture(ones(2 * MIB))
    for refused in (staging.capture, partial(staging.expect, at_once=False)):
        with pytest.raises(NoRoom, match=r"takes 3,145,728 bytes .* raise it to [0-9,]+ at least"):
            refused(ones(3 * MIB))
    assert bytes(kept.arena.memory[: 2 * MIB]) == b"\1" * (2 * MIB)
    assert issubclass(NoRoom, MemoryError)


def test_pages_are_made_ahead_for_both_arenas_of_an_expected_state(staging: Staging) -> None:
    staging.expect(ones(2 * MIB), at_once=False)
    pages_made()
    arenas = [arena for arena in staging._arenas if arena is not None]
    assert len(arenas) == 2
    assert all(os.fstat(arena.fd).st_blocks * 512 >= 2 * MIB for arena in arenas)
    assert {staging.capture(ones(2 * MIB)).arena.number for _ in range(3)} == {arena.number for arena in arenas}


def test_pages_are_there_once_a_state_is_expected_at_once_whatever_the_threads_in_the_background_do(
    staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pages, "make_ahead", lambda *_: None)  # all cores are busy
    staging.expect(ones(2 * MIB), at_once=False)
    arenas = [arena for arena in staging._arenas if arena is not None]
    assert [os.fstat(arena.fd).st_blocks for arena in arenas] == [0, 0]
    staging.expect(ones(2 * MIB), at_once=True)
    assert [arena for arena in staging._arenas if arena is not None] == arenas
    assert all(os.fstat(arena.fd).st_blocks * 512 >= 2 * MIB for arena in arenas)
    assert {staging._pages.made_bytes(arena) for arena in arenas} == {2 * MIB}


@pytest.mark.parametrize("capture_count", [0, 1, 2])
def test_a_state_that_has_outgrown_its_arenas_gets_pages_at_once(staging: Staging, capture_count: int) -> None:
    """A first step makes an optimizer's state."""
    staging.expect(ones(2 * MIB), at_once=True)
    for _ in range(capture_count):
        staging.capture(ones(2 * MIB))
    larger = ones(6 * MIB)
    staging.expect(larger, at_once=True)
    spare = staging._arenas[0]
    assert spare is not None and staging._pages.made_bytes(spare) == 6 * MIB
    assert os.fstat(spare.fd).st_blocks * 512 >= 6 * MIB
    assert staging.capture(larger).arena is spare


def test_a_state_for_whose_second_copy_is_no_room_any_more_gets_pages_for_one() -> None:
    threads = Threads(2)
    budget_bytes = WORKER_BYTES + 8 * MIB + MIB // 2
    staging = Staging(threads, max_bytes=budget_bytes)
    for _ in range(2):
        staging.capture(ones(4 * MIB))
    staging.expect(ones(4 * MIB + MIB // 4 + PAGE_BYTES), at_once=True)
    taken_bytes = sum(os.fstat(arena.fd).st_blocks * 512 for arena in staging._arenas if arena is not None)
    threads.close()
    assert 4 * MIB < taken_bytes <= budget_bytes - WORKER_BYTES


def test_where_there_is_no_memory_what_was_got_goes_back(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    first = weakref.ref(staging.capture(ones(2 * MIB)).arena)
    made = Arena.populate

    def populate(arena: Arena, start: int, stop: int) -> None:
        made(arena, start, stop)
        if start:
            raise MemoryError("no more")

    monkeypatch.setattr(Arena, "populate", populate)
    with pytest.raises(MemoryError):
        staging.expect(ones(20 * MIB), at_once=True)
    spare, last = staging._arenas
    assert spare is None and last is first()
    fresh = Staging(staging._threads)
    with pytest.raises(MemoryError):
        fresh.expect(ones(20 * MIB), at_once=True)
    assert fresh._arenas == (None, None)
    monkeypatch.undo()
    fresh.expect(ones(20 * MIB), at_once=True)
    assert None not in fresh._arenas


def test_after_the_first_capture_the_second_arena_is_made_ahead(staging: Staging) -> None:
    first = staging.capture(ones(2 * MIB))
    pages_made()
    spare = staging._arenas[0]
    assert spare is not None and os.fstat(spare.fd).st_blocks * 512 >= 2 * MIB
    assert staging.capture(ones(2 * MIB)).arena is spare is not first.arena


def test_pages_between_what_is_copied_now_are_left_for_later() -> None:
    """Small tensors are copied together, and large ones among them perhaps while training goes on."""
    arena = Arena.make(128 * MIB)
    (state,) = {"x": flatten([torch.full((100,), n) for n in range(3)])}.values()
    sources = [entry.source for entry in state.entries.values() if isinstance(entry, FlatTensor)]
    spans = [Span(at, at + 800) for at in (0, 100 * MIB, 100 * MIB + 832)]
    threads = Threads(1)
    Copier(sources, arena, threads, is_cold=True).copy(zip(sources, spans, strict=True))
    threads.close()
    assert os.fstat(arena.fd).st_blocks * 512 < 50 * MIB
    task = [(0, span.start, 800) for span in spans]
    assert list(_stretches(task)) == [(0, 800), (100 * MIB, 100 * MIB + 832 + 800)]
    for number, span in enumerate(spans):
        assert bytes(arena.memory[slice(*span)]) == torch.full((100,), number).numpy().tobytes()


def test_a_state_that_grows_a_little_needs_no_new_arena(staging: Staging) -> None:
    arenas = [staging.capture(ones(2 * MIB + size)).arena.number for size in (0, 0, 1000, 2000, 3000)]
    assert arenas == [arenas[0], arenas[1], arenas[0], arenas[1], arenas[0]]


def test_a_state_that_has_become_far_smaller_gives_memory_back(staging: Staging) -> None:
    captures = [staging.capture(ones(size * MIB)) for size in (9, 9, 2, 2)]
    assert [capture.arena.size_bytes < 5 * MIB for capture in captures] == [False, False, True, True]


def test_a_forked_child_makes_no_pages(staging: Staging) -> None:
    staging._pid += 1
    staging.expect(ones(2 * MIB), at_once=True)
    assert staging._arenas == (None, None)


def test_pages_of_an_arena_that_was_given_up_are_made_no_further(staging: Staging) -> None:
    size_bytes = 256 * MIB
    staging.expect(ones(size_bytes), at_once=False)
    arena, _ = staging._arenas
    assert arena is not None
    watched = os.dup(arena.fd)
    del arena
    staging.close()
    pages_made()
    try:
        assert os.fstat(watched).st_blocks * 512 < size_bytes
    finally:
        os.close(watched)


def test_a_second_arena_that_cannot_be_had_yet_costs_no_save(staging: Staging) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Path(os.devnull).open() as free:
        number = free.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (number + 1, limits[1]))  # room for one descriptor
    try:
        captured = staging.capture(ones(2 * MIB))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert captured.is_done and bytes(captured.arena.memory[: 2 * MIB]) == b"\1" * (2 * MIB)
    assert [staging.capture(ones(2 * MIB)).keeps_last for _ in range(2)] == [True, True]


def test_an_arena_whose_descriptor_somebody_closed_is_not_written_again(staging: Staging) -> None:
    for _ in range(2):
        staging.capture(ones(MIB), (), is_last_committed=True).wait()
    os.close(staging.capture(ones(MIB), (), is_last_committed=True).arena.fd)
    staging.capture(ones(MIB), (), is_last_committed=True).wait()
    assert staging.capture(ones(MIB), (), is_last_committed=True).arena.is_intact
