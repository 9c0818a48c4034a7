"""Managers whose remote is an S3 server: the words of another engine, outages, and what nobody may see."""

import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from moonclip import CheckpointManager, PushFailed, RemoteDenied, RemoteMissing, RemoteUnavailable
from tests.pushing import remote_tip
from tests.s3servers import bucket, client, server
from tests.workers import becomes_true, kill, only_worker
from tools.s3 import Account
from tools.s3.proxy import FaultProxy
from tools.s3.rules import Answer, Delay, Match

SECRET = "a-secret-that-nobody-may-see"


@pytest.fixture(scope="module")
def moto() -> Account:
    return server("moto")


@pytest.fixture
def proxy(moto: Account) -> Iterator[FaultProxy]:
    with FaultProxy(moto) as proxy:
        yield proxy


@pytest.fixture
def s3(moto: Account, proxy: FaultProxy) -> dict[str, Any]:
    """Keywords for a manager: a bucket of its own, behind the proxy."""
    return {
        "s3_bucket": bucket(moto),
        "s3_access_key": moto.access_key,
        "s3_secret_key": SECRET,
        "s3_endpoint": proxy.endpoint_url,
        "s3_region": moto.region,
        "s3_path_style": True,
    }


def state(step: int) -> dict[str, torch.Tensor]:
    return {"weight": torch.randn(200, 300, generator=torch.Generator().manual_seed(step))}


def fill(mgr: CheckpointManager, *steps: int) -> None:
    for step in steps:
        mgr.save(step=step, model=state(step))


def keys_there(moto: Account, s3: dict[str, Any]) -> set[str]:
    with client(moto) as direct:
        found = direct.list_objects_v2(Bucket=s3["s3_bucket"]).get("Contents", [])
    return {each["Key"] for each in found}


def test_the_example_of_the_rust_engine_runs_as_it_stands(tmp_path: Path, moto: Account) -> None:
    name = bucket(moto)
    mgr = CheckpointManager(
        str(tmp_path / "checkpoints"),
        s3_bucket=name,
        s3_access_key=moto.access_key,
        s3_secret_key=moto.secret_key,
        s3_endpoint=moto.endpoint_url,  # MinIO / R2 / B2
        s3_path_style=True,
        sync_every_n_saves=5,
    )
    fill(mgr, *range(5))
    mgr.flush()
    assert "refs/branches/main" in keys_there(moto, {"s3_bucket": name})
    mgr.close()
    with CheckpointManager(
        tmp_path / "elsewhere",
        remote=f"s3://{name}",
        s3_access_key=moto.access_key,
        s3_secret_key=moto.secret_key,
        s3_endpoint=moto.endpoint_url,
        s3_path_style=True,
    ) as other:
        model = {"weight": torch.zeros(200, 300)}
        assert other.resume(model=model) == 5
        assert torch.equal(model["weight"], state(4)["weight"])
        assert torch.equal(
            other.load("main~4")["model"]["weight"], state(0)["weight"]
        )  # read from there, with these keys


def test_a_prefix_holds_all(tmp_path: Path, moto: Account, s3: dict[str, Any]) -> None:
    with CheckpointManager(tmp_path / "store", **s3, s3_prefix="runs/a", sync_every_n_saves=1) as mgr:
        fill(mgr, 0)
    keys = keys_there(moto, s3)
    assert "runs/a/refs/branches/main" in keys
    assert all(key.startswith("runs/a/") for key in keys)


def test_an_outage_costs_no_save_and_is_told_by_flush_and_push(
    tmp_path: Path, proxy: FaultProxy, s3: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with CheckpointManager(tmp_path / "store", **s3, push_every=1) as mgr:
        fill(mgr, 0)
        mgr.flush()
        proxy.go_down()
        fill(mgr, 1, 2, 3)
        with pytest.raises(PushFailed, match="at step 3 here and, as last seen, at step 0 there") as failed:
            mgr.flush()
        with pytest.raises(RemoteUnavailable) as refused:
            mgr.push()
        proxy.revive()
        fill(mgr, 4)
        mgr.flush()
    with CheckpointManager(tmp_path / "fresh", **s3) as other:
        assert other.resume(model={"weight": torch.zeros(200, 300)}) == 5
    assert isinstance(failed.value.__cause__, RemoteUnavailable)
    ours = [record for record in caplog.records if record.name.partition(".")[0] in {"store", "moonclip", "py"}]
    assert all(record in ours for record in caplog.records if record.pathname == "(worker)")
    told = [record.getMessage() for record in ours]
    assert any("saves go on" in text for text in told)
    assert SECRET not in caplog.text  # boto3's own log, which this process asked for, has none either
    for error in (failed.value, failed.value.__cause__, refused.value):
        assert SECRET.encode() not in pickle.dumps(error)
        told += [str(error), repr(error), *getattr(error, "__notes__", [])]
    assert not [text for text in told if SECRET in text or "X-Amz" in text or "Signature" in text]


@pytest.mark.parametrize("in_background", [True, False])
def test_a_bucket_that_does_not_exist_is_named(tmp_path: Path, s3: dict[str, Any], in_background: bool) -> None:
    s3["s3_bucket"] = "moonclip-no-such-bucket"
    mgr = CheckpointManager(tmp_path / "store", **s3, push_every=1, async_save=in_background)
    fill(mgr, 0)
    with pytest.raises(PushFailed, match="moonclip-no-such-bucket") as failed:
        mgr.close()
    assert isinstance(failed.value.__cause__, RemoteMissing)


def test_credentials_that_are_refused_are_told_without_them(
    tmp_path: Path, proxy: FaultProxy, s3: dict[str, Any]
) -> None:
    proxy.place(Answer(403, "InvalidAccessKeyId"))
    remote = f"s3://{s3.pop('s3_bucket')}"
    with CheckpointManager(tmp_path / "store", remote=remote, **s3) as mgr:
        fill(mgr, 0)
        with pytest.raises(RemoteDenied) as refused:
            mgr.push()
    assert SECRET not in str(refused.value)


def test_the_environment_has_the_credentials_if_nobody_gives_any(
    tmp_path: Path, moto: Account, s3: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    del s3["s3_access_key"], s3["s3_secret_key"]
    monkeypatch.setenv("MOONCLIP_S3_ACCESS_KEY", moto.access_key)
    monkeypatch.setenv("MOONCLIP_S3_SECRET_KEY", SECRET)
    with CheckpointManager(tmp_path / "store", **s3, push_every=1) as mgr:  # its worker inherits it
        fill(mgr, 0)
    assert remote_tip(tmp_path / "store") is not None
    for path in (tmp_path / "store").rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()


def test_saves_go_on_while_a_request_is_under_way_and_a_killed_worker_is_replaced(
    tmp_path: Path, proxy: FaultProxy, s3: dict[str, Any]
) -> None:
    with CheckpointManager(tmp_path / "store", **s3, push_every=1) as mgr:
        fill(mgr, 0)
        mgr.flush()
        delay = Delay(Match(method="PUT", key="*.pack"))
        proxy.place(delay)
        fill(mgr, 1)
        assert becomes_true(delay.arrived.is_set)
        assert mgr.save(step=2, model=state(2)).result() == mgr.head
        kill(only_worker())
        proxy.place()
        delay.release.set()
        fill(mgr, 3)
        mgr.flush()
    with CheckpointManager(tmp_path / "fresh", **s3) as other:
        assert other.resume(model={"weight": torch.zeros(200, 300)}) == 4
