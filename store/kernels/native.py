"""Compiled kernels from object code: loaded by LLVM's linker alone, called through ctypes, which releases the GIL.

Object code that was damaged would take the process with it: :mod:`store.kernels.cache` checks it first.
"""

import ctypes
import importlib
import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from ..limits import SAMPLE_WORDS
from .interface import ARGUMENTS, RESULTS, VARIANTS, WIDTHS, symbol
from .prefixes import MAX_DESCRIPTION_BYTES, SCRATCH_INTEGERS, SYMBOLS
from .reference import KEYS, WEIGHTS, Bytes, Counts, Runs, Words

_COUNT_TABLES: Final = 8
_BLOCK_WORDS: Final = 1024
"""What the kernels work on at a time; they trust that their scratch has room for it."""

_NUMBERS: Final = (*(4 * (SYMBOLS,)), MAX_DESCRIPTION_BYTES, SCRATCH_INTEGERS)
"""What a code is built in: counts, keys, depths, codes, their description, and scratch of it all."""


class _Scratch(threading.local):
    """What the kernels of one thread write to between two passes. Kept: it is in the cache then."""

    def __init__(self) -> None:
        self._arrays: tuple[Words, ...] = (
            np.empty(_BLOCK_WORDS, np.uint64),
            np.empty(max(_BLOCK_WORDS, _COUNT_TABLES * KEYS), np.int32),
            np.empty(_BLOCK_WORDS, np.uint8),
            np.empty(SAMPLE_WORDS, np.uint64),
            np.empty(SAMPLE_WORDS, np.uint8),
            np.zeros(KEYS * 256, np.int32),
            *(np.empty(count, np.int64) for count in _NUMBERS),
        )
        self.costs = np.empty((max(WIDTHS) + 1, 4), np.int64)
        self.costs_at = _at(self.costs)
        addresses = list(map(_at, self._arrays))
        self.block, self.cells, self.part, self.sample, self.keys, self.histogram, *self.numbers = addresses


class Native:
    """The kernels in a piece of object code. Arguments: :mod:`store.kernels.reference`. Thread-safe.

    Args:
        object_code: what :func:`store.kernels.building.build` made, undamaged.

    Raises:
        RuntimeError: a kernel is missing.
        Exception: whatever LLVM raises.

    Cost: 50 ms, most of them for importing LLVM.
    """

    def __init__(self, object_code: bytes) -> None:
        self._engine = _linked(object_code)  # the code lives as long as this
        self._functions = {variant: _function(self._engine, *variant) for variant in VARIANTS}
        self._scratch = _Scratch()
        self._weights = _at(WEIGHTS)

    def exponent_keys(self, base: Words, first_bit: int, mask: int, keys: Bytes, counts: Counts) -> None:
        """Twin: :func:`store.kernels.reference.exponent_keys`."""
        call = self._functions["exponent_keys", base.itemsize]
        call(_at(base), base.size, first_bit, mask, _at(keys), _at(counts), self._scratch.cells)

    def context_keys(self, codes: Bytes, columns: int, keys: Bytes, counts: Counts) -> None:
        """Twin: :func:`store.kernels.reference.context_keys`."""
        call = self._functions["context_keys", 1]
        rows = codes.size - columns
        call(_at(codes), rows, columns, _at(keys), keys.size, _at(counts), self._scratch.cells)

    def split(
        self,
        words: Words,
        base: Words,
        mapping: int,
        keys: Bytes,
        cursors: Counts,
        grouped_planes: int,
        planes: tuple[Bytes, ...],
    ) -> int:
        """Twin: :func:`store.kernels.reference.split`."""
        scratch, addresses = self._scratch, _addresses(planes)
        call = self._functions["split", words.itemsize]
        arguments = (_at(words), _at(base), words.size, mapping, _at(keys), _at(cursors), grouped_planes, addresses)
        return int(call(*arguments, scratch.block, scratch.cells))

    def join(
        self,
        planes: tuple[Bytes, ...],
        base: Words,
        mapping: int,
        keys: Bytes,
        cursors: Counts,
        grouped_planes: int,
        words: Words,
    ) -> None:
        """Twin: :func:`store.kernels.reference.join`."""
        scratch, addresses = self._scratch, _addresses(planes)
        call = self._functions["join", words.itemsize]
        arguments = (addresses, _at(base), words.size, mapping, _at(keys), _at(cursors), grouped_planes, _at(words))
        call(*arguments, scratch.block, scratch.cells, scratch.part)

    def order_costs(
        self,
        words: Words,
        base: Words,
        runs: Runs,
        mapping: int,
        key_field: tuple[int, int],
        min_weight: int,
    ) -> list[list[int]]:
        """Twin: :func:`store.kernels.reference.order_costs`."""
        scratch = self._scratch
        call = self._functions["order_costs", words.itemsize]
        arguments = (_at(words), _at(base), *runs, mapping, *key_field, min_weight)
        call(*arguments, self._weights, scratch.histogram, scratch.costs_at, scratch.sample, scratch.keys)
        costs: list[list[int]] = scratch.costs[: words.itemsize + 1].tolist()
        return costs

    def stream(self, target_at: int, source_at: int, size_bytes: int) -> None:
        """Twin: :func:`store.kernels.reference.stream`."""
        self._functions["stream", 1](target_at, source_at, size_bytes)

    def compress(self, plane: Bytes, ends: Counts, out: Bytes) -> int:
        """Twin: :func:`store.kernels.framing.compress`."""
        scratch = self._scratch
        call = self._functions["compress", 1]
        return int(call(_at(plane), plane.size, _at(ends), ends.size, _at(out), scratch.cells, *scratch.numbers))


def _linked(object_code: bytes) -> Any:
    llvm: Any = importlib.import_module("llvmlite.binding")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(object_code))
    engine.finalize_object()
    return engine


def _function(engine: Any, name: str, width_bytes: int) -> Callable[..., Any]:
    address = engine.get_function_address(symbol(name, width_bytes))
    if not address:
        raise RuntimeError(f"no kernel {name} for words of {width_bytes} bytes")
    kinds = [ctypes.c_int64 if letter == "i" else ctypes.c_void_p for letter in ARGUMENTS[name].split()]
    result = ctypes.c_uint64 if name in RESULTS else None
    return ctypes.CFUNCTYPE(result, *kinds)(address)


def _at(array: Words) -> int:
    """Where an array begins. NumPy's own answer takes longer than many a kernel."""
    if not array.size:
        return 0  # nobody looks there
    return ctypes.addressof(_any_bytes(array)) if array.flags.writeable else int(array.ctypes.data)


_any_bytes: Any = ctypes.c_char.from_buffer


def _addresses(planes: tuple[Bytes, ...]) -> Any:
    return (ctypes.c_void_p * len(planes))(*map(_at, planes))
