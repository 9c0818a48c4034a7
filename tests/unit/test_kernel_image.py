"""An image comes into memory as it is, runs there, and leaves; what is none does not come in."""

import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store.kernels.image import ENTRY_BYTES, RUNTIME, Image, packed
from store.kernels.linking import linked
from tests.descriptors import left_open

HERE = os.uname().machine
PR_SET_MDWE = 65

SOURCE = """
declare i8* @memset(i8*, i32, i64)
declare i8* @memcpy(i8*, i8*, i64)
declare i8* @memmove(i8*, i8*, i64)
@cubes = internal constant [5 x i64] [i64 0, i64 1, i64 8, i64 27, i64 64]
define i64 @cube(i64 %index) {
    %at = getelementptr [5 x i64], [5 x i64]* @cubes, i64 0, i64 %index
    %value = load i64, i64* %at
    ret i64 %value
}
define i64 @cube_of_sum(i64 %left, i64 %right) {
    %sum = add i64 %left, %right
    %value = call i64 @cube(i64 %sum) noinline
    %more = add i64 %value, 1000
    ret i64 %more
}
define void @shuffle(i8* %to, i8* %from, i64 %size) {
    %next = getelementptr i8, i8* %to, i64 1
    call i8* @memcpy(i8* %to, i8* %from, i64 %size)
    call i8* @memmove(i8* %next, i8* %to, i64 %size)
    call i8* @memset(i8* %to, i32 33, i64 2)
    ret void
}
"""


def made() -> bytes:
    llvm: Any = pytest.importorskip("llvmlite.binding")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(reloc="pic", codemodel="small", opt=2)
    return linked(bytes(machine.emit_object(llvm.parse_assembly(SOURCE))), ["cube", "cube_of_sum", "shuffle"])


def function(address: int, *kinds: Any) -> Callable[..., int]:
    return ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(address)


def permissions_of(address: int) -> str:
    """As ``/proc/self/maps`` has them: empty where nothing is."""
    for line in Path("/proc/self/maps").read_text(encoding="ascii").splitlines():
        start, end = (int(part, 16) for part in line.split()[0].split("-"))
        if start <= address < end:
            return line.split()[1]
    return ""


def test_it_runs_with_its_constants_and_the_c_library() -> None:
    image = Image(made())
    cube, cube_of_sum, shuffle = image.addresses
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    assert [function(cube, number)(index) for index in range(5)] == [0, 1, 8, 27, 64]
    assert function(cube_of_sum, number, number)(1, 2) == 1027
    to = ctypes.create_string_buffer(b"." * 9, 9)
    function(shuffle, pointer, pointer, number)(ctypes.addressof(to), b"abcdef", 6)
    assert to.raw == b"!!bcdef.."


def test_it_can_be_run_but_never_written_and_goes_when_dropped() -> None:
    image = Image(made())
    address = image.addresses[0]
    assert permissions_of(address) == "r-xp"
    del image
    assert permissions_of(address) != "r-xp"


def test_children_have_it_too() -> None:
    image = Image(made())
    pid = os.fork()
    if not pid:
        os._exit(function(image.addresses[0], ctypes.c_int64)(3))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 27


def test_it_holds_no_descriptor() -> None:
    code = made()
    with left_open():
        image = Image(code)
    assert image.addresses


def test_a_system_that_runs_no_new_code_says_so() -> None:
    """As one under SELinux or systemd may: Linux can refuse it to a process that asks for that."""
    image = made()
    pid = os.fork()
    if not pid:
        if ctypes.CDLL(None).prctl(PR_SET_MDWE, 1, 0, 0, 0):
            os._exit(77)
        try:
            Image(image)
        except PermissionError as error:
            os._exit(0 if "may not run here" in str(error) else 2)
        os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == 77:
        pytest.skip("this Linux has no such switch")
    assert code == 0


CODE = bytes(ENTRY_BYTES * len(RUNTIME) + 16)
GOOD = packed(HERE, [48, 56], CODE)
REFUSED = {
    "nothing": b"",
    "part of a head": GOOD[:20],
    "no code": GOOD[: 24 + 8],
    "cut short": GOOD[:-1],
    "too long": GOOD + b"\0",
    "more functions than there are": struct.pack("<16sII", HERE.encode(), 1 << 31, len(CODE)) + GOOD[24:],
    "no room for entries": packed(HERE, [], bytes(16)),
    "a function behind the end": packed(HERE, [len(CODE)], CODE),
    "of another machine": packed("vax", [48, 56], CODE),
    "of a machine of a longer name": packed(HERE + "_32", [48, 56], CODE),
    "an object file": b"\x7fELF\x02\x01\x01" + bytes(300),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_image_of_this_machine_is_refused(case: str) -> None:
    with pytest.raises(ValueError, match="compiled kernels"):
        Image(REFUSED[case])


def test_an_image_of_this_machine_is_not_refused() -> None:
    first, second = Image(GOOD).addresses
    assert second - first == 8
