"""``moonclip reflog``: what refs have been."""

import time

import click

from store.errors import NotFound
from store.ids import CommitId, short
from store.naming.reflog import ReflogLine
from store.naming.refnames import HEAD, KINDS, is_full_name
from store.naming.refs import RefStore

from .location import open_store
from .output import echo_json_list, json_option
from .refs import complete_revision
from .text import age, columns, iso_date, one_line


@click.command()
@click.argument("ref", default=HEAD, shell_complete=complete_revision)
@json_option
@click.pass_context
def reflog(ctx: click.Context, ref: str, *, as_json: bool) -> None:
    """Show what a ref has been, newest first.

    REF is a branch, a tag, or HEAD. The number in REF@{number} is how often it has moved since. Deleted refs keep their
    reflogs.
    """
    refs = open_store(ctx).refs
    lines = list(enumerate(refs.reflog(_full_name(refs, ref))))
    if as_json:
        echo_json_list(_as_json(number, line) for number, line in lines)
        return
    now_ns = time.time_ns()
    for text in columns([_row(ref, number, line, now_ns) for number, line in lines]):
        click.echo(text)


def _full_name(refs: RefStore, ref: str) -> str:
    """The ref that is called so, or whose reflog is all that is left of it."""
    candidates = [ref] if ref == HEAD or is_full_name(ref) else [f"{kind}/{ref}" for kind in KINDS]
    legal = [name for name in candidates if name == HEAD or is_full_name(name)]
    for name in legal:
        if name == HEAD or refs.read(name) is not None:
            return name
    for name in legal:
        if refs.reflog(name):
            return name
    raise NotFound(f"no branch or tag {ref!r} is, or was; `moonclip branch` and `moonclip tag` list them", ref=ref)


def _row(ref: str, number: int, line: ReflogLine, now_ns: int) -> list[str]:
    what = f"{line.action}: {one_line(line.message)}" if line.message.strip() else line.action
    return ["deleted " if line.new is None else short(line.new), f"{ref}@{{{number}}}", age(line.time_ns, now_ns), what]


def _as_json(number: int, line: ReflogLine) -> dict[str, object]:
    return {
        "number": number,
        "old": _hex(line.old),
        "new": _hex(line.new),
        "time": iso_date(line.time_ns),
        "time_ns": line.time_ns,
        "action": line.action,
        "message": line.message,
    }


def _hex(commit: CommitId | None) -> str | None:
    return None if commit is None else commit.hex()
