"""Host memory for captured states: whole copies, two arenas, nothing of the last save overwritten too early."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from moonclip.staging import Staging
from moonclip.state import flatten
from store.inputs import ItemInput, TensorInput
from store.limits import PAGE_BYTES
from store.parallel import Threads


@pytest.fixture
def staging() -> Iterator[Staging]:
    threads = Threads(3)
    yield Staging(threads)
    threads.close()


def capture(staging: Staging, **items: Any) -> dict[str, memoryview]:
    inputs = staging.capture({name: flatten(obj, item=name) for name, obj in items.items()})
    return {f"{item.name}/{name}": data.data for item in inputs for name, data in tensors(item)}


def tensors(item: ItemInput) -> list[tuple[str, TensorInput]]:
    return [(name, given) for name, given in item.entries.items() if isinstance(given, TensorInput)]


def address(view: memoryview) -> int:
    return torch.frombuffer(view, dtype=torch.uint8).data_ptr()


def test_every_kind_of_tensor_is_copied_as_its_bytes_in_c_order(staging: Staging) -> None:
    big = torch.randn(3_000_001)  # three tasks and a bit
    state = {
        "big": big,
        "odd": big[1:],
        "transposed": torch.arange(12.0).view(3, 4).t(),
        "scalar": torch.tensor(5, dtype=torch.int64),
        "empty": torch.zeros(0, 3),
        "many": [torch.full((5,), n, dtype=torch.int16) for n in range(1000)],
    }
    captured = capture(staging, state=state)
    expected = {f"state/{name}": state[name] for name in ("big", "odd", "transposed", "scalar", "empty")}
    expected |= {f"state/many/{n}": tensor for n, tensor in enumerate(state["many"])}
    assert captured.keys() == expected.keys()
    assert all(bytes(captured[name]) == expected[name].contiguous().numpy().tobytes() for name in expected)


def test_memory_is_page_aligned_reused_and_alternates(staging: Staging) -> None:
    x = torch.arange(1000)
    addresses = [address(capture(staging, x=x)["x/"]) for _ in range(6)]
    assert addresses[0] % PAGE_BYTES == 0
    assert addresses == [*addresses[:2]] * 3
    assert addresses[0] != addresses[1]


def test_the_capture_before_stays_until_the_one_after_next(staging: Staging) -> None:
    first = capture(staging, x=torch.full((1000,), 1))
    second = capture(staging, x=torch.full((2_000_000,), 2))
    assert bytes(first["x/"]) == torch.full((1000,), 1).numpy().tobytes()
    capture(staging, x=torch.full((1000,), 3))
    assert bytes(second["x/"]) == torch.full((2_000_000,), 2).numpy().tobytes()


def test_a_capture_that_fails_leaves_the_last_one_alone(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    last = capture(staging, x=torch.full((1000,), 1))
    states = {"x": flatten(torch.full((1000,), 2))}
    (entry,) = states["x"].entries.values()
    entry.source.tensor = None  # type: ignore[union-attr, assignment]
    for _ in range(3):
        with pytest.raises(AttributeError):
            staging.capture(states)
        assert bytes(last["x/"]) == torch.full((1000,), 1).numpy().tobytes()


def test_after_a_failure_its_arena_is_not_used_again(staging: Staging) -> None:
    """Threads that were interrupted may still be writing into it."""
    written: list[memoryview] = []

    class Interrupting:
        def copy_into(self, out: memoryview) -> None:
            written.append(out)
            raise KeyboardInterrupt

    states = {"x": flatten(torch.zeros(1000))}
    (entry,) = states["x"].entries.values()
    source = Interrupting()
    source.size_bytes, source.dtype, source.shape = 4000, "float32", (1000,)  # type: ignore[attr-defined]
    source.tensor = torch.zeros(1000)  # type: ignore[attr-defined]
    object.__setattr__(entry, "source", source)
    with pytest.raises(KeyboardInterrupt):
        staging.capture(states)
    captured = capture(staging, x=torch.full((1000,), 1.0))
    written[0][:] = b"\xff" * 4000
    assert bytes(captured["x/"]) == torch.full((1000,), 1.0).numpy().tobytes()


def test_tied_names_share_one_copy(staging: Staging) -> None:
    x = torch.ones(100)
    captured = capture(staging, state={"a": x, "b": x, "c": x.clone()})
    assert address(captured["state/a"]) == address(captured["state/b"]) != address(captured["state/c"])


@pytest.mark.parametrize("where", ["_sources", "_item", "_finish_devices", "_copies", "_copy"])
def test_an_interrupt_anywhere_leaves_the_last_capture_alone(
    staging: Staging, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    last = capture(staging, x=torch.full((1000,), 1))

    def interrupt(*given: object) -> None:
        raise KeyboardInterrupt

    for _ in range(3):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(f"moonclip.staging.{where}", interrupt)
            capture(staging, x=torch.full((1000,), 2))
        assert bytes(last["x/"]) == torch.full((1000,), 1).numpy().tobytes()
    assert address(capture(staging, x=torch.full((1000,), 3))["x/"]) != address(last["x/"])
