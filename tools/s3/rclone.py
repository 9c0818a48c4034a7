"""rclone's server over a directory: checks signatures, and little else; ignores conditions of a PUT."""

from collections.abc import Callable
from pathlib import Path

from .installing import installed_by_pip
from .processes import LOOPBACK, environment, free_ports
from .server import SECRET, Account, Kind, Running, Traits, launched

_TRAITS = Traits(
    decodes_chunked=False,  # 411
    checks_body_digest=False,
    checks_crc32=False,
    refuses_small_parts=False,
    answers_ranges=False,  # the right bytes, under 200
    conditional_create=False,  # overwrites
    atomic_create=False,
    conditional_replace=False,  # overwrites
    quoted_if_match=False,
    unquoted_if_match=False,
    atomic_replace=False,
    conditional_complete=False,
    key_and_prefix=False,  # a key is a file, a prefix a directory
)
_ACCESS_KEY = "testkey"


def _prepare(program: Path, directory: Path) -> Callable[[], Running]:
    (port,) = free_ports(1)
    account = Account("rclone", f"http://{LOOPBACK}:{port}", _ACCESS_KEY, SECRET, _TRAITS)
    objects = directory / "objects"
    objects.mkdir()
    command = [str(program / "rclone"), "serve", "s3", str(objects), "--addr", f"{LOOPBACK}:{port}"]
    command += ["--config", f"{directory}/rclone.conf", "--cache-dir", f"{directory}/cache"]
    command += ["--auth-key", f"{_ACCESS_KEY},{SECRET}"]

    def launch() -> Running:
        return launched({"rclone": command}, environment(), directory, [account.endpoint_url], lambda: account)

    return launch


KIND = Kind("rclone", _TRAITS, lambda: installed_by_pip("rclone"), _prepare)
