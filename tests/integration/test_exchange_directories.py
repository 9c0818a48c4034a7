"""Model directories: every file comes back byte for byte, whatever it is."""

import errno
import os
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from moonclip import CheckpointManager, Conflict, Corrupt, Incompatible, NotFound, Unsafe
from moonclip.exchange import filesout
from moonclip.exchange.importing import Searching, Wanted, import_files
from moonclip.exchange.ranges import Ranges
from moonclip.exchange.sources import Source, given_in
from store.beside.composed import Composed
from store.beside.files import files_in
from store.disk.files import Files
from store.repository import Repository
from store.saving.inputs import Input, ItemInput, MadeInput
from tests.modeldirs import awkward, digests, recipe

Manager = CheckpointManager


@pytest.fixture
def mgr(tmp_path: Path) -> Iterator[Manager]:
    with CheckpointManager(tmp_path / "store", async_save=False) as made:
        yield made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return tmp_path / "model"


def test_a_directory_with_one_of_everything_comes_back(mgr: Manager, tmp_path: Path) -> None:
    directory = awkward(tmp_path / "in")
    made = mgr.import_model(directory, base=None)
    written = mgr.export(made.id, tmp_path / "out")
    assert digests(tmp_path / "out") == digests(directory)
    assert written.files == tuple(sorted(digests(directory)))
    assert not (tmp_path / "out" / "weights.dat").is_symlink()
    assert made.items == (
        "2_Dense/model",
        "adapter",
        "model",
        "optimizer",
        "pytorch_model",
        "blobs",
        "files",
    )
    assert made.kept.keys() == {"2_Dense/deep/fp4.safetensors", "legacy.bin", "strided.pt"}
    assert "'F4'" in made.kept["2_Dense/deep/fp4.safetensors"]
    assert "since version 1.6" in made.kept["legacy.bin"]
    assert "does not lie in C order" in made.kept["strided.pt"]
    composed = {path for path in made.files if (found := recipe(mgr, path)) and len(found.parts) > 1}
    assert composed == {
        "2_Dense/model.safetensors",
        "adapter_model.safetensors",
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "optimizer.pt",
        "pytorch_model.bin",
    }


def test_what_it_holds_is_loaded_like_any_other_state(mgr: Manager, tmp_path: Path) -> None:
    directory = awkward(tmp_path / "in")
    mgr.import_model(directory, base=None)
    loaded = mgr.load("main")
    assert loaded["model"].keys() == {"a", "b", "c", "d"}
    assert loaded["2_Dense/model"]["none"].shape == (0, 4)
    assert loaded["2_Dense/model"].keys() == {"z/1", "none", "a~", "zero"}
    assert loaded["files"]["config.json"] == b'{"hidden_size": 384}\n'
    assert loaded["files"]["1_Pooling"]["config.json"] == b"{}"
    assert isinstance(loaded["files"]["model.gguf"], Composed)
    assert bytes(loaded["blobs"]["tokenizer.json"].numpy()) == (directory / "tokenizer.json").read_bytes()
    told = torch.load(directory / "optimizer.pt", weights_only=True)
    assert loaded["optimizer"]["param_groups"] == told["param_groups"]
    assert torch.equal(loaded["optimizer"]["state"][0]["exp_avg"], told["state"][0]["exp_avg"])
    tied = loaded["pytorch_model"]
    assert tied["1.weight"].data_ptr() == tied["2.weight"].data_ptr()
    assert type(tied) is type(nn.Linear(1, 1).state_dict())


def test_a_run_takes_up_from_an_import_and_others_formats_are_as_before(
    mgr: Manager, model: Path, tmp_path: Path
) -> None:
    made = nn.Linear(100, 50)
    save_file(made.state_dict(), model / "model.safetensors")
    (model / "config.json").write_text("{}")
    mgr.import_model(model, branch="base", base=None)
    fresh = nn.Linear(100, 50)
    mgr.resume(rev="base", branch="finetune", model=fresh)
    assert torch.equal(fresh.weight, made.weight)
    mgr.save(step=1, model=fresh)
    assert mgr.bound_branch == "finetune"
    assert list(torch.load(mgr.export("base", tmp_path / "m.pt").path, weights_only=True)) == ["model"]
    assert mgr.export("base", tmp_path / "hf", format="hf").items == ("model",)
    assert mgr.export("base", tmp_path / "m.safetensors").left_out == ()
    assert mgr.export("base", tmp_path / "dir", format="dir").items == ("model",)


def test_the_bound_branch_goes_on_from_what_was_imported_onto_it(mgr: Manager, model: Path) -> None:
    save_file({"w": torch.ones(300)}, model / "model.safetensors")
    mgr.save(step=1, model={"w": torch.zeros(300)})
    made = mgr.import_model(model, step=2)
    mgr.save(step=3, model={"w": torch.zeros(300)})
    assert [each.id for each in mgr.log()][1] == made.id


# --- lineage --------------------------------------------------------------------------------------------------------


def weights(seed: int, change: float = 0.0) -> dict[str, torch.Tensor]:
    base = torch.randn(400, 300, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
    return {"layer.weight": base + change * torch.randn(400, 300).to(torch.bfloat16)}


def test_what_a_model_comes_from_is_found_named_or_not_asked_for(mgr: Manager, tmp_path: Path) -> None:
    for name, seed, change in (("base", 1, 0.0), ("other", 2, 0.0), ("tuned", 1, 1e-3)):
        (tmp_path / name).mkdir()
        save_file(weights(seed, change), tmp_path / name / "model.safetensors")
    base = mgr.import_model(tmp_path / "base", branch="base")
    other = mgr.import_model(tmp_path / "other", branch="other")
    assert (base.base, other.base) == (None, None)
    found = mgr.import_model(tmp_path / "tuned", branch="found")
    named = mgr.import_model(tmp_path / "tuned", branch="named", base="other")
    alone = mgr.import_model(tmp_path / "tuned", branch="alone", base=None)
    assert (found.base, named.base, alone.base) == (base.id, other.id, None)
    assert found.base_saves_bytes > 50_000
    newest = {name: next(iter(mgr.log(name))) for name in ("found", "named", "alone")}
    assert newest["found"].parents == (base.id,)
    assert newest["found"].metadata["derived-from"] == base.id
    assert newest["named"].metadata["derived-by"] == "name"
    assert (newest["alone"].parents, newest["alone"].metadata) == ((), {})
    again = mgr.import_model(tmp_path / "tuned", branch="other", base="base")
    tip = next(iter(mgr.log("other")))
    assert (tip.id, tip.parents) == (again.id, (other.id, base.id))


# --- which item a file becomes --------------------------------------------------------------------------------------


def named(mgr: Manager, model: Path, *names: str) -> tuple[str, ...]:
    for number, name in enumerate(names):
        (model / name).parent.mkdir(parents=True, exist_ok=True)
        tensors = {f"w{number}": torch.full((3000,), float(number))}
        save_file(tensors, model / name) if name.endswith(".safetensors") else torch.save(tensors, model / name)
    made = mgr.import_model(model, base=None)
    mgr.export(made.id, model.parent / "out", format="files")
    assert digests(model.parent / "out") == digests(model)
    return made.items[:-1]


def test_names_of_items(mgr: Manager, model: Path) -> None:
    names = ("adapter_model.safetensors", "unet/diffusion_pytorch_model.safetensors", "x::y.safetensors", "files.pt")
    assert named(mgr, model, *names) == ("adapter", "unet/diffusion_pytorch_model", "x.y", "files.pt")


def test_the_only_file_is_the_model_whatever_it_is_called(mgr: Manager, model: Path) -> None:
    assert named(mgr, model, "sdxl.safetensors") == ("model",)


def test_numbered_files_of_torch_are_one_item(mgr: Manager, model: Path) -> None:
    names = [f"pytorch_model-0000{number}-of-00003.bin" for number in (1, 2, 3)]
    assert named(mgr, model, *names) == ("model",)
    assert list(mgr.load("main", items=["model"])["model"]) == ["w0", "w1", "w2"]


def test_numbered_files_that_have_a_name_twice_are_items_of_their_own(mgr: Manager, model: Path) -> None:
    for number in (1, 2):
        save_file({"w": torch.full((300,), float(number))}, model / f"m-{number}-of-2.safetensors")
    made = mgr.import_model(model, base=None)
    assert made.items == ("m-1-of-2", "m-2-of-2", "files")


def test_our_own_file_of_several_items(mgr: Manager, model: Path) -> None:
    save_file({"model::w": torch.ones(3000), "ema::w": torch.zeros(3000)}, model / "all.safetensors")
    assert set(mgr.import_model(model, base=None).items) == {"model", "ema", "files"}
    mgr.export("main", model.parent / "out")
    assert digests(model.parent / "out") == digests(model)


def test_a_directory_as_one_item_is_its_tensors_alone(mgr: Manager, model: Path) -> None:
    save_file({"w": torch.ones(3000)}, model / "model.safetensors")
    (model / "config.json").write_text("{}")
    made = mgr.import_model(model, base=None, item="ema")
    assert (made.items, made.files) == (("ema",), ())


def test_the_same_weights_in_both_forms_are_stored_once(mgr: Manager, model: Path) -> None:
    state = {"w": torch.randn(500, 400), "b": torch.randn(5_000)}
    save_file(state, model / "model.safetensors")
    torch.save(state, model / "pytorch_model.bin")
    made = mgr.import_model(model, base=None)
    assert made.items == ("model", "pytorch_model", "files")
    assert made.stored_bytes < 500 * 400 * 4 + 5_000 * 4 + 10_000


# --- what is in the way ---------------------------------------------------------------------------------------------


def test_what_is_passed_over_is_told(mgr: Manager, model: Path, tmp_path: Path) -> None:
    save_file({"w": torch.ones(3000)}, tmp_path / "blob")
    (model / "model.safetensors").symlink_to(tmp_path / "blob")
    for name in (".git/objects", ".cache/huggingface", "empty", "linked"):
        (model / name).mkdir(parents=True)
    (model / ".git" / "HEAD").touch()
    os.mkfifo(model / "pipe")
    (model / "linked" / "around").symlink_to(model)
    (model / "linked" / "other").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x").write_text("x")
    with Repository.init(model / "store"):
        pass
    made = mgr.import_model(model, base=None)
    assert made.files == ("linked/other/x", "model.safetensors")
    assert {name: why.rpartition(" ")[2] for name, why in made.left_out.items()} == {
        ".git": "tool",
        ".cache": "tool",
        "empty": "directory",
        "linked/around": "it",
        "pipe": "device",
        "store": "moonclip",
    }


def test_names_and_links_that_cannot_be_kept_are_refused(mgr: Manager, model: Path) -> None:
    save_file({"w": torch.ones(3000)}, model / "model.safetensors")
    (model / "gone").symlink_to(model / "nowhere")
    with pytest.raises(Incompatible, match="gone is a link that leads nowhere"):
        mgr.import_model(model)
    (model / "gone").unlink()
    (Path(os.fsdecode(os.fsencode(model) + b"/\xff.txt"))).touch()
    with pytest.raises(Incompatible, match=r"udcff\.txt' has a name that is no UTF-8"):
        mgr.import_model(model)
    assert mgr.head is None


def test_directories_without_end_are_refused(mgr: Manager, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"w": torch.ones(3000)}, model / "model.safetensors")
    monkeypatch.chdir(model)
    for _ in range(260):
        Path("d").mkdir()
        os.chdir("d")
    monkeypatch.chdir(model)
    with pytest.raises(Incompatible, match="lies too deep"):
        mgr.import_model(model)


@pytest.mark.parametrize("name", ["w" * 4097, "i" * 4097 + "::w"], ids=["tensor", "item"])
def test_a_file_of_names_that_no_store_takes_is_kept_as_it_is(
    mgr: Manager, model: Path, tmp_path: Path, name: str
) -> None:
    save_file({"w": torch.ones(3000)}, model / "model.safetensors")
    save_file({name: torch.ones(3000)}, model / "other.safetensors")
    made = mgr.import_model(model, base=None)
    assert made.kept.keys() == {"other.safetensors"}
    assert "longer than 4096" in made.kept["other.safetensors"]
    mgr.export(made.id, tmp_path / "out")
    assert digests(tmp_path / "out") == digests(model)


def test_why_a_file_is_kept_does_not_begin_with_its_name(mgr: Manager, model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"")
    looped: list[object] = []
    for _ in range(40):
        looped = [looped, looped, looped]
    torch.save(looped, model / "looped.bin")
    kept = mgr.import_model(model, base=None).kept
    assert kept["model.safetensors"].startswith("no whole safetensors file: ")
    assert kept["looped.bin"].startswith("not what training writes: ")


def test_a_directory_of_no_model_or_half_of_one_is_refused(mgr: Manager, model: Path) -> None:
    (model / "notes.txt").write_text("x")
    with pytest.raises(Incompatible, match="no checkpoint that is known"):
        mgr.import_model(model)
    save_file({"w": torch.ones(3)}, model / "model-1-of-2.safetensors")
    index = model / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"w": "model-1-of-2.safetensors", "v": "model-2-of-2.safetensors"}}')
    with pytest.raises(Corrupt, match=r"has no model-2-of-2\.safetensors.*downloaded"):
        mgr.import_model(model)
    index.write_text('{"weight_map": {"w": "../w"}}')
    with pytest.raises(Unsafe):
        mgr.import_model(model)


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path, model: Path) -> None:
    save_file({"w": torch.ones(30_000)}, model / "model.safetensors")
    (model / "config.json").write_text("{}")
    sources = [Source(model)]

    def changes() -> Iterator[Callable[[], object]]:
        yield lambda: (model / "config.json").write_text("[]")
        yield lambda: os.truncate(model / "model.safetensors", 2000)
        yield (model / "model.safetensors").unlink

    with Repository.init(tmp_path / "store") as repo:
        for change in changes():
            given = given_in(sources, Ranges(Files()))
            change()
            with pytest.raises((Conflict, FileNotFoundError), match=r"changed while it was imported|No such file"):
                import_files(repo, given.items, Wanted(sources, "main"), given.files)
            save_file({"w": torch.ones(30_000)}, model / "model.safetensors")
        assert repo.refs.list() == {}


def aged(path: Path) -> None:
    """Have nobody write to it for a year."""
    os.utime(path, (path.stat().st_mtime - 31_536_000,) * 2)


def altered_unseen(path: Path) -> None:
    """Alter a file so that its times tell nothing: within a tick of its file system's clock, or through a map."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "optimizer.pt", "tokenizer.json"])
def test_a_file_that_would_come_back_as_another_is_not_committed(tmp_path: Path, name: str) -> None:
    directory = awkward(tmp_path / "in")
    sources = [Source(directory)]
    aged(directory / name)
    with Repository.init(tmp_path / "store") as repo:
        given = given_in(sources, Ranges(Files()))
        hashed = [file.chunks for file in given.files]
        assert any(hashed)
        altered_unseen(directory / name)
        with pytest.raises(Corrupt, match=r"does not have the SHA-256"):
            import_files(repo, given.items, Wanted(sources, "main"), given.files)
        assert repo.refs.list() == {}


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(100_000))


def shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 50_000)


@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize("change", [grow, shrink, Path.unlink])
@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "optimizer.pt", "tokenizer.json", "model.gguf"])
def test_a_file_that_is_still_written_is_refused_whatever_it_is(
    tmp_path: Path, name: str, change: Callable[[Path], None], *, is_early: bool
) -> None:
    """Files are listed first, looked at then, and read while they are stored."""
    directory = awkward(tmp_path / "in")
    sources = [Source(directory)]
    aged(directory / name)

    def relate(items: Sequence[ItemInput]) -> Sequence[ItemInput]:
        if is_early:
            change(directory / name)
        return items

    def import_it() -> None:
        given = given_in(sources, Ranges(Files()), repo.threads, relate=relate)
        if not is_early:
            change(directory / name)
        import_files(repo, given.items, Wanted(sources, "main"), given.files)

    with Repository.init(tmp_path / "store") as repo:
        with pytest.raises((Conflict, FileNotFoundError), match=name):
            import_it()
        assert repo.refs.list() == {}


def test_files_are_hashed_while_their_tensors_are_stored(tmp_path: Path, model: Path) -> None:
    """Each of them waits for the other: nothing would come of one after the other."""
    save_file({"a": torch.rand(30_000), "b": torch.rand(30_000)}, model / "model.safetensors")
    aged(model / "model.safetensors")
    begun, hashed = threading.Event(), threading.Event()

    def told(_: int) -> None:
        hashed.set()
        assert begun.wait(60)

    def waiting(given: Input) -> Input:
        if not isinstance(given, MadeInput):
            return given

        def make(start: int, stop: int) -> memoryview:
            begun.set()
            assert hashed.wait(60)
            return given.make(start, stop)

        return given._replace(make=make)

    sources = [Source(model)]
    with Repository.init(tmp_path / "store") as repo:
        given = given_in(sources, Ranges(Files()), told=told)
        assert not hashed.is_set()
        items = [item._replace(entries={n: waiting(each) for n, each in item.entries.items()}) for item in given.items]
        commit = repo.commit(import_files(repo, items, Wanted(sources, "main"), given.files).commit)
        written = filesout.write(tmp_path / "out", repo, commit)
    assert list(written) == ["model.safetensors"]
    assert digests(tmp_path / "out") == digests(model)


def test_nothing_is_hashed_any_more_once_an_import_has_failed(tmp_path: Path, model: Path) -> None:
    save_file({"a": torch.rand(30_000)}, model / "model.safetensors")
    begun, failed = threading.Event(), threading.Event()

    def told(_: int) -> None:
        begun.set()
        assert failed.wait(60)

    def fail(_start: int, _stop: int) -> memoryview:
        assert begun.wait(60)
        failed.set()
        raise OSError(errno.EIO, "the disk says no")

    sources = [Source(model)]
    with Repository.init(tmp_path / "store") as repo:
        given = given_in(sources, Ranges(Files()), told=told)
        tensors, files = given.items
        entry = tensors.entries["a"]
        assert isinstance(entry, MadeInput)
        items = [tensors._replace(entries={**tensors.entries, "a": entry._replace(make=fail)}), files]
        with pytest.raises(OSError, match="the disk says no"):
            import_files(repo, items, Wanted(sources, "main"), given.files)
        assert not [thread for thread in threading.enumerate() if thread.name == "moonclip-ahead"]
        assert repo.refs.list() == {}


def test_a_recipe_that_names_the_wrong_tensors_is_not_committed(tmp_path: Path, model: Path) -> None:
    save_file({"a": torch.rand(30_000), "b": torch.rand(30_000)}, model / "model.safetensors")
    aged(model / "model.safetensors")
    sources = [Source(model)]
    with Repository.init(tmp_path / "store") as repo:
        given = given_in(sources, Ranges(Files()))
        tensors, files = given.items
        entries = {**tensors.entries, "a": tensors.entries["b"], "b": tensors.entries["a"]}
        with pytest.raises(Corrupt, match=r"model\.safetensors does not have the SHA-256"):
            import_files(repo, [tensors._replace(entries=entries), files], Wanted(sources, "main"), given.files)
        assert repo.refs.list() == {}


def test_every_file_is_proven_by_the_chunks_that_were_hashed_with_it(tmp_path: Path) -> None:
    """Whatever it holds, and whatever it is stored against: with other rows or floats, tensors are cut otherwise."""
    base, grown, narrow = (tmp_path / name for name in ("base", "grown", "narrow"))
    weight = torch.randn(9_000, 500)
    for path, rows, dtype in (
        (base, 7_000, torch.float32),
        (grown, 9_000, torch.float32),
        (narrow, 7_000, torch.bfloat16),
    ):
        path.mkdir()
        save_file({"net.w": weight[:rows].to(dtype), "net.b": torch.ones(5)}, path / "model.safetensors")
    with Repository.init(tmp_path / "store") as repo:
        for directory in (awkward(tmp_path / "in"), base, grown, narrow):
            wanted = Wanted([Source(directory)], directory.name, base="search")
            searching = Searching(repo, wanted)
            given = given_in(wanted.sources, Ranges(Files()), relate=searching)
            assert (searching.found is not None and searching.found.commit is not None) == (
                directory in {grown, narrow}
            )
            made = import_files(repo, given.items, wanted, given.files, searching.found)
            chunks = {file.name: file.chunks for file in given.files if file.chunks}
            stored = files_in(repo, repo.commit(made.commit)).values()
            assert chunks == {f.path: f.parts.chunks(f.composed) for f in stored if f.composed is not None}


def test_what_is_proven_is_not_read_again(tmp_path: Path, model: Path) -> None:
    save_file({"w": torch.rand(300_000)}, model / "model.safetensors")
    sources = [Source(model)]
    with Repository.init(tmp_path / "store") as repo:
        given = given_in(sources, Ranges(Files()))
        commit = repo.commit(import_files(repo, given.items, Wanted(sources, "main"), given.files).commit)
        chunks = {file.name: file.chunks for file in given.files}
        for pack in (tmp_path / "store" / "packs").rglob("*.pack"):
            pack.chmod(0o600)
            data = bytearray(pack.read_bytes())
            data[len(data) // 2] ^= 1
            pack.write_bytes(data)
        filesout.verify(repo, commit, chunks)
        with pytest.raises(Corrupt):
            filesout.verify(repo, commit, {})


@pytest.mark.slow
def test_memory_is_bounded_however_long_a_file_is(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONCLIP_THREADS", "2")
    save_file({"w": torch.zeros(40_000_000)}, model / "model.safetensors")
    (model / "vocabulary.txt").write_bytes(bytes(120_000_000))
    peaks: list[int] = []
    mgr = CheckpointManager(tmp_path / "store", async_save=False)
    tracemalloc.start()
    try:
        for act in (lambda: mgr.import_model(model, base=None), lambda: mgr.export("main", tmp_path / "out")):
            tracemalloc.reset_peak()
            act()
            peaks.append(tracemalloc.get_traced_memory()[1] >> 20)
    finally:
        tracemalloc.stop()
        mgr.close()
    assert max(peaks) < 100, "MiB, of 280"
    assert digests(tmp_path / "out") == digests(model)


def test_many_small_files(mgr: Manager, model: Path) -> None:
    save_file({"w": torch.ones(30)}, model / "model.safetensors")
    for number in range(700):
        (model / f"{number}").write_bytes(b"%d" % number * 9)
    made = mgr.import_model(model, base=None)
    mgr.export(made.id, model.parent / "out")
    assert digests(model.parent / "out") == digests(model)


def test_what_relates_sees_the_tensors_before_files_are_read_and_may_end_all_of_it(tmp_path: Path) -> None:
    directory = awkward(tmp_path / "in")
    seen: list[str] = []

    def see(items: Sequence[ItemInput]) -> Sequence[ItemInput]:
        seen.extend(item.name for item in items)
        return items

    given = given_in([Source(directory)], Ranges(Files()), relate=see)
    assert seen == [item.name for item in given.items[:-2]]
    read: list[int] = []

    def refuse(_: object) -> Sequence[ItemInput]:
        raise NotFound("there is no such base")

    with pytest.raises(NotFound, match="no such base"):
        given_in([Source(directory)], Ranges(Files()), None, read.append, refuse)
    assert read == []
    several = [Source(directory / "model-00001-of-00002.safetensors", "a"), Source(directory / "optimizer.pt", "b")]
    seen.clear()
    given_in(several, Ranges(Files()), relate=see)
    assert seen == ["a", "b"]


def test_a_file_that_changes_while_its_hash_is_made(tmp_path: Path) -> None:
    directory = awkward(tmp_path / "in")
    sources = [Source(directory)]

    def cut(items: Sequence[ItemInput]) -> Sequence[ItemInput]:
        (directory / "tokenizer.json").write_bytes(b"short")
        return items

    def imported(repo: Repository) -> None:
        given = given_in(sources, Ranges(Files()), relate=cut)
        import_files(repo, given.items, Wanted(sources, "main"), given.files)

    with (
        Repository.init(tmp_path / "store") as repo,
        pytest.raises(Conflict, match=r"tokenizer\.json is shorter|changed while"),
    ):
        imported(repo)
