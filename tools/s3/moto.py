"""moto's server: quick to start, close to AWS in what it answers, and nothing of it outlives the process."""

from collections.abc import Callable
from pathlib import Path

from .installing import installed_by_pip
from .processes import LOOPBACK, environment, free_ports
from .server import SECRET, Account, Kind, Running, Traits, launched

_TRAITS = Traits(
    checks_signature=False,  # every key opens it
    persists=False,  # objects live in memory
    checks_body_digest=False,
    checks_crc32=False,
)


def _prepare(program: Path, directory: Path) -> Callable[[], Running]:
    (port,) = free_ports(1)
    account = Account("moto", f"http://{LOOPBACK}:{port}", "testing", SECRET, _TRAITS)
    # It signs its own calls of botocore, so that it wants some key too.
    env = environment(AWS_ACCESS_KEY_ID="testing", AWS_SECRET_ACCESS_KEY=SECRET, TMPDIR=str(directory))
    command = [str(program / "python"), str(program / "moto_server"), "-H", LOOPBACK, "-p", str(port)]

    def launch() -> Running:
        return launched({"moto": command}, env, directory, [account.endpoint_url], lambda: account)

    return launch


KIND = Kind("moto", _TRAITS, lambda: installed_by_pip("moto"), _prepare, required=True)
