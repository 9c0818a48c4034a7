"""What a manager does with several commits at once: comparing them, and averaging their weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from store import comparing as diffing
from store.comparing import ItemDiff, ValueDiff, merging
from store.naming.listed import listed
from store.naming.refnames import HEAD
from store.repository import Repository

from ..loading.descriptions import readable
from ..loading.selecting import Selection
from ..saving.binding import Binding
from ..saving.recording import Recorder
from ..state.policy import Policy

if TYPE_CHECKING:
    from ..ranks.recorder import RankRecorder


@dataclass(frozen=True, slots=True)
class Diff:
    """What differs between two commits.

    Attributes:
        before: full id of the first, hex.
        after: of the second.
        header: step, branch, message and metadata that differ.
        items: items of either in which something was looked at, by name; so are their tensors.
        stored_bytes: what the second commit's chunks take in packs that the first does not have.
    """

    before: str
    after: str
    header: tuple[ValueDiff, ...]
    items: tuple[ItemDiff, ...]
    stored_bytes: int


class Comparing:
    """Comparing and merging, as methods of a manager."""

    _repo: Repository
    _binding: Binding
    _recorder: "Recorder | RankRecorder"
    _policy: Policy

    def diff(self, before: str, after: str = HEAD, *, names: str | Sequence[str] = (), measured: bool = True) -> Diff:
        """What differs between two commits: tensors by how far they have changed, values by path, and bytes.

        Args:
            before: the first.
            after: the second; the bound branch's tip if it is not given.
            names: names or globs to look at, ``item::path/of/name``, or without ``item::`` in any item; a container's
                or item's name asks for what is in it. All if there are none.
            measured: whether to read changed tensors, in bounded memory, and say how far they have changed. If not,
                ids are compared, and that is all.

        Returns:
            The differences. An item that was pruned in either commit says so, and nothing else.

        Raises:
            NotFound: a revision or name names nothing.
            Corrupt: something is damaged; the message names the tensor or value.
        """
        self._recorder.wait()
        selection = Selection(listed(names))
        ends = (self._repo.resolve(rev, self._binding.branch) for rev in (before, after))
        found = diffing.diff(self._repo, *ends, is_wanted=selection, measured=measured)
        selection.require_met()
        return Diff(
            before=found.before.hex(),
            after=found.after.hex(),
            header=self._read(found.header),
            items=tuple(replace(item, values=self._read(item.values)) for item in found.items),
            stored_bytes=found.stored_bytes,
        )

    def merge(
        self,
        *revisions: str,
        weights: Sequence[float] | None = None,
        items: str | Sequence[str] = ("model",),
        branch: str | None = None,
        message: str = "",
        take_first: bool = False,
    ) -> str:
        """Average the weights of commits into one commit, whose parents they are: a soup with its lineage.

            mgr.merge("main", "lr3", "lr4", weights=[0.5, 0.3, 0.2], branch="soup")

        It holds the averaged items only: an optimizer's state, above all, has no meaningful mean. Floats are summed in
        float64 and rounded once, in bounded memory. Loads nothing.

        Args:
            *revisions: the commits, at least two. The first has to be the tip of the branch, if that exists.
            weights: of each, in proportion; all the same if ``None``.
            items: items to average.
            branch: branch to commit on, made if it does not exist; the bound one if ``None``.
            message: what a person should know of it.
            take_first: take the first commit's values and integers where they differ, which is refused otherwise.

        Returns:
            Hex id of the commit.

        Raises:
            Incompatible: the commits do not match; the message lists where, and nothing was written.
            NotFound: a revision or item is not there. Pruned: it is not there any more.
            Conflict: the branch is not at the first commit, or moved meanwhile.
            Corrupt: stored bytes are damaged; the message says which.
            ReadOnly: the store cannot be written from here.
        """
        with self._recorder.exclusively():
            self._recorder.wait()
            wanted = merging.Merge(
                commits=[self._repo.resolve(rev, self._binding.branch) for rev in revisions],
                branch=self._binding.branch if branch is None else branch,
                weights=weights,
                items=listed(items),
                message=message or f"Average of {', '.join(revisions)}",
                take_first=take_first,
            )
            commit = merging.merge(self._repo, wanted)
            if wanted.branch == self._binding.branch:
                self._binding.bind(wanted.branch, commit)
            return commit.hex()

    def _read(self, changes: Sequence[ValueDiff]) -> tuple[ValueDiff, ...]:
        return tuple(
            replace(change, before=readable(change.before, self._policy), after=readable(change.after, self._policy))
            for change in changes
        )
