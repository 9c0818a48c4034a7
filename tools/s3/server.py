"""A server with an S3 interface: where it is, what it is known to do, and its start and end."""

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from .installing import Failed
from .processes import Daemon, await_answer

REGION = "us-east-1"
SECRET = "testsecret0123456789"  # long enough for each of them

_START_TRIES = 3
"""A port that was free a moment ago may be taken: then all starts anew, on others."""


@dataclass(frozen=True)
class Traits:
    """What a server was seen to do; the defaults are what AWS does."""

    checks_signature: bool = True
    """A wrong secret is answered 403."""

    persists: bool = True
    """What was acknowledged is there after SIGKILL and a start."""

    decodes_chunked: bool = True
    """Bodies in chunks with a checksum trailer (`aws-chunked`) are taken, and stored without the framing."""

    checks_body_digest: bool = True
    """A body that is not what `x-amz-content-sha256` says is refused."""

    checks_crc32: bool = True
    """A body that is not what `x-amz-checksum-crc32` says is refused."""

    refuses_small_parts: bool = True
    """Completing an upload with a part below 5 MiB, other than the last, is refused."""

    answers_ranges: bool = True
    """A read of a range is answered 206."""

    conditional_create: bool = True
    """`If-None-Match: *` on a PUT is answered 412 where the key exists."""

    atomic_create: bool = True
    """... and of many that race for a key exactly one wins."""

    conditional_replace: bool = True
    """`If-Match` on a PUT is honoured, with the ETag in one of the two spellings at least."""

    quoted_if_match: bool = True
    """... with the ETag as the server gave it, in quotes."""

    unquoted_if_match: bool = True
    """... with the ETag out of its quotes."""

    atomic_replace: bool = True
    """... and of many that race to replace one ETag exactly one wins."""

    conditional_complete: bool = True
    """`If-None-Match: *` on completing a multipart upload is answered 412 where the key exists."""

    deletes_many: bool = True
    """1,000 keys are deleted by one request as boto3 sends it."""

    key_and_prefix: bool = True
    """The keys `a` and `a/b` live side by side."""


@dataclass(frozen=True)
class Account:
    """Where a server is, and a key to it: all that a client needs."""

    server: str
    endpoint_url: str
    access_key: str
    secret_key: str
    traits: Traits
    region: str = REGION
    path_style: bool = True


class Running(NamedTuple):
    """What a start gives."""

    daemons: list[Daemon]
    account: Account


def launched(
    commands: Mapping[str, list[str]],
    env: Mapping[str, str],
    folder: Path,
    urls: Sequence[str],
    account: Callable[[], Account],
) -> Running:
    """Start processes in order, and wait until the server that they are answers.

    Args:
        commands: by the name that a process's log file gets.
        env: of all of them.
        folder: where they work and their logs lie.
        urls: of all its parts that have to answer: one in front may answer while those behind it still start, and pass
            their absence on to its first client.
        account: gives, or makes, an account on the server that answers by now.

    Raises:
        Failed: a process ended, or it took too long; none is left running.
    """
    daemons: list[Daemon] = []
    try:
        for name, command in commands.items():
            daemons.append(Daemon(command, env, folder / f"{name}.log", folder))
        for url in urls:
            await_answer(url, daemons)
        return Running(daemons, account())
    except BaseException:
        for daemon in reversed(daemons):
            daemon.end(signal.SIGKILL)
        raise


class Server:
    """A server that this process started. Leave it with `stop`; as a context manager it does that itself.

    `account` may be another one after `restart`, with another key. Not for more than one thread at a time.
    """

    def __init__(self, launch: Callable[[], Running]) -> None:
        self._launch = launch
        self._daemons, self.account = launch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End it as an operator would, clients first. Data stay in its directory. Again does nothing."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill all its processes, as a failing machine would."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start it again over its directory, at the same address. It is stopped first if it runs.

        Raises:
            Failed: it does not start.
        """
        self.stop()
        self._daemons, self.account = self._launch()

    def _end(self, how: signal.Signals) -> None:
        daemons, self._daemons = self._daemons, []
        if how == signal.SIGKILL:
            for daemon in daemons:  # all at once, before any of them notices that another one went
                daemon.send(how)
        for daemon in reversed(daemons):
            daemon.end(how)


@dataclass(frozen=True)
class Kind:
    """A server program: how it gets here, how it is started, what it is known to do."""

    name: str
    traits: Traits
    install: Callable[[], Path]
    """Gives the folder that `prepare` is told of; at once if it is there already. Raises `Unavailable`."""

    prepare: Callable[[Path, Path], Callable[[], Running]]
    """Given that folder and an empty directory for data: what starts the server, any number of times."""

    required: bool = False
    """It comes by pip alone, so that it has to run wherever the tests do: no test may be skipped for want of it."""

    def start(self, directory: Path) -> Server:
        """Install the program if need be, and start a server.

        Args:
            directory: for its data and logs; made if need be.

        Raises:
            Unavailable: it cannot be had on this machine.
            Failed: it is here, and does not start.
        """
        program = self.install()
        for attempt in range(1, _START_TRIES + 1):
            place = directory / f"start-{attempt}"
            place.mkdir(parents=True)
            try:
                return Server(self.prepare(program, place))
            except Failed:
                if attempt == _START_TRIES:
                    raise
        raise AssertionError("not reached")
