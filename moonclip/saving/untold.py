"""Saves that failed in the background, until somebody is told of them: once, by whatever is called next."""

from collections import deque

from store.errors import MoonclipError, PushFailed, SaveFailed


class Untold:
    """Failures that nobody was told of yet, the oldest first. Any thread may add one."""

    def __init__(self) -> None:
        self._failures: deque[SaveFailed] = deque()

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._failures)

    def add(self, failure: SaveFailed) -> None:
        """Hear of one."""
        self._failures.append(failure)

    def taken(self) -> SaveFailed | None:
        """The oldest; from now on it counts as told."""
        try:
            return self._failures.popleft()
        except IndexError:
            return None

    def losses(self, push_failure: PushFailed | None) -> list[str]:
        """One line for each, and for a push that failed: what is told as the last act of a process."""
        return [_loss(failure) for failure in self._failures] + ([] if push_failure is None else [str(push_failure)])


def raise_told(failure: SaveFailed | None, push_failure: PushFailed | None) -> None:
    """Raise what somebody is told now, if anything.

    Raises:
        SaveFailed: a save failed; a note on it tells of a push that did as well.
        PushFailed: a push did.
    """
    if failure is not None:
        if push_failure is not None:
            failure.add_note(str(push_failure))
        raise failure
    if push_failure is not None:
        raise push_failure


def cut_short_by(error: BaseException) -> str:
    """What is told where waiting for the last save ended before that."""
    return f"waiting for the last save was cut short by {type(error).__name__}: it may be lost"


def _loss(failure: SaveFailed) -> str:
    cause = failure.__cause__
    is_kept = isinstance(cause, MoonclipError) and "kept" in cause.details  # on a branch of its own, as the error says
    return str(failure) if is_kept or "commit" in failure.details else f"{failure}; it was not committed"
