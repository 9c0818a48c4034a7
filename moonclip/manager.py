"""The manager: one object through which a training script saves, resumes, branches and looks back."""

import weakref
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, suppress
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from store.errors import Incompatible
from store.history.walks import first_parents
from store.ids import CommitId
from store.naming.refnames import TAGS, RefName, branch_name, short_name
from store.upkeep.retention import Keep

from .binding import bound, branches_of, last_step, require_branch
from .capture.budget import parse_bytes
from .capture.staging import Staging
from .comparing import Comparing
from .descriptions import Description, Snapshot, describe, snapshots
from .items import flattened, gathered
from .jobs import SaveFuture
from .lastgood import Resumed, load_newest
from .lazy import LazySource
from .loading import Wanted, load, load_lazily, load_tensors, verifies_hash
from .policy import Policy
from .recording import Recorder, Wish
from .upkeep import Upkeep


class CheckpointManager(Comparing, Upkeep):
    """Saves training states as commits and brings them back.

        mgr = CheckpointManager("./checkpoints")
        start = mgr.resume(model=model, optimizer=optimizer)
        for step in range(start, 1000):
            ...
            mgr.save(step=step, model=model, optimizer=optimizer)

    An item is anything with ``state_dict`` and ``load_state_dict``, or a mapping, list, tensor, number, text or bytes
    in any nesting. Methods may be called from several threads. A forked child can load, but neither saves nor waits
    for what its parent is saving.

    Args:
        root: directory of the store; made if there is none.
        branch: branch to save on, made by its first save; the store's current one (``HEAD``) if ``None``.
        async_save: write in the background. If not, :meth:`save` returns when the commit is durable.
        capture: ``"copy"``: all is copied when :meth:`save` returns. ``"overlap"``: parameters of modules and state of
            optimizers that are passed themselves are copied while the next forward and backward pass run; optimizers
            wait for the rest before they step. Any other update in place belongs under :meth:`lock`. Tensors are
            watched, and one that changed before it was copied fails its save with :class:`StateChanged`; a write that
            raises no version counter and changes few elements can go unseen.
        max_host_memory: bytes that saving may take, as a number or text (``"12GB"``). Where only one copy of the state
            fits, deltas read their bases from the store; where none does, saves are refused. Twice the state and
            0.2 GB if ``None``.
        skip_unmodified: do not copy parameters that require no gradient, that no optimizer among the items owns, and
            whose memory, version counter and a sample of words are as in the last save: a frozen backbone costs
            nothing. *Unsafe* where frozen parameters are written through ``.data``, NumPy or custom kernels: a write
            that raises no version counter and changes few elements is not stored.
        keep: what to keep once a save is made: what the policy does not name is dropped after each, in the background.
            Everything if ``None``. See :meth:`prune` for what is never dropped.
        threads: threads that copy, encode and decode. If ``None``, what ``MOONCLIP_THREADS`` says, else the CPUs that
            this process may use, divided among the ranks of its host.
        allow: dotted names of classes (``"package.module.Class"``) that may be imported, and pickled for want of a
            better way. Only for stores whose authors you trust.
        allow_pickle: pickle unknown objects and unpickle whatever is found. *Unpickling runs code.*

    Raises:
        Incompatible: the store needs a newer version, or an argument is none of those described.
        OSError: there is no store and none can be made.
    """

    def __init__(
        self,
        root: str | Path,
        *,
        branch: str | None = None,
        async_save: bool = True,
        capture: Literal["copy", "overlap"] = "copy",
        max_host_memory: int | str | None = None,
        skip_unmodified: bool = False,
        keep: Keep | None = None,
        threads: int | None = None,
        allow: Sequence[str] = (),
        allow_pickle: bool = False,
    ) -> None:
        if capture not in {"copy", "overlap"}:
            raise Incompatible(f"capture is 'copy' or 'overlap', not {capture!r}")
        max_bytes = None if max_host_memory is None else parse_bytes(max_host_memory)
        self._repo, self._binding = bound(Path(root), branch, threads)
        self._policy = Policy(allow_pickle=allow_pickle, classes=tuple(allow))
        self._staging = Staging(
            self._repo.threads, overlap=capture == "overlap", max_bytes=max_bytes, skip_unmodified=skip_unmodified
        )
        self._recorder = Recorder(
            self._repo, self._binding, self._policy, self._staging, in_background=async_save, keep=keep
        )
        self._resumed: Resumed | None = None
        self._abandoned = weakref.finalize(self, self._recorder.abandon)
        self._abandoned.atexit = False  # then saves are drained, not abandoned

    # --- saving -----------------------------------------------------------------------------------------------------

    def save(
        self,
        name: str | None = None,
        payload: Mapping[str, Any] | None = None,
        /,
        *,
        step: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        message: str = "",
        overwrite: bool = False,
        rng: bool = False,
        **items: Any,
    ) -> SaveFuture:
        """Commit a state to the bound branch.

        Returns once the state is copied: it may be altered right away (with ``capture="overlap"`` by an optimizer's
        step, or under :meth:`lock`). A save waits for the one before it, so memory stays within two copies of the
        state. The step may be lower than the last one's: runs roll back.

        If an earlier save has failed in the background, that failure is raised here, once — after *this* save has been
        handed over: one failure costs no other save.

        Args:
            name: a tag to put on the commit.
            payload: items by name, for names that are no keywords.
            step: training step.
            metadata: values to keep with the commit; listings show them.
            message: what a person should know of it.
            overwrite: move the tag ``name`` if it exists.
            rng: also save torch's, NumPy's and Python's random number generators, as the item ``"rng"``.
            **items: items by name. Those that are ``None`` are left out.

        Returns:
            The commit's hex id once it is durable, or :class:`SaveFailed` from what went wrong, with its step.

        Raises:
            Conflict: the tag exists. Nothing was copied.
            Incompatible: something cannot be stored; the message names it. Nothing was copied.
            ReadOnly: the store cannot be written from here.
            SaveFailed: an earlier save failed; this one is under way.
            NoRoom: the state exceeds ``max_host_memory``. Nothing was copied.
            MoonclipError: the manager is closed, or its process is this one's parent.
        """
        wanted = gathered(payload, items, rng=rng)
        return self._recorder.save(Wish(wanted, name, overwrite, step, metadata, message))

    def lock(self) -> AbstractContextManager[None]:
        """Hold this while altering in place, other than by an optimizer's step, what may be being saved.

            with mgr.lock():
                ema.update_parameters(model)

        It waits until a capture under way is complete, and no other begins meanwhile. With ``capture="copy"`` it keeps
        other threads from saving, and costs nothing else. A save inside it is complete when it returns.
        """
        return self._staging.guard.updating()

    def prewarm(self, **items: Any) -> None:
        """Get memory ready for saving these items, in the background: then first saves are as fast as later ones.

        :meth:`resume` does so by itself. An optimizer that has not stepped yet has no state that could be counted.

        Args:
            **items: as for :meth:`save`.

        Raises:
            NoRoom: their state exceeds ``max_host_memory``.
            Incompatible: something cannot be stored; the message names it.
        """
        with self._recorder.exclusively():
            self._recorder.wait()
            self._staging.expect(flattened(gathered(None, items, rng=False), self._policy))

    @property
    def last_wait_ns(self) -> int:
        """How long the last :meth:`save` waited for the save before it."""
        return self._recorder.last_wait_ns

    @property
    def last_blocked_ns(self) -> int:
        """How long it took beyond that: until the state was copied, or durable without ``async_save``."""
        return self._recorder.last_blocked_ns

    def flush(self) -> None:
        """Wait until all saves are durable.

        Raises:
            SaveFailed: one failed and nobody was told yet; told once.
        """
        self._recorder.wait()
        self._recorder.raise_failure()

    def close(self) -> None:
        """Wait until all saves are durable and close the store; again does nothing.

        Raises:
            SaveFailed: one failed and nobody was told yet.
            MoonclipError: called in a callback of a Future.
        """
        self._recorder.close()
        self._staging.guard.close()
        self._abandoned.detach()
        self._recorder.raise_failure()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- loading ----------------------------------------------------------------------------------------------------

    def resume(
        self,
        *,
        rev: str | None = None,
        branch: str | None = None,
        rng: bool = False,
        strict: bool = True,
        verify: Literal["fast", "full"] = "fast",
        **items: Any,
    ) -> int:
        """Bring objects to a stored state and continue from there.

        If the branch's tip is damaged, the newest commit before it that is not is taken; a warning and :attr:`resumed`
        tell what was skipped, and the next save goes on from there. Whatever is loaded comes from one commit.

        Args:
            rev: commit to take up at; the branch's tip if ``None``.
            branch: branch to continue on, from now on the bound one; with ``rev`` it is made there if it does not
                exist. The bound one if ``None``.
            rng: also restore the random number generators, after all else.
            strict: whether names and dtypes have to agree exactly, see :meth:`load`.
            verify: how much is checked, see :meth:`load`.
            **items: targets by item: objects with ``load_state_dict``, or templates that are filled in place. Those
                that are ``None`` are left out.

        Returns:
            The next step: one more than the commit's; 0 if the branch has no commit yet, and then nothing is touched.

        Raises:
            Conflict: ``rev`` is not the tip of the branch to continue on; the message names the ways out.
            NotFound: ``rev`` names nothing, or neither does ``branch``, in a store that has others.
            Incompatible: something does not fit; the message lists it all, and nothing was altered.
            Corrupt: stored bytes are damaged, of ``rev`` or, without it, of all commits. Tensors may be partly written.
        """
        verify_hash = verifies_hash(verify)
        with self._recorder.exclusively():
            self._recorder.wait()
            point = self._binding.resume_point(rev, branch)
            if point.commit is None:
                self._binding.bind(point.branch, None)
                self._resumed = Resumed()
                return 0
            targets = gathered(None, items, rng=rng)
            wanted = Wanted(into=targets, strict=strict, verify_hash=verify_hash)
            line = [point.commit] if rev is not None else self._binding.line(point.branch, point.commit)
            found, skipped = load_newest(self._repo, point.branch, line, wanted, self._policy)
            if point.is_new:
                self._repo.set_ref(branch_name(point.branch), None, point.commit, "branch", f"resumed at {rev}")
            self._binding.bind(point.branch, found, left=point.commit if skipped else None)
            if not self._repo.read_only:
                with suppress(Incompatible, MemoryError, OSError):  # the save that it is for will say so
                    self._staging.expect(flattened(targets, self._policy))
            self._resumed = Resumed(found.hex(), tuple(skipped))
            return self._binding.next_step(found)

    @property
    def resumed(self) -> Resumed | None:
        """What the last :meth:`resume` loaded, and which damaged commits it skipped; ``None`` before the first."""
        return self._resumed

    def load(
        self,
        rev: str | None = None,
        *,
        into: Mapping[str, Any] | None = None,
        items: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        strict: bool = True,
        verify: Literal["fast", "full"] = "fast",
        lazy: bool = False,
    ) -> dict[str, Any]:
        """Read a commit, after waiting for pending saves. The branch stays where it is.

        Args:
            rev: the commit; the bound branch's tip if ``None``.
            into: targets by item: objects with ``load_state_dict``, or templates. Tensors in them are overwritten and
                stay the objects they are, so do dicts and lists. ``None``, and an empty dict or list, takes whatever
                is stored in its place. Without it everything is built anew, tensors on the CPU.
            items: names or globs of items; all (or those of ``into``) if ``None``.
            names: names or globs of tensors and values, ``item::path/of/name``, or without ``item::`` in any item.
            strict: whether names and dtypes have to agree exactly. If not, names that only one side has are passed
                over (and logged), and tensors are cast where that keeps their kind of number. Shapes always have to
                agree.
            verify: ``"fast"`` compares what is stored with its checksums; ``"full"`` also what it decodes to with the
                BLAKE3 it is known by, which takes about 0.2 s of a core per GB.
            lazy: read no tensor: each is a :class:`LazyTensor`, which reads itself, or some rows, when asked, for as
                long as this manager is open. Arrays, sparse and quantized tensors are read at once. Without ``into``.

        Returns:
            By item: the target, or what takes its place if it could not be altered (a number, a tuple).

        Raises:
            NotFound: the revision, an item or a name is not there.
            Incompatible: something does not fit; the message lists it all, and nothing was altered.
            Unsafe: it holds a class or pickle that was not allowed.
            Corrupt: stored bytes are damaged; the message says which. Tensors may be partly written.
        """
        wanted = Wanted(into, items, names, strict, verifies_hash(verify))
        self._recorder.wait()
        if lazy:
            source = LazySource(self._repo, self, wanted.verify_hash)
            return load_lazily(source, self._commit_at(rev), wanted, self._policy)
        loaded = load(self._repo, self._commit_at(rev), wanted, self._policy)
        if isinstance(into, MutableMapping):
            into.update({item: value for item, value in loaded.items() if into[item] is not value})
        return loaded

    def load_latest(
        self,
        *,
        into: Mapping[str, Any] | None = None,
        items: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        strict: bool = True,
        verify: Literal["fast", "full"] = "fast",
        lazy: bool = False,
    ) -> dict[str, Any]:
        """Read the bound branch's tip: :meth:`load` without a revision."""
        return self.load(None, into=into, items=items, names=names, strict=strict, verify=verify, lazy=lazy)

    def load_tensors(
        self, names: str | Sequence[str], rev: str | None = None, *, verify: Literal["fast", "full"] = "fast"
    ) -> dict[str, Any]:
        """Read some tensors only, by full name.

        Args:
            names: names or globs, ``item::path/of/name``, or without ``item::`` in any item; a container's name asks
                for all tensors in it.
            rev: the commit; the bound branch's tip if ``None``.
            verify: how much is checked, see :meth:`load`.

        Returns:
            New tensors on the CPU, by ``item::name``.

        Raises:
            NotFound: the revision, or a name, is not there. Corrupt: stored bytes are damaged.
        """
        verify_hash = verifies_hash(verify)
        self._recorder.wait()
        wanted = [names] if isinstance(names, str) else names
        return load_tensors(self._repo, self._commit_at(rev), wanted, self._policy, verify_hash=verify_hash)

    # --- branches and tags ------------------------------------------------------------------------------------------

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
            Conflict: the branch exists. NotFound: ``at`` names nothing. Incompatible: ``name`` is no legal name.
        """
        self._recorder.wait()
        commit = self._resolved(at)
        self._repo.set_ref(branch_name(name), None, commit, "branch", f"made at {at or self.bound_branch}")
        return commit.hex()

    def branches(self) -> dict[str, str]:
        """Hex id of each branch's tip, by name."""
        return {name: commit.hex() for name, commit in branches_of(self._repo).items()}

    def switch(self, name: str) -> None:
        """Save on another branch from now on, and make it the store's current one (``HEAD``). Loads nothing.

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
            Conflict: the tag exists. NotFound: ``at`` names nothing. Incompatible: ``name`` is no legal name.
        """
        self._recorder.wait()
        commit = self._resolved(at)
        self._recorder.set_tag(name, commit, overwrite=overwrite)
        return commit.hex()

    def tags(self) -> dict[str, str]:
        """Hex id of each tag's commit, by name."""
        return {short_name(RefName(name)): commit.hex() for name, commit in self._repo.refs.list(f"{TAGS}/").items()}

    # --- looking ----------------------------------------------------------------------------------------------------

    def log(self, rev: str | None = None, *, limit: int | None = None) -> Iterator[Snapshot]:
        """Commits that a revision reaches, newest first. A paused iterator stands in nobody's way.

        Args:
            rev: where to begin; the bound branch's tip if ``None``.
            limit: how many at most.
        """
        self._recorder.wait()
        tip = self._binding.current() if rev is None else self._resolved(rev)
        ids = (row.id for row in self._repo.log([tip] if tip else []))
        return self._snapshots(islice(ids, limit))

    def list_snapshots(self) -> list[Snapshot]:
        """Commits of the bound branch, oldest first; of a merge only the first parent's line."""
        self._recorder.wait()
        tip = self._binding.current()
        rows = first_parents(self._repo.lookup, tip) if tip else iter(())
        return list(self._snapshots(row.id for row in rows))[::-1]

    def describe(self, rev: str | None = None) -> Description:
        """Shapes, dtypes, raw and stored bytes of each tensor of a commit, without reading any.

        Raises:
            NotFound: ``rev`` names nothing.
        """
        self._recorder.wait()
        return describe(self._repo, self._commit_at(rev), self._policy)

    # --- how --------------------------------------------------------------------------------------------------------

    def _snapshots(self, ids: Iterable[CommitId]) -> Iterator[Snapshot]:
        """Holds the manager, not only its store: that is closed once nobody has the manager any more."""
        yield from snapshots(self._repo, ids, self._policy)
