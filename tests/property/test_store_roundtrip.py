"""Whatever is saved comes back, whole and in parts, and nothing is stored twice."""

import tempfile
from collections.abc import Iterator
from math import prod
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from store.format.dtypes import DTYPES, dtype
from store.ids import CommitId
from store.limits import MAX_INLINE_BYTES, SAVE_CHAIN_DEPTH
from store.repository import Repository
from store.saving.bases import LastSave
from store.saving.saver import SaveRequest
from tests.arrays import Array, State, depths, drifted, entries_of, item, noise, require_whole, save

NAMES = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(["", "a", "a/b", "b", "~0", "…"])
DTYPE_NAMES = st.sampled_from(sorted(DTYPES))
SMALL_SHAPES = st.lists(st.integers(0, 9), max_size=4).map(tuple)
CHUNKED_SHAPES = st.tuples(st.integers(40, 90), st.integers(1, 40))
LONG_SHAPES = st.tuples(st.sampled_from([1500, 2049]), st.just(512))
SHAPES = st.one_of(SMALL_SHAPES, CHUNKED_SHAPES, CHUNKED_SHAPES, LONG_SHAPES)


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    name, shape = draw(DTYPE_NAMES), draw(SHAPES)
    size_bytes = prod(shape) * dtype(name).item_bytes
    if size_bytes > 4_000_000:
        shape, size_bytes = shape[:1], shape[0] * dtype(name).item_bytes
    kind = draw(st.sampled_from(["noise", "constant", "sparse"]))
    if kind == "noise":
        return noise(draw(st.integers(0, 5)), *shape, dtype_name=name)
    data = bytearray([draw(st.integers(0, 255))]) * size_bytes
    if kind == "sparse" and data:
        data[draw(st.integers(0, size_bytes - 1))] ^= 1
    return Array(name, shape, bytes(data))


@st.composite
def changes(draw: st.DrawFn, state: State) -> State:
    """The state of a later save: tensors drift, appear, vanish, get other names, shapes and dtypes."""
    after: dict[str, Array] = {}
    for name, array in state.items():
        match draw(
            st.sampled_from(["same", "same", "drift", "drift", "sparse", "new", "gone", "renamed", "flat", "bytes"])
        ):
            case "same":
                after[name] = array
            case "drift":
                after[name] = drifted(array, draw(st.integers(0, 2)))
            case "sparse":
                after[name] = drifted(array, draw(st.integers(0, 2)), share=0.05)
            case "new":
                after[name] = draw(arrays())
            case "renamed":
                after[f"{name}'"] = array
            case "flat":
                after[name] = Array(array.dtype, (prod(array.shape),), array.data)
            case "bytes":
                after[name] = Array("uint8", (len(array.data),), array.data)
    return after | draw(st.dictionaries(NAMES, arrays(), max_size=2))


@st.composite
def histories(draw: st.DrawFn) -> list[State]:
    states: list[State] = [draw(st.dictionaries(NAMES, arrays(), max_size=5))]
    for _ in range(draw(st.integers(0, 5))):
        older = draw(st.sampled_from(states[-2:]))
        states.append(draw(changes(older)))
    return states


def chunked(state: State) -> Iterator[bytes]:
    return (chunk for array in state.values() if len(array.data) > MAX_INLINE_BYTES for chunk in array.chunks)


@settings(max_examples=40)
@given(histories(), st.data())
def test_every_commit_comes_back_and_nothing_is_stored_twice(states: list[State], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory, Repository.init(Path(directory) / "s", thread_count=2) as repo:
        known: set[bytes] = set()
        commits: dict[CommitId, State] = {}
        last: LastSave | None = None
        for state in states:
            saved = save(repo, state, last=last if data.draw(st.booleans(), label="bases in memory") else None)
            last, commits[saved.commit] = saved.last, state
            chunks = set(chunked(state))
            assert saved.counts.new_raw_bytes == sum(len(chunk) for chunk in chunks - known)
            assert saved.counts.raw_bytes == sum(map(len, chunked(state)))
            assert max(depths(repo, saved.commit), default=0) <= SAVE_CHAIN_DEPTH
            known |= chunks
        require_whole(repo, commits)
        with Repository.open(repo.layout.root, read_only=True, thread_count=1) as reader:
            require_whole(reader, commits)


@settings(max_examples=30)
@given(arrays(), st.data())
def test_any_rows_and_spans(array: Array, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory, Repository.init(Path(directory) / "s", thread_count=2) as repo:
        first = save(repo, {"w": drifted(array, 1)})
        entry = entries_of(repo, save(repo, {"w": array}, last=first.last).commit)["w"]
        row_count = array.shape[0] if array.shape else 1
        row_bytes = len(array.data) // row_count if row_count else 0
        ends = st.lists(st.integers(0, row_count), min_size=2, max_size=2).map(sorted)
        for start, stop in data.draw(st.lists(ends, max_size=4), label="rows"):
            out = bytearray((stop - start) * row_bytes)
            repo.read_rows(entry, start, stop, memoryview(out))
            assert out == array.data[start * row_bytes : stop * row_bytes]
        spans = st.lists(st.integers(0, len(array.data)), min_size=2, max_size=2).map(sorted)
        wanted = [(start, stop, bytearray(stop - start)) for start, stop in data.draw(st.lists(spans, max_size=4))]
        repo.read_spans(entry, [(start, memoryview(out)) for start, _, out in wanted])
        assert all(out == array.data[start:stop] for start, stop, out in wanted)


@settings(max_examples=20)
@given(st.dictionaries(NAMES, arrays(), min_size=2, max_size=5), st.data())
def test_ties_come_back(state: State, data: st.DataObject) -> None:
    names = data.draw(st.permutations(list(state)))
    state = {**state, names[1]: state[names[0]]}
    ties = (tuple(sorted(names[:2])),)
    with tempfile.TemporaryDirectory() as directory, Repository.init(Path(directory) / "s", thread_count=1) as repo:
        saved = repo.save(SaveRequest([item(state, ties=ties)], branch="main"))
        assert saved.counts.new_raw_bytes == sum(map(len, set(chunked(state))))
        assert repo.tree(repo.commit(saved.commit), "model").ties == ties
        require_whole(repo, {saved.commit: state})
