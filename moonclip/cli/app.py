"""The entry point: which commands there are, and what becomes of errors."""

import difflib
import errno
import io
import logging
import os
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from keyword import iskeyword
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from store.errors import MoonclipError
from store.naming.meant import did_you_mean

from .location import Location
from .text import printable, told_of

_MODULE_OF: Final = {
    "init": "init",
    "log": "log",
    "show": "show",
    "ls": "ls",
    "diff": "diff",
    "merge": "merge",
    "branch": "branch",
    "switch": "branch",
    "tag": "tag",
    "reset": "reset",
    "bisect": "bisect",
    "reflog": "reflog",
    "cat": "cat",
    "export": "export",
    "import": "importing",
    "prune": "prune",
    "pin": "pin",
    "unpin": "pin",
    "gc": "gc",
    "repack": "repack",
    "fsck": "fsck",
    "reindex": "reindex",
    "stats": "stats",
    "dedup": "dedup",
    "remote": "remote",
    "push": "push",
    "fetch": "fetch",
    "pull": "pull",
    "clone": "clone",
    "ls-remote": "lsremote",
    "migrate": "migrate",
}

_SAVING: Final = "commits are made from Python, by `CheckpointManager.save`, and by `moonclip import`"
_LOADING: Final = "commits are loaded from Python, by `CheckpointManager.load`; `moonclip export` writes one as files"
_CALLED_OTHERWISE: Final = {
    "status": "`moonclip log` shows the current branch, and what is on it",
    "checkout": "`moonclip switch` makes a branch the current one",
    "add": _SAVING,
    "commit": _SAVING,
    "save": _SAVING,
    "restore": _LOADING,
    "load": _LOADING,
}
"""What people know from git, or from Python, and where it is found here."""


class Commands(click.Group):
    """All commands. A command's module is imported when the command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click passes it
        """Names, in the order in which people come to need them."""
        return list(_MODULE_OF)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of that name."""
        if cmd_name not in _MODULE_OF:
            return None
        module = import_module(f".{_MODULE_OF[cmd_name]}", __package__)
        function = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name.replace("-", "_")
        command: click.Command = getattr(module, function)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that is asked for. Of one that there is not, the error says what may be meant."""
        name = args[0]
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if name.startswith("-"):  # an option, of which click tells by itself
                raise
            raise click.UsageError(f"{error.message.rstrip('.')}; {_meant(name)}", ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. What is wrong with a store, an argument or a disk is told without a traceback."""
        try:
            return super().invoke(ctx)
        except MoonclipError as error:
            _fail(ctx, error.message, error.exit_code)
        except OSError as error:
            if error.errno == errno.EPIPE:  # whoever read our output has seen enough; click ends quietly
                raise
            _fail(ctx, told_of(error))


def _meant(name: str) -> str:
    if name in _CALLED_OTHERWISE:
        return _CALLED_OTHERWISE[name]
    near = difflib.get_close_matches(name, _MODULE_OF)
    return did_you_mean(near) if near else "`moonclip --help` lists them"


def _fail(ctx: click.Context, message: str, exit_code: int = 1) -> NoReturn:
    click.echo(f"error: {printable(message)}", err=True)
    ctx.exit(exit_code)


class _Warnings(logging.Handler):
    """Shows what the engine warns of."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"warning: {printable(record.getMessage())}", err=True)


_WARNINGS: Final = _Warnings(logging.WARNING)


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - as click calls it
    if not wanted:
        return
    try:
        click.echo(f"moonclip {version('moonclip-store')}")
    except PackageNotFoundError:
        click.echo("moonclip, run from a source tree that is not installed")
    ctx.exit()


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-C",
    "given",
    metavar="PATH",
    envvar="MOONCLIP_STORE",
    show_envvar=True,
    type=click.Path(path_type=Path),
    help="The store. Without it: the one that the working directory is in, or ./checkpoints.",
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show it and exit."
)
@click.pass_context
def commands(ctx: click.Context, given: Path | None) -> None:
    """Training checkpoints as git-like commits."""
    for name in ("store", "moonclip"):
        logging.getLogger(name).addHandler(_WARNINGS)  # the same one again is not added twice
    ctx.obj = Location(given)
    if os.environ.get("NO_COLOR"):  # see no-color.org; click does not look
        ctx.color = False


def main() -> None:
    """Run the command that ``sys.argv`` asks for, and exit with 0 (done), 1 (failed) or 2 (not a command).

    ``fsck --repair`` has two more: see its help.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names and messages hold any character; a terminal may lack some
            stream.reconfigure(errors="backslashreplace")
    commands(prog_name="moonclip")
