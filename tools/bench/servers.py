"""S3 servers on this machine for a bench: the fastest of those that there are, or one that is asked for."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import boto3
from botocore.config import Config

from tools.s3 import SERVERS, Account, Failed, Unavailable

from . import sessions
from .peers import OURS
from .progress import Progress
from .workloads import CACHE

AUTO: Final = "auto"
"""Whichever is the fastest."""

BUCKET: Final = "bench"

_TRIAL_BYTES: Final = 64_000_000
_TRIAL_COUNT: Final = 2
"""The faster of so many counts: what else runs on the machine only slows it down."""


@contextmanager
def served(name: str) -> Iterator[Account]:
    """Run a server, with an empty bucket, while something lasts.

    Raises:
        Unavailable: it cannot be had on this machine.
        Failed: it does not start.
    """
    folder = CACHE.resolve() / "servers"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as directory, SERVERS[name].start(Path(directory)) as server:
        with client(server.account) as s3:
            s3.create_bucket(Bucket=BUCKET)
        yield server.account


def fastest(shown: Progress) -> tuple[str, dict[str, float]]:
    """Name of the server through which a file goes up and down in the shortest time, and the seconds of each."""
    seconds: dict[str, float] = {}
    for name in SERVERS:
        shown.begin(f"trying {name}")
        try:
            with served(name) as account:
                seconds[name] = _trial_seconds(account)
        except (Unavailable, Failed, sessions.PeerFailed) as error:
            shown.end(f": {str(error).splitlines()[-1]}")
        else:
            shown.end(f": {seconds[name]:.2f} s for {_TRIAL_BYTES // 1_000_000} MB up and down")
    return min(seconds, key=lambda name: seconds[name]), seconds


def environment(account: Account) -> dict[str, str]:
    """What leads boto3 to a server, and us with it."""
    return {
        "AWS_ENDPOINT_URL_S3": account.endpoint_url,
        "AWS_DEFAULT_REGION": account.region,
        "AWS_ACCESS_KEY_ID": account.access_key,
        "AWS_SECRET_ACCESS_KEY": account.secret_key,
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "*",
    }


@contextmanager
def client(account: Account) -> Iterator[Any]:
    """A client of a server."""
    s3 = boto3.client(
        "s3",
        endpoint_url=account.endpoint_url,
        region_name=account.region,
        aws_access_key_id=account.access_key,
        aws_secret_access_key=account.secret_key,
        config=Config(s3={"addressing_style": "path"}, proxies={}),
    )
    try:
        yield s3
    finally:
        s3.close()


def empty(account: Account) -> None:
    """Delete all that the bucket holds, key by key, as every server knows how to."""
    with client(account) as s3:
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
            for found in page.get("Contents", ()):
                s3.delete_object(Bucket=BUCKET, Key=found["Key"])


def _trial_seconds(account: Account) -> float:
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        up, down = Path(folder) / "up", Path(folder) / "down"
        up.write_bytes(os.urandom(_TRIAL_BYTES))
        trials: list[float] = []
        for _ in range(_TRIAL_COUNT):
            events = sessions.run(OURS, "upload", environment(account), file=str(up), bucket=BUCKET, key="trial")
            events += sessions.run(OURS, "download", environment(account), bucket=BUCKET, key="trial", file=str(down))
            trials.append(sum(event["seconds"] for event in events))
    return min(trials)
