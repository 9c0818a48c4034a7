"""What the kernels' sources have in common: functions on bare memory, compiled into whatever calls them."""

# numba knows what these return, mypy does not.
# mypy: disable-error-code="arg-type,no-any-return"

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import llvmlite.binding as llvm
import numba
import numba.core.cgutils
import numba.core.types
import numba.extending
import numpy as np
from llvmlite import ir

from .reference import KEYS
from .scratch import COUNT_TABLES

_Function = TypeVar("_Function", bound=Callable[..., object])
Pointer = Any

types: Any = numba.core.types
cgutils: Any = numba.core.cgutils
intrinsic: Any = numba.extending.intrinsic
_CASTS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def inner(function: _Function) -> _Function:
    """A function that kernels call."""
    return cast(_Function, numba.njit(error_model="numpy", boundscheck=False)(function))


def make_known(*functions: Callable[..., object]) -> None:
    """Let functions of plain Python be called by others that are compiled."""
    for function in functions:
        numba.extending.register_jitable(error_model="numpy", boundscheck=False)(function)


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


def _load_cell(_context: Any, pointer: Any, _at: Any) -> Any:
    """Read four bytes from any address."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        address, at = arguments
        cell = builder.load(builder.bitcast(builder.gep(address, [at]), ir.IntType(32).as_pointer()), align=1)
        return builder.zext(cell, ir.IntType(64))

    return types.uint64(pointer, types.int64), generate


def _behind(_context: Any, pointer: Any, _offset: Any) -> Any:
    """A pointer to so many bytes behind."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.gep(arguments[0], [arguments[1]])

    return pointer(pointer, types.int64), generate


def _count_zeros(_context: Any, _word: Any) -> Any:
    """How many zeros there are below the lowest one in a word that has one."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), generate


def _place_like(_context: Any, pointers: Any, _number: Any, like: Any) -> Any:
    """One of several pointers, as a pointer to what another one points to."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = builder.load(builder.gep(arguments[0], [arguments[1]]))
        return builder.bitcast(address, context.get_value_type(signature.return_type))

    return like(pointers, types.int64, like), generate


def _place_of(kind: Any) -> Callable[..., Any]:
    """One of several pointers, as a pointer to numbers of a kind."""

    def typed(context: Any, pointers: Any, number: Any) -> Any:
        signature, generate = _place_like(context, pointers, number, types.CPointer(kind))
        return signature.return_type(*signature.args[:2]), generate

    return typed


def _pointer_to(kind: Any) -> Callable[..., Any]:
    """A pointer as one to numbers of a kind."""

    def typed(_context: Any, pointer: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(pointer), generate

    return typed


def _bits_as(kind: Any, width: Callable[[], Any]) -> Callable[..., Any]:
    """The same 32 bits as a number of another kind."""

    def typed(_context: Any, number: Any) -> Any:
        def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], width())

        return kind(number), generate

    return typed


def _permute(_context: Any, source: Any, _at: Any, _tables: Any, _table: Any, _out: Any, _to: Any) -> Any:
    """For 64 bytes at once, what a table of 256 bytes has for each."""
    line, eighth = ir.VectorType(ir.IntType(8), _LINE_BYTES), ir.IntType(8)

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        address, at, tables, table, out, to = arguments

        def place(pointer: Any, offset: Any) -> Any:
            return builder.bitcast(builder.gep(pointer, [offset]), line.as_pointer())

        permute = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(line, [line] * 3), "llvm.x86.avx512.vpermi2var.qi.512"
        )
        quarters = [
            builder.load(place(tables, builder.add(table, ir.Constant(ir.IntType(64), first))), align=1)
            for first in range(0, 256, _LINE_BYTES)
        ]
        symbols = builder.load(place(address, at), align=1)
        lower = builder.call(permute, [quarters[0], symbols, quarters[1]])
        upper = builder.call(permute, [quarters[2], symbols, quarters[3]])
        is_upper = builder.icmp_signed("<", symbols, ir.Constant(line, [ir.Constant(eighth, 0)] * _LINE_BYTES))
        builder.store(builder.select(is_upper, upper, lower), place(out, to), align=1)
        return context.get_dummy_value()

    return types.void(source, types.int64, source, types.int64, source, types.int64), generate


_LINE_BYTES = 64
_HAS_BYTE_TABLES: Final = bool(llvm.get_host_cpu_features().get("avx512vbmi"))
"""Whether this processor looks bytes up in a table that its registers hold."""

behind: Any = intrinsic(_behind)
like_in: Any = intrinsic(_place_like)
bytes_in: Any = intrinsic(_place_of(types.uint8))
cells_in: Any = intrinsic(_place_of(types.int32))
counts_in: Any = intrinsic(_place_of(types.int64))
numbers_in: Any = intrinsic(_place_of(types.float64))
bytes_at: Any = intrinsic(_pointer_to(types.uint8))
pairs_at: Any = intrinsic(_pointer_to(types.uint16))
fours_at: Any = intrinsic(_pointer_to(types.uint32))
eights_at: Any = intrinsic(_pointer_to(types.uint64))
doubles_at: Any = intrinsic(_pointer_to(types.float64))
singles_in: Any = intrinsic(_place_of(types.float32))
fours_in: Any = intrinsic(_place_of(types.uint32))
single_of: Any = intrinsic(_bits_as(types.float32, ir.FloatType))
"""A single from its word, which is 32 bits wide."""
word_of: Any = intrinsic(_bits_as(types.uint32, lambda: ir.IntType(32)))
"""The word of a single."""
words_in: Any = intrinsic(_place_of(types.uint64))
load_cell: Any = intrinsic(_load_cell)
_look_up_line: Any = intrinsic(_permute)
load_word: Any = intrinsic(_load_word)
stream_line: Any = intrinsic(_stream_line)
fence: Any = intrinsic(_fence)
store_word: Any = intrinsic(_store_word)
trailing_zeros: Any = intrinsic(_count_zeros)


@inner
def look_up(source: Pointer, start: int, count: int, tables: Pointer, table: int, out: Pointer, to: int) -> None:
    """What a table of 256 bytes has for each byte."""
    done = 0
    if _HAS_BYTE_TABLES:
        done = count & ~63
        for at in range(0, done, _LINE_BYTES):
            _look_up_line(source, start + at, tables, table, out, to + at)
    for at in range(done, count):
        out[to + at] = tables[table + np.int64(source[start + at])]


@inner
def put_number(out: Pointer, at: int, size_bytes: int, number: int) -> None:
    """Write a number, its lowest byte first."""
    for i in range(size_bytes):
        out[at + i] = np.uint8(number >> (8 * i))


@inner
def copy(source: Pointer, start: int, count: int, out: Pointer, to: int) -> None:
    """Copy bytes; from one place to an earlier one they may overlap."""
    for i in range(count):
        out[to + i] = source[start + i]


@inner
def fill(out: Pointer, to: int, count: int, byte: int) -> None:
    """Write the same byte so many times."""
    for i in range(count):
        out[to + i] = np.uint8(byte)


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
