"""Refs and their logs against two dictionaries, with writers that die between any two of their steps."""

import errno
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from store.disk.calls import Disk
from store.disk.files import Files
from store.errors import Conflict
from store.ids import Buffer, CommitId, ObjectId
from store.naming.refs import RefStore

Value = CommitId | None

COMMITS = [CommitId(ObjectId(bytes([value]) * 32)) for value in b"abc"]
NAMES = ["branches/main", "branches/exp", "branches/exp/lr3", "tags/best"]
BRANCHES = ["main", "exp", "exp/lr3"]


class Died(Exception):
    """The writer was killed here."""


class FaultyDisk(Disk):
    """Goes wrong at one alteration: the writer dies there and does nothing more, or there is an error once."""

    def __init__(self, steps: int, dies: bool) -> None:
        self._steps = steps
        self._dies = dies

    def _step(self) -> None:
        self._steps -= 1
        if self._steps < 0 and self._dies:
            raise Died
        if self._steps == -1:
            raise OSError(errno.ENOSPC, "no space left on device")

    def write(self, fd: int, data: Buffer) -> int:
        try:
            self._step()
        except Died:
            if self._steps == -1:
                super().write(fd, memoryview(data)[: len(data) // 2])
            raise
        return super().write(fd, data)

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._step()
        super().truncate(fd, size_bytes)

    def fsync(self, fd: int) -> None:
        self._step()  # power cuts are the crash tests' business: syncing itself is left out

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)

    def mkdir(self, path: Path) -> None:
        self._step()
        super().mkdir(path)

    def rmdir(self, path: Path) -> None:
        self._step()
        super().rmdir(path)

    def sync_directory(self, path: Path) -> None:
        self._step()


def files_for(fault: tuple[int, bool] | None) -> Files:
    return Files(FaultyDisk(*fault)) if fault else Files()


faults = st.none() | st.tuples(st.integers(0, 16), st.booleans())


class RefsModel(RuleBasedStateMachine):
    """What ``RefStore`` should be, said with dictionaries."""

    @initialize()
    def make(self) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.head = "main"
        self.values: dict[str, CommitId] = {}
        self.logs: dict[str, list[tuple[Value, Value]]] = {}
        RefStore(self.root, Files()).set_head("main")

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def value(self, name: str) -> Value:
        return self.values.get(f"branches/{self.head}" if name == "HEAD" else name)

    def log(self, name: str, old: Value, new: Value) -> None:
        self.logs.setdefault(name, []).append((old, new))

    def apply(self, name: str, new: Value) -> None:
        old = self.values.pop(name, None)
        if new is not None:
            self.values[name] = new
        for log in (name, "HEAD") if name == f"branches/{self.head}" else (name,):
            self.log(log, old, new)

    def in_the_way(self, name: str) -> bool:
        return any(other.startswith(f"{name}/") or name.startswith(f"{other}/") for other in self.values)

    @rule(
        name=st.sampled_from(NAMES),
        right=st.integers(0, 4).map(bool),
        new=st.none() | st.sampled_from(COMMITS),
        fault=faults,
    )
    def update(self, name: str, right: bool, new: Value, fault: tuple[int, bool] | None) -> None:
        old = self.values.get(name)
        expected = old if right else next(commit for commit in COMMITS if commit != old)
        refused = expected != old or (old is None and new is not None and self.in_the_way(name))
        try:
            RefStore(self.root, files_for(fault)).update(name, expected, new, "move")
        except Conflict:
            assert refused
            return
        except (Died, OSError):
            if RefStore(self.root, Files()).read(name) != new:
                return
        assert not refused
        if new != old:
            self.apply(name, new)

    @rule(branch=st.sampled_from(BRANCHES), fault=faults)
    def switch(self, branch: str, fault: tuple[int, bool] | None) -> None:
        old, new, other = self.value("HEAD"), self.values.get(f"branches/{branch}"), branch != self.head
        try:
            RefStore(self.root, files_for(fault)).set_head(branch)
        except (Died, OSError):
            reopened = RefStore(self.root, Files())
            if reopened.head() != branch:
                # A switch between two names of one commit leaves a line that no reader can tell from one that was.
                extra = len(reopened.reflog("HEAD")) - len(self.logs.get("HEAD", []))
                assert extra == 0 or (extra == 1 and old == new)
                self.logs.setdefault("HEAD", []).extend([(old, new)] * extra)
                return
        if other and (old, new) != (None, None):
            self.log("HEAD", old, new)
        self.head = branch

    @invariant()
    def the_same(self) -> None:
        refs = RefStore(self.root, Files())
        assert refs.head() == self.head
        assert refs.list() == self.values
        for name in [*NAMES, "HEAD"]:
            lines = [(line.old, line.new) for line in reversed(refs.reflog(name))]
            assert lines == self.logs.get(name, [])
        logged = {commit for log in self.logs.values() for move in log for commit in move if commit is not None}
        assert logged <= refs.roots()


TestRefsModel = RefsModel.TestCase
TestRefsModel.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)
