"""Which commits are looked at for a base, and what becomes of those that cannot be read."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from moonclip.cli.app import commands
from moonclip.families import SEARCH, Found, How, against, base_for, models
from moonclip.families.choosing import Chooser
from moonclip.families.finding import searched
from moonclip.families.models import Model, Run, Shelf
from moonclip.families.spots import wanted_of
from store.errors import NotFound, Pruned
from store.ids import CommitId, ObjectId
from store.naming.refnames import branch_name, tag_name
from store.reading.reader import ObjectReader
from store.reading.retrieve import ChunkRead
from store.remotes.pushing.push import push
from store.remotes.remote import open_remote
from store.repository import Repository
from store.saving.inputs import ContainerInput, Input, ItemInput, TensorInput
from store.saving.saver import SaveRequest
from store.upkeep.retention import Keep
from tests.arrays import damage, entries_of
from tests.families import State, cast, items_of
from tests.pruning import prune
from tests.pushing import remote_at

LAYERS = 4


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        yield repo


def model(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"layers.{n}.weight": 0.02 * torch.randn(96, 64, generator=generator) for n in range(LAYERS)}


def moved(state: State, seed: int, by: float = 1e-5) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: each + by * torch.randn(each.shape, generator=generator) for name, each in state.items()}


def save(repo: Repository, state: State, branch: str, parent: CommitId | None = None) -> CommitId:
    return repo.save(SaveRequest(items_of(state), branch, parent=parent)).commit


def search(repo: Repository, state: State) -> Found:
    return base_for(repo, items_of(state), SEARCH)


def test_an_empty_store(repo: Repository) -> None:
    assert search(repo, model(1)) == Found(raw_bytes=LAYERS * 96 * 64 * 4)


def test_nothing_to_compare(repo: Repository) -> None:
    base = save(repo, model(1), "main")
    assert search(repo, {}) == Found(looked_at=1)
    named = base_for(repo, items_of({}), base)
    assert (named.commit, named.how, named.metadata()["derived-estimate"]) == (base, How.NAMED, 1.0)


def test_no_base_was_asked_for(repo: Repository) -> None:
    save(repo, model(1), "main")
    assert base_for(repo, items_of(model(1)), None) == Found(raw_bytes=LAYERS * 96 * 64 * 4)


def test_what_a_person_named_is_the_base_whatever_it_saves(repo: Repository) -> None:
    other = save(repo, model(2), "other")
    save(repo, model(1), "main")
    found = base_for(repo, items_of(moved(model(1), 5)), other)
    assert (found.commit, found.how, len(found.pairs)) == (other, How.NAMED, LAYERS)
    assert found.against_bytes == pytest.approx(found.alone_bytes, rel=0.01)
    with pytest.raises(NotFound):
        base_for(repo, items_of(model(1)), CommitId(ObjectId(bytes(32))))


def test_of_two_that_are_the_same_the_older_one(repo: Repository) -> None:
    first = save(repo, model(1), "first")
    save(repo, model(1), "second")
    assert search(repo, moved(model(1), 3)).commit == first
    assert search(repo, model(1)).commit == first


def test_a_model_of_which_little_was_tuned_is_told_from_its_base_beside_others_that_differ_everywhere(
    repo: Repository,
) -> None:
    """What these differ in is most of what there is to look at; the tensors that tell the two apart are few."""
    generator = torch.Generator().manual_seed(1)
    base = {f"layers.{n}.weight": 0.02 * torch.randn(96, 64, generator=generator) for n in range(64)}
    few = {name: base[name] for name in ("layers.21.weight", "layers.42.weight", "layers.63.weight")}
    save(repo, base, "base")
    for seed in range(4):
        save(repo, moved(base, seed), f"other-{seed}")
    head = base | moved(few, 7, by=1e-3)
    tuned = save(repo, head, "tuned")
    again = {name: head[name] for name in ("layers.5.weight", "layers.40.weight")}
    assert search(repo, head | moved(again, 8)).commit == tuned


def test_what_only_a_tag_a_pin_or_an_older_commit_has(repo: Repository) -> None:
    commits = {name: save(repo, model(seed), name) for seed, name in enumerate(("tagged", "pinned", "older"))}
    save(repo, moved(model(7), 1), "older", commits["older"])
    repo.set_ref(tag_name("v1"), None, commits["tagged"], "tag")
    repo.pin(commits["pinned"])
    for name in ("tagged", "pinned"):
        repo.delete_ref(branch_name(name))
    for seed, commit in enumerate(commits.values()):
        assert search(repo, moved(model(seed), 9)).commit == commit


@pytest.mark.parametrize("nearest", [1, 6, 13, 20, 28])
def test_a_long_run_is_searched_along_its_line(repo: Repository, nearest: int) -> None:
    states, commits = [model(1)], [save(repo, model(1), "main")]
    for step in range(1, 30):
        states.append(moved(states[-1], step, by=1e-3))
        commits.append(save(repo, states[-1], "main", commits[-1]))
    wanted = wanted_of(items_of(moved(states[nearest], 99)))
    begun_with = [commits.index(each.commit) for each in Shelf(repo, 4 * LAYERS).models()]  # type: ignore[arg-type]
    assert begun_with == [0, 25, 26, 27, 28, 29]
    choice, looked_at = searched(Shelf(repo, 4 * LAYERS), Chooser(wanted, repo.threads))
    assert choice is not None
    assert commits.index(choice.contender.model.commit) == nearest  # type: ignore[arg-type]
    assert looked_at < 30


def test_each_tree_is_read_once(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    base = save(repo, model(1), "main")
    for number in range(5):
        repo.set_ref(branch_name(f"copy{number}"), None, base, "branch")
        save(repo, model(1), f"copy{number}", base)
    read: list[ObjectId] = []
    node = ObjectReader.tree_node

    def counting(self: ObjectReader, object_id: ObjectId) -> object:
        read.append(object_id)
        return node(self, object_id)  # type: ignore[arg-type]

    monkeypatch.setattr(ObjectReader, "tree_node", counting)
    assert search(repo, moved(model(1), 2)).looked_at == 6
    assert len(read) == len(set(read)) == 1


def test_a_search_reads_about_as_much_of_many_models_as_of_few(repo: Repository) -> None:
    base = {f"layers.{number}.weight": torch.randn(96, 64) for number in range(60)}
    for seed in range(24):
        save(repo, moved(base, seed, by=1e-3), f"tuned{seed}")
    reads: list[int] = []

    def counted(model: Model) -> Model:
        def read(runs: Sequence[Run]) -> None:
            reads.extend(len(out) for _, _, out in runs)
            model.read(runs)

        return replace(model, read=read)

    counted_models = [counted(model) for model in Shelf(repo).models()]
    told = {}
    for count in (3, 6, 12, 24):
        reads.clear()
        assert Chooser(wanted_of(items_of(base)), repo.threads).nearest(counted_models[:count]) is not None
        told[count] = len(reads)
    assert told[12] <= 3 * 48
    assert told[24] <= 4 * 48
    assert told[3] <= 2 * 48


def test_what_models_have_at_one_spot_is_read_at_once(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are stored against one base, which is decoded for all of them."""
    base = save(repo, model(1), "base")
    for seed in range(3):
        repo.set_ref(branch_name(f"tuned{seed}"), None, base, "branch")
        save(repo, moved(model(1), seed, by=1e-3), f"tuned{seed}", base)
    counts: list[int] = []
    execute = models.execute

    def counting(reader: ObjectReader, reads: Sequence[ChunkRead], *given: Any, **named: Any) -> None:
        counts.append(len(reads))
        execute(reader, reads, *given, **named)

    monkeypatch.setattr(models, "execute", counting)
    assert search(repo, moved(model(1), 9)).commit == base
    assert counts
    assert set(counts) == {4}


def test_what_a_run_stored_in_a_narrower_dtype_is_compared_as_it_is_stored(repo: Repository) -> None:
    state = model(1)
    entries: dict[str, Input] = {"": ContainerInput(0, "dict")}
    for number, (name, each) in enumerate(state.items()):
        data = memoryview(each.numpy()).cast("B")
        entries[name] = TensorInput(number, "float32", tuple(each.shape), data, stored="bfloat16")
    run = repo.save(SaveRequest([ItemInput("model", entries)], "run")).commit
    found = search(repo, cast(state, torch.bfloat16))
    assert found.commit == run
    assert found.against_bytes < 0.01 * found.alone_bytes
    given = against(items_of(cast(state, torch.bfloat16)), found.pairs)
    counts = repo.save(SaveRequest(given, "imported")).counts
    assert (counts.known_count, counts.new_raw_bytes) == (LAYERS, 0)


def test_what_is_damaged_is_passed_over(repo: Repository) -> None:
    nearest = save(repo, moved(model(1), 2, by=1e-6), "nearest")
    save(repo, model(1), "base")
    for entry in entries_of(repo, nearest).values():
        damage(repo, entry.chunks[0])
    repo.close()
    with Repository.open(repo.layout.root, thread_count=2) as again:
        found = search(again, moved(model(1), 2, by=1.1e-6))
        assert found.commit == again.resolve("base")
        named = base_for(again, items_of(model(1)), nearest)
        assert (named.commit, named.alone_bytes, named.metadata()["derived-estimate"]) == (nearest, 0, 1.0)
        damage(again, again.commit(found.commit).items["model"])  # type: ignore[arg-type]
    with Repository.open(repo.layout.root, thread_count=2) as again:
        assert search(again, moved(model(1), 2)).commit is None


def test_what_was_pruned_is_passed_over(repo: Repository) -> None:
    first = save(repo, model(1), "main")
    save(repo, model(2), "main", first)
    assert prune(repo, Keep(last=1)) == [first]
    assert search(repo, moved(model(1), 3)).commit is None
    with pytest.raises(Pruned):
        base_for(repo, items_of(model(1)), first)


def test_what_is_elsewhere_is_fetched_only_if_it_is_named(repo: Repository, tmp_path: Path) -> None:
    base = save(repo, model(1), "main")
    remote_at(repo, tmp_path / "remote")
    with open_remote(repo, "origin") as remote:
        push(repo, remote, ["main"])
    lazy = tmp_path / "lazy"
    result = CliRunner().invoke(commands, ["clone", "--lazy", str(tmp_path / "remote"), str(lazy)])
    assert result.exit_code == 0, result.output
    with Repository.open(lazy, thread_count=2) as clone:
        before = packs_of(lazy)
        assert search(clone, moved(model(1), 3)) == Found(looked_at=1, raw_bytes=LAYERS * 96 * 64 * 4)
        assert packs_of(lazy) == before
        named = base_for(clone, items_of(moved(model(1), 3)), base)
        assert named.against_bytes < 0.9 * named.alone_bytes
        assert packs_of(lazy) != before


def packs_of(root: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (root / "packs").iterdir()}
