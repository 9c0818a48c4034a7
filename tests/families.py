"""Families of small models that are trained for real, and the store that they are in."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor, nn

from moonclip.state.names import segment
from store.ids import CommitId
from store.repository import Repository
from store.saving.inputs import ContainerInput, Input, ItemInput, MadeInput
from store.saving.saver import SaveRequest

State = Mapping[str, Tensor]

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16", torch.int64: "int64"}
VOCABULARY, WIDTH = 600, 64


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classifier = nn.Linear(WIDTH, 100)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.classifier(self.encoder(self.embeddings(tokens)))


class Decoder(nn.Module):
    """Its head is tied to its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCABULARY, 48)
        self.h = nn.ModuleList(nn.ModuleDict({"attn": nn.Linear(48, 48), "mlp": nn.Linear(48, 48)}) for _ in range(3))
        self.ln_f = nn.LayerNorm(48)
        self.lm_head = nn.Linear(48, VOCABULARY, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.wte(tokens)
        for block in self.h:
            hidden = hidden + block["mlp"](torch.relu(block["attn"](hidden)))
        return self.lm_head(self.ln_f(hidden))


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.features = nn.Sequential(nn.Conv1d(32, 96, 5, padding=2), nn.ReLU(), nn.Conv1d(96, 96, 5, padding=2))
        self.fc = nn.Linear(96, 100)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.fc(self.features(self.embed(tokens).transpose(1, 2)).transpose(1, 2))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 40)
        self.lstm = nn.LSTM(40, 80, 2, batch_first=True)
        self.out = nn.Linear(80, 100)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.lstm(self.embed(tokens))[0])


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 72)
        self.layers = nn.Sequential(nn.Linear(72, 200), nn.GELU(), nn.LayerNorm(200), nn.Linear(200, 200), nn.GELU())
        self.head = nn.Linear(200, 100)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.table(tokens)))


KINDS: Mapping[str, Callable[[], nn.Module]] = {
    "encoder": Encoder,
    "decoder": Decoder,
    "conv": Convolutional,
    "lstm": Recurrent,
    "mlp": Perceptron,
}


def pretrained(kind: str, seed: int) -> dict[str, Tensor]:
    """The state of a model that was trained from scratch."""
    torch.manual_seed(seed)
    return _trained(KINDS[kind](), seed, 8, 1e-3)


def tuned(
    kind: str, state: State, seed: int, *, rate: float = 2e-5, steps: int = 4, only: str = ""
) -> dict[str, Tensor]:
    """The state of one that was trained further, for another task: all of it, or what has ``only`` in its name."""
    model = KINDS[kind]()
    model.load_state_dict(state)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(only in name)
    return _trained(model, seed, steps, rate)


@contextmanager
def _one_thread() -> Iterator[None]:
    """So small models train faster on one, and come out the same."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def _trained(model: nn.Module, seed: int, steps: int, rate: float) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], rate)
    with _one_thread():
        for _ in range(steps):
            tokens = torch.randint(VOCABULARY, (8, 16), generator=generator)
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), (tokens.flatten() + seed) % 100)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return {name: each.detach().clone() for name, each in model.state_dict().items()}


def merged_lora(state: State, seed: int, rank: int = 2) -> dict[str, Tensor]:
    """A state whose square matrices had something of low rank added."""
    generator = torch.Generator().manual_seed(seed)

    def delta(each: Tensor) -> Tensor:
        down, up = (torch.randn(rank, each.shape[0], generator=generator) for _ in range(2))
        return 1e-4 * up.T @ down

    return {
        name: each + delta(each) if each.dim() == 2 and each.shape[0] == each.shape[1] else each
        for name, each in state.items()
    }


def prefixed(state: State, prefix: str) -> dict[str, Tensor]:
    return {prefix + name: each for name, each in state.items()}


def cast(state: State, dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: each.to(dtype) if each.is_floating_point() else each for name, each in state.items()}


def rows(state: State, name: str, count: int) -> dict[str, Tensor]:
    """A state with another number of rows in one tensor: some less, or some new."""
    table = state[name]
    more = 0.02 * torch.randn(max(0, count - len(table)), *table.shape[1:], generator=torch.Generator().manual_seed(1))
    return {**state, name: torch.cat([table[:count], more.to(table.dtype)])}


def items_of(state: State, item: str = "model", *, nested: bool = False) -> list[ItemInput]:
    """What an import of a state would store; nested as a commit of a training run has it."""
    entries: dict[str, Input] = {"": ContainerInput(0, "dict")}
    for name, tensor in state.items():
        path = name.replace(".", "/") if nested else segment(name)
        entries |= {above: ContainerInput(0, "dict") for above in _above(path)}
        entries[path] = _input(len(entries), tensor)
    return [ItemInput(item, entries)]


def _above(path: str) -> Iterator[str]:
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(1, len(parts)))


def _input(position: int, tensor: Tensor) -> MadeInput:
    data = memoryview(tensor.contiguous().view(torch.uint8).numpy().reshape(-1)) if tensor.dim() else memoryview(b"")
    if not tensor.dim():
        data = memoryview(tensor.reshape(1).view(torch.uint8).numpy())
    return MadeInput(position, _DTYPES[tensor.dtype], tuple(tensor.shape), lambda start, stop: data[start:stop])


@dataclass
class Mixed:
    """A store of several families.

    Attributes:
        repo: the store.
        states: what was stored, by branch.
        commits: and where.
    """

    repo: Repository
    states: dict[str, State] = field(default_factory=dict)
    commits: dict[str, CommitId] = field(default_factory=dict)

    def add(self, name: str, state: State, base: str = "", items: Sequence[ItemInput] | None = None) -> CommitId:
        """Store a model on a branch of its own."""
        merged = (self.commits[base],) if base else ()
        given = items_of(state) if items is None else items
        self.states[name] = state
        self.commits[name] = self.repo.save(SaveRequest(given, name, merged=merged)).commit
        return self.commits[name]

    def name_of(self, commit: CommitId | None) -> str | None:
        return next((name for name, each in self.commits.items() if each == commit), None)


def mixed(repo: Repository) -> Mixed:
    """Five families, two fine-tunes each, and a second base of the first family's architecture."""
    store = Mixed(repo)
    for number, kind in enumerate(KINDS):
        base = pretrained(kind, number)
        store.add(kind, base)
        for seed in range(2):
            store.add(f"{kind}-ft{seed}", tuned(kind, base, 100 + 10 * number + seed), kind)
    store.add("encoder-twin", pretrained("encoder", 77))
    return store


def first(state: State, count: int) -> dict[str, Tensor]:
    return dict(islice(state.items(), count))
