"""What fuzzing found in decoders, and what a few bytes must not become: gigabytes, or hours."""

import subprocess
import sys
from pathlib import Path

import pytest

from store.errors import Corrupt
from store.format import values
from store.format.objects import Commit, TreeNode
from store.limits import MAX_CONDEMNED_PACKS, MAX_DIMENSIONS, MAX_TREE_NODES
from store.remotes.condemned import decode_condemned, encode_condemned
from tools.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]

_COUNT = MAX_TREE_NODES + 1


def listed(item: bytes) -> bytes:
    return b"\xa1gentries\x9a" + _COUNT.to_bytes(4, "big") + item * _COUNT


@pytest.mark.parametrize("item", [b"\x80", b"\xa0", b"\x62ab", b"\x42ab", b"\x19\x01\x00", b"\xf6"])
@pytest.mark.parametrize("decode", [TreeNode.decode, Commit.decode])
def test_f10_an_object_of_too_many_items_is_refused(decode: type, item: bytes) -> None:
    with pytest.raises(Corrupt, match="more than 2,500,000 items"):
        decode(listed(item))


@pytest.mark.parametrize("head", [b"\x9b", b"\xbb", b"\x5b", b"\x7b", b"\x9a", b"\x5a"])
def test_f10_lengths_without_content_take_no_memory(head: bytes) -> None:
    width_bytes = 8 if head[0] & 1 else 4
    with pytest.raises(Corrupt):
        TreeNode.decode(b"\xa1gentries" + head + (1 << (8 * width_bytes - 2)).to_bytes(width_bytes, "big"))


def test_f10_a_tensor_of_too_many_dimensions_is_refused() -> None:
    """Multiplying them is what would take hours."""
    count = 500_000
    shape = b"eshape\x9a" + count.to_bytes(4, "big") + (b"\x1b\x7f" + b"\xff" * 7) * count
    encoded = b"\xa1gentries\x81\x82aa\xa1ftensor\xa4edtypegfloat32fpieces\x80hposition\x00" + shape
    with pytest.raises(Corrupt, match="500000 dimensions"):
        TreeNode.decode(encoded)
    assert count > MAX_DIMENSIONS


@pytest.mark.parametrize("body", [b"[]," * 1000 + b"[]", b"{}," * 1000 + b"{}"])
def test_f10_a_list_of_condemned_packs_holds_nothing_else(body: bytes) -> None:
    with pytest.raises(Corrupt, match="no list of packs"):
        decode_condemned(b'{"packs": {"x": [' + body + b"]}}", "1")


def test_f10_a_list_of_condemned_packs_is_no_longer_than_one_can_be() -> None:
    longest = {f"{number:064x}": 1 for number in range(MAX_CONDEMNED_PACKS)}
    assert len(decode_condemned(encode_condemned(longest, longest, "0" * 32), "1").packs) == MAX_CONDEMNED_PACKS
    text = b",".join(b'"%x":1' % number for number in range(2 * MAX_CONDEMNED_PACKS + 10))
    with pytest.raises(Corrupt, match="no list of packs"):
        decode_condemned(b'{"packs": {' + text + b"}}", "1")


def test_text_whose_bytes_are_text_is_no_value() -> None:
    with pytest.raises(Corrupt):
        values.decode(b"\x82\x64text\x64dict")


@pytest.mark.parametrize("name", [name for name in TARGETS if name != "fetch"])
def test_targets_of_the_fuzzer_pass_over_their_seeds(name: str) -> None:
    for data in TARGETS[name].seeds():
        TARGETS[name].run(data)


BOMBS = """
import sys
from store.format.objects import Kind, TreeNode
from store.ids import ObjectId, TreeId
from store.remotes.fetching.fetch import fetch
from store.format.objects import Commit
from store.repository import Repository
from tests.remotes.hostile import chunk, commit_object, content, tree, tried
heads = 0x80, 0xA0, 0xF6, 0
bombs = [tree(b"\\xa1gentries\\x9a\\x03\\xff\\xff\\xf0" + bytes([item]) * (0x3FFFFF0)) for item in heads]
bombs += [tree(bytes((64 << 20) - number)) for number in range(12)]
made = commit_object(Commit({f"item{number}": TreeId(bomb.header.id) for number, bomb in enumerate(bombs)}))
keys = content([*bombs, made], {"branches/main": made.header.id})
size_bytes = sum(map(len, keys.values()))
assert size_bytes < 2 << 20, size_bytes
with Repository.init(sys.argv[1], thread_count=4) as repo:
    assert "cannot be fetched" in tried(repo, keys)
    assert repo.refs.list() == {}
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
def test_f10_decompression_bombs_take_little_memory(tmp_path: Path) -> None:
    """Sixteen trees of 64 MiB each, in a few kilobytes: a process that takes them all apart needs 300 MB more."""
    prepared = "import store.remotes.fetching.fetch, tests.remotes.hostile\n"
    tell = 'print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))'
    idle_kb = int(_told(prepared + tell, str(tmp_path / "none")))
    assert int(_told(BOMBS, str(tmp_path / "store"))) - idle_kb < 300_000


def _told(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.split()[-1]
