"""The part of a capture that is copied while training goes on, by a thread of its own."""

import threading
from collections.abc import Callable, Sequence

from store.errors import StateChanged
from store.saving.inputs import ItemInput, Span, TensorInput

from .capturing import Capture
from .copying import Copier
from .witness import Watched, Witness


def copy_behind(capture: Capture, copier: Copier, later: Sequence[Watched], then: Callable[[bool], None]) -> None:
    """Copy tensors in a thread, check that none changed meanwhile, and finish the capture.

    Args:
        capture: of which this is the remainder.
        copier: of that capture.
        later: the tensors. They are kept alive until they are copied.
        then: called before the capture is done, once no thread writes into the arena any more, with whether it holds
            what it should. Not called if the copying itself failed.
    """
    try:
        witness = Witness(later)
        thread = threading.Thread(
            target=_copy, args=(capture, copier, later, witness, then), name="moonclip-capture", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # no threads are left, or the interpreter is shutting down and starts none
            _copy(capture, copier, later, witness, then)
    except BaseException as error:
        capture.finish(error)  # does nothing once the thread has done so
        raise


def _copy(
    capture: Capture, copier: Copier, later: Sequence[Watched], witness: Witness, then: Callable[[bool], None]
) -> None:
    if capture.is_done:  # an interrupt came between starting the thread and knowing that it has started
        return
    try:
        copier.copy((one.source, one.span) for one in later)
        changed = witness.changed(capture.arena.memory)
        if not capture.is_done:  # as above
            then(changed is None)
        error: BaseException | None = None if changed is None else state_changed(name_at(capture.items, changed))
    except BaseException as raised:  # noqa: BLE001 - carried to whoever waits for the capture, whatever it is
        error = raised
    capture.finish(error)


def state_changed(name: str) -> StateChanged:
    """The error for a tensor, ``item::name``, that was altered too early."""
    return StateChanged(
        f"{name} was altered before it had been copied. With capture='overlap', parameters and optimizer state may be"
        " altered by optimizer.step() alone; wrap other updates in `with manager.lock():`. Items with"
        " requires_copy=False may not be altered until their save is durable",
        name=name,
    )


def name_at(items: Sequence[ItemInput], span: Span) -> str:
    """Item and entry, ``item::name``, of the tensor that lies there."""
    return next(
        f"{item.name}::{name}"
        for item in items
        for name, given in item.entries.items()
        if isinstance(given, TensorInput) and given.data == span
    )
