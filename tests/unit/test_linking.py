"""What LLVM makes becomes an image in which everything points to where it should, or is refused by name."""

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from store.kernels.image import ENTRY_BYTES, RUNTIME
from store.kernels.linking import linked
from store.kernels.relocations import MACHINES

llvm: Any = pytest.importorskip("llvmlite.binding")

X86_64, AARCH64 = "x86_64-linux-gnu", "aarch64-linux-gnu"
TRIPLES = [X86_64, AARCH64]
WIDTHS = {8: "i8", 16: "i16", 32: "i32", 64: "i64", 128: "<2 x i64>"}

LOADS = "\n".join(
    f"""
@constant{bits} = internal constant {kind} {"<i64 128, i64 128>" if bits == 128 else bits - 1}
define {kind} @load{bits}() {{
    %value = load volatile {kind}, {kind}* @constant{bits}
    ret {kind} %value
}}
"""
    for bits, kind in WIDTHS.items()
)
CALLS = """
declare i8* @memset(i8*, i32, i64)
declare i8* @memcpy(i8*, i8*, i64)
define i8* @outside(i8* %at, i64 %size) {
    %done = call i8* @memset(i8* %at, i32 7, i64 %size)
    %end = tail call i8* @memcpy(i8* %at, i8* %at, i64 %size)
    ret i8* %end
}
define i64 @inside(i64 %number) {
    %twice = call i64 @callee(i64 %number)
    %more = add i64 %twice, 1
    ret i64 %more
}
define i64 @callee(i64 %number) noinline {
    %twice = mul i64 %number, 2
    ret i64 %twice
}
"""
TABLE = """
@numbers = internal constant [3 x i32] [i32 271828, i32 314159, i32 161803]
define i32 @element(i64 %index) {
    %at = getelementptr [3 x i32], [3 x i32]* @numbers, i64 0, i64 %index
    %value = load i32, i32* %at
    ret i32 %value
}
"""


def compiled(source: str, triple: str) -> bytes:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple(triple)
    except RuntimeError:
        pytest.skip(f"this LLVM makes no code for {triple}")
    module = llvm.parse_assembly(source)
    module.triple = triple
    return bytes(target.create_target_machine(reloc="pic", codemodel="small", opt=2).emit_object(module))


def image_of(source: str, triple: str, *functions: str) -> tuple[bytes, list[int]]:
    """The code, and where the functions are."""
    image = linked(compiled(source, triple), functions)
    machine, count, size = struct.unpack_from("<16sII", image)
    assert machine.rstrip(b"\0").decode() == triple.partition("-")[0]
    assert len(image) == 24 + 4 * count + size
    return image[-size:], list(struct.unpack_from(f"<{count}I", image, 24))


def instructions(code: bytes, start: int) -> Iterator[tuple[int, int]]:
    """Words of an Arm function with their places, to its end."""
    for place in range(start, len(code), 4):
        (word,) = struct.unpack_from("<I", code, place)
        yield place, word
        if word == 0xD65F03C0 or word >> 26 == 0b000101:  # ret; b
            return


def signed(number: int, bits: int) -> int:
    return number - (number >> bits - 1 << bits)


def calls_of(code: bytes, start: int) -> list[int]:
    return [
        place + 4 * signed(word & 0x3FFFFFF, 26)
        for place, word in instructions(code, start)
        if word >> 26 in {0b000101, 0b100101}
    ]


def address_in(code: bytes, start: int) -> int:
    """What an Arm function points to with ``adrp``, and ``add`` or ``ldr`` after it."""
    address = -1
    for place, word in instructions(code, start):
        if word & 0x9F000000 == 0x90000000:
            pages = signed(word >> 29 & 3 | (word >> 5 & 0x7FFFF) << 2, 21)
            address = (place & -4096) + 4096 * pages
        elif address >= 0 and word & 0xFF800000 == 0x91000000:
            return address + (word >> 10 & 0xFFF)
        elif address >= 0 and word & 0x3B000000 == 0x39000000:
            is_vector_of_128 = word >> 26 & 1 and word >> 23 & 1
            return address + ((word >> 10 & 0xFFF) << (4 if is_vector_of_128 else word >> 30))
    raise AssertionError("no address")


@pytest.mark.parametrize("is_far", [False, True], ids=["same page", "another page"])
@pytest.mark.parametrize("bits", WIDTHS)
def test_arm_loads_point_to_their_constants(bits: int, is_far: bool) -> None:
    between = "define void @between() align 4096 {\n ret void\n}" if is_far else ""
    code, (function,) = image_of(LOADS + between, AARCH64, f"load{bits}")
    expected = struct.pack("<QQ", 128, 128) if bits == 128 else (bits - 1).to_bytes(bits // 8, "little")
    at = address_in(code, function)
    assert code[at : at + bits // 8] == expected
    assert (at >> 12 != function >> 12) == is_far


def test_arm_code_points_to_its_tables() -> None:
    code, (function,) = image_of(TABLE, AARCH64, "element")
    at = address_in(code, function)
    assert struct.unpack_from("<3i", code, at) == (271828, 314159, 161803)


def test_arm_calls_reach_what_they_call() -> None:
    code, (outside, inside, callee) = image_of(CALLS, AARCH64, "outside", "inside", "callee")
    assert calls_of(code, outside) == [RUNTIME.index("memset") * ENTRY_BYTES, RUNTIME.index("memcpy") * ENTRY_BYTES]
    assert calls_of(code, inside) == [callee]


def test_arm_entries_jump_to_the_address_beside_them() -> None:
    code, _ = image_of(CALLS, AARCH64, "inside")
    for index in range(len(RUNTIME)):
        load, jump, address = struct.unpack_from("<IIQ", code, index * ENTRY_BYTES)
        assert load & 0xFF00001F == 0x58000010  # ldr x16, this instruction's place plus
        assert signed(load >> 5 & 0x7FFFF, 19) * 4 == 8
        assert jump == 0xD61F0000 | 16 << 5  # br x16
        assert address == 0


DISTANCES = """
@first = internal constant i64 8128
@second = internal constant i64 33550336
@table = dso_local constant [2 x i32] [
    i32 trunc (i64 sub (i64 ptrtoint (i64* @first to i64), i64 ptrtoint ([2 x i32]* @table to i64)) to i32),
    i32 trunc (i64 sub (i64 ptrtoint (i64* @second to i64), i64 ptrtoint ([2 x i32]* @table to i64)) to i32)
]
"""


@pytest.mark.parametrize("triple", TRIPLES)
def test_tables_of_distances_lead_to_what_they_list(triple: str) -> None:
    code, (table,) = image_of(DISTANCES, triple, "table")
    distances = struct.unpack_from("<2i", code, table)
    assert [struct.unpack_from("<q", code, table + distance)[0] for distance in distances] == [8128, 33550336]


JUMPS = """
define i64 @choose(i64 %key) {
    switch i64 %key, label %other [ CASES ]
    ARMS
other:
    ret i64 0
}
""".replace("CASES", " ".join(f"i64 {key}, label %l{key}" for key in range(8))).replace(
    "ARMS",
    "\n".join(f"l{key}:\n ret i64 {3**key}" for key in range(8)),
)


def test_jump_tables_hold_distances_inside_the_image() -> None:
    """On x86-64 each is from the table's start, so filled in at a place of its own."""
    code, (function,) = image_of(JUMPS, X86_64, "choose")
    tables = [at for at in range(0, len(code) - 31, 4) if _is_jump_table(code, at, function)]
    assert tables


def _is_jump_table(code: bytes, at: int, function: int) -> bool:
    """Eight distances to eight places, each of them loading a power of three: ``mov eax, imm32``."""
    targets = [at + distance for distance in struct.unpack_from("<8i", code, at)]
    if not all(function <= target < len(code) - 5 for target in targets):
        return False
    return [code[target : target + 5] for target in targets] == [
        b"\xb8" + struct.pack("<I", 3**key) for key in range(8)
    ]


REFUSED = {
    "a function that no C library has": ("declare void @f()\ndefine void @g() {\n call void @f()\n ret void\n}", "'f'"),
    "data that changes": ("@d = global i64 7\ndefine i64 @g() {\n ret i64 1\n}", ".data"),
    "data that begins empty": ("@d = global i64 0\ndefine i64 @g() {\n ret i64 1\n}", ".bss"),
    "addresses in data": ("@d = constant i8* bitcast (void ()* @g to i8*)\ndefine void @g() {\n ret void\n}", ".data"),
    "data of others": ("@d = external global i64\ndefine i64 @g() {\n %v = load i64, i64* @d\n ret i64 %v\n}", "'d'"),
    "data of a thread": ("@d = thread_local global i64 7\ndefine i64 @g() {\n ret i64 1\n}", ".tdata"),
    "no such function": ("define void @f() {\n ret void\n}", "lacks ['g']"),
}


@pytest.mark.parametrize("triple", TRIPLES)
@pytest.mark.parametrize("case", REFUSED)
def test_what_an_image_cannot_hold_is_refused_by_name(case: str, triple: str) -> None:
    source, named = REFUSED[case]
    with pytest.raises(RuntimeError) as raised:
        linked(compiled(source, triple), ["g"])
    assert named in str(raised.value)


@pytest.mark.parametrize("triple", ["riscv64-linux-gnu", "i686-linux-gnu", "x86_64-apple-macosx", "s390x-linux-gnu"])
def test_other_machines_are_refused(triple: str) -> None:
    with pytest.raises(RuntimeError, match="compiled code"):
        linked(compiled("define void @g() {\n ret void\n}", triple), ["g"])


TOO_FAR = {
    (62, 2): 1 << 31,  # PC32
    (62, 4): -(1 << 31) - 1,  # PLT32
    (183, 261): 1 << 31,  # PREL32
    (183, 275): 1 << 32,  # ADR_PREL_PG_HI21
    (183, 283): 1 << 27,  # CALL26
}


@pytest.mark.parametrize(("machine", "kind"), TOO_FAR)
def test_what_is_too_far_away_is_refused(machine: int, kind: int) -> None:
    patch, target = MACHINES[machine].patches[kind], TOO_FAR[machine, kind]
    with pytest.raises(RuntimeError, match="does not fit"):
        patch(0, target, 0)
    patch(0, target - 4096 if target > 0 else target + 1, 0)


@pytest.mark.parametrize(("kind", "step"), [(283, 4), (282, 4), (284, 2), (285, 4), (286, 8), (299, 16)])
def test_what_lies_between_what_arm_can_say_is_refused(kind: int, step: int) -> None:
    MACHINES[183].patches[kind](0, 10 * step, 0)
    with pytest.raises(RuntimeError, match="no multiple"):
        MACHINES[183].patches[kind](0, 10 * step + step // 2, 0)
