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


def test_the_rate_is_in_the_units_of_the_bytes() -> None:
    from rich.progress import Progress

    from moonclip.cli.rates import RateColumn

    now = 0.0
    bars = Progress(RateColumn(), get_time=lambda: now)
    bars.add_task("uploading", total=10 << 20)
    (task,) = bars.tasks
    assert RateColumn().render(task).plain == ""
    for now in (1.0, 2.0):  # noqa: B007 - the clock that the bar reads
        bars.update(task.id, advance=3 << 20)
    assert RateColumn().render(task).plain == "3.00 MiB/s"
