"""docs/troubleshooting.md has every error, and quotes messages that there are."""

import ast
import re
from collections.abc import Iterator

import pytest

import store.errors
from store.errors import MoonclipError
from tests.docpages import ROOT, blocks

PAGE = ROOT / "docs" / "troubleshooting.md"
ERRORS = [
    error for error in vars(store.errors).values() if isinstance(error, type) and issubclass(error, MoonclipError)
]
PYTHONS = "OSError: [Errno 28] No space left on device"
"""What Python says itself."""


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.kind)
def test_every_class_has_an_entry_with_symptom_and_fix(error: type[MoonclipError]) -> None:
    entries = re.split(r"^###? ", PAGE.read_text(), flags=re.MULTILINE)
    (entry,) = [entry for entry in entries if entry.startswith(f"{error.__name__}\n")]
    assert f"\n`{error.kind}`" in entry
    assert "```text" in entry
    assert re.search(r"\*\*Fix\.\*\*|\| fix \|", entry)
    builtins = {base.__name__ for base in error.__bases__ if not issubclass(base, MoonclipError)} - {"Exception"}
    assert all(f"`{name}`" in entry for name in builtins)


def test_messages_are_those_of_the_sources() -> None:
    texts = "\n".join(_texts())
    unknown = {
        fragment
        for message in _messages()
        for fragment in (each.strip(" ()[].,:;") for each in message.split("…"))
        if not _is_said(fragment, texts)
    }
    assert unknown == {PYTHONS}


def _is_said(fragment: str, texts: str) -> bool:
    """Whether it is in one of the sources' texts, or its beginning is in one and the rest in another."""
    words = fragment.split(" ")
    halves = ((" ".join(words[:number]), " ".join(words[number:])) for number in range(len(words)))
    return any(beginning in texts and rest in texts for beginning, rest in halves)


def _messages() -> Iterator[str]:
    """What is quoted, a message at a time; lines that go on are indented."""
    for block in blocks(PAGE):
        if block.language == "text":
            yield from re.sub(r"\n +", " ", block.text).splitlines()


def _texts() -> Iterator[str]:
    """All text in the sources of which messages are made."""
    for package in ("store", "moonclip"):
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value
