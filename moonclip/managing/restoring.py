"""Bringing states back, as methods of a manager: ``resume``, ``load``, and some tensors."""

import logging
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from store.beside.files import ITEM as FILES
from store.errors import Incompatible
from store.format.objects import Commit
from store.ids import CommitId, from_hex, short
from store.naming.listed import listed
from store.naming.refnames import branch_name
from store.repository import Repository
from store.upkeep.absences import Why

from ..capture.staging import Staging
from ..loading.blaming import telling_what_is_hit
from ..loading.elsewhere import NOWHERE, Elsewhere
from ..loading.lastgood import Resumed, load_newest
from ..loading.lazy import LazySource
from ..loading.load import Wanted, load, load_lazily, load_tensors, verifies_hash
from ..ranks.perrank import own_targets
from ..ranks.recorder import RankRecorder
from ..ranks.resuming import commit_for_all, resume_together
from ..ranks.taking import taken_by_all
from ..ranks.talk import Talk
from ..saving.binding import ResumePoint
from ..saving.branches import telling_it_is_empty
from ..saving.reports import Reports
from ..specs import Schema
from ..state.items import GENERATORS, flattened, gathered
from ..state.policy import Policy
from .aliases import Aliases
from .givens import placed
from .syncing import Syncing
from .upkeep import Revision, Upkeep, text_of

_log = logging.getLogger("moonclip")


class Restoring(Aliases, Syncing, Upkeep):
    """Loading commits into a person's objects, or anew."""

    _policy: Policy
    _schema: Schema
    _reports: Reports
    _talk: Talk | None
    _per_rank: set[str]
    _staging: Staging
    _resumed: Resumed | None

    def resume(
        self,
        *objects: Any,
        rev: Revision | None = None,
        branch: str | None = None,
        rng: bool = False,
        strict: bool = True,
        verify: Literal["fast", "full"] = "fast",
        **items: Any,
    ) -> int:
        """Bring objects to a stored state and continue from there.

        If the branch's tip is damaged, the newest commit before it that is not is taken; a warning and :attr:`resumed`
        tell what was skipped, and the next save goes on from there. Whatever is loaded comes from one commit.

        A store without any branch gets history, and what is asked for of the newest commit, from the manager's remote.
        Whatever else is asked for is read from there then. A store that has a branch takes nothing from the remote:
        see :meth:`pull`.

        Args:
            rev: commit to take up at, as for :meth:`load`; the branch's tip if ``None``.
            branch: branch to continue on, from now on the bound one, which it is if ``None``. With ``rev`` it is made
                there if it does not exist; if it was made there, it goes on from its tip, with a warning.
            rng: also restore the random number generators, after all else.
            strict: whether names and dtypes have to agree exactly, see :meth:`load`.
            verify: how much is checked, see :meth:`load`.
            *objects: model, optimizer, scheduler and scaler may be given by position.
            **items: targets by item: objects with ``load_state_dict``, or templates that are filled in place. Those
                that are ``None`` are left out; of other items that the commit has beside these a warning tells. A
                ``scheduler`` or ``scaler`` that was not saved stays as it is, with a warning.

        Returns:
            The next step: one more than the commit's; 0 if the branch has no commit yet, and then nothing is touched.

        Raises:
            Conflict: ``rev`` is neither the tip of that branch nor where it was made; the message names the ways out.
            NotFound: ``rev`` names nothing, or neither does ``branch``, in a store that has others.
            Incompatible: something does not fit; the message lists it all, and nothing was altered.
            RemoteError: the remote of an empty store did not answer as it should.
            RankLost: another rank ended. Whatever keeps one rank from resuming is raised on all.
            Corrupt: stored bytes are damaged, of ``rev`` or, without it, of all commits. Tensors may be partly written.
        """
        verify_hash = verifies_hash(verify)
        at = None if rev is None else text_of(rev)
        with self._recorder.exclusively(), self._reports.loading() as loading:
            with loading.phase("wait"):
                self._recorder.wait()
            given = placed(objects, items)
            targets = self._owned(gathered(None, given, rng=rng), strict=strict)
            self._schema.require(targets, "the targets")
            how = (strict, verify_hash, self._schema.resharders, loading)
            wanted = Wanted(targets, None, None, *how, optional=self._optional)
            if self._talk is None:
                next_step = self._take_up(at, branch, targets, wanted)
                self._tell_not_asked_for(given)
                return next_step
            next_step = self._take_up_together(self._talk, at, branch, targets, wanted)
            self._talk.exchange(lambda: list(given), self._tell_not_asked_by_any)
            return next_step

    @property
    def resumed(self) -> Resumed | None:
        """What the last :meth:`resume` loaded, and which damaged commits it skipped; ``None`` before the first."""
        return self._resumed

    def load(
        self,
        rev: Revision | None = None,
        *objects: Any,
        into: Mapping[str, Any] | None = None,
        items: str | Sequence[str] | None = None,
        names: str | Sequence[str] | None = None,
        strict: bool = True,
        verify: Literal["fast", "full"] = "fast",
        lazy: bool = False,
        **targets: Any,
    ) -> dict[str, Any]:
        """Read a commit, after waiting for pending saves. The branch stays where it is.

        Args:
            rev: the commit; the bound branch's tip if ``None``. A step, or what :meth:`save` returned, will do as well.
            *objects: model, optimizer, scheduler and scaler as targets, by position.
            into: targets by item: objects with ``load_state_dict``, or templates. Tensors in them are overwritten and
                stay the objects they are, so do dicts and lists. ``None``, and an empty dict or list, takes whatever
                is stored in its place. Without it everything is built anew, tensors on the CPU.
            items: name or glob of items, or several; all (or those of ``into``) if ``None``.
            names: likewise of tensors and values, ``item::path/of/name``, or without ``item::`` in any item.
            strict: whether names and dtypes have to agree exactly. If not, names that only one side has are passed
                over (and logged), and tensors are cast where that keeps their kind of number. Shapes always have to
                agree.
            verify: ``"fast"`` compares what is stored with its checksums; ``"full"`` also what it decodes to with the
                BLAKE3 it is known by, which takes about 0.2 s of a core per GB.
            lazy: read no tensor: each is a :class:`LazyTensor`, which reads itself, or some rows, when asked, for as
                long as this manager is open. Arrays, sparse and quantized tensors are read at once. Without ``into``.
            **targets: targets by item, beside ``into``: ``load("best", model=model)``.

        Returns:
            By item: the target, or what takes its place if it could not be altered (a number, a tuple).

        Raises:
            NotFound: the revision, an item or a name is not there.
            Incompatible: something does not fit, or is given twice; the message lists it all, and nothing was altered.
            Unsafe: it holds a class or pickle that was not allowed.
            Corrupt: stored bytes are damaged; the message says which. Tensors may be partly written.
        """
        if into is not None and not isinstance(into, Mapping):
            raise Incompatible(
                f"into takes targets by item, as in into={{'model': model}}, not a {type(into).__name__};"
                " or give it by its item's name: load(…, model=model)"
            )
        given = {name: target for name, target in placed(objects, targets).items() if target is not None}
        if given:
            into = gathered(into, given, rng=False)
        owned = None if into is None else self._owned(into, strict=strict)
        verify_hash = verifies_hash(verify)
        wanted = Wanted(owned, listed(items), listed(names), strict, verify_hash, self._schema.resharders)
        if lazy:
            return self._loaded_lazily(rev, wanted)
        loaded = self._loaded(rev, wanted)
        if into is not None and owned is not None:
            loaded = {item: into[item] if value is owned[item] else value for item, value in loaded.items()}
        if isinstance(into, MutableMapping):
            into.update({item: value for item, value in loaded.items() if into[item] is not value})
        return loaded

    def _loaded(self, rev: Revision | None, wanted: Wanted) -> dict[str, Any]:
        with self._reports.loading() as loading:
            if wanted.into is not None and wanted.items is None and wanted.names is None:
                self._schema.require(wanted.into, "the targets")
            with loading.phase("wait"):
                commit = self._agreed(rev)
            self._require_items(commit, wanted)
            wanted = replace(wanted, loading=loading, elsewhere=self._elsewhere(wanted))
            with telling_what_is_hit(self._repo, commit):
                return load(self._repo, commit, wanted, self._policy)

    def _loaded_lazily(self, rev: Revision | None, wanted: Wanted) -> dict[str, Any]:
        source = LazySource(self._repo, self, wanted.verify_hash)
        with self._reports.loading() as loading:
            with loading.phase("wait"):
                loading.commit = self._agreed(rev)
            self._require_items(loading.commit, wanted)
            with loading.phase("read"):
                return load_lazily(source, loading.commit, wanted, self._policy)

    def _require_items(self, commit: Commit, wanted: Wanted) -> None:
        """Hold a commit to the schema where all of it is wanted anew."""
        if wanted.into is None and wanted.items is None and wanted.names is None:
            self._schema.require(commit.items, f"commit {short(commit.id)}", allow_unknown=True)

    def load_latest(self, *objects: Any, **options: Any) -> dict[str, Any]:
        """Read the bound branch's tip: :meth:`load` without a revision, with its arguments."""
        return self.load(None, *objects, **options)

    def load_tensors(
        self, names: str | Sequence[str], rev: Revision | None = None, *, verify: Literal["fast", "full"] = "fast"
    ) -> dict[str, Any]:
        """Read some tensors only, by full name.

        Args:
            names: name or glob, or several, ``item::path/of/name``, or without ``item::`` in any item; a container's
                name asks for all tensors in it.
            rev: the commit; the bound branch's tip if ``None``.
            verify: how much is checked, see :meth:`load`.

        Returns:
            New tensors on the CPU, by ``item::name``.

        Raises:
            NotFound: the revision, or a name, is not there. Corrupt: stored bytes are damaged.
        """
        verify_hash = verifies_hash(verify)
        wanted = listed(names)
        with self._reports.loading() as loading:
            with loading.phase("wait"):
                loading.commit = self._agreed(rev)
            return load_tensors(
                self._repo, loading.commit, wanted, self._policy, verify_hash=verify_hash, loading=loading
            )

    def _elsewhere(self, wanted: Wanted) -> Elsewhere:
        """What other ranks take of the same commit."""
        if self._talk is None:
            return NOWHERE
        with self._recorder.exclusively():
            return taken_by_all(self._talk, wanted.into or {}, self._policy)

    def _owned(self, targets: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
        """Targets that take their rank's own state, where each rank has one."""
        rank, world_size = (0, 1) if self._talk is None else (self._talk.group.rank, self._talk.group.world_size)
        return own_targets(targets, self._per_rank, rank, world_size, strict=strict)

    def _agreed(self, rev: Revision | None) -> Commit:
        """The commit that a revision names, once all saves have ended; rank 0 says which for all ranks."""
        if self._talk is None:
            self._recorder.wait()
            return self._repo.commit(self._found(rev))
        with self._recorder.exclusively():
            self._recorder.wait()
            return commit_for_all(self._talk, self._repo, lambda: self._found(rev))

    def _found(self, rev: Revision | None) -> CommitId:
        with telling_it_is_empty(self._repo):
            return self._resolved(rev)

    def _take_up(self, rev: str | None, branch: str | None, targets: Mapping[str, Any], wanted: Wanted) -> int:
        """What :meth:`resume` does for one process alone."""
        self._bring(branch, rev, list(targets))
        point = self._binding.resume_point(rev, branch)
        if point.commit is None:
            self._binding.bind(point.branch, None)
            self._resumed = Resumed()
            return 0
        line = [point.commit] if point.is_named else self._binding.line(point.branch, point.commit)
        with self._telling_the_way_back(point, targets):
            found, skipped = load_newest(self._repo, point.branch, line, wanted, self._policy)
        if point.is_new:
            self._repo.set_ref(branch_name(point.branch), None, point.commit, "branch", f"resumed at {rev}")
        self._binding.bind(point.branch, found, left=point.commit if skipped else None)
        if not self._repo.read_only:
            with suppress(Incompatible, MemoryError, OSError):  # the save that it is for will say so
                self._staging.expect(flattened(targets, self._policy), at_once=False)
        self._resumed = Resumed(found.hex(), tuple(skipped))
        return self._binding.next_step(found)

    def _take_up_together(
        self, talk: Talk, rev: str | None, branch: str | None, targets: Mapping[str, Any], wanted: Wanted
    ) -> int:
        """What it does for one of several ranks. Collective."""
        where = (talk, self._repo, self._binding, rev, branch)
        taken = resume_together(*where, wanted, self._policy, partial(self._bring, branch, rev))
        self._resumed = taken.resumed
        if taken.resumed.commit is not None and isinstance(self._recorder, RankRecorder):
            with suppress(Incompatible, MemoryError, OSError):  # as for one process
                self._recorder.expect(targets, at_once=False)
        return taken.next_step

    def _tell_not_asked_for(self, named: Collection[str]) -> None:
        """Warn of items of the commit that was resumed which were not named: training goes on without what they hold.

        That holds for every item but the generators, for which there is an argument, files that were imported, and
        what was pruned. Who resumes nothing takes up the place alone, and is told nothing.
        """
        if self._resumed is None or self._resumed.commit is None or not named:
            return
        commit = self._repo.commit(CommitId(from_hex(self._resumed.commit)))
        of_no_use = {*named, GENERATORS, FILES}
        left = [item for item in commit.items if item not in of_no_use and not _is_pruned(self._repo, commit.id, item)]
        if left:
            _log.warning(
                "commit %s also has %s, which %s not asked for; name what is to be resumed, too, or say %s=None to do"
                " without",
                short(commit.id),
                ", ".join(map(repr, left)),
                "was" if len(left) == 1 else "were",
                left[0],
            )

    def _tell_not_asked_by_any(self, said: Sequence[Collection[str]]) -> list[None]:
        """The same on rank 0, which knows what each rank named: some have items of their own."""
        self._tell_not_asked_for({item for items in said for item in items})
        return [None] * len(said)

    @contextmanager
    def _telling_the_way_back(self, point: ResumePoint, targets: Mapping[str, Any]) -> Iterator[None]:
        """Say what to do where a branch's tip lacks items: something else was saved there last, under a tag perhaps."""
        try:
            yield
        except Incompatible as error:
            if (
                point.commit is not None
                and not point.is_named
                and targets.keys() - self._repo.commit(point.commit).items
            ):
                error.add_note(
                    f"the last save on branch {point.branch!r} had other items. To go on from an older commit, move the"
                    f" branch back to it with `moonclip reset REVISION`, or branch off with resume(rev=…,"
                    f" branch='new-name', …). Save what is no step of a run on a branch of its own"
                )
            raise


def _is_pruned(repo: Repository, commit: CommitId, item: str) -> bool:
    record = repo.absences.reason(commit, item)
    return record is not None and record.why in {Why.PRUNED, Why.COLLECTED}
