"""What a manager does with branches and tags."""

from typing import TYPE_CHECKING

from store.errors import Conflict, Incompatible
from store.naming.refnames import TAGS, RefName, branch_name, short_name, tag_name

from ..saving.branches import branches_of, last_step, require_branch
from .upkeep import Upkeep

if TYPE_CHECKING:
    from ..ranks.recorder import RankRecorder
    from ..ranks.talk import Talk
    from ..saving.recording import Recorder


class Branching(Upkeep):
    """Branches and tags, as methods of a manager."""

    _recorder: "Recorder | RankRecorder"
    _talk: "Talk | None"

    @property
    def bound_branch(self) -> str:
        """Name of the bound branch."""
        return self._binding.branch

    @property
    def head(self) -> str | None:
        """Hex id of the bound branch's tip, ``None`` before its first commit. Saves under way do not count."""
        tip = self._binding.current()
        return None if tip is None else tip.hex()

    @property
    def step(self) -> int | None:
        """Step of the bound branch's tip, or of the nearest commit before it that has one."""
        tip = self._binding.current()
        return None if tip is None else last_step(self._repo, tip)

    def branch(self, name: str, at: str | None = None) -> str:
        """Make a branch; the bound one stays.

        Args:
            name: its name.
            at: the commit it begins at; the bound branch's tip if ``None``.

        Returns:
            Hex id of that commit.

        Raises:
            Conflict: the branch exists. NotFound: ``at`` names nothing.
            Incompatible: ``name`` is no legal name, or this is not rank 0 of several.
        """
        if self._talk is not None and self._talk.group.rank != 0:
            raise Incompatible(f"rank {self._talk.group.rank} makes no branches: do so on rank 0", branch=name)
        self._recorder.wait()
        commit = self._resolved(at)
        self._repo.set_ref(branch_name(name), None, commit, "branch", f"made at {at or self.bound_branch}")
        return commit.hex()

    def branches(self) -> dict[str, str]:
        """Hex id of each branch's tip, by name."""
        return {name: commit.hex() for name, commit in branches_of(self._repo).items()}

    def switch(self, name: str) -> None:
        """Save on another branch from now on, and make it the store's current one (``HEAD``). Loads nothing.

        Of several ranks, each has to do so.

        Raises:
            NotFound: there is no such branch.
            ReadOnly: the store cannot be written from here.
        """
        self._repo.require_writable()
        with self._recorder.exclusively():
            self._recorder.wait()
            tip = require_branch(self._repo, name)
            self._repo.refs.set_head(name)
            self._binding.bind(name, tip)

    def tag(self, name: str, at: str | None = None, *, overwrite: bool = False) -> str:
        """Put a tag on a commit.

        Args:
            name: the tag.
            at: the commit; the bound branch's tip if ``None``.
            overwrite: move the tag if it exists.

        Returns:
            Hex id of the commit.

        Raises:
            Conflict: the tag exists. NotFound: ``at`` names nothing.
            Incompatible: ``name`` is no legal name, or this is not rank 0 of several.
        """
        self._recorder.wait()
        commit = self._resolved(at)
        self._recorder.set_tag(name, commit, overwrite=overwrite)
        return commit.hex()

    def delete_branch(self, name: str) -> str:
        """Take a branch's name away. Its commits stay as long as its reflog tells of them, 90 days.

        Args:
            name: its name.

        Returns:
            Hex id of its tip: ``branch(name, at=…)`` brings it back.

        Raises:
            NotFound: there is no such branch.
            Conflict: it is the bound one, or the store's current one (``HEAD``).
            Incompatible: this is not rank 0 of several.
            ReadOnly: the store cannot be written from here.
        """
        if name in {self.bound_branch, self._repo.refs.head()}:
            raise Conflict(f"{name!r} is the branch that is saved on; switch to another one first", branch=name)
        return self._deleted(branch_name(name))

    def delete_tag(self, name: str) -> str:
        """Take a tag away; the commit stays where a branch reaches it.

        Args:
            name: the tag.

        Returns:
            Hex id of its commit: ``tag(name, at=…)`` brings it back.

        Raises:
            NotFound: there is no such tag.
            Incompatible: this is not rank 0 of several.
            ReadOnly: the store cannot be written from here.
        """
        return self._deleted(tag_name(name))

    def tags(self) -> dict[str, str]:
        """Hex id of each tag's commit, by name."""
        return {short_name(RefName(name)): commit.hex() for name, commit in self._repo.refs.list(f"{TAGS}/").items()}

    def _deleted(self, name: RefName) -> str:
        if self._talk is not None and self._talk.group.rank != 0:
            raise Incompatible(f"rank {self._talk.group.rank} deletes no names: do so on rank 0", ref=name)
        self._recorder.wait()
        return self._repo.delete_ref(name).hex()
