"""Target: a whole fetch from a remote that was tampered with.

Whatever was done to the remote, a fetch raises one of our errors or none; the store passes a full check; all that refs
name is what was pushed, bit by bit; and once the remote is itself again, everything can be fetched.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from store.codec import Transform
from store.errors import MoonclipError
from store.format.dtypes import Element
from store.format.entries import TensorEntry
from store.format.objects import Kind
from store.fsck import fsck
from store.ids import CommitId, ObjectId
from store.naming.refnames import REMOTES, branch_name, remote_name, tag_name
from store.remotes.fetching.fetch import fetch
from store.remotes.pushing.push import push
from store.remotes.remote import open_remote
from store.repository import Repository
from store.saving.inputs import ContainerInput, ItemInput, TensorInput
from store.saving.saver import SaveRequest

from ..crash.scratch import scratch
from .drawn import Drawn
from .forging import Stored, objects_in, packs_in, reforge
from .keys import Keys

Tensors = dict[str, bytes]
Tampering = Callable[[dict[str, bytes], Drawn], None]


class Original(NamedTuple):
    """What was pushed.

    Attributes:
        content: keys of the remote.
        commits: what each commit holds.
        tip: the newest.
    """

    content: dict[str, bytes]
    commits: dict[CommitId, Tensors]
    tip: CommitId


def mutated_remote(data: bytes) -> None:
    """Tamper with the remote, one to three times, and fetch."""
    content, draw = dict(original().content), Drawn(data)
    for _ in range(1 + draw.number() % 3):
        with suppress(ValueError, KeyError, ZeroDivisionError, MoonclipError):  # damaged beyond that already
            draw.one_of(TAMPERINGS)(content, draw)
    require_harmless(content)


def require_harmless(content: dict[str, bytes]) -> None:
    """Fetch from such a remote and look at what came of it."""
    root = Path(tempfile.mkdtemp(prefix="fuzz-", dir=scratch()))
    try:
        with Repository.init(root / "store", thread_count=1) as repo:
            with suppress(MoonclipError):
                _fetch(repo, content)
            require_original(repo)
            _fetch(repo, dict(original().content), force=True)
            require_original(repo)
            held = repo.refs.read(remote_name("origin", "main"))
            assert held == original().tip, "what is whole was not fetched"
        assert [path.name for path in root.iterdir()] == ["store"], "something was written outside of the store"
    finally:
        shutil.rmtree(root)


def require_original(repo: Repository) -> None:
    """See that a store is sound, and that what its refs name is what was pushed."""
    findings = fsck(repo, full=True).findings
    assert not findings, findings
    known = original().commits
    for tip in {*repo.refs.list(f"{REMOTES}/").values(), *repo.refs.list("tags/").values()}:
        for row in repo.log([tip]):
            assert row.id in known, "a ref names what nobody pushed"
            found = _tensors(repo, row.id)
            assert found.items() <= known[row.id].items(), "wrong data"
            lacking = {name.partition("::")[0] for name in known[row.id].keys() - found.keys()}
            assert all(repo.absences.lacks(row.id, item) for item in lacking), "data is missing, and nothing says so"


@cache
def original() -> Original:
    """Two stores' worth of history, pushed."""
    root = Path(tempfile.mkdtemp(prefix="fuzz-", dir=scratch()))
    content: dict[str, bytes] = {}
    try:
        with Repository.init(root / "store", thread_count=1) as repo:
            tip: CommitId | None = None
            for step in range(3):
                tip = repo.save(SaveRequest(_state(step), branch="main", parent=tip, step=step)).commit
                if step != 1:
                    _push(repo, content)
            assert tip is not None
            repo.set_ref(tag_name("best"), None, tip, "tag")
            repo.set_ref(branch_name("exp/lr3"), None, tip, "branch")
            _push(repo, content)
            commits = {row.id: _tensors(repo, row.id) for row in repo.log([tip])}
    finally:
        shutil.rmtree(root)
    return Original(content, commits, tip)


def seeds() -> Iterator[bytes]:
    """Each way of tampering, with a few draws."""
    for number in range(len(TAMPERINGS)):
        for seed in range(4):
            yield bytes(1) + number.to_bytes(2, "little") + Random(seed).randbytes(40)


# --- ways of tampering ----------------------------------------------------------------------------------------------


def _flip(content: dict[str, bytes], draw: Drawn) -> None:
    key = draw.one_of(sorted(content))
    data = bytearray(content[key])
    data[draw.number(3) % len(data)] ^= draw.number() or 0xFF
    content[key] = bytes(data)


def _cut(content: dict[str, bytes], draw: Drawn) -> None:
    key = draw.one_of(sorted(content))
    content[key] = content[key][: draw.number(3) % len(content[key])]


def _lengthen(content: dict[str, bytes], draw: Drawn) -> None:
    content[draw.one_of(sorted(content))] += draw.some(draw.number())


def _delete(content: dict[str, bytes], draw: Drawn) -> None:
    del content[draw.one_of(sorted(content))]


def _swap(content: dict[str, bytes], draw: Drawn) -> None:
    one, other = draw.one_of(sorted(content)), draw.one_of(sorted(content))
    content[one], content[other] = content[other], content[one]


def _overwrite(content: dict[str, bytes], draw: Drawn) -> None:
    content[draw.one_of(sorted(content))] = draw.some(draw.number())


def _point_elsewhere(content: dict[str, bytes], draw: Drawn) -> None:
    refs = [key for key in sorted(content) if key.startswith("refs/")]
    content[draw.one_of(refs)] = f"{draw.one_of(_known_ids()).hex()}\n".encode()


def _add_ref(content: dict[str, bytes], draw: Drawn) -> None:
    name = draw.some(1 + draw.number() % 40).decode("latin-1")
    content[f"refs/{draw.one_of(('branches', 'tags'))}/{name}"] = f"{draw.one_of(_known_ids()).hex()}\n".encode()


def _permit(content: dict[str, bytes], draw: Drawn) -> None:
    commit = draw.one_of(sorted(original().commits))
    item, why = draw.one_of(("*", "model", "optimizer", "%2A")), draw.one_of(("pruned", "shallow", "partial"))
    content[f"absent/{'1' * 32}"] = f"{commit.hex()} {item} {why} 1 origin\n".encode()


def _condemn(content: dict[str, bytes], draw: Drawn) -> None:
    names = ", ".join(f'"{name.text}": {draw.number()}' for name in packs_in(content))
    content["gc/condemned"] = f'{{"packs": {{{names}}}}}'.encode()


def _forge_payload(content: dict[str, bytes], draw: Drawn) -> None:
    def changed(stored: Stored) -> Stored:
        payload = bytearray(stored.payload)
        payload[draw.number(3) % len(payload)] ^= draw.number() or 0xFF
        return Stored(stored.header, bytes(payload))

    _forge(content, draw, changed)


def _forge_header(content: dict[str, bytes], draw: Drawn) -> None:
    def changed(stored: Stored) -> Stored:
        choices: tuple[Callable[[], dict[str, object]], ...] = (
            lambda: {"raw_bytes": draw.number(4)},
            lambda: {"element": draw.one_of(tuple(Element))},
            lambda: {"transform": draw.one_of(tuple(Transform))},
            lambda: {"grouped": not stored.header.grouped},
            lambda: {"kind": draw.one_of(tuple(Kind))},
            lambda: {"id": draw.one_of(_known_ids())},
            lambda: {"base": draw.one_of(_known_ids()), "transform": draw.one_of((Transform.XOR, Transform.DIFF))},
        )
        return Stored(stored.header._replace(**draw.one_of(choices)()), stored.payload)  # type: ignore[arg-type]

    _forge(content, draw, changed)


def _forge_exchange(content: dict[str, bytes], draw: Drawn) -> None:
    """One object under the id of another."""
    other = draw.one_of(_all_objects(content))
    _forge(content, draw, lambda stored: Stored(other.header._replace(id=stored.header.id), other.payload))


def _forge(content: dict[str, bytes], draw: Drawn, change: Callable[[Stored], Stored]) -> None:
    name = draw.one_of(packs_in(content))
    victim = draw.number(2) % len(objects_in(content, name))
    reforge(content, name, lambda number, stored: change(stored) if number == victim else stored)


TAMPERINGS: tuple[Tampering, ...] = (
    _flip,
    _cut,
    _lengthen,
    _delete,
    _swap,
    _overwrite,
    _point_elsewhere,
    _add_ref,
    _permit,
    _condemn,
    _forge_payload,
    _forge_header,
    _forge_exchange,
)


# --- how ------------------------------------------------------------------------------------------------------------


def _all_objects(content: dict[str, bytes]) -> list[Stored]:
    return [stored for name in packs_in(content) for stored in objects_in(content, name)]


@cache
def _known_ids() -> list[ObjectId]:
    ids = {stored.header.id for stored in _all_objects(original().content)}
    return [*sorted(ids), ObjectId(b"\x07" * 32), ObjectId(bytes(32))]


def _state(step: int) -> list[ItemInput]:
    drifting = bytearray(Random("drifting").randbytes(4000))
    for at in range(1, step + 1):
        drifting[at * 97] ^= at
    names = {f"layer{number}.weight": Random(f"{number} {step}").randbytes(600) for number in range(3)}
    return [_item("model", {"drifting": bytes(drifting), **names}), _item("optimizer", {"moment": bytes(3000 + step)})]


def _item(name: str, tensors: Mapping[str, bytes]) -> ItemInput:
    inputs = {
        key: TensorInput(n, "uint8", (len(raw),), memoryview(raw)) for n, (key, raw) in enumerate(tensors.items())
    }
    return ItemInput(name, {"": ContainerInput(0, "dict"), **inputs})


def _tensors(repo: Repository, commit_id: CommitId) -> Tensors:
    commit = repo.commit(commit_id)
    return {
        f"{item}::{name}": bytes(repo.read_tensor(entry))
        for item in commit.items
        if not repo.absences.lacks(commit_id, item)
        for name, entry in repo.tree(commit, item)
        if isinstance(entry, TensorEntry)
    }


def _push(repo: Repository, content: dict[str, bytes]) -> None:
    with open_remote(repo, "origin", Keys(content)) as remote:
        push(repo, remote, every=True).require_all()


def _fetch(repo: Repository, content: dict[str, bytes], *, force: bool = False) -> None:
    """Fetch; with ``force`` also what another remote's records had us believe to be pruned."""
    named = list(original().commits) if force else ()
    with open_remote(repo, "origin", Keys(content)) as remote:
        fetch(repo, remote)
        if named:
            fetch(repo, remote, commits=named)
