"""The manager: one object through which a training script saves, resumes, branches and looks back."""

import weakref
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, Unpack

from store.errors import Incompatible
from store.format.objects import Commit
from store.naming.refnames import branch_name
from store.upkeep.retention import Keep

from .binding import bound
from .branching import Branching
from .capture.budget import parse_bytes
from .capture.staging import Staging
from .comparing import Comparing
from .items import GENERATORS, flattened, gathered
from .jobs import SaveFuture
from .lastgood import Resumed, load_newest
from .lazy import LazySource
from .loading import Wanted, load, load_lazily, load_tensors, verifies_hash
from .looking import Looking
from .policy import Policy
from .precision import Precision
from .ranks.explicit import ByRank
from .ranks.joining import bound_together, joined
from .ranks.perrank import own_targets
from .ranks.recorder import RankRecorder
from .ranks.resuming import commit_for_all, resume_together
from .recording import Recorder, Wish
from .remoteargs import S3Arguments, linked, remote_arguments
from .syncing import Syncing
from .topology import Stated


class CheckpointManager(Branching, ByRank, Comparing, Looking, Syncing):
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
        save_dtype: what floats are stored as, and restored from when they are loaded: ``"bf16"``, ``"fp16"``,
            ``"fp32"``, ``"fp64"``, ``"fp8_e4m3"``, ``"fp8_e5m2"`` or ``"none"``; or such names by pattern, of which the
            first that fits a tensor's name counts: ``{"model/*": "none", "*/exp_avg": "bf16"}``. Only ever narrower,
            and never single elements. See :mod:`moonclip.precision`.
        threads: threads that copy, encode and decode. If ``None``, what ``MOONCLIP_THREADS`` says, else the CPUs that
            this process may use, divided among the ranks of its host.
        allow: dotted names of classes (``"package.module.Class"``) that may be imported, and pickled for want of a
            better way. Only for stores whose authors you trust.
        allow_pickle: pickle unknown objects and unpickle whatever is found. *Unpickling runs code.*
        remote: where :meth:`push` and :meth:`pull` go, and :meth:`resume` of an empty store looks: ``s3://bucket/path``
            or a directory, which the store remembers as its remote ``origin``; or the name of a remote it knows.
        push_every: push what was saved after so many saves, and at the end, in the background. Saves wait for a remote
            that is too slow for them, not for one that cannot be reached. Never by itself if ``None``.
        world_size: how many ranks save together, each what it has of the state: ``"auto"`` to take that from
            torch.distributed, or a number. Then this and every method that saves or loads is to be called on all ranks,
            between steps. 1 for a store of this process alone. May be left out where there is one process.
        rank: which of them this is; may be left out beside ``"auto"``.
        per_rank: names of items of which each rank saves its own (``"loader"``), as it does of random number
            generators. As many ranks get their own back. If another number loads them, all go on with rank 0's
            generators; other such items are refused then, or with ``strict=False`` rank 0's.
        **s3: see :class:`S3Arguments`. Credentials come from the environment, as boto3 finds them, unless given here.

    Raises:
        Incompatible: the store needs a newer version, or an argument is none of those described.
        NotFound: there is no remote of that name.
        RankLost: another rank did not come, or ended.
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
        save_dtype: str | Mapping[str, str] | None = None,
        threads: int | None = None,
        allow: Sequence[str] = (),
        allow_pickle: bool = False,
        remote: str | Path | None = None,
        push_every: int | None = None,
        world_size: Stated = None,
        rank: Stated = None,
        per_rank: Sequence[str] = (),
        **s3: Unpack[S3Arguments],
    ) -> None:
        if capture not in {"copy", "overlap"}:
            raise Incompatible(f"capture is 'copy' or 'overlap', not {capture!r}")
        precision = Precision(save_dtype)
        max_bytes = None if max_host_memory is None else parse_bytes(max_host_memory)
        asked = remote_arguments(remote, push_every, s3)
        self._talk = joined(
            world_size,
            rank,
            capture=capture == "overlap",
            skip_unmodified=skip_unmodified,
            keep=keep,
            save_dtype=save_dtype,
            remote=remote,
            push_every=push_every,
        )
        self._per_rank = {GENERATORS, *per_rank}
        where = (Path(root), branch, threads)
        self._repo, self._binding = bound(*where) if self._talk is None else bound_together(self._talk, *where)
        self._link = linked(self._repo, asked)
        self._policy = Policy(allow_pickle=allow_pickle, classes=tuple(allow))
        self._staging = Staging(
            self._repo.threads, overlap=capture == "overlap", max_bytes=max_bytes, skip_unmodified=skip_unmodified
        )
        pushes = self._link.pushes(self._repo) if self._link else None
        common = (self._repo, self._binding, self._policy, self._staging)
        self._recorder: Recorder | RankRecorder = (
            Recorder(*common, in_background=async_save, keep=keep, pushes=pushes, precision=precision)
            if self._talk is None
            else RankRecorder(*common, self._talk, in_background=async_save, per_rank=self._per_rank)
        )
        self._begun = {}
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
        """Wait until all saves are durable, and pushes that follow them have ended.

        Raises:
            SaveFailed: one failed and nobody was told yet; told once.
            PushFailed: the last push failed, likewise. The next one brings what it has not.
        """
        self._recorder.wait()
        self._recorder.await_pushes()
        self._recorder.raise_failure()

    def close(self) -> None:
        """Wait until all saves are durable, with ``push_every`` also pushed, and close the store; again does nothing.

        Raises:
            SaveFailed: one failed and nobody was told yet.
            PushFailed: the last push failed; the message says how far the remote has got.
            MoonclipError: called in a callback of a Future.
        """
        self._give_up_snapshots()
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

        A store without any branch gets history, and what is asked for of the newest commit, from the manager's remote.
        Whatever else is asked for is read from there then. A store that has a branch takes nothing from the remote:
        see :meth:`pull`.

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
            RemoteError: the remote of an empty store did not answer as it should.
            RankLost: another rank ended. Whatever keeps one rank from resuming is raised on all.
            Corrupt: stored bytes are damaged, of ``rev`` or, without it, of all commits. Tensors may be partly written.
        """
        verify_hash = verifies_hash(verify)
        with self._recorder.exclusively():
            self._recorder.wait()
            targets = self._owned(gathered(None, items, rng=rng), strict=strict)
            wanted = Wanted(into=targets, strict=strict, verify_hash=verify_hash)
            if self._talk is None:
                return self._take_up(rev, branch, targets, wanted)
            taken = resume_together(self._talk, self._repo, self._binding, rev, branch, wanted, self._policy)
            self._resumed = taken.resumed
            return taken.next_step

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
        targets = None if into is None else self._owned(into, strict=strict)
        wanted = Wanted(targets, items, names, strict, verifies_hash(verify))
        if lazy:
            source = LazySource(self._repo, self, wanted.verify_hash)
            return load_lazily(source, self._agreed(rev), wanted, self._policy)
        loaded = load(self._repo, self._agreed(rev), wanted, self._policy)
        if into is not None and targets is not None:
            loaded = {item: into[item] if value is targets[item] else value for item, value in loaded.items()}
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
        wanted = [names] if isinstance(names, str) else names
        return load_tensors(self._repo, self._agreed(rev), wanted, self._policy, verify_hash=verify_hash)

    def _owned(self, targets: Mapping[str, Any], *, strict: bool) -> dict[str, Any]:
        """Targets that take their rank's own state, where each rank has one."""
        rank, world_size = (0, 1) if self._talk is None else (self._talk.group.rank, self._talk.group.world_size)
        return own_targets(targets, self._per_rank, rank, world_size, strict=strict)

    def _agreed(self, rev: str | None) -> Commit:
        """The commit that a revision names, once all saves have ended; rank 0 says which for all ranks."""
        if self._talk is None:
            self._recorder.wait()
            return self._commit_at(rev)
        with self._recorder.exclusively():
            self._recorder.wait()
            return self._repo.commit(commit_for_all(self._talk, lambda: self._resolved(rev)))

    def _take_up(self, rev: str | None, branch: str | None, targets: Mapping[str, Any], wanted: Wanted) -> int:
        """What :meth:`resume` does for one process alone."""
        self._bring(branch, rev, list(targets))
        point = self._binding.resume_point(rev, branch)
        if point.commit is None:
            self._binding.bind(point.branch, None)
            self._resumed = Resumed()
            return 0
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
