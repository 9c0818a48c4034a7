"""Servers with an S3 interface for tests: shared by all processes of a run; each test takes a bucket of its own."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import boto3
import pytest
from botocore.config import Config

from tools.s3 import SERVERS, Account, Unavailable
from tools.s3.sharing import shared


def server(name: str) -> Account:
    """An account on that server, which is installed and started if need be; the test is skipped where there is none."""
    try:
        return shared(name)
    except Unavailable as lacking:
        if SERVERS[name].required:
            raise
        pytest.skip(f"no {name} on this machine: {lacking}")


@cache
def _session() -> boto3.Session:
    """One for all clients: each would read the description of S3 anew."""
    return boto3.Session()


@contextmanager
def client(account: Account, **config: Any) -> Iterator[Any]:
    """A client of boto3 that repeats nothing and adds nothing, so that each request shows what the server does."""
    plain = {
        "retries": {"total_max_attempts": 1},
        "s3": {"addressing_style": "path" if account.path_style else "virtual"},
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        "connect_timeout": 60,
        "read_timeout": 120,
        "proxies": {},
        "max_pool_connections": 16,
    }
    s3 = _session().client(
        "s3",
        endpoint_url=account.endpoint_url,
        aws_access_key_id=account.access_key,
        aws_secret_access_key=account.secret_key,
        region_name=account.region,
        config=Config(**(plain | config)),
    )
    try:
        yield s3
    finally:
        s3.close()


def bucket(account: Account) -> str:
    """The name of a bucket that was made now."""
    name = f"moonclip-{uuid.uuid4().hex}"
    with client(account) as s3:
        s3.create_bucket(Bucket=name)
    return name
