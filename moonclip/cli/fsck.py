"""``moonclip fsck``: is everything there, and intact? And if not, what can be done."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from store.disk.files import Files
from store.fsck import Finding, Progress, Repair, Report, StoreSource
from store.fsck import fsck as check
from store.fsck import repair as mend
from store.fsck.sources import Source
from store.ids import short
from store.layout import Layout
from store.repository import Repository

from .location import Location, open_store
from .output import echo_json, json_option
from .progress import progress_bar
from .text import counted, printable, size
from .transfers import complete_remote, open_remote_called

if TYPE_CHECKING:
    from store.remotes.checking.check import RemoteReport

DAMAGED: Final = 1
REPAIRED: Final = 3
STILL_DAMAGED: Final = 4


@click.command()
@click.option("--full", is_flag=True, help="Also decode everything and compare its BLAKE3.")
@click.option("--repair", is_flag=True, help="Do what can be done about what is wrong.")
@click.option(
    "--from",
    "copy",
    metavar="REMOTE|PATH",
    help="With --repair: a remote, or another store, to fetch from it what is lost here.",
    shell_complete=complete_remote,
)
@click.option("-n", "--dry-run", is_flag=True, help="With --repair: only say what would be done.")
@click.option(
    "--remote", "remote_name", metavar="NAME", help="Check this remote instead.", shell_complete=complete_remote
)
@json_option
@click.pass_context
def fsck(
    ctx: click.Context,
    *,
    full: bool,
    repair: bool,
    copy: str | None,
    dry_run: bool,
    remote_name: str | None,
    as_json: bool,
) -> None:
    """Check the store.

    Every pack and the checksum of every object, the index, and that all that refs, reflogs and pins reach is there.
    What cannot be read for something wrong is listed as commit item::name. Alters nothing, unless --repair is given.

    With --repair, whole objects of damaged packs go into new ones, what is lost is fetched from a remote or another
    store, the index is made anew, and refs are put back on what their reflogs tell of. Nothing is deleted: what was
    replaced is kept in the store's quarantine directory. It may be ended at any time, and begun again.

    With --remote, checks what a remote's packs are said to hold, and that all that its refs reach is among it; with
    --full all of it is downloaded, too. What is lost there is sent again by the next push from a store that has it.

    Exits with 0 if nothing is wrong, 1 if something is, 2 if it was called wrongly; after --repair with 3 if all was
    repaired, 4 if damage remains.
    """
    if (copy is not None or dry_run) and not repair:
        raise click.UsageError("--from and --dry-run say how to repair: add --repair")
    if remote_name is not None:
        if repair:
            raise click.UsageError("--repair --from NAME mends the store from a remote; `moonclip push` mends a remote")
        _check_remote(ctx, remote_name, full=full, as_json=as_json)
        return
    with progress_bar(in_bytes=True) as told:
        progress = None if told is None else partial(told, "checking")
        if repair:
            done = _repaired(ctx, progress, full=full, copy=copy, dry_run=dry_run)
        else:
            done = Repair(check(open_store(ctx), full=full, progress=progress))
    if as_json:
        echo_json(_as_json(done))
    else:
        _tell(done, dry_run=dry_run)
    ctx.exit(_exit_code(done))


def _repaired(ctx: click.Context, progress: Progress | None, *, full: bool, copy: str | None, dry_run: bool) -> Repair:
    location: Location = ctx.obj
    source = None if copy is None else _source(ctx, copy)
    return mend(location.existing(), full=full, source=source, dry_run=dry_run, progress=progress)


def _source(ctx: click.Context, name: str) -> Source:
    """A remote if there is one of that name, else the store in that directory."""
    from store.remotes.configured import remotes
    from store.remotes.fetching.mending import RemoteSource

    location: Location = ctx.obj
    root = location.existing()
    if name in remotes(Layout(root), Files()):
        damaged = ctx.with_resource(Repository.open(root, read_only=True))
        return RemoteSource(open_remote_called(ctx, damaged, name))
    if not Path(name).is_dir():
        raise click.BadParameter(f"no remote of this store, nor a directory: {name}", param_hint="'--from'")
    return StoreSource(ctx.with_resource(Repository.open(name, read_only=True)))


def _exit_code(done: Repair) -> int:
    if done.after is None or done.after is done.before:
        return 0 if done.before.clean else DAMAGED
    if not done.after.clean:
        return STILL_DAMAGED
    return 0 if done.before.clean else REPAIRED


def _check_remote(ctx: click.Context, name: str, *, full: bool, as_json: bool) -> None:
    from store.remotes.checking.check import check_remote

    location: Location = ctx.obj
    repo = ctx.with_resource(Repository.open(location.existing()))  # what is lost is noted, if it can be written
    remote = open_remote_called(ctx, repo, name)
    with progress_bar(in_bytes=full) as progress:
        report = check_remote(repo, remote, full=full, progress=progress)
    if as_json:
        echo_json(_remote_as_json(report))
    else:
        _tell_remote(report, remote.name)
    ctx.exit(0 if report.clean else DAMAGED)


# --- for people -----------------------------------------------------------------------------------------------------


def _tell(done: Repair, *, dry_run: bool) -> None:
    _tell_findings(done.before)
    for step in done.steps:
        click.echo(f"{click.style('would be' if dry_run else 'repaired', fg='green', bold=True)}: {printable(step)}")
    if done.after is not None and done.after is not done.before:
        if not done.after.clean:
            click.echo("what remains:")
        _tell_findings(done.after)
    last = done.after or done.before
    for note in last.notes:
        click.echo(f"note: {printable(note.message)}")
    _tell_ways_on(last)
    click.echo(_summary(last))


def _tell_remote(report: "RemoteReport", name: str) -> None:
    _tell_findings(report)
    for note in report.notes:
        click.echo(f"note: {printable(note.message)}")
    if report.lost:
        click.echo(
            f"{counted(len(report.lost), 'object')} lost there; `moonclip push {printable(name)}` sends again what is"
            " here of them"
        )
    click.echo(_summary(report))


def _tell_findings(report: Report) -> None:
    for finding in report.findings:
        click.echo(f"{click.style(finding.kind, fg='red', bold=True)}: {printable(finding.message)}")
        for affected in finding.affects:
            click.echo(f"  affects {printable(affected)}")


def _tell_ways_on(report: Report) -> None:
    for branch, commit in report.last_good.items():
        name = printable(branch)
        if commit is None:
            click.echo(f"branch {name}: no commit of it is whole; get what is lost with `fsck --repair --from REMOTE`")
        else:
            click.echo(
                f"branch {name}: the newest commit that is whole is {short(commit)}; `resume` falls back to it, and"
                f" `moonclip branch NAME {short(commit)}` begins there"
            )


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


# --- for programs ---------------------------------------------------------------------------------------------------


def _as_json(done: Repair) -> dict[str, Any]:
    """The state at the end; what was wrong before, and what was done, if that is another."""
    last = done.after or done.before
    told = _report_as_json(last)
    if done.after is not None or done.steps:
        told |= {"before": _report_as_json(done.before), "steps": done.steps}
    return told


def _report_as_json(report: Report) -> dict[str, Any]:
    return {
        "clean": report.clean,
        "full": report.full,
        "commits": report.commit_count,
        "packs": report.pack_count,
        "objects": report.object_count,
        "stored_bytes": report.stored_bytes,
        "findings": [_finding_as_json(finding) for finding in report.findings],
        "notes": [{"kind": note.kind, "message": note.message} for note in report.notes],
        "affected": sorted(commit.hex() for commit in report.affected),
        "last_good": {branch: commit and commit.hex() for branch, commit in report.last_good.items()},
    }


def _finding_as_json(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "message": finding.message,
        "object": None if finding.object_id is None else finding.object_id.hex(),
        "affects": list(finding.affects),
    }


def _remote_as_json(report: "RemoteReport") -> dict[str, Any]:
    return _report_as_json(report) | {
        "url": report.url,
        "lost": sorted(object_id.hex() for object_id in report.lost),
        "condemned_packs": report.condemned_count,
        "unfinished_uploads": report.unfinished_count,
        "foreign_keys": report.foreign_count,
    }
