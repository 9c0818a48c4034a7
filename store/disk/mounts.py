"""What kind of file system a path lies on, as far as that decides what is safe there."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NETWORK: Final = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4"}
    | {"ocfs2", "orangefs", "smb3", "smbfs", "virtiofs", "wekafs"}
)


@dataclass(frozen=True, slots=True)
class Mount:
    """A mounted file system.

    Attributes:
        path: where it is mounted.
        kind: its type, as the kernel names it.
        is_read_only: whether nothing on this host can write to it, not through another mount of it either.
    """

    path: str
    kind: str
    is_read_only: bool

    @property
    def is_network(self) -> bool:
        """Whether other hosts may write to it: locks and shared memory do not reach them."""
        return self.kind in _NETWORK or self.kind.startswith("fuse.")


def mount_of(path: Path, table: str | None = None) -> Mount | None:
    """The mount that a path lies on, or ``None`` where the system does not say.

    Args:
        path: it need not exist.
        table: what ``/proc/self/mountinfo`` says, for tests.
    """
    if table is None:
        try:
            table = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return None
    real = f"{path.resolve()}/"
    mounts = [mount for line in table.splitlines() if (mount := _parse(line)) is not None]
    around = [mount for mount in mounts if real.startswith(f"{mount.path.rstrip('/')}/")]
    return max(enumerate(around), key=lambda each: (len(each[1].path), each[0]))[1] if around else None


def _parse(line: str) -> Mount | None:
    """A line is: id parent device root path options [tags…] - kind source options-of-the-file-system."""
    head, separator, tail = line.partition(" - ")
    fields, rest = head.split(" "), tail.split(" ")
    if not separator or len(fields) < 6 or len(rest) < 3:
        return None
    return Mount(_unescape(fields[4]), rest[0], "ro" in rest[2].split(","))


def _unescape(path: str) -> str:
    for code in ("\\040", "\\011", "\\012", "\\134"):
        path = path.replace(code, chr(int(code[1:], 8)))
    return path
