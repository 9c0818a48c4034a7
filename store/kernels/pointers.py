"""What the kernels' sources have in common: functions on bare memory, compiled into whatever calls them."""

# numba knows what these return, mypy does not.
# mypy: disable-error-code="arg-type,no-any-return"

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numba.core.types
import numba.extending
import numpy as np
from llvmlite import ir

from .reference import KEYS

_Function = TypeVar("_Function", bound=Callable[..., object])
Pointer = Any
COUNT_TABLES = 8

types: Any = numba.core.types
intrinsic: Any = numba.extending.intrinsic
_CASTS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def inner(function: _Function) -> _Function:
    """A function that kernels call."""
    return cast(_Function, numba.njit(error_model="numpy", boundscheck=False)(function))


def width_of(pointer: Pointer) -> int:
    """Bytes of what a pointer points to: known when a kernel is compiled."""
    raise NotImplementedError(pointer)


def narrow(pointer: Pointer, number: int) -> int:
    """A number as wide as what a pointer points to: arithmetic on more than that takes longer."""
    raise NotImplementedError(pointer, number)


def _always(width_bytes: int) -> Callable[[Pointer], int]:
    return lambda pointer: width_bytes  # noqa: ARG005


def _cast_to(cast_number: Callable[[int], int]) -> Callable[[Pointer, int], int]:
    return lambda pointer, number: cast_number(number)  # noqa: ARG005


# Lambdas, because numba wants both to have the very same arguments, annotations included.
numba.extending.overload(width_of)(lambda pointer: _always(pointer.dtype.bitwidth // 8))
numba.extending.overload(narrow)(lambda pointer, number: _cast_to(_CASTS[pointer.dtype.bitwidth]))  # noqa: ARG005


def _load_word(_context: Any, pointer: Any, _at: Any) -> Any:
    """Read eight bytes from any address: numba's own pointers read what they point to."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        address, at = arguments
        return builder.load(builder.bitcast(builder.gep(address, [at]), ir.IntType(64).as_pointer()), align=1)

    return types.uint64(pointer, types.int64), generate


def _store_word(_context: Any, pointer: Any, _at: Any, _word: Any) -> Any:
    """Write eight bytes to any address."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        address, at, word = arguments
        place = builder.bitcast(builder.gep(address, [at]), ir.IntType(64).as_pointer())
        builder.store(word, place, align=1)
        return context.get_dummy_value()

    return types.void(pointer, types.int64, types.uint64), generate


def _stream_line(_context: Any, target: Any, _source: Any, _at: Any) -> Any:
    """Copy 64 bytes to an address that is a multiple of 64, past the caches."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        to, source, at = arguments
        line = ir.VectorType(ir.IntType(64), 8).as_pointer()
        loaded = builder.load(builder.bitcast(builder.gep(source, [at]), line), align=1)
        stored = builder.store(loaded, builder.bitcast(builder.gep(to, [at]), line), align=64)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(target, target, types.int64), generate


def _fence(_context: Any) -> Any:
    """Have everybody see what went past the caches before what is written from now on."""

    def generate(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), generate


load_word: Any = intrinsic(_load_word)
stream_line: Any = intrinsic(_stream_line)
fence: Any = intrinsic(_fence)
store_word: Any = intrinsic(_store_word)


@inner
def clear_tables(tables: Pointer) -> None:
    """Forget what was counted."""
    for cell in range(COUNT_TABLES * KEYS):
        tables[cell] = 0


@inner
def tally(plane: Pointer, start: int, count: int, tables: Pointer) -> None:
    """Count bytes into eight tables: equal bytes in a row would wait for each other's increment."""
    whole = count & ~7
    for i in range(start, start + whole, 8):
        word = load_word(plane, i)
        for number in range(COUNT_TABLES):
            tables[np.int64((word >> np.uint64(8 * number)) & np.uint64(255)) + KEYS * number] += 1
    for i in range(start + whole, start + count):
        tables[np.int64(plane[i])] += 1


@inner
def add_tables(tables: Pointer, counts: Pointer) -> None:
    """How often each byte was counted."""
    for key in range(KEYS):
        total = np.int64(0)
        for number in range(COUNT_TABLES):
            total += tables[KEYS * number + key]
        counts[key] = total


@inner
def count_bytes(plane: Pointer, start: int, count: int, counts: Pointer, tables: Pointer) -> None:
    """How often each byte occurs."""
    clear_tables(tables)
    tally(plane, start, count, tables)
    add_tables(tables, counts)
