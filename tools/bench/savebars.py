"""What saves are held to, as far as those libraries were measured that a bar compares."""

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Final

from .figures import percentile
from .peers import COPY, DCP, OURS, OURS_BF16, OURS_DCP, OVERLAP, RUST, RUST_BF16, TORCH
from .report import Bar
from .rows import Row

BLOCKED_BESIDE_COPY: Final = 1.25
BLOCKED_BESIDE_RUST: Final = 1.1
OVERLAP_SAVE_S: Final = 0.010
OVERLAP_BESIDE_COPY: Final = 1.6
DURABLE_BESIDE_RUST: Final = 0.3
DURABLE_BESIDE_TORCH: Final = 0.8
EXTRA_BESIDE_RUST: Final = 0.25
STEP_BESIDE_RUST: Final = 0.5
TWO_ARENAS: Final = 2.2
BF16_BYTES_BESIDE_RUST: Final = 0.85
BF16_DURABLE_BESIDE_RUST: Final = 0.5
BF16_LOAD_BESIDE_RUST: Final = 0.4
BESIDE_DCP: Final = 1.0
TINY_BLOCKED_S: Final = 0.150
TINY_DURABLE_S: Final = 1.5
TINY_LOAD_S: Final = 1.5


def dense_bars(rows: Mapping[str, Row]) -> Iterator[Bar]:
    """Ratios to the bare copy, to Rust and to ``torch.save``; memory; and that nothing came back changed."""
    found = {name: row for name, row in rows.items() if row.blocked_s}
    for name in (OURS.name, OVERLAP.name):
        if name in found:
            yield from (_copy_bars if name == OURS.name else _overlap_bars)(found[name], found)
            yield from _common_bars(found[name], found)
    if found.keys() >= {OURS_BF16.name, RUST_BF16.name}:
        yield from _bf16_bars(found[OURS_BF16.name], found[RUST_BF16.name])
    if found.keys() >= {OURS_DCP.name, DCP.name}:
        yield from _dcp_bars(found[OURS_DCP.name], found[DCP.name])


def tiny_bars(rows: Mapping[str, Row]) -> Iterator[Bar]:
    """Seconds, for a state of very many small tensors."""
    ours = rows.get(OURS.name)
    if ours is not None and ours.blocked_s:
        yield Bar("blocked, s", median(ours.blocked_s), TINY_BLOCKED_S)
        yield Bar("until durable, s", median(ours.durable_s), TINY_DURABLE_S)
        yield Bar("load, s", median(ours.load_s), TINY_LOAD_S)
        yield _exact_bar(ours)


def _copy_bars(ours: Row, rows: Mapping[str, Row]) -> Iterator[Bar]:
    if (copy := rows.get(COPY.name)) is not None:
        beside = median(ours.blocked_s) / median(copy.blocked_s)
        yield Bar("blocked, beside a bare copy", beside, BLOCKED_BESIDE_COPY)
    if (rust := rows.get(RUST.name)) is not None:
        yield Bar("blocked, beside Rust", median(ours.blocked_s) / median(rust.blocked_s), BLOCKED_BESIDE_RUST)


def _overlap_bars(ours: Row, rows: Mapping[str, Row]) -> Iterator[Bar]:
    yield Bar("overlap: blocked, s", median(ours.blocked_s), OVERLAP_SAVE_S)
    if (copy := rows.get(COPY.name)) is not None:
        beside = median(ours.window_s) / median(copy.blocked_s)
        yield Bar("overlap: all it adds until the optimizer steps, beside a bare copy", beside, OVERLAP_BESIDE_COPY)


def _common_bars(ours: Row, rows: Mapping[str, Row]) -> Iterator[Bar]:
    prefix = "overlap: " if ours.peer is OVERLAP else ""
    if (torch := rows.get(TORCH.name)) is not None:
        beside = median(ours.durable_s) / median(torch.durable_s)
        yield Bar(f"{prefix}until durable, beside torch.save + fsync", beside, DURABLE_BESIDE_TORCH)
    if (rust := rows.get(RUST.name)) is not None:
        beside = median(ours.durable_s) / median(rust.durable_s)
        yield Bar(f"{prefix}until durable, beside Rust", beside, DURABLE_BESIDE_RUST)
        beside = median(ours.extra_s) / median(rust.extra_s)
        yield Bar(f"{prefix}extra training time, beside Rust", beside, EXTRA_BESIDE_RUST)
        beside = percentile(ours.beside_s, 0.99) / percentile(rust.beside_s, 0.99)
        yield Bar(f"{prefix}p99 of steps beside a save, beside Rust", beside, STEP_BESIDE_RUST)
    yield Bar(f"{prefix}extra summed PSS over the state", median(ours.pss_bytes) / ours.state_bytes, TWO_ARENAS)
    yield _exact_bar(ours, prefix)


def _bf16_bars(ours: Row, rust: Row) -> Iterator[Bar]:
    beside = median(ours.stored_bytes) / median(rust.stored_bytes)
    yield Bar("bf16: bytes, beside Rust with bf16", beside, BF16_BYTES_BESIDE_RUST)
    beside = median(ours.durable_s) / median(rust.durable_s)
    yield Bar("bf16: until durable, beside Rust with bf16", beside, BF16_DURABLE_BESIDE_RUST)
    beside = median(ours.load_s) / median(rust.load_s)
    yield Bar("bf16: load, beside Rust with bf16", beside, BF16_LOAD_BESIDE_RUST)


def _dcp_bars(ours: Row, theirs: Row) -> Iterator[Bar]:
    yield Bar("DCP: blocked, beside its directory", median(ours.blocked_s) / median(theirs.blocked_s), BESIDE_DCP)
    beside = median(ours.durable_s) / median(theirs.durable_s)
    yield Bar("DCP: until durable, beside its directory", beside, BESIDE_DCP)
    yield _exact_bar(ours, "DCP: ")


def _exact_bar(ours: Row, prefix: str = "") -> Bar:
    return Bar(f"{prefix}loads of something else than was saved", sum(not same for same in ours.is_same), 0)
