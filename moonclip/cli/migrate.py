"""``moonclip migrate``: what other libraries saved, as commits."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from store.ids import short
from store.layout import is_store
from store.repository import DEFAULT_BRANCH, Repository

from .output import echo_json, json_option
from .refs import complete_branch
from .text import counted, date, iso_date, printable

if TYPE_CHECKING:
    from ..migrating.migrate import Step
    from ..migrating.source import Source


@click.command()
@click.argument("source", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--branch", metavar="NAME", shell_complete=complete_branch, help="Commit there, not on the current branch."
)
@click.option(
    "--python",
    metavar="PATH",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="An interpreter that has the Rust moonclip and torch, for a store of that.",
)
@click.option("-n", "--dry-run", is_flag=True, help="Only say what would be migrated.")
@json_option
@click.pass_context
def migrate(
    ctx: click.Context, source: Path, *, branch: str | None, python: Path | None, dry_run: bool, as_json: bool
) -> None:
    """Commit what other libraries have saved.

    Checkpoints become commits in the order of their steps. SOURCE is a store of the Rust moonclip, a run's directory of
    Hugging Face's trainer (checkpoint-*) or of Lightning (*.ckpt), a directory of checkpoints of torch_checkpointing,
    or one of files of torch.save (step_100.pt). The store is made if there is none. Each commit is read back and
    compared, and tells where it came from: the same command goes on after an interruption, or once SOURCE has more.
    Nothing is unpickled that could run code, except by the Rust engine itself; SOURCE stays as it is.
    """
    from ..migrating.detecting import source_at  # needs torch, which who asks for help does not
    from ..migrating.migrate import migrate as migrated
    from ..migrating.migrate import plan

    root = ctx.obj.existing_or_new()
    opened = source_at(source, python)
    ctx.call_on_close(opened.close)
    repo = ctx.with_resource(Repository.open(root, read_only=True)) if is_store(root) else None
    if branch is None:
        branch = DEFAULT_BRANCH if repo is None else repo.refs.head()
    steps = plan(opened, source, repo, branch)
    done: list[Step] = []
    for step in () if dry_run else migrated(opened, source, root, branch, steps):
        done.append(step)
        if not as_json:
            click.echo(f"{short(step.commit or b'')}  {_line(step)}")
    if as_json:
        echo_json(_document(opened, branch, steps, done))
        return
    for step in steps if dry_run else ():
        click.echo(f"{'would migrate' if step.commit is None else 'is here      '}  {_line(step)}")
    for name in opened.passed_over:
        click.echo(f"passed over {printable(name)}: nothing tells its step", err=True)
    click.echo(_summary(opened, branch, steps, done, dry_run=dry_run))


def _line(step: "Step") -> str:
    found = step.found
    words = [] if found.step is None else [f"step {found.step}"]
    return "  ".join([*words, date(found.time_ns), printable(found.name)])


def _summary(source: "Source", branch: str, steps: Sequence["Step"], done: Sequence["Step"], *, dry_run: bool) -> str:
    present = sum(step.commit is not None for step in steps)
    count = len(steps) - present if dry_run else len(done)
    what = f"{'would migrate' if dry_run else 'migrated'} {counted(count, 'checkpoint')}"
    already = f"; {counted(present, 'checkpoint')} had been before" if present else ""
    return f"{what} ({source.kind}) to branch {printable(branch)}{already}"


def _document(source: "Source", branch: str, steps: Sequence["Step"], done: Sequence["Step"]) -> dict[str, Any]:
    made = {step.found.name: step.commit for step in done}
    return {
        "kind": source.kind,
        "branch": branch,
        "passed_over": list(source.passed_over),
        "checkpoints": [
            {
                "name": step.found.name,
                "step": step.found.step,
                "time": iso_date(step.found.time_ns),
                "commit": commit.hex() if (commit := step.commit or made.get(step.found.name)) else None,
                "state": "present" if step.commit else "migrated" if commit else "planned",
            }
            for step in steps
        ],
    }
