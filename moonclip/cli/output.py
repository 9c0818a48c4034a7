"""What programs read: one JSON document on stdout, nothing else there."""

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """Add ``--json`` to a command, as the argument ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(command)


def echo_json(document: Any) -> None:
    """Print a document."""
    click.echo(_dumps(document))


def echo_json_list(documents: Iterable[Any]) -> None:
    """Print a list, each element as soon as it is there."""
    before = "[\n"
    for document in documents:
        click.echo(before + _dumps(document), nl=False)
        before = ",\n"
    click.echo("\n]" if before.startswith(",") else "[]")


def _dumps(document: Any) -> str:
    return json.dumps(document, indent=2, allow_nan=False)
