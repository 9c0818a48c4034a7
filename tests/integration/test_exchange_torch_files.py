"""Files of torch and GGUF in model directories: what becomes of them, and that each comes back byte for byte."""

import os
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from moonclip import CheckpointManager
from store.beside.composed import Run
from tests.modeldirs import digests, recipe, write_gguf

Manager = CheckpointManager


@pytest.fixture
def mgr(tmp_path: Path) -> Iterator[Manager]:
    with CheckpointManager(tmp_path / "store", async_save=False) as made:
        yield made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


def test_a17_what_would_run_something_is_kept_as_the_file_it_is(
    mgr: Manager, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(Evil(), model / "training_args.bin")
    (model / "old.bin").write_bytes(pickle.dumps(Evil()))
    (model / "random_states_0.pkl").write_bytes(pickle.dumps(Evil()))
    torch.save({"lr": 0.5, "last": [1, 2]}, model / "scheduler.pt")
    made = mgr.import_model(model, base=None)
    assert made.items == ("scheduler", "files")
    assert made.kept.keys() == {"training_args.bin", "old.bin"}
    assert "could run code" in made.kept["training_args.bin"]
    assert mgr.load("main", items=["scheduler"])["scheduler"] == {"lr": 0.5, "last": [1, 2]}
    mgr.export("main", tmp_path / "out")
    assert digests(tmp_path / "out") == digests(model)
    assert not (tmp_path / "ran").exists()


def shared() -> dict[str, torch.Tensor]:
    base = torch.randn(500, 300)
    return {"whole": base, "same": base, "first": base[:100]}


def views() -> dict[str, torch.Tensor]:
    base = torch.randn(500, 300)
    return {"b": base[100:300], "a": base[300:], "one": torch.ones(1, 40)[:, ::2][:, :1]}


def test_tensors_that_share_memory(mgr: Manager, model: Path, tmp_path: Path) -> None:
    torch.save(shared(), model / "shared.pt")
    torch.save(views(), model / "views.pt")
    torch.save({"bit": torch.randn(1_000_000)[:10]}, model / "bit.pt")
    made = mgr.import_model(model, base=None)
    mgr.export("main", tmp_path / "out")
    assert digests(tmp_path / "out") == digests(model)
    assert made.kept.keys() == {"shared.pt", "bit.pt"}, "views fill most of their memory, in another order"
    loaded = mgr.load("main", items=["shared", "views"])
    told = torch.load(model / "views.pt", weights_only=True)
    assert all(torch.equal(loaded["views"][name], tensor) for name, tensor in told.items())
    assert torch.equal(loaded["shared"]["first"], loaded["shared"]["whole"][:100])


def test_states_of_any_form(mgr: Manager, model: Path, tmp_path: Path) -> None:
    states = {
        "tensor": torch.randn(70, 300),
        "list": [torch.randn(20_000), 3, {"deep": (torch.ones(30_000), None, "text")}],
        "keys": {0: torch.randn(20_000), "a/b": torch.randn(20_000), (1, "x"): torch.ones(3), "~": b"bytes"},
        "values": {"epoch": 3, "rng": list(range(1000)), "none": None, "set": {1, 2}},
        "parameter": nn.Parameter(torch.randn(20_000)),
        "half": {"w": torch.randn(50_000).to(torch.float16), "i": torch.ones(20_000, dtype=torch.uint16)},
    }
    for name, state in states.items():
        torch.save(state, model / f"{name}.pt")
    made = mgr.import_model(model, base=None)
    assert (made.kept, set(made.items)) == ({}, {*states, "files"})
    mgr.export("main", tmp_path / "out")
    assert digests(tmp_path / "out") == digests(model)
    loaded = mgr.load("main")
    assert torch.equal(loaded["tensor"], states["tensor"])  # type: ignore[call-overload]
    assert torch.equal(loaded["keys"][0], states["keys"][0])  # type: ignore[index]
    assert torch.equal(loaded["list"][2]["deep"][0], torch.ones(30_000))
    assert loaded["values"] == states["values"]
    composed = {path.removesuffix(".pt") for path in made.files if recipe(mgr, path) is not None}
    assert composed == states.keys() - {"values"}


def test_zips_that_torch_would_not_write(mgr: Manager, model: Path, tmp_path: Path) -> None:
    torch.save({"w": torch.randn(30_000)}, tmp_path / "m.pt")
    with zipfile.ZipFile(tmp_path / "m.pt") as whole:
        names = {info.filename: whole.read(info) for info in whole.infolist()}
    folder = next(iter(names)).partition("/")[0]
    for kind, compression in (("packed", zipfile.ZIP_DEFLATED), ("plain", zipfile.ZIP_STORED)):
        with zipfile.ZipFile(model / f"{kind}.pt", "w", compression) as archive:
            for name, data in names.items():
                archive.writestr(name, data)
    with zipfile.ZipFile(model / "big.pt", "w") as archive:
        for name, data in (names | {f"{folder}/byteorder": b"big"}).items():
            archive.writestr(name, data)
    (model / "cut.pt").write_bytes((tmp_path / "m.pt").read_bytes()[:-50])
    (model / "none.pt").touch()
    made = mgr.import_model(model, base=None)
    assert made.items == ("plain", "blobs", "files")
    assert {path: why.split(";")[0][:24] for path, why in made.kept.items()} == {
        "packed.pt": "its content is compresse",
        "big.pt": "its numbers are big-endi",
        "cut.pt": "it is not what torch.sav",
    }
    mgr.export("main", tmp_path / "out")
    assert digests(tmp_path / "out") == digests(model)


@pytest.mark.slow
def test_a_file_of_torch_as_transformers_writes_it(mgr: Manager, model: Path, tmp_path: Path) -> None:
    from transformers import BertConfig, BertForMaskedLM

    tiny = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=500)
    bert = BertForMaskedLM(tiny)
    bert.save_pretrained(model)
    torch.save(bert.state_dict(), model / "pytorch_model.bin")
    made = mgr.import_model(model, base=None)
    assert made.kept == {}
    parts = recipe(mgr, "pytorch_model.bin")
    assert parts is not None
    assert sum(part.stop - part.start for part in parts.parts if isinstance(part, Run)) > 0.8 * parts.size_bytes
    mgr.export("main", tmp_path / "out")
    assert digests(tmp_path / "out") == digests(model)
    again = BertForMaskedLM.from_pretrained(tmp_path / "out")
    assert all(map(torch.equal, again.state_dict().values(), bert.state_dict().values()))


# --- GGUF -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alignment", "version"), [(32, 3), (64, 2)])
def test_gguf_is_cut_where_its_tensors_begin(mgr: Manager, model: Path, alignment: int, version: int) -> None:
    sizes = {"a": 100_000, "b": 5_000_000, "c": 1_000, "d": 200_000}
    tensors = {name: os.urandom(size) for name, size in sizes.items()}
    starts = write_gguf(model / "m.gguf", tensors, alignment=alignment, version=version)
    mgr.import_model(model, base=None)
    repo = mgr._repo
    entry = dict(repo.tree(repo.commit(repo.resolve("main")), "blobs"))["m.gguf"]
    bounds = [sum(entry.cuts[:count]) for count in range(len(entry.cuts) + 1)]
    assert set(starts[1:3]) <= set(bounds)
    assert starts[3] not in bounds, "the small tensor before it shares its chunk"
    assert max(entry.cuts) == 4 << 20
    mgr.export("main", model.parent / "out")
    assert digests(model.parent / "out") == digests(model)
    tensors["b"] = os.urandom(sizes["b"])
    write_gguf(model / "m.gguf", {"another": b"12", **tensors}, alignment=alignment, version=version)
    assert mgr.import_model(model, base=None).stored_bytes < 5_200_000, "what did not change is there already"


def test_gguf_by_itself(mgr: Manager, model: Path) -> None:
    write_gguf(model / "m.gguf", {"a": os.urandom(300_000)})
    made = mgr.import_model(model / "m.gguf", base=None)
    assert (made.items, made.files) == (("blobs", "files"), ("m.gguf",))
    mgr.export("main", model.parent / "out")
    assert digests(model.parent / "out") == digests(model)


@pytest.mark.parametrize("at", [0, 4, 8, 20, 60])
def test_gguf_of_nothing_known_is_cut_by_its_content(mgr: Manager, model: Path, at: int) -> None:
    write_gguf(model / "m.gguf", {"a": os.urandom(3_000_000)})
    data = bytearray((model / "m.gguf").read_bytes())
    data[at : at + 8] = b"\xff" * 8
    (model / "m.gguf").write_bytes(data)
    (model / "cut.gguf").write_bytes(data[:30] + bytes(70_000))
    mgr.import_model(model, base=None)
    mgr.export("main", model.parent / "out")
    assert digests(model.parent / "out") == digests(model)
