"""Install servers for tests, or run one by hand."""

import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from . import SERVERS, Kind, Unavailable

_ENDS = {signal.SIGINT, signal.SIGTERM}

NAMES = click.Choice(list(SERVERS))


@click.group(help=__doc__)
def main() -> None:
    """Do what the command says."""


@main.command()
@click.argument("names", type=NAMES, nargs=-1)
def install(names: tuple[str, ...]) -> None:
    """Install servers, by default all that this machine can have; again does nothing.

    Fails where a server lacks that comes by pip alone: no test may be skipped for want of it.
    """
    kinds = [SERVERS[name] for name in names or SERVERS]
    with ThreadPoolExecutor() as threads:
        reasons = list(threads.map(_install, kinds))
    if any(reason and (kind.required or names) for kind, reason in zip(kinds, reasons, strict=True)):
        sys.exit(1)


def _install(kind: Kind) -> str | None:
    """Why there is no such server here, if there is none."""
    begin = time.monotonic()
    try:
        kind.install()
    except Unavailable as lacking:
        click.echo(f"{kind.name:10} unavailable: {lacking}")
        return str(lacking)
    click.echo(f"{kind.name:10} installed ({time.monotonic() - begin:.1f} s)")
    return None


@main.command()
@click.argument("name", type=NAMES)
def start(name: str) -> None:
    """Run one until Ctrl-C, on a directory that is removed at the end, and print how to reach it."""
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as directory, SERVERS[name].start(Path(directory)) as server:
        # Held back from here on only: the server's processes shall not inherit that.
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
        account = server.account
        click.echo(
            f"export AWS_ENDPOINT_URL_S3={account.endpoint_url} AWS_DEFAULT_REGION={account.region} "
            f"AWS_ACCESS_KEY_ID={account.access_key} AWS_SECRET_ACCESS_KEY={account.secret_key}"
        )
        signal.sigwait(_ENDS)


if __name__ == "__main__":
    main(prog_name="python -m tools.s3")
