"""The manager: one object through which a training script saves, resumes, branches and looks back."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, SupportsIndex, Unpack

from store.errors import Incompatible
from store.naming.listed import listed
from store.naming.tags import Better
from store.opening.places import place_of
from store.upkeep.retention import Keep

from .capture.budget import parse_bytes
from .capture.staging import Staging
from .loading.lastgood import Resumed
from .loglevel import follow_environment
from .managing.branching import Branching
from .managing.byrank import ByRank
from .managing.comparing import Comparing
from .managing.exporting import Exporting
from .managing.givens import asked, tell_of_slips
from .managing.livefiles import LiveFiles
from .managing.looking import Looking
from .managing.milestones import Milestones
from .managing.preemption import Stopping
from .managing.remoteargs import linked, remote_arguments
from .managing.restoring import Restoring
from .managing.rustwords import MoreArguments, understood
from .managing.upkeep import require_policy
from .ranks.aftercare import Aftercare
from .ranks.joining import bound_together, joined
from .ranks.recorder import RankRecorder
from .ranks.topology import Stated
from .saving.binding import bound
from .saving.gates import Callback, Gate
from .saving.jobs import SaveFuture
from .saving.precision import Precision
from .saving.recording import Recorder
from .saving.reports import Event, Reports
from .saving.wishes import Wish
from .specs import ItemSpec, Schema
from .state.items import GENERATORS, flattened, gathered
from .state.policy import Policy


class CheckpointManager(Branching, ByRank, Comparing, Exporting, LiveFiles, Looking, Milestones, Restoring, Stopping):
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
        root: directory of the store; made if there is none. ``./checkpoints`` if it is not given. ``~`` is the home
            directory.
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
            ``"fp32"``, ``"fp64"``, ``"fp8_e4m3"``, ``"fp8_e5m2"`` (or as torch calls them, ``"bfloat16"``), or
            ``"none"``; or such names by pattern, of which the first that fits a tensor's name counts: ``{"model/*":
            "none", "*/exp_avg": "bf16"}``. Only ever narrower, and never single elements. See
            :mod:`moonclip.saving.precision`.
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
        check_replicas: have ranks compare, by hash, what several of them have copies of, and refuse to save copies that
            differ. Each save then waits for a pass over all that is replicated. If not, what differs goes unseen: of a
            large tensor each rank writes a part, of anything else one of them writes its own.
        items: what holds for items by name, see :class:`ItemSpec`.
        strict_schema: refuse items that ``items`` does not name.
        pre_finalize: called with each commit, as a :class:`Snapshot`, once all of it is durable and before anybody sees
            it. What it raises fails the save, and nothing is published. Of several ranks on rank 0.
        finalize: called with each commit once it is published. What it raises fails the save's Future, though the
            commit stays. Both run in a thread, with ``async_save=False`` in the caller's; the next save waits for them,
            and they can load but not save.
        on_event: told of every save and load that has ended, see :class:`Event`; in whichever thread that is.
        **more: for a bucket, see :class:`~moonclip.managing.remoteargs.S3Arguments`; credentials come from the
            environment, as boto3 finds them, unless given here. And the words of another engine, see
            :class:`~moonclip.managing.rustwords.MoreArguments`.

    Raises:
        Incompatible: the store needs a newer version, or an argument is none of those described.
        NotFound: there is no remote of that name.
        RankLost: another rank did not come, or ended.
        OSError: there is no store and none can be made; the message says what is in the way.
    """

    def __init__(
        self,
        root: str | Path | None = None,
        *,
        branch: str | None = None,
        async_save: bool = True,
        capture: Literal["copy", "overlap"] = "copy",
        max_host_memory: int | str | None = None,
        skip_unmodified: bool = False,
        keep: Keep | None = None,
        save_dtype: str | Mapping[str, str] | None = None,
        threads: int | None = None,
        allow: str | Sequence[str] = (),
        allow_pickle: bool = False,
        remote: str | Path | None = None,
        push_every: int | None = None,
        world_size: Stated = None,
        rank: Stated = None,
        per_rank: str | Sequence[str] = (),
        check_replicas: bool = False,
        items: Mapping[str, ItemSpec] | None = None,
        strict_schema: bool = False,
        pre_finalize: Callback | None = None,
        finalize: Callback | None = None,
        on_event: Callable[[Event], None] | None = None,
        **more: Unpack[MoreArguments],
    ) -> None:
        follow_environment()
        own = CheckpointManager.__init__.__annotations__
        root, keep, save_dtype, s3 = understood(root, keep, save_dtype, more, own)
        root = place_of(root)
        if capture not in {"copy", "overlap"}:
            raise Incompatible(f"capture is 'copy' or 'overlap', not {capture!r}")
        require_policy(keep)
        self._schema = Schema(items or {}, strict_schema, exempt={GENERATORS})
        self._reports = Reports(on_event, in_background=async_save)
        precision = Precision(save_dtype, self._schema.dtypes)
        max_bytes = None if max_host_memory is None else parse_bytes(max_host_memory)
        wanted = remote_arguments(remote, push_every, s3)
        self._talk = joined(world_size, rank)
        self._per_rank = {GENERATORS, *listed(per_rank)}
        self._checks_copies = check_replicas
        self._precision = precision
        where = (root, branch, threads)
        self._repo, self._binding = bound(*where) if self._talk is None else bound_together(self._talk, *where)
        self._link = linked(self._repo, wanted)
        self._policy = Policy(allow_pickle=allow_pickle, classes=tuple(listed(allow)))
        self._staging = Staging(
            self._repo.threads, overlap=capture == "overlap", max_bytes=max_bytes, skip_unmodified=skip_unmodified
        )
        self._gate = Gate(self._repo, self._policy, pre_finalize, finalize)
        self._recorder = self._made_recorder(keep, in_background=async_save)
        self._begun = {}
        self._resumed: Resumed | None = None
        self._abandoned = weakref.finalize(self, self._recorder.abandon)
        self._abandoned.atexit = False  # then saves are drained, not abandoned

    def _made_recorder(self, keep: Keep | None, *, in_background: bool) -> Recorder | RankRecorder:
        leads = self._talk is None or self._talk.group.rank == 0
        pushes = self._link.pushes(self._repo) if self._link and leads else None
        common = (self._repo, self._binding, self._policy, self._staging)
        said: dict[str, Any] = {"precision": self._precision, "schema": self._schema, "gate": self._gate}
        if self._talk is None:
            return Recorder(*common, in_background=in_background, keep=keep, pushes=pushes, **said)
        return RankRecorder(
            *common,
            self._talk,
            in_background=in_background,
            aftercare=Aftercare(self._repo, keep if leads else None, pushes),
            checks_copies=self._checks_copies,
            per_rank=self._per_rank,
            **said,
        )

    # --- saving -----------------------------------------------------------------------------------------------------

    def save(
        self,
        name: str | SupportsIndex | None = None,
        payload: Mapping[str, Any] | Any = None,
        /,
        *objects: Any,
        step: SupportsIndex | None = None,
        metadata: Mapping[str, Any] | None = None,
        message: str = "",
        overwrite: bool | Better = False,
        rng: bool = False,
        **items: Any,
    ) -> SaveFuture:
        """Commit a state to the bound branch.

        Returns once the state is copied and a worker has it: it may be altered right away (with ``capture="overlap"``
        by an optimizer's step, or under :meth:`lock`), and is committed even if this process is killed then (with
        ``"overlap"`` once it is copied). A save waits for the one before it, so memory stays within two copies of the
        state. The step may be lower than the last one's: runs roll back.

        If an earlier save has failed in the background, that failure is raised here, once — after *this* save has been
        handed over: one failure costs no other save.

        Args:
            name: a tag to put on the commit; or its step, as in ``save(step, model, optimizer)``.
            payload: items by name, for names that are no keywords; after a step also the model.
            *objects: after those, by position: optimizer, scheduler, scaler, and a mapping of others.
            step: training step.
            metadata: values to keep with the commit; listings show them.
            message: what a person should know of it.
            overwrite: move the tag ``name`` if it exists; see also :meth:`save_best`.
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
        tell_of_slips(CheckpointManager.save, items)
        said = asked(name, payload, objects, step, items)
        wanted = gathered(said.payload, said.items, rng=rng)
        wish = Wish(wanted, said.name, overwrite, said.step, metadata, message)
        with self._reports.saving(wish.step, wish.future):
            return self._recorder.save(wish)

    def lock(self) -> AbstractContextManager[None]:
        """Hold this while altering in place, other than by an optimizer's step, what may be being saved.

            with mgr.lock():
                ema.update_parameters(model)

        It waits until a capture under way is complete, and no other begins meanwhile. With ``capture="copy"`` it keeps
        other threads from saving, and costs nothing else. A save inside it is complete when it returns.
        """
        return self._staging.guard.updating()

    def prewarm(self, **items: Any) -> None:
        """Get memory ready for saving these items: then first saves are as fast as later ones.

        Takes 0.6 s of processor time for 500 MB of state, of which there will be two copies. :meth:`resume` does so by
        itself, but in the background and only while a core is idle: after it, this gets ready what is not yet. An
        optimizer that has not stepped yet has no state that could be counted: then call this after the first step. Of
        several ranks all have to call it.

        Args:
            **items: as for :meth:`save`.

        Raises:
            NoRoom: their state exceeds ``max_host_memory``.
            MemoryError: there is no room for it in the machine.
            Incompatible: something cannot be stored; the message names it.
        """
        with self._recorder.exclusively():
            self._recorder.wait()
            wanted = gathered(None, items, rng=False)
            if isinstance(self._recorder, RankRecorder):
                self._recorder.expect(wanted, at_once=True)
            else:
                self._staging.expect(flattened(wanted, self._policy), at_once=True)

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
        self._stop_watching()
        self._await_final_push()
        self._give_up_snapshots()
        with self._recorder.push_turns.exclusively():  # a push of another thread reads what closes
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
