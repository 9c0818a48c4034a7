"""Golden packs hold the format fixed; bad ones say what must be refused, and how."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from store import codec, errors
from store.disk.files import Files
from store.format import pack, whole
from store.format.objects import Commit, Kind, TreeNode
from store.ids import ObjectId, PackId, chunk_id, commit_id, tree_id
from store.reading.decoding import decode_chunk
from store.reading.packs import PackStore
from tests import packing
from tools import decode_pack

FOLDER = Path(__file__).parent / "packs"
GOLDEN = sorted(path.stem for path in FOLDER.glob("*.pack"))
BAD: dict[str, Any] = json.loads((FOLDER / "bad" / "expected.json").read_text())
KINDS_OF_ERROR = {"corrupt": errors.Corrupt, "incompatible": errors.Incompatible}
HASH = {Kind.CHUNK: chunk_id, Kind.TREE: tree_id, Kind.COMMIT: commit_id}


def listing(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


def verify(data: bytes, pack_id: PackId, directory: Path) -> PackStore:
    packing.place(directory, data, pack_id)
    store = PackStore(Files(), directory)
    packing.verified(store, pack_id)
    return store


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_pack_decodes_to_its_ids(tmp_path: Path, name: str) -> None:
    expected = listing(name)
    pack_id = PackId(bytes.fromhex(expected["pack"]))
    store = verify((FOLDER / f"{name}.pack").read_bytes(), pack_id, tmp_path)
    contents: dict[ObjectId, bytes] = {}
    for entry, listed in zip(store.table(pack_id).entries, expected["objects"], strict=True):
        header, payload = store.read_entry(pack_id, entry)
        out = bytearray(header.raw_bytes)
        base = memoryview(contents[header.base]) if header.base else None
        decode_chunk(header, payload, base, memoryview(out))
        contents[header.id] = bytes(out)
        assert HASH[header.kind](out) == header.id == bytes.fromhex(listed["id"])
        assert (header.kind.name, header.transform.name) == (listed["kind"], listed["transform"])
        assert (header.element.name, header.grouped) == (listed["element"], listed["grouped"])
        assert header.viewed == listed.get("viewed", False)


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_pack_encodes_to_the_same_bytes(tmp_path: Path, name: str) -> None:
    data = (FOLDER / f"{name}.pack").read_bytes()
    pack_id = PackId(bytes.fromhex(listing(name)["pack"]))
    store = verify(data, pack_id, tmp_path)
    objects = [store.read_entry(pack_id, entry) for entry in store.table(pack_id).entries]
    assert packing.join([pack.seal(header, [payload]) for header, payload in objects]) == data


def test_the_golden_packs_use_all_there_is() -> None:
    objects = [each for name in GOLDEN for each in listing(name)["objects"]]
    assert {each["kind"] for each in objects} == {kind.name for kind in Kind}
    assert {each["transform"] for each in objects} == {transform.name for transform in codec.Transform}
    assert {each["element"] for each in objects} == {element.name for element in pack.Element}
    assert {(each["transform"], each["grouped"]) for each in objects} >= {("PLANES", True), ("DIFF", True)}
    assert {(each["element"], each["grouped"]) for each in objects if each.get("viewed")} == {
        *((element.name, False) for element in pack.Element),
        ("BF16", True),
    }


def test_golden_trees_and_commits_mean_something(tmp_path: Path) -> None:
    pack_id = PackId(bytes.fromhex(listing("history")["pack"]))
    store = verify((FOLDER / "history.pack").read_bytes(), pack_id, tmp_path)
    for entry in store.table(pack_id).entries:
        header, payload = store.read_entry(pack_id, entry)
        if header.kind is Kind.COMMIT:
            assert Commit.decode(payload).step == 7
        if header.kind is Kind.TREE:
            assert len(TreeNode.decode(whole.decompress(payload, header.raw_bytes, "object")).entries) == 50


@pytest.mark.parametrize("name", BAD)
def test_a_bad_pack_is_refused_as_expected(tmp_path: Path, name: str) -> None:
    data = (FOLDER / "bad" / f"{name}.pack").read_bytes()
    try:
        pack_id = packing.id_of(data)
    except errors.MoonclipError:
        pack_id = PackId(bytes(32))
    if name == "table-other":
        pack_id = PackId(bytes(32))
    with pytest.raises(KINDS_OF_ERROR[BAD[name]["error"]], match=BAD[name]["message"]) as caught:
        verify(data, pack_id, tmp_path)
    assert caught.value.details["pack"] == pack_id.hex()


# --- the decoder that shares nothing with the store -------------------------------------------------------------------


def test_the_independent_decoder_decodes_every_golden_object() -> None:
    command = [sys.executable, decode_pack.__file__, *(str(FOLDER / f"{name}.pack") for name in GOLDEN)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = [json.loads(line) for line in output.splitlines()]
    assert [line["id"] for line in lines] == [each["id"] for name in GOLDEN for each in listing(name)["objects"]]
    assert all(line["decoded"] for line in lines)


@pytest.mark.parametrize("name", BAD)
def test_the_independent_decoder_refuses_every_bad_pack(name: str) -> None:
    data = (FOLDER / "bad" / f"{name}.pack").read_bytes()
    with pytest.raises(decode_pack.BadPack):
        decode_pack.read_pack(data)


def test_the_independent_decoder_imports_nothing_of_the_store() -> None:
    code = f"import runpy, sys; runpy.run_path({decode_pack.__file__!r}); print(sorted(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd="/").stdout
    assert "'numpy'" in output
    assert "'store'" not in output
