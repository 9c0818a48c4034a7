"""How fast one core encodes and decodes, as a share of what it copies in the same minute."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

from store import codec, kernels
from store.format.chunking import tensor_cuts
from store.format.dtypes import Element

from .report import Bar, Bench
from .workloads.recorded import load, spaced
from .workloads.run import tensors

DISTANCE: Final = 10
"""Steps between a chunk and its base."""

ROUND_COUNT: Final = 5
"""The best of these counts: whatever else runs on the machine only ever takes time away.

Time is the processor time of this process, which works in one thread: that of one core, on a busy machine too.
"""

BAR_ENCODE: Final = 0.08
BAR_DECODE: Final = 0.12
GB: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk, and the one in its place ten steps earlier."""

    raw: memoryview
    base: memoryview | None


@dataclass(frozen=True, slots=True)
class Speed:
    """Gigabytes of raw state a second, and raw over stored bytes."""

    encode: float
    decode: float
    ratio: float


def measure() -> Bench:
    """Time the codec on a recorded state, with bases and without."""
    kernels.warm()
    before, after = (load(path) for path in spaced(DISTANCE).paths[:2])
    kinds = {"all": list(_chunks(after, before)), "all, no base": list(_chunks(after, None))}
    for name, pick in _KINDS.items():
        kinds[name] = list(_chunks(pick(after), pick(before)))
    copied = _copy_speed()
    speeds = {name: _speed(chunks) for name, chunks in kinds.items()}
    copied = max(copied, _copy_speed())
    return Bench(
        name="codec",
        title=f"One core, float32 state, bases {DISTANCE} steps older",
        columns=("of the state", "encode", "of a copy", "decode", "of a copy", "raw/stored"),
        rows=[_row(name, speed, copied) for name, speed in speeds.items()],
        bars=[
            Bar("encode, as a share of a copy", speeds["all"].encode / copied, BAR_ENCODE, at_most=False),
            Bar("decode, as a share of a copy", speeds["all"].decode / copied, BAR_DECODE, at_most=False),
        ],
        figures={
            "copy_gb_per_second": copied,
            "kernels_compiled": kernels.is_compiled(),
            **{name: {"encode": s.encode, "decode": s.decode, "ratio": s.ratio} for name, s in speeds.items()},
        },
        notes=[f"copy into warm memory: {copied:.1f} GB/s"],
    )


def _row(name: str, speed: Speed, copied: float) -> list[str]:
    cells = [name]
    for figure in (speed.encode, speed.decode):
        cells += [f"{figure:.2f} GB/s", f"{figure / copied:.3f}"]
    return [*cells, f"{speed.ratio:.3f}"]


def _moment(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda state: [moments[name] for moments in state["optimizer"]["state"].values()]


_KINDS: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "weights": lambda state: state["model"],
    "exp_avg": _moment("exp_avg"),
    "exp_avg_sq": _moment("exp_avg_sq"),
}


def _chunks(state: Any, older: Any) -> Iterator[Chunk]:
    """Chunks as a save would cut them; scalars, which trees hold inline, are left out."""
    whole = [tensor for tensor in tensors(state) if tensor.dim()]
    bases = [tensor for tensor in tensors(older) if tensor.dim()] if older is not None else [None] * len(whole)
    for tensor, base in zip(whole, bases, strict=True):
        raw, old = _bytes(tensor), None if base is None else _bytes(base)
        start = 0
        for size in tensor_cuts(tuple(tensor.shape), tensor.itemsize):
            stop = start + size
            yield Chunk(raw[start:stop], None if old is None else old[start:stop])
            start = stop


def _bytes(tensor: torch.Tensor) -> memoryview:
    array: Any = tensor.contiguous().flatten().view(torch.uint8).numpy()  # numpy's stubs know no buffers before 3.12
    return memoryview(array)


def _speed(chunks: list[Chunk]) -> Speed:
    size_bytes = sum(len(chunk.raw) for chunk in chunks)
    encode_s = decode_s = float("inf")
    stored_bytes = 0
    out = memoryview(bytearray(max(len(chunk.raw) for chunk in chunks)))
    encoded = [codec.encode(chunk.raw, Element.FP32, chunk.base) for chunk in chunks]
    payloads = [memoryview(b"".join(one.payload)) for one in encoded]
    for _ in range(ROUND_COUNT):
        started = time.process_time()
        # One is dropped before the next is made, as in a save: memory that is kept would have to be new each time.
        stored_bytes = sum(codec.encode(chunk.raw, Element.FP32, chunk.base).size_bytes for chunk in chunks)
        encode_s = min(encode_s, time.process_time() - started)
        started = time.process_time()
        for chunk, one, payload in zip(chunks, encoded, payloads, strict=True):
            _decode(chunk, one, payload, out[: len(chunk.raw)])
        decode_s = min(decode_s, time.process_time() - started)
    return Speed(size_bytes / encode_s / GB, size_bytes / decode_s / GB, size_bytes / stored_bytes)


def _decode(chunk: Chunk, encoded: codec.Encoded, payload: memoryview, out: memoryview) -> None:
    base = chunk.base if encoded.uses_base else None
    codec.decode(encoded.transform, encoded.grouped, Element.FP32, payload, len(chunk.raw), base, out)


def _copy_speed() -> float:
    """Gigabytes a second of a copy into warm memory, too large for the caches."""
    source, target = memoryview(bytearray(b"\1" * 128_000_000)), memoryview(bytearray(128_000_000))
    best_s = float("inf")
    for _ in range(2 * ROUND_COUNT):
        started = time.process_time()
        target[:] = source
        best_s = min(best_s, time.process_time() - started)
    return len(source) / best_s / GB
