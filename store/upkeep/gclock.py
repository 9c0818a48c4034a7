"""One at a time: whoever removes or moves what is stored holds ``gc.lock``.

Savers and readers take no part in it. Dead is who does not hold the lock any more; the file itself stays.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import Busy
from ..layout import check_format
from ..repository import Repository


@contextmanager
def collecting(repository: Repository) -> Iterator[None]:
    """Hold ``gc.lock`` of a store, having seen that this version may collect there.

    Raises:
        Busy: gc, repack or a check is at work, in another process or thread.
        ReadOnly: the store cannot be written from here.
        Incompatible: it needs features that this version lacks; nothing was changed.
        OSError: the lock cannot be taken.
    """
    repository.require_writable()
    root, files = repository.layout.root, repository.files
    check_format(root, files.read_bytes(repository.layout.format), "gc")
    try:
        lock = files.lock_exclusive(root / "gc.lock", blocking=False)
    except Busy:
        raise Busy(f"gc, repack or a check is at work in the store at {root}; try again when it is done") from None
    with lock:
        yield
