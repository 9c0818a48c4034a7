"""From the object file that LLVM makes to an image that needs no linker: :mod:`store.kernels.image`.

Every section that would be loaded is laid into the image, one after the other, and every distance between them filled
in. Whatever would need more than that, such as data that changes, or an address that only a process knows, is refused
by name: there are no compiled kernels then.

Source: System V ABI, chapter 4, "Object Files".
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from .image import ENTRY_BYTES, RUNTIME, packed
from .relocations import MACHINES, Machine

_FILE_HEAD: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_RELOCATION: Final = struct.Struct("<QQq")
_WORD: Final = struct.Struct("<I")

_ELF64_LITTLE_ENDIAN: Final = b"\x7fELF\x02\x01\x01"
_RELOCATABLE: Final = 1
_PROGBITS, _SYMTAB, _RELA, _NOTE, _REL = 1, 2, 4, 7, 9
_WRITTEN, _LOADED, _OF_A_THREAD = 0x1, 0x2, 0x400
_UNWINDING: Final = ".eh_frame"
"""Nobody is told of it, and nothing is ever thrown through a kernel."""

_UNDEFINED: Final = 0
_GLOBAL: Final = 1
_PAGE_BYTES: Final = 4096
"""What an image is aligned to at least."""


class _Section(NamedTuple):
    name: str
    kind: int
    flags: int
    data: bytes
    link: int
    info: int
    alignment: int


class _Symbol(NamedTuple):
    name: str
    binding: int
    section: int
    offset: int


def linked(object_code: bytes, functions: Sequence[str]) -> bytes:
    """An image of an object file.

    Args:
        object_code: a relocatable ELF file, as LLVM makes it for ``reloc="pic"`` and ``codemodel="small"``.
        functions: names of those that will be called, in the order the image lists them.

    Raises:
        RuntimeError: one of them is missing, or the code needs something that an image cannot give it.
    """
    machine, sections = _read(object_code)
    places, size_bytes = _laid_out(sections)
    code = bytearray(size_bytes)
    for index in range(len(RUNTIME)):
        code[index * ENTRY_BYTES : index * ENTRY_BYTES + len(machine.entry)] = machine.entry
    for index, place in places.items():
        code[place : place + len(sections[index].data)] = sections[index].data
    symbols = _symbols(sections)
    for index, place in places.items():
        for relocations in _relocations_of(index, sections):
            _relocate(code, place, machine, relocations.data, symbols, places)
    found = {symbol.name: symbol for symbol in symbols if symbol.binding == _GLOBAL and symbol.section in places}
    if not found.keys() >= set(functions):
        raise RuntimeError(f"compiled code lacks {sorted(set(functions) - found.keys())}")
    return packed(machine.name, [_target(found[name], places) for name in functions], bytes(code))


def _read(object_code: bytes) -> tuple[Machine, list[_Section]]:
    ident, kind, machine, _, _, _, section_at, *_, section_count, names_index = _FILE_HEAD.unpack_from(object_code)
    if not ident.startswith(_ELF64_LITTLE_ENDIAN) or kind != _RELOCATABLE:
        raise RuntimeError("compiled code is no relocatable ELF file of 64 bits, little-endian")
    if machine not in MACHINES:
        raise RuntimeError(f"compiled code for processors of kind {machine} is not linked here")
    heads = [_SECTION.unpack_from(object_code, section_at + i * _SECTION.size) for i in range(section_count)]
    names = _data(object_code, heads[names_index])
    return MACHINES[machine], [
        _Section(_text(names, head[0]), head[1], head[2], _data(object_code, head), head[6], head[7], head[8])
        for head in heads
    ]


def _data(object_code: bytes, head: tuple[int, ...]) -> bytes:
    return object_code[head[4] : head[4] + head[5]]


def _text(names: bytes, at: int) -> str:
    return names[at : names.index(b"\0", at)].decode()


def _laid_out(sections: Sequence[_Section]) -> tuple[dict[int, int], int]:
    """Where each section comes to lie, and the size of it all, entries before."""
    places = {}
    end = len(RUNTIME) * ENTRY_BYTES
    for index, section in enumerate(sections):
        if not section.flags & _LOADED or section.kind == _NOTE or section.name == _UNWINDING:
            continue
        if section.kind != _PROGBITS or section.flags & (_WRITTEN | _OF_A_THREAD) or section.alignment > _PAGE_BYTES:
            raise RuntimeError(f"compiled code has a section {section.name}, which an image cannot hold")
        alignment = max(1, section.alignment)
        places[index] = -(-end // alignment) * alignment
        end = places[index] + len(section.data)
    return places, end


def _symbols(sections: Sequence[_Section]) -> list[_Symbol]:
    (table,) = (section for section in sections if section.kind == _SYMTAB)
    names = sections[table.link].data
    return [
        _Symbol(_text(names, name_at), info >> 4, section, offset)
        for name_at, info, _, section, offset, _ in _SYMBOL.iter_unpack(table.data)
    ]


def _relocations_of(index: int, sections: Sequence[_Section]) -> Iterator[_Section]:
    for section in sections:
        if section.kind == _REL and section.info == index:
            raise RuntimeError(f"compiled code has a section {section.name}, whose form is not known")
        if section.kind == _RELA and section.info == index:
            yield section


def _relocate(
    code: bytearray,
    start: int,
    machine: Machine,
    relocations: bytes,
    symbols: Sequence[_Symbol],
    places: dict[int, int],
) -> None:
    for offset, info, addend in _RELOCATION.iter_unpack(relocations):
        symbol, kind = symbols[info >> 32], info & 0xFFFFFFFF
        if kind not in machine.patches:
            raise RuntimeError(f"compiled code has a relocation of kind {kind} for {symbol.name!r} ({machine.name})")
        place = start + offset
        (word,) = _WORD.unpack_from(code, place)
        _WORD.pack_into(code, place, machine.patches[kind](word, _target(symbol, places) + addend, place))


def _target(symbol: _Symbol, places: dict[int, int]) -> int:
    """Where a symbol is, from the image's start."""
    if symbol.section in places:
        return places[symbol.section] + symbol.offset
    if symbol.section == _UNDEFINED and symbol.name in RUNTIME:
        return RUNTIME.index(symbol.name) * ENTRY_BYTES
    raise RuntimeError(f"compiled code would need {symbol.name!r}")
