"""The family of fine-tunes that benches and tests use: real training, the same each time, made once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from torch import Tensor

from tools.finetunes import Family, Member, families, small_family
from tools.finetunes.__main__ import main
from tools.finetunes.recipes import MEANING

pytestmark = pytest.mark.slow  # the first use on a machine trains

TWICE = """
import sys
from pathlib import Path
from tools.finetunes import families
families._CACHE = Path(sys.argv[1])
print(families.small_family().base.path)
"""

LOADED = """
import sys
from pathlib import Path
from peft import PeftModel
from transformers import BertForSequenceClassification, BertModel
base, *folders = map(Path, sys.argv[1:])
for folder in folders:
    if (folder / "adapter_config.json").exists():
        PeftModel.from_pretrained(BertModel.from_pretrained(base), folder)
        continue
    kind = BertForSequenceClassification if folder.name == "wrapped" else BertModel
    _, said = kind.from_pretrained(folder, output_loading_info=True)
    assert not said["missing_keys"] and not said["mismatched_keys"], (folder, said)
"""


@pytest.fixture(scope="module")
def family() -> Family:
    return small_family()


def tensors(member: Member) -> dict[str, Tensor]:
    return {
        name: tensor
        for file in member.files()
        if file.suffix == ".safetensors"
        for name, tensor in load_file(member.path / file).items()
    }


def changed(member: Member, base: Member) -> set[str]:
    """Names that both have, with other values."""
    before, after = tensors(base), tensors(member)
    return {name for name in before.keys() & after.keys() if not torch.equal(before[name], after[name])}


def run(script: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(families.ROOT), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "ignore", "-c", script, *arguments]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return out


def test_there_is_one_of_each_kind_and_ten_at_least(family: Family) -> None:
    assert {member.kind for member in family.members} == set(MEANING)
    assert len(family.tuned) >= 10
    for member in family.members:
        assert Path("tokenizer.json") in member.files()
        assert member.name in member.description
    names = [member.name for member in family.members]
    for member in family.tuned:
        assert member.base in names[: names.index(member.name)]


def test_all_are_listed(family: Family) -> None:
    said = CliRunner().invoke(main, ["small"])
    assert said.exit_code == 0
    for member in family.members:
        assert member.description in said.output
        assert str(member.path) in said.output


def test_each_loads_into_the_model_that_it_is_of(family: Family) -> None:
    finished(run(LOADED, str(family.base.path), *(str(member.path) for member in family.tuned)))


def test_training_moves_what_it_is_said_to_move(family: Family) -> None:
    base = family.base
    names = tensors(base).keys()
    for name in ("full-a", "full-b", "sharded", "second"):
        assert len(changed(family.named(name), base)) > 0.9 * len(names) - 2  # nothing learns the pooler
    assert {name.rsplit(".layer.")[1][0] for name in changed(family.named("frozen"), base)} == {"1"}
    assert {name.split(".")[-2] for name in changed(family.named("merged"), base)} == {"query", "value"}
    assert changed(family.named("second"), family.named("full-a"))


def test_weights_differ_by_their_decimals_not_as_noise_would(family: Family) -> None:
    before, after = tensors(family.base), tensors(family.named("full-a"))
    name = "encoder.layer.0.attention.self.query.weight"
    assert 0 < (after[name] - before[name]).norm() / before[name].norm() < 0.01


def test_what_is_special_of_a_kind_shows_in_its_files(family: Family) -> None:
    base = tensors(family.base)
    index = json.loads((family.named("sharded").path / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    assert all("lora_" in name for name in tensors(family.named("adapter")))
    for name in ("bf16", "cast"):
        assert {tensor.dtype for tensor in tensors(family.named(name)).values()} == {torch.bfloat16}
    rows = "embeddings.word_embeddings.weight"
    assert len(tensors(family.named("extended"))[rows]) > len(base[rows])
    wrapped = tensors(family.named("wrapped"))
    assert f"bert.{rows}" in wrapped and "classifier.weight" in wrapped


def test_two_that_ask_at_once_get_one_family_the_same_as_ever(family: Family, tmp_path: Path) -> None:
    asking = [run(TWICE, str(tmp_path)) for _ in range(2)]
    made, other = (Path(finished(process).strip()) for process in asking)
    assert made == other
    for member in family.members:
        again = made.parent / member.name
        for file in member.files():
            assert (again / file).read_bytes() == (member.path / file).read_bytes(), f"{member.name}/{file}"
    assert sorted(path.suffix for path in tmp_path.iterdir()) == ["", ".lock"]
