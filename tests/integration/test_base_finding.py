"""Which stored model another one comes from: twenty cases in a store of six families, and models of none."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from moonclip.families import SEARCH, Found, How, against, base_for
from store.naming.refnames import branch_name
from store.repository import Repository
from store.saving.inputs import ItemInput
from store.saving.saver import SaveRequest
from tests.families import (
    Mixed,
    State,
    cast,
    items_of,
    merged_lora,
    mixed,
    prefixed,
    pretrained,
    rows,
    tuned,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    with Repository.init(tmp_path_factory.mktemp("mixed") / "store", thread_count=2) as repo:
        store = mixed(repo)
        store.add("half", cast(pretrained("mlp", 55), torch.bfloat16))
        optimizer = {f"state.{n}.exp_avg": 0.01 * each for n, each in enumerate(store.states["lstm"].values())}
        run = tuned("lstm", pretrained("lstm", 66), 67)
        nested = [*items_of(run, "net", nested=True), *items_of(optimizer, "optimizer", nested=True)]
        store.add("run", run, items=nested)
        yield store


def found(store: Mixed, items: list[ItemInput]) -> Found:
    return base_for(store.repo, items, SEARCH)


def cases(store: Mixed) -> dict[str, tuple[State, str]]:
    """By what it shows: a model, and the branch of its base."""
    known = store.states
    encoder, decoder = known["encoder"], known["decoder"]
    fine = tuned("encoder", encoder, 900)
    generative = tuned("decoder", decoder, 901)
    untied = {**generative, "lm_head.weight": generative["lm_head.weight"] + 1e-5}
    peft = {
        f"base_model.model.{name.replace('.weight', '.base_layer.weight')}": each
        for name, each in tuned("mlp", known["mlp"], 902).items()
    }
    dotted = tuned("lstm", known["run"], 903)
    return {
        "full encoder": (fine, "encoder"),
        "full decoder": (generative, "decoder"),
        "full conv": (tuned("conv", known["conv"], 904), "conv"),
        "full lstm": (tuned("lstm", known["lstm"], 905), "lstm"),
        "full mlp": (tuned("mlp", known["mlp"], 906), "mlp"),
        "data parallel": (prefixed(fine, "module."), "encoder"),
        "compiled": (prefixed(fine, "_orig_mod."), "encoder"),
        "inside another": (prefixed(generative, "transformer."), "decoder"),
        "adapted": (peft, "mlp"),
        "more rows": (rows(fine, "embeddings.weight", 641), "encoder"),
        "fewer rows": (rows(fine, "embeddings.weight", 512), "encoder"),
        "bf16 of fp32": (cast(fine, torch.bfloat16), "encoder"),
        "fp16 of fp32": (cast(tuned("lstm", known["lstm"], 911), torch.float16), "lstm"),
        "fp32 of bf16": (tuned("mlp", cast(known["half"], torch.float32), 907), "half"),
        "merged": (merged_lora(encoder, 908), "encoder"),
        "frozen backbone": (tuned("encoder", encoder, 909, only="classifier", rate=1e-3), "encoder"),
        "tuned further": (tuned("conv", known["conv-ft1"], 910, rate=2e-6, steps=2), "conv-ft1"),
        "the same": (dict(known["mlp-ft0"]), "mlp-ft0"),
        "not tied any more": (untied, "decoder"),
        "of a training run": (dotted, "run"),
    }


def test_the_right_base_in_twenty_of_twenty_cases(store: Mixed) -> None:
    told = {what: found(store, items_of(state)) for what, (state, _) in cases(store).items()}
    wanted = {what: base for what, (_, base) in cases(store).items()}
    assert {what: store.name_of(each.commit) for what, each in told.items()} == wanted
    assert len(wanted) == 20
    for what, each in told.items():
        assert each.how is How.SEARCHED, what
        assert each.against_bytes <= 0.9 * each.alone_bytes, what


def unrelated(store: Mixed) -> dict[str, State]:
    scattered = {name: torch.randn_like(each) for name, each in store.states["conv"].items()}
    return {
        "another seed": pretrained("encoder", 999),
        "other numbers": scattered,
        "another architecture": {"blocks.0.w": torch.randn(300, 333), "blocks.0.norm": torch.ones(333)},
        "ones and zeros alone in common": {
            name: torch.randn_like(each) if each.dim() > 1 else each for name, each in store.states["mlp"].items()
        },
    }


def stored_bytes(store: Mixed, items: list[ItemInput], branch: str) -> int:
    """What a save takes. Nothing names it afterwards, so that no other test finds it."""
    taken = store.repo.save(SaveRequest(items, branch)).counts.stored_bytes
    store.repo.delete_ref(branch_name(branch))
    return taken


def test_what_is_unrelated_has_no_base(store: Mixed) -> None:
    for what, state in unrelated(store).items():
        told = found(store, items_of(state))
        assert (what, told.commit, told.how, dict(told.pairs)) == (what, None, How.NONE, {})
        assert told.looked_at == len(store.commits)
        assert told.metadata() == {}


def test_a_wrong_base_costs_at_most_a_hundredth(store: Mixed, tmp_path: Path) -> None:
    state = pretrained("encoder", 998)
    wrong = base_for(store.repo, items_of(state), store.commits["encoder"])
    assert len(wrong.pairs) > 10
    against_it = stored_bytes(store, against(items_of(state), wrong.pairs), "wrong")
    with Repository.init(tmp_path / "alone", thread_count=2) as repo:
        alone = repo.save(SaveRequest(items_of(state), "alone")).counts.stored_bytes
    assert against_it <= 1.01 * alone


@pytest.mark.parametrize("what", ["full mlp", "bf16 of fp32", "more rows", "merged", "adapted"])
def test_what_is_promised_is_what_is_saved(store: Mixed, what: str) -> None:
    state, _ = cases(store)[what]
    told = found(store, items_of(state))
    taken = stored_bytes(store, against(items_of(state), told.pairs), f"promised-{what.replace(' ', '-')}")
    assert taken == pytest.approx(told.against_bytes, rel=0.1, abs=9_000)  # of headers and trees nothing is said
    assert taken < told.alone_bytes
    assert told.metadata()["derived-from"] == told.commit.hex()  # type: ignore[union-attr]
