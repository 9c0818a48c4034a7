"""docs/migration.md names all that the Rust engine has, and nothing that is not there."""

import re
from pathlib import Path
from typing import Any

import pytest

import store
from moonclip import CheckpointManager
from moonclip.managing.rustwords import MoreArguments
from store.repository import Repository
from tests.docs.test_seed_snippets import names, run

PAGE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text()

THEIRS = re.findall(
    r"\w+",
    """
save save_raw save_best save_final save_to_pt save_to_safetensors resume last_resume_metadata load load_latest stats
print_stats list_snapshots describe describe_latest load_tensors pin unpin pinned_steps merge_now sync_now sync_prefix
restore_from_remote flush last_queue_wait save_tensors create_snapshot save_rank finalize_snapshot Bucket get put list
MoonclipManager flatten_state_dict unflatten_state_dict rank world_size
storage_root compression_level max_full_snapshots max_deltas_per_full full_every_steps delta_max_ratio merge_stride
merge_max_chain rollback_interval_steps max_rollback_snapshots max_total_snapshots s3_bucket s3_region s3_prefix
s3_endpoint s3_access_key s3_secret_key s3_session_token s3_path_style sync_every_n_saves save_dtype async_save
keep_base_in_memory pin_device_copies
MOONCLIP_THREADS MOONCLIP_PROFILE MOONCLIP_FSYNC MOONCLIP_LOG MOONCLIP_S3_ACCESS_KEY MOONCLIP_S3_SECRET_KEY
MOONCLIP_S3_SESSION_TOKEN
""",
)

OURS_ELSEWHERE = {"save_tensors", "sync_prefix", "Bucket", "get", "put", "list", "MoonclipManager"}
WITHOUT = {"flatten_state_dict", "unflatten_state_dict"}


@pytest.mark.parametrize("name", THEIRS)
def test_every_name_of_theirs_has_a_row(name: str) -> None:
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("|")]
    prose = PAGE if name in {"MoonclipManager", *WITHOUT} else "\n".join(rows)
    assert re.search(rf"\b{name}\b", prose)


@pytest.mark.parametrize("name", [name for name in THEIRS if name.islower()])
def test_every_name_of_theirs_can_be_said_here(name: str) -> None:
    if name not in OURS_ELSEWHERE | WITHOUT:
        own = set(CheckpointManager.__init__.__annotations__)
        assert hasattr(CheckpointManager, name) or name in MoreArguments.__annotations__ or name in own


def test_every_name_of_ours_is_there() -> None:
    on_manager = set(re.findall(r"\bmgr\.(\w+)", PAGE))
    assert len(on_manager) > 15
    assert not {name for name in on_manager if not hasattr(CheckpointManager, name)}
    on_engine = set(re.findall(r"\brepo\.(\w+)", PAGE)) - {"pins"}
    assert not {name for name in on_engine if not hasattr(Repository, name)}
    assert all(hasattr(store, name) for name in ("RawArray", "Prefix", "sync_prefix", "push", "fetch", "pull", "clone"))


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", PAGE)
    assert links
    assert [link for link in links if not (Path(__file__).parents[2] / "docs" / link).exists()] == []


def test_the_loop_runs_and_ends_with_the_final_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    given: dict[str, Any] = names(last_step=800)
    with run(block.replace("100_000", "600"), given) as mgr:
        assert [each.step for each in mgr.list_snapshots()] == [0, 250, 500, 599]
        assert mgr.tags().keys() == {"best"}
        assert mgr.describe().snapshot.metadata["final"]
