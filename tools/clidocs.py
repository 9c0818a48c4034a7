"""``python -m tools.clidocs``: write into docs/cli.md what the commands say of themselves.

What stands above the mark in that page is written by hand, and stays. A test holds the rest true.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from moonclip.cli.app import commands

PAGE: Final = Path(__file__).parents[1] / "docs" / "cli.md"
MARK: Final = "<!-- What follows is written by `python -m tools.clidocs`: change the commands' help instead. -->\n"
_WIDTH: Final = 100


def filled(page: str) -> str:
    """The page, with everything below its mark made anew."""
    by_hand, _, _ = page.partition(MARK)
    root = click.Context(commands, info_name="moonclip", terminal_width=_WIDTH, **commands.context_settings)
    return by_hand + MARK + "".join(f"\n{_section(context)}" for context in _contexts(root))


def _contexts(context: click.Context) -> Iterator[click.Context]:
    """A command, and those below it, in the order in which its help lists them."""
    yield context
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            below = context.command.get_command(context, name)
            assert below is not None
            yield from _contexts(click.Context(below, info_name=name, parent=context))


def _section(context: click.Context) -> str:
    return f"## {context.command_path}\n\n```text\n{context.command.get_help(context)}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
