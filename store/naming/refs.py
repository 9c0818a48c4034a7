"""Refs: small files that name commits, moved by compare-and-swap.

    HEAD                    "ref: branches/main" and a newline
    refs/branches/exp/lr3   the commit's id in hex, and a newline; tags/ and remotes/ likewise

The rename of a ref file is the commit point of whatever led to it. Before it, under ``refs.lock``, the line of the
reflog is made durable; see :mod:`store.naming.reflog` for what a crash in between leaves. Readers take no lock: a ref
file is only ever replaced whole.

Spec: docs/format.md, section on refs.
"""

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..disk.files import Files
from ..errors import Conflict, Corrupt, MoonclipError
from ..ids import CommitId, ObjectId, short
from .logs import LogFiles
from .reflog import ReflogLine, applied, encode_line
from .refnames import BRANCHES, HEAD, TAGS, RefName, branch_name, describe, full_name, is_full_name, short_name

_REF = re.compile(rb"([0-9a-f]{64})\n")
_HEAD = re.compile(rb"ref: (branches/[^\n]+)\n")


class NotDurable(MoonclipError, OSError):
    """A ref moved, but the disk did not confirm it: it may be back where it was after a power cut.

    ``details`` hold the ``ref`` and the ``commit`` that it holds now (``None`` if it is gone).
    """

    kind = "not-durable"


class RefStore:
    """The refs of one store. Safe to share between threads; processes meet at ``refs.lock``."""

    def __init__(self, root: Path, files: Files) -> None:
        self._files = files
        self._refs = root / "refs"
        self._logs = LogFiles(root, files)
        self._head = root / HEAD
        self._lock = root / "refs.lock"

    # --- reading ---

    def read(self, name: str) -> CommitId | None:
        """The commit that ``name`` (full) names, or ``None`` if there is no such ref.

        Raises:
            Corrupt: the file does not hold an id, or is gone although its log says that the ref was there and was not
                deleted; the message says how to mend it.
            Incompatible: ``name`` is not a full ref name.
        """
        ref = full_name(name)
        data = self._bytes(self._refs / ref)
        if data is None:
            if self._is_lost(ref) and self._bytes(self._refs / ref) is None:  # not made and logged in between
                raise self._damaged(ref, "has lost its file")
            return None
        match = _REF.fullmatch(data)
        if match is None:
            raise self._damaged(ref, "does not hold a commit's id")
        return CommitId(ObjectId(bytes.fromhex(match[1].decode())))

    def names(self, prefix: str = "") -> Sequence[RefName]:
        """Full names of all refs that begin with ``prefix``, sorted; none of them is read."""
        return sorted(name for name in self._names_below(prefix.rpartition("/")[0]) if name.startswith(prefix))

    def logged_names(self) -> Sequence[RefName]:
        """Full names of all refs that have a log: those that are, and those that were."""
        return [name for path in self._logs.all() if (name := self._logs.name(path)) is not None]

    def list(self, prefix: str = "") -> dict[RefName, CommitId]:
        """All refs whose full name begins with ``prefix``, sorted by name. One small read each.

        Raises:
            Corrupt: one of them is damaged.
        """
        found = ((name, self.read(name)) for name in self.names(prefix))
        return {name: commit for name, commit in found if commit is not None}

    def head(self) -> str:
        """Short name of the branch that ``HEAD`` names; the branch need not exist yet.

        Raises:
            Corrupt: ``HEAD`` is missing or damaged.
        """
        name = self._head_ref()
        if name is None:
            should = f"it should hold 'ref: {BRANCHES}/<name>' and a newline"
            raise Corrupt(f"{self._head} is missing or damaged: {should}; write that into it", path=str(self._head))
        return short_name(name)

    def reflog(self, name: str) -> Sequence[ReflogLine]:
        """What ``name`` (full, or ``HEAD``) held, newest line first; empty if it never was.

        Lines that never came true are left out. The log of a deleted ref can still be read.

        Raises:
            Corrupt: a line is damaged that is not the last.
            Incompatible: ``name`` is not a full ref name.
        """
        path = self._logs.path(name)
        try:
            current = self._value(name)
        except Corrupt:
            return self._logs.lines(path)[::-1]  # Which of them came true only the ref could have told.
        return applied(self._logs.lines(path), current)[::-1]

    def roots(self) -> set[CommitId]:
        """Every commit that a ref names, or that a reflog says one did or was about to.

        Lines that never came true count here: what they name may be about to, and to keep too much is harmless.

        Raises:
            Corrupt: a ref or reflog is damaged.
        """
        return set(self.list().values()).union(*self.logged_since(0).values())

    def logged_since(self, time_ns: int) -> dict[str, set[CommitId]]:
        """Every commit that a line of a reflog names which is not older, whether or not the line came true.

        Returns:
            By full name of the ref, which may be gone, or ``HEAD``.

        Raises:
            Corrupt: a reflog is damaged.
        """
        return {self._logs.name(path) or path.name: self._logs.ids(path, time_ns) for path in self._logs.all()}

    # --- writing ---

    def update(
        self, name: str, expected: CommitId | None, new: CommitId | None, action: str, message: str = ""
    ) -> None:
        """Move ``name`` from ``expected`` to ``new``, durably; ``None`` means that the ref does not exist.

        That ``new`` and all it reaches is stored is the caller's to know.

        Args:
            name: full name.
            expected: what it holds now.
            new: what it shall hold.
            action: one lower-case word for the reflog.
            message: what the reflog tells people.

        Raises:
            Conflict: it does not hold ``expected``, or its name and another ref's cannot both be. Nothing changed.
            Corrupt: it is damaged.
            Incompatible: a bad name or action.
            NotDurable: it moved, but the disk failed to make that durable, also when told again.
            OSError: writing failed; it holds what it held.
        """
        line = ReflogLine(expected, new, time.time_ns(), action, message)
        encode_line(line)  # A bad action shows before anything is touched.
        ref = full_name(name)
        with self._files.lock_exclusive(self._lock):
            self._require_value(ref, expected)
            if new == expected:
                return
            if expected is None:
                self._make_room(ref)
            self._logs.append(ref, expected, line)
            # A damaged HEAD must not stop a run from saving, so it is not asked for by way of head().
            if ref == self._head_ref():
                self._logs.append(HEAD, expected, line)
            self._move(ref, new)

    def set_head(self, branch: str, message: str = "") -> None:
        """Make ``branch`` (short name; it need not exist yet) the current one, durably.

        Raises:
            Incompatible: ``branch`` is not a legal name.
            Corrupt: a ref that is involved is damaged.
            OSError: writing failed; the current branch is what it was, unless only making it durable failed.
        """
        name = branch_name(branch)
        with self._files.lock_exclusive(self._lock):
            current = self._head_ref()
            if current is not None and current != name:  # To mend HEAD is not a move of it.
                self._log_switch(self.read(current), self.read(name), message)
            self._files.write_atomic(self._head, f"ref: {name}\n".encode())

    def restore(self, name: RefName, value: CommitId | None, message: str) -> None:
        """Give a ref that is damaged a value, durably, whatever its file says; ``None`` removes it.

        Raises:
            Conflict: it is not damaged (any more).
            OSError: writing failed; it is as damaged as it was.
        """
        with self._files.lock_exclusive(self._lock):
            try:
                self.read(name)
            except Corrupt:
                if value is not None:
                    line = ReflogLine(value, value, time.time_ns(), "repair", message)
                    self._logs.append(name, value, line)
                self._put(name, value)
            else:
                raise Conflict(f"{describe(name)} is in order, so it is left as it is", ref=name)

    def _log_switch(self, old: CommitId | None, new: CommitId | None, message: str) -> None:
        if old is not None or new is not None:
            self._logs.append(HEAD, old, ReflogLine(old, new, time.time_ns(), "switch", message))

    # --- the files ---

    def _bytes(self, path: Path) -> bytes | None:
        try:
            return self._files.read_bytes(path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None

    def _value(self, name: str) -> CommitId | None:
        return self.read(branch_name(self.head()) if name == HEAD else name)

    def _head_ref(self) -> RefName | None:
        match = _HEAD.fullmatch(self._bytes(self._head) or b"")
        name = match[1].decode("utf-8", "replace") if match else ""
        return RefName(name) if is_full_name(name) else None

    def _names_below(self, directory: str) -> Iterator[RefName]:
        """Full names below ``directory``; of files and directories that come and go meanwhile, some."""
        for entry in self._entries(self._refs / directory) or ():
            name = f"{directory}/{entry}".lstrip("/")
            if self._entries(self._refs / name) is not None:
                yield from self._names_below(name)
            elif is_full_name(name):  # What a writer that died left beside the refs has no such name.
                yield RefName(name)

    def _entries(self, path: Path) -> Sequence[str] | None:
        """What is in a directory; ``None`` if ``path`` is none."""
        try:
            return self._files.list_directory(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _move(self, name: RefName, new: CommitId | None) -> None:
        """Put the new value, and after an error look whether that is in place: others may have built on it by now."""
        try:
            self._put(name, new)
        except OSError as error:
            if self.read(name) != new:
                raise
            directories = (self._refs / name).parents
            try:
                self._files.sync_directory(next(each for each in directories if self._files.exists(each)))
            except OSError:
                commit = new and new.hex()
                raise NotDurable(
                    f"{describe(name)} {f'holds {commit}' if commit else 'is gone'}, but may be as it was before after"
                    f" a power cut, since the disk failed ({error}); check the disk",
                    ref=name,
                    commit=commit,
                ) from error

    def _put(self, name: RefName, commit: CommitId | None) -> None:
        path = self._refs / name
        if commit is not None:
            self._files.make_directory(path.parent)
            self._files.write_atomic(path, commit.hex().encode() + b"\n")
            return
        self._files.remove(path)
        for directory in path.parents:
            if directory.parent == self._refs or self._entries(directory):
                return
            self._files.remove_directory(directory)

    def _require_value(self, name: RefName, expected: CommitId | None) -> None:
        current = self.read(name)
        if current == expected:
            return
        if current is None:
            problem = "is gone; look at what there is now, then try again"
        elif expected is None:
            problem = f"exists already, at {short(current)}; {_other_ways(name)}"
        else:
            problem = f"moved from {short(expected)} to {short(current)}; look at what it holds now, then try again"
        details = {"expected": expected and expected.hex(), "got": current and current.hex()}
        raise Conflict(f"{describe(name)} {problem}", ref=name, **details)

    def _make_room(self, name: RefName) -> None:
        """See to it that no ref is a directory of another, and that nothing else is in the way of a new one."""
        above = [RefName(str(path)) for path in list(Path(name).parents)[:-2]]
        taken = [ref for ref in above if self._bytes(self._refs / ref) is not None]
        taken += self.names(f"{name}/")
        if taken:
            raise Conflict(f"{describe(name)} cannot be while there is a {describe(taken[0])}", ref=name, got=taken[0])
        self._clear(self._refs / name)

    def _clear(self, path: Path) -> None:
        """Remove a directory in which there are no refs, only what writers that died left there."""
        entries = self._entries(path)
        if entries is None:
            return
        for entry in entries:
            below = path / entry
            if self._entries(below) is None:
                self._files.remove(below)
            else:
                self._clear(below)
        self._files.remove_directory(path)

    def _damaged(self, name: RefName, problem: str) -> Corrupt:
        path = self._refs / name
        last = self._last_logged(name)
        hint = f"its reflog last names {last.hex()}; " if last else ""
        mend = f"{hint}run `moonclip fsck --repair`, or write the id it should hold, and a newline, into {path}"
        return Corrupt(f"{describe(name)} {problem}: {mend}", ref=name, path=str(path))

    def _is_lost(self, name: RefName) -> bool:
        """Whether a ref that has no file should have one. A log's only line may tell of a making that never was."""
        try:
            last = self._logs.last(self._logs.path(name))
        except Corrupt:
            return False  # it is reported where it is asked for
        return last is not None and last.old is not None and last.new is not None

    def _last_logged(self, name: RefName) -> CommitId | None:
        try:
            lines = self._logs.lines(self._logs.path(name))
        except Corrupt:
            return None  # The ref's own damage is what is being reported; the log's shows when it is asked for.
        return next((line.new for line in reversed(lines) if line.new is not None), None)


def _other_ways(name: RefName) -> str:
    """What to do where a new ref has the name of one that there is."""
    kind, _, given = name.partition("/")
    command = {TAGS: f"tag -f {given} REVISION", BRANCHES: f"reset --branch {given} REVISION"}.get(kind)
    return "choose another name" if command is None else f"choose another name, or move it with `moonclip {command}`"
