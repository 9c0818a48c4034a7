"""What a check reports."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ..ids import ObjectId, PackId
from ..pack import TableEntry

Progress = Callable[[int, int], None]
"""Told the bytes checked so far, and the bytes there are to check."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        kind: ``"pack"``, ``"object"`` (no copy of it is whole), ``"copy"`` (another one is), ``"index"``, ``"ref"`` or
            ``"missing"``.
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
    """

    full: bool
    pack_count: int = 0
    object_count: int = 0
    stored_bytes: int = 0
    commit_count: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def find(self, kind: str, message: str, object_id: ObjectId | None = None, affects: tuple[str, ...] = ()) -> None:
        """Add a finding."""
        self.findings.append(Finding(kind, message, object_id, affects))


Copy = tuple[PackId, TableEntry]
"""One copy of an object: the pack it is in, and where."""


@dataclass(slots=True)
class Stock:
    """What the packs hold.

    Attributes:
        tables: entries of every readable pack.
        intact: copies that passed their check, by object.
        damaged: what is wrong with a copy that did not, by object.
        lost: objects without any intact copy, and why.
    """

    tables: dict[PackId, tuple[TableEntry, ...]] = field(default_factory=dict)
    intact: dict[ObjectId, list[Copy]] = field(default_factory=dict)
    damaged: dict[ObjectId, str] = field(default_factory=dict)
    lost: dict[ObjectId, str] = field(default_factory=dict)

    def settle(self) -> None:
        """Tell what is lost, once all copies were looked at."""
        self.lost = {each: reason for each, reason in self.damaged.items() if not self.intact.get(each)}
