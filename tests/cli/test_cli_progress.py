"""Bars that show how far something is."""

import io
import sys

import pytest

from moonclip.cli.progress import progress_bar


class Terminal(io.StringIO):
    """Somebody watches."""

    def isatty(self) -> bool:
        return True


def test_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress_bar() as progress:
        assert progress is None


@pytest.mark.parametrize(("in_bytes", "shown"), [(True, "0.5/1.0 KiB"), (False, "512/1024")])
def test_what_is_shown(monkeypatch: pytest.MonkeyPatch, in_bytes: bool, shown: str) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar(in_bytes=in_bytes) as progress:
        assert progress is not None
        progress("comparing", 1024, 1024)
        progress("rewriting", 512, 1024)
        terminal.truncate(0)
    assert "comparing" not in terminal.getvalue()
    assert "rewriting" in terminal.getvalue()
    assert shown in terminal.getvalue()
