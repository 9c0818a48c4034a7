"""What docs/families.md shows is what is printed, for models that were trained for it."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from store.fsck import fsck
from store.repository import Repository
from tests.docpages import ROOT, play
from tests.families import State, cast, merged_lora, prefixed, pretrained, tuned


def models() -> Mapping[str, State]:
    base = pretrained("encoder", 1)
    chat = tuned("encoder", base, 2)
    return {
        "base": base,
        "chat": chat,
        "chat-2": tuned("encoder", chat, 3, rate=2e-6, steps=2),
        "code": cast(prefixed(tuned("encoder", base, 4), "model."), torch.bfloat16),
        "summary": merged_lora(base, 5),
        "other": pretrained("lstm", 6),
    }


def write(directory: Path) -> None:
    for name, state in models().items():
        (directory / name).mkdir(parents=True)
        save_file(dict(state), directory / name / "model.safetensors", metadata={"format": "pt"})
        (directory / name / "config.json").write_text(json.dumps({"name": name}))


def test_all_of_it_runs_and_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MOONCLIP_STORE", raising=False)
    write(tmp_path / "models")
    names: dict[str, object] = {}
    play(ROOT / "docs" / "families.md", names)
    with Repository.open(tmp_path / "checkpoints") as repo:
        assert fsck(repo, full=True).clean
        assert {"branches/base", "branches/chat", "branches/chat-2", "branches/code"} <= set(repo.refs.list())
    for name in ("chat", "code"):
        for file in ("model.safetensors", "config.json"):
            assert (tmp_path / "out" / name / file).read_bytes() == (tmp_path / "models" / name / file).read_bytes()
