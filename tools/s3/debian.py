"""Debian packages unpacked into a folder: nothing is configured, and nobody needs to be root."""

import re
import shutil
from pathlib import Path

from .installing import Unavailable, run

_PLANNED = re.compile(r"^Inst (\S+)", re.MULTILINE)
_NETWORK_TRIES = 3


def unpack(roots: tuple[str, ...], unwanted: re.Pattern[str], folder: Path) -> Path:
    """Unpack packages and whatever they depend on that this system lacks.

    Args:
        roots: names of packages.
        unwanted: names of dependencies that are of no use without the rest of a system.
        folder: receives `root`; apt's own lists and archives lie beside it.

    Returns:
        `root`, laid out like `/`. What the system has already is not in it.

    Raises:
        Unavailable: no apt or dpkg here.
        Failed: a package was not to be had.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise Unavailable("it comes from Debian packages, and apt-get or dpkg is not here")
    state, archives, root = folder / "apt", folder / "archives", folder / "root"
    for path in (state / "lists" / "partial", state / "archives" / "partial", archives, root):
        path.mkdir(parents=True)
    # Lists of our own: the system's may be absent, older than the mirror, or not ours to renew.
    apt = ["apt-get", "-qq", "-o", f"Dir::State::Lists={state}/lists", "-o", f"Dir::Cache={state}"]
    apt += ["-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=", "-o", f"Acquire::Retries={_NETWORK_TRIES}"]
    run([*apt, "update"])
    plan = run([*apt, "install", "--simulate", "--no-install-recommends", *roots])
    wanted = [name for name in _PLANNED.findall(plan) if not unwanted.fullmatch(name)]
    missing = [name for name in roots if name not in wanted]
    wanted += missing  # roots that the system has installed are unpacked all the same: one layout for all machines
    run([*apt, "download", *wanted], folder=archives)
    for archive in sorted(archives.glob("*.deb")):
        run(["dpkg", "--extract", str(archive), str(root)])
    shutil.rmtree(state)
    shutil.rmtree(archives)
    return root
