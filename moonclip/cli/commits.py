"""Commits, for people and for programs."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from store.format.objects import Commit
from store.format.values import Plain
from store.ids import CommitId, short
from store.repository import Repository

from .plain import to_json, to_text
from .refs import RefNames
from .text import age, date, inline, iso_date, one_line, printable, size

_INDENT: Final = "    "
_FLOAT_WIDTH: Final = 8
_VALUE_WIDTH: Final = 24
_VALUES_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class Described:
    """A commit and what refs call it.

    Attributes:
        id: its id, so that it need not be hashed again.
        commit: what it says.
        names: of all refs.
        absent: names of items that are not here, and why: ``pruned``, ``shallow`` or ``partial``.
    """

    id: CommitId
    commit: Commit
    names: RefNames
    absent: Mapping[str, str]

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
            "absent": dict(self.absent),
            "refs": self.names.as_json(self.id),
        }

    def line(self, added_bytes: int | None = None) -> str:
        """Id, refs, step and what is said of it, on one line; and what it added, if that is known."""
        return "  ".join([f"{self._head()} {summary(self.commit)}".rstrip(), *_added_words(added_bytes)])

    def row(self, keys: Sequence[str], added_bytes: int | None = None) -> str:
        """Id, refs, step, some of the metadata, age, and what it added, if that is known, on one line."""
        commit = self.commit
        words = [] if commit.step is None else [f"step {commit.step}"]
        words += [f"{one_line(key)}={_brief(commit.metadata[key])}" for key in keys if key in commit.metadata]
        words += [age(commit.time_ns, time.time_ns()), *_added_words(added_bytes)]
        return f"{self._head()} {'  '.join(words)}"

    def paragraph(self, added_bytes: int | None = None) -> Iterator[str]:
        """Everything but the items, on several lines; and what it added, if that is known."""
        commit = self.commit
        head = click.style(f"commit {self.id.hex()}", fg="yellow")
        yield f"{head} {self.names.decoration(self.id)}".rstrip()
        if self.absent:
            yield f"Absent:  {self._absence()}"
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
        if added_bytes is not None:
            yield f"Added:   {size(added_bytes)}"
        yield from self._said()

    def _head(self) -> str:
        absence = [click.style(f"[{self._absence()}]", dim=True)] if self.absent else []
        words = [click.style(short(self.id), fg="yellow"), self.names.decoration(self.id), *absence]
        return " ".join(word for word in words if word)

    def _absence(self) -> str:
        """``"pruned"``, or ``"pruned: optimizer"``."""
        why = ", ".join(dict.fromkeys(self.absent.values()))
        return why if len(self.absent) == len(self.commit.items) else f"{why}: {', '.join(map(one_line, self.absent))}"

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
    commit = repo.commit(commit_id)
    records = {item: repo.absences.reason(commit_id, item) for item in commit.items}
    return Described(commit_id, commit, names, {item: record.why for item, record in records.items() if record})


def summary(commit: Commit) -> str:
    """Step, first line of the message, and what fits of the metadata."""
    words = [] if commit.step is None else [f"step {commit.step}"]
    words += [one_line(commit.message)] if commit.message.strip() else []
    texts = {key: _brief(value) for key, value in commit.metadata.items()}
    shown = [f"{one_line(key)}={text}" for key, text in texts.items() if len(text) <= _VALUE_WIDTH]
    return "  ".join([*words, " ".join(shown[:_VALUES_SHOWN])]).rstrip()


def _added_words(added_bytes: int | None) -> list[str]:
    return [] if added_bytes is None else [f"+{size(added_bytes)}"]


def _brief(value: Plain) -> str:
    """The same in little room: six digits tell losses apart, and `moonclip show` has all of them."""
    text = _metadata_text(value)
    return f"{value:.6g}" if type(value) is float and len(text) > _FLOAT_WIDTH else text


def _metadata_text(value: Plain) -> str:
    """Text without quotes: losses are often kept as text."""
    return inline(value) if type(value) is str else to_text(value)
