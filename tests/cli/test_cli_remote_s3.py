"""Commands that speak to an S3 server."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests import s3servers
from tests.stores import History
from tools.s3 import Account

Out = Callable[..., str]


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Account:
    """An account whose keys are in the environment."""
    account = s3servers.server("moto")
    monkeypatch.setenv("MOONCLIP_S3_ACCESS_KEY", account.access_key)
    monkeypatch.setenv("MOONCLIP_S3_SECRET_KEY", account.secret_key)
    return account


@pytest.fixture
def reached(account: Account) -> list[str]:
    """Options that say how its server is reached."""
    style = ["--path-style"] if account.path_style else []
    return ["--endpoint-url", account.endpoint_url, "--region", account.region, *style]


def test_there_and_back(output: Out, past: History, tmp_path: Path, account: Account, reached: list[str]) -> None:
    url = f"s3://{s3servers.bucket(account)}/runs/gpt"
    output("remote", "add", "origin", url, *reached)
    assert output("push", "--all", "--tags").startswith("exp/lr3 -> origin/exp/lr3  ")
    assert output("ls-remote", url, *reached) == output("ls-remote")
    assert output("fsck", "--remote", "origin", "--full").startswith("clean: 6 commits, ")
    output("clone", url, tmp_path / "other", *reached)
    assert output("-C", tmp_path / "other", "ls", "main", "--json") == output("ls", "main", "--json")
    assert output("-C", tmp_path / "other", "pull").startswith("main is up to date")
    for store in (past.root, tmp_path / "other"):
        written = b"".join(path.read_bytes() for path in store.rglob("*") if path.is_file())
        assert account.secret_key.encode() not in written


def test_a_bucket_that_is_not(run: Callable[..., Result], past: History, account: Account, reached: list[str]) -> None:
    run("remote", "add", "origin", "s3://no-such-bucket-here", *reached)
    for command in ("push", "ls-remote"):
        result = run(command)
        assert result.exit_code == 1
        assert "no-such-bucket-here" in result.stderr
        assert account.secret_key not in result.output
