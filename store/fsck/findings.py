"""What a check reports."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ..format.pack import TableEntry
from ..ids import CommitId, ObjectId, PackId

Progress = Callable[[int, int], None]
"""Told the bytes checked so far, and the bytes there are to check."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or in a note, worth knowing.

    Attributes:
        kind: what is damaged:

            - ``"pack"``: the structure of a pack;
            - ``"object"``: an object of which no copy is whole;
            - ``"copy"``: a copy of an object of which another one is whole;
            - ``"missing"``: an object that nothing holds, and no absence record permits to be missing;
            - ``"content"``: an object that is whole, but not what belongs there;
            - ``"index"``, ``"ref"`` (reflogs and ``HEAD`` too), ``"pins"``, ``"absent"``, ``"lease"``: a file;
            - ``"format"``: that file, which does not name all that the packs take to be read;
            - ``"remote"``: a file of a remote that says how it is kept, or what is about to be deleted.
        message: what and where.
        object_id: the object it is about, if it is about one.
        affects: what cannot be read for it, as ``<commit> <item>::<name>``; the first few, then a count.
    """

    kind: str
    message: str
    object_id: ObjectId | None = None
    affects: tuple[str, ...] = ()


@dataclass(slots=True)
class Report:
    """What a check saw.

    Attributes:
        full: whether contents were hashed.
        pack_count: packs looked at.
        object_count: stored objects looked at.
        stored_bytes: bytes of those.
        commit_count: commits that refs and reflogs reach.
        findings: what is wrong; empty if nothing is.
        notes: what is no damage and yet worth knowing: leftovers of the dead, what is in quarantine, odd dates.
        affected: commits something of which cannot be read.
        last_good: of each branch whose tip is among them, the newest commit before it of which all can be read.
    """

    full: bool
    pack_count: int = 0
    object_count: int = 0
    stored_bytes: int = 0
    commit_count: int = 0
    findings: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    affected: set[CommitId] = field(default_factory=set)
    last_good: dict[str, CommitId | None] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def find(self, kind: str, message: str, object_id: ObjectId | None = None, affects: tuple[str, ...] = ()) -> None:
        """Add a finding."""
        self.findings.append(Finding(kind, message, object_id, affects))

    def note(self, kind: str, message: str) -> None:
        """Add a note."""
        self.notes.append(Finding(kind, message))


Copy = tuple[PackId, TableEntry]
"""One copy of an object: the pack it is in, and where."""


@dataclass(slots=True)
class Stock:
    """What the packs hold.

    Attributes:
        tables: entries of every pack; of one whose table is damaged, what was found by searching.
        broken: packs whose structure is damaged.
        hurt: packs that hold a damaged copy.
        unreadable: packs that the disk did not give, or that a newer version wrote: nothing is known to be bad.
        intact: copies that passed their check, by object.
        damaged: what is wrong with a copy that did not, by object.
        lost: objects without any intact copy, and why.
    """

    tables: dict[PackId, tuple[TableEntry, ...]] = field(default_factory=dict)
    broken: set[PackId] = field(default_factory=set)
    hurt: set[PackId] = field(default_factory=set)
    unreadable: set[PackId] = field(default_factory=set)
    intact: dict[ObjectId, list[Copy]] = field(default_factory=dict)
    damaged: dict[ObjectId, str] = field(default_factory=dict)
    lost: dict[ObjectId, str] = field(default_factory=dict)

    def settle(self) -> None:
        """Tell what is lost, once all copies were looked at."""
        self.lost = {each: reason for each, reason in self.damaged.items() if not self.intact.get(each)}
