"""Commits, for people and for programs."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import click

from store.ids import CommitId, short
from store.objects import Commit
from store.repository import Repository
from store.values import Plain

from .plain import to_json, to_text
from .refs import RefNames
from .text import age, date, iso_date, one_line, printable

_INDENT: Final = "    "
_VALUE_WIDTH: Final = 24
_VALUES_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class Described:
    """A commit and what refs call it.

    Attributes:
        id: its id, so that it need not be hashed again.
        commit: what it says.
        names: of all refs.
    """

    id: CommitId
    commit: Commit
    names: RefNames

    def as_json(self) -> dict[str, Any]:
        """The commit for programs; ids in full."""
        commit = self.commit
        return {
            "id": self.id.hex(),
            "parents": [parent.hex() for parent in commit.parents],
            "step": commit.step,
            "time": iso_date(commit.time_ns),
            "time_ns": commit.time_ns,
            "branch": commit.branch,
            "message": commit.message,
            "metadata": {key: to_json(value) for key, value in commit.metadata.items()},
            "items": list(commit.items),
            "refs": self.names.as_json(self.id),
        }

    def line(self) -> str:
        """Id, refs, step and what is said of it, on one line."""
        head = f"{click.style(short(self.id), fg='yellow')} {self.names.decoration(self.id)}".rstrip()
        return f"{head} {summary(self.commit)}".rstrip()

    def paragraph(self) -> Iterator[str]:
        """Everything but the items, on several lines."""
        commit = self.commit
        head = click.style(f"commit {self.id.hex()}", fg="yellow")
        yield f"{head} {self.names.decoration(self.id)}".rstrip()
        if commit.parents:
            yield (
                f"Parents: {' '.join(map(short, commit.parents))}"
                if len(commit.parents) > 1
                else (f"Parent:  {short(commit.parents[0])}")
            )
        if commit.step is not None:
            yield f"Step:    {commit.step}"
        yield f"Branch:  {printable(commit.branch)}"
        yield f"Date:    {date(commit.time_ns)} ({age(commit.time_ns, time.time_ns())})"
        yield from self._said()

    def _said(self) -> Iterator[str]:
        commit = self.commit
        if commit.message.strip():
            yield ""
            yield from (f"{_INDENT}{line}".rstrip() for line in printable(commit.message.strip()).split("\n"))
        if commit.metadata:
            yield ""
            for key, value in commit.metadata.items():
                yield f"{_INDENT}{one_line(key)}: {_metadata_text(value)}"


def describe(repo: Repository, commit_id: CommitId, names: RefNames) -> Described:
    """Read a commit.

    Raises:
        NotFound: no such commit.
        Corrupt: no intact copy.
    """
    return Described(commit_id, repo.commit(commit_id), names)


def summary(commit: Commit) -> str:
    """Step, first line of the message, and what fits of the metadata."""
    words = [] if commit.step is None else [f"step {commit.step}"]
    words += [one_line(commit.message)] if commit.message.strip() else []
    texts = {key: _metadata_text(value) for key, value in commit.metadata.items()}
    shown = [f"{one_line(key)}={text}" for key, text in texts.items() if len(text) <= _VALUE_WIDTH]
    return "  ".join([*words, " ".join(shown[:_VALUES_SHOWN])]).rstrip()


def _metadata_text(value: Plain) -> str:
    """Text without quotes: losses are often kept as text."""
    return printable(value).replace("\n", "\\n") if type(value) is str else to_text(value)
