"""``moonclip fsck``: is everything there, and intact?"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from store.fsck import Finding, Progress, Report
from store.fsck import fsck as check

from .location import open_store
from .output import echo_json, json_option
from .text import counted, printable, size


@click.command()
@click.option("--full", is_flag=True, help="Also decode everything and compare its BLAKE3.")
@json_option
@click.pass_context
def fsck(ctx: click.Context, *, full: bool, as_json: bool) -> None:
    """Check the store.

    Alters nothing. Every pack and the checksum of every object, the index, and that all that refs and reflogs reach is
    there. Exits with 1 if something is wrong; what cannot be read for it is listed as commit item::name.
    """
    repo = open_store(ctx)
    with _progress_bar() as progress:
        report = check(repo, full=full, progress=progress)
    if as_json:
        echo_json(_as_json(report))
    else:
        for finding in report.findings:
            _echo(finding)
        click.echo(_summary(report))
    ctx.exit(0 if report.clean else 1)


@contextmanager
def _progress_bar() -> Iterator[Progress | None]:
    """A bar on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    parts = (TextColumn("checking"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Bar(*parts, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done_bytes, total_bytes: bar.update(task, completed=done_bytes, total=total_bytes)


def _echo(finding: Finding) -> None:
    click.echo(f"{click.style(finding.kind, fg='red', bold=True)}: {printable(finding.message)}")
    for affected in finding.affects:
        click.echo(f"  affects {printable(affected)}")


def _summary(report: Report) -> str:
    looked_at = ", ".join(
        (
            counted(report.commit_count, "commit"),
            counted(report.pack_count, "pack"),
            f"{counted(report.object_count, 'object')} of {size(report.stored_bytes)}",
        )
    )
    depth = "contents hashed" if report.full else "checksums only; --full also compares contents"
    verdict = "clean" if report.clean else counted(len(report.findings), "problem")
    return f"{verdict}: {looked_at} ({depth})"


def _as_json(report: Report) -> dict[str, Any]:
    return {
        "clean": report.clean,
        "full": report.full,
        "commits": report.commit_count,
        "packs": report.pack_count,
        "objects": report.object_count,
        "stored_bytes": report.stored_bytes,
        "findings": [
            {
                "kind": finding.kind,
                "message": finding.message,
                "object": None if finding.object_id is None else finding.object_id.hex(),
                "affects": list(finding.affects),
            }
            for finding in report.findings
        ],
    }
