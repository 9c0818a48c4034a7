"""What a remote holds: what the idx files of its packs say is in them."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from ..errors import Incompatible
from ..ids import CommitId, ObjectId, short
from ..index.depths import resolve_depths
from .fetching.incoming import RemoteCopy
from .idx import Idx
from .names import PackName
from .packlist import Listed, Listing
from .remote import Remote


@dataclass(slots=True)
class Holdings:
    """What the whole packs of a remote hold.

    Attributes:
        idxs: what is in each.
        copies: all copies of each object.
        commits: commits as they are stored, those of packs that were lost since they were taken too.
        faults: packs that count as not there, since their idx is damaged or of a pack of another length; and why.
    """

    idxs: dict[PackName, Idx] = field(default_factory=dict)
    copies: dict[ObjectId, list[RemoteCopy]] = field(default_factory=dict)
    commits: dict[CommitId, bytes] = field(default_factory=dict)
    faults: dict[PackName, str] = field(default_factory=dict)

    def copies_of(self, object_id: ObjectId) -> Sequence[RemoteCopy]:
        """All copies of an object."""
        return self.copies.get(object_id, ())

    def commit(self, commit: CommitId) -> bytes | None:
        """A commit as it is stored; ``None`` if no pack has it."""
        return self.commits.get(commit) if self.copies.get(commit) else None

    def take(self, name: PackName, idx: Idx) -> None:
        """Add a pack."""
        self.idxs[name] = idx
        self.commits.update(idx.commits)
        for entry in idx.table.entries:
            self.copies.setdefault(entry.id, []).append(RemoteCopy(name, entry))

    def lose(self, packs: Collection[PackName]) -> None:
        """Hear that packs are gone."""
        objects = {entry.id for pack in packs for entry in self.idxs.pop(pack).table.entries}
        for object_id in objects:
            self.copies[object_id] = [copy for copy in self.copies[object_id] if copy.pack not in packs]

    def drop(self, damaged: Iterable[tuple[str, ObjectId]]) -> None:
        """Count copies as not there: of each the name of the pack, and the object."""
        for pack, object_id in damaged:
            left = [copy for copy in self.copies.get(object_id, ()) if copy.pack.text != pack]
            if object_id in self.copies:
                self.copies[object_id] = left

    def readable(self) -> set[ObjectId]:
        """Objects with a copy that can be decoded from what there is. Cost: 2 µs a copy."""
        return readable(copy for copies in self.copies.values() for copy in copies)


def readable(copies: Iterable[RemoteCopy]) -> set[ObjectId]:
    """Objects that some copies are enough to decode."""
    return {entry.id for entry, _ in resolve_depths((copy.entry for copy in copies), lambda _: None).resolved}


def read_holdings(
    remote: Remote, packs: Listing, without: Collection[PackName] = (), *, afresh: bool = False
) -> Holdings:
    """Read what is in the whole packs of a remote.

    Args:
        remote: the remote.
        packs: what it lists.
        without: packs that count as not there.
        afresh: read every idx from the remote, although it may be known here, and tell of whatever is wrong with one.

    Raises:
        Incompatible: a newer version wrote one of them: what it holds is not known.

    Cost: a request for each idx that is not known here; half a kilobyte of memory for each object.
    """
    names = sorted(name for name, listed in packs.items() if listed.is_whole and name not in without)
    idxs, faults = remote.idxs(names, afresh=afresh)
    holdings = Holdings()
    for name, error in faults.items():
        if isinstance(error, Incompatible) and not afresh:
            raise error  # what a newer version keeps there may be needed
        holdings.faults[name] = f"pack {name.text}: {error}"
    for name, idx in idxs.items():
        fault = _length_fault(idx, packs[name])
        if fault is None:
            holdings.take(name, idx)
        else:
            holdings.faults[name] = f"pack {name.text}: {fault}"
    return holdings


def newest_first(copies: Sequence[RemoteCopy], packs: Listing) -> list[RemoteCopy]:
    """Copies of an object, those in the newest packs first."""
    return sorted(copies, key=lambda copy: (packs[copy.pack].modified_ns, copy.pack.text), reverse=True)


def _length_fault(idx: Idx, listed: Listed) -> str | None:
    found_bytes = -1 if listed.pack is None else listed.pack.size_bytes
    if found_bytes == idx.pack_bytes:
        return None
    return f"it is {found_bytes} bytes long where its idx ({short(idx.table.id)}) says {idx.pack_bytes}"
