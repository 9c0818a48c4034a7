"""What some formats need that others do without."""

from store.errors import MoonclipError


def require_torch(what: str) -> None:
    """Check that torch can be imported.

    Args:
        what: what takes it; the message begins with that.

    Raises:
        MoonclipError: it is not installed.
    """
    if not has_torch():
        raise MoonclipError(
            f"{what} takes torch, which is not installed; install it with `pip install 'moonclip-store[torch]'`, or use"
            " safetensors files"
        )


def has_torch() -> bool:
    """Whether torch can be imported."""
    try:
        import torch  # noqa: F401 - to see whether it is there
    except ImportError:
        return False
    return True
