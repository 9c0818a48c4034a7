"""PEFT: adapters are items of their own, come after their base, and are loaded in place and by PEFT itself."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from peft import LoraConfig, PeftModel, PrefixTuningConfig, get_peft_model
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from moonclip import CheckpointManager, Conflict, Incompatible, NotFound
from moonclip.integrations.peft import Adapter, adapter_directory, adapters_of, begin, item_of, lineage

pytestmark = pytest.mark.filterwarnings("ignore")

LORA = {"target_modules": ["c_attn"], "r": 2, "fan_in_fan_out": True}


@pytest.fixture
def mgr(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(tmp_path / "store", async_save=False, threads=1) as manager:
        manager.save("base", {"model": base()})
        yield manager


def base() -> GPT2LMHeadModel:
    torch.manual_seed(1)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2, **ends))


def adapted(seed: int, *names: str, config: Any = None) -> PeftModel:
    """The base with adapters ``default`` and others, of random weights."""
    bare = base()
    torch.manual_seed(seed)
    model: Any = get_peft_model(bare, config or LoraConfig(**LORA))
    for name in names:
        model.add_adapter(name, LoraConfig(**{**LORA, "r": 3}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name or "prompt" in name:
                parameter.normal_()
    model.eval()
    return model


def told(model: Any) -> Tensor:
    logits: Tensor = model(input_ids=torch.arange(4)[None]).logits
    return logits.detach()


def weights(model: PeftModel, name: str = "default") -> dict[str, Tensor]:
    return Adapter(model, name).state_dict()


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_b4_adapters_are_loaded_into_a_model_in_place(mgr: CheckpointManager) -> None:
    model = adapted(2, "formal")
    mgr.save(step=1, **adapters_of(model))
    assert mgr.describe().snapshot.items == ("adapter", "files", "formal/adapter")
    other = adapted(3, "formal")
    parameters = dict(other.named_parameters())
    mgr.load("step:1", into=adapters_of(other))
    assert torch.equal(told(other), told(model))
    assert all(parameter is parameters[name] for name, parameter in other.named_parameters())
    assert equal(weights(other, "formal"), weights(model, "formal"))


def test_b4_one_of_several_adapters_is_saved_and_loaded(mgr: CheckpointManager) -> None:
    model = adapted(2, "formal")
    mgr.save(step=1, **adapters_of(model, "formal"))
    assert mgr.describe().snapshot.items == ("files", "formal/adapter")
    other = adapted(3, "formal")
    before = {name: tensor.clone() for name, tensor in weights(other).items()}
    mgr.load("step:1", into={item_of("formal"): Adapter(other, "formal")})
    assert equal(weights(other, "formal"), weights(model, "formal"))
    assert equal(weights(other), before)


def test_b4_an_adapter_stores_nothing_of_its_base(mgr: CheckpointManager) -> None:
    model = adapted(2)
    mgr.save(step=1, **adapters_of(model))
    raw_bytes = sum(tensor.nbytes for tensor in weights(model).values())
    assert mgr.describe().raw_bytes == raw_bytes < sum(each.nbytes for each in model.parameters()) / 10


def test_b4_peft_itself_loads_what_was_saved(mgr: CheckpointManager) -> None:
    model = adapted(2, "formal")
    mgr.save(step=1, **adapters_of(model))
    with adapter_directory(mgr) as path:
        loaded: Any = PeftModel.from_pretrained(base(), str(path))
        loaded.load_adapter(str(path / "formal"), "formal")
    assert not path.exists()
    loaded.eval()
    for name in ("default", "formal"):
        loaded.set_adapter(name)
        model.set_adapter(name)
        assert torch.equal(told(loaded), told(model))
    merged = loaded.merge_and_unload()
    assert torch.allclose(told(merged), told(model), atol=1e-5)


def test_b4_prompts_are_adapters_too(mgr: CheckpointManager) -> None:
    config = PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    model = adapted(2, config=config)
    mgr.save(step=1, **adapters_of(model))
    other = adapted(3, config=config)
    assert not equal(weights(other), weights(model))
    mgr.load("step:1", into=adapters_of(other))
    assert equal(weights(other), weights(model))
    assert torch.equal(told(other), told(model))


def test_b4_branches_of_adapters_begin_at_their_base(mgr: CheckpointManager) -> None:
    root = mgr.tags()["base"]
    for name in ("french", "german"):
        assert begin(mgr, branch=name, base="base") is None
        assert begin(mgr, branch=name, base="base") is None  # it has no adapter yet
        mgr.save(step=1, metadata=lineage(mgr, "base"), **adapters_of(adapted(2)))
        assert begin(mgr, branch=name, base="base") == mgr.head == mgr.branches()[name]
        snapshot = mgr.describe().snapshot
        assert snapshot.parents == (root,)
        assert snapshot.metadata["derived-from"] == root
    assert mgr.branches()["main"] == root
    mgr.save("other-base", {"model": base()})
    with pytest.raises(Conflict, match="does not come from"):
        begin(mgr, branch="french", base="other-base")


def test_b4_what_does_not_fit_is_refused(mgr: CheckpointManager) -> None:
    mgr.save(step=1, **adapters_of(adapted(2)))
    other = adapted(3, config=LoraConfig(**{**LORA, "target_modules": ["c_proj"]}))
    before = {name: tensor.clone() for name, tensor in weights(other).items()}
    with pytest.raises(Incompatible, match="on one side only"):
        mgr.load("step:1", into={"adapter": Adapter(other)})
    assert equal(weights(other), before)
    ranks = adapted(3, config=LoraConfig(**{**LORA, "r": 3}))
    with pytest.raises(Incompatible, match=r"is \(2, 16\), and \(3, 16\) here"):
        mgr.load("step:1", into={"adapter": Adapter(ranks)})
    with pytest.raises(Incompatible, match="no adapter 'formal'"):
        adapters_of(other, "formal")
    with pytest.raises(Incompatible, match="it has none"):
        adapters_of(base())  # type: ignore[arg-type] # somebody forgot get_peft_model
    with pytest.raises(NotFound, match="has no adapter"), adapter_directory(mgr, "base"):
        pass


def test_b4_a_deleted_adapter_is_named_and_the_others_are_saved(mgr: CheckpointManager) -> None:
    model = adapted(2, "formal")
    items = adapters_of(model)
    model.delete_adapter("formal")
    with pytest.raises(Incompatible, match="no adapter 'formal', it has default"):
        mgr.save(step=1, **items)
    mgr.save(step=2, **adapters_of(model))
    assert mgr.describe().snapshot.items == ("adapter", "files")


def test_b4_weights_are_not_loaded_into_a_merged_adapter(mgr: CheckpointManager) -> None:
    mgr.save(step=1, **adapters_of(adapted(2)))
    other = adapted(3)
    other.merge_adapter()
    with pytest.raises(Incompatible, match="unmerge it"):
        mgr.load("step:1", into={"adapter": Adapter(other)})
    other.unmerge_adapter()
    mgr.load("step:1", into={"adapter": Adapter(other)})
    assert equal(weights(other), weights(adapted(2)))


def test_b4_peft_loads_adapters_of_a_directory_that_was_imported(mgr: CheckpointManager, tmp_path: Path) -> None:
    model = adapted(2, "formal")
    model.save_pretrained(tmp_path / "adapters")
    mgr.import_model(tmp_path / "adapters", branch="imported")
    with adapter_directory(mgr, "imported") as path:
        loaded: Any = PeftModel.from_pretrained(base(), str(path))
        loaded.load_adapter(str(path / "formal"), "formal")
    assert equal(weights(loaded), weights(model))
    assert equal(weights(loaded, "formal"), weights(model, "formal"))
    mgr.save(step=1, adapter=Adapter(model), files={"other": b""})
    with pytest.raises(NotFound, match=r"no file adapter_config\.json"), adapter_directory(mgr):
        pass


def test_b4_the_hub_is_asked_for_the_base_once(mgr: CheckpointManager, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr("peft.utils.save_and_load.check_file_exists_on_hf_hub", lambda *given: asked.append(given))
    model = adapted(2)
    model.peft_config["default"].base_model_name_or_path = "somebody/something"
    items = adapters_of(model)
    for step in range(3):
        mgr.save(step=step, **items)
    assert len(asked) == 1
