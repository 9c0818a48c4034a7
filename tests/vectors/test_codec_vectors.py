"""Frozen payloads: what they decode to, and which are refused. Only ever added to."""

import json
from pathlib import Path
from typing import Any

import pytest

from store import codec, kernels
from store.format.dtypes import Element
from store.errors import Corrupt, Incompatible
from tests.vectors import plain_codec

FOLDER = Path(__file__).parent / "codec"
GOOD: list[dict[str, Any]] = json.loads((FOLDER / "good.json").read_text())
BAD: list[dict[str, Any]] = json.loads((FOLDER / "bad.json").read_text())


def decode(vector: dict[str, Any], raw_bytes: int) -> bytes:
    base = None if vector["base"] is None else memoryview(bytes.fromhex(vector["base"]))
    payload, out = memoryview(bytes.fromhex(vector["payload"])), memoryview(bytearray(raw_bytes))
    element = Element(vector["element"])
    codec.decode(vector["transform"], vector["grouped"], element, payload, raw_bytes, base, out)
    return bytes(out)


@pytest.mark.parametrize("vector", GOOD, ids=lambda vector: vector["name"])
@pytest.mark.parametrize("compiled", [False, True], ids=["twins", "compiled"])
def test_frozen_payload_decodes(vector: dict[str, Any], compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if compiled and not kernels.warm():
        pytest.skip("numba does not work here")
    if not compiled:
        monkeypatch.setattr(kernels._loader, "chosen", kernels.reference)
    raw = bytes.fromhex(vector["raw"])
    assert decode(vector, len(raw)) == raw


@pytest.mark.parametrize("vector", GOOD, ids=lambda vector: vector["name"])
def test_frozen_payload_decodes_by_the_document_alone(vector: dict[str, Any]) -> None:
    raw = bytes.fromhex(vector["raw"])
    base = None if vector["base"] is None else bytes.fromhex(vector["base"])
    payload = bytes.fromhex(vector["payload"])
    decoded = plain_codec.decode(vector["transform"], vector["grouped"], vector["element"], payload, len(raw), base)
    assert decoded == raw


@pytest.mark.parametrize("vector", BAD, ids=lambda vector: vector["name"])
def test_bad_payload_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises({"Corrupt": Corrupt, "Incompatible": Incompatible}[vector["error"]]):
        decode(vector, vector["raw_bytes"])
