"""``moonclip merge``: commits averaged into one."""

import click

from store.ids import short

from .location import open_store
from .output import echo_json, json_option
from .refs import complete_branch, complete_revision
from .text import printable


def _weights(ctx: click.Context, option: click.Parameter, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is no list of numbers like 0.5,0.3,0.2", ctx, option) from None


@click.command()
@click.argument("revisions", nargs=-1, required=True, metavar="A B [C]...", shell_complete=complete_revision)
@click.option("--average", is_flag=True, required=True, help="How: by the weighted mean of each tensor.")
@click.option("--weights", callback=_weights, metavar="W,W...", help="Of each commit, in proportion; else all equal.")
@click.option(
    "--item", "items", multiple=True, default=("model",), show_default=True, metavar="NAME", help="May be repeated."
)
@click.option(
    "--take-first", is_flag=True, help="Take A's values and integers where they differ; else that is refused."
)
@click.option("-m", "--message", default="", help="What to say of the commit.")
@click.option(
    "--branch", metavar="NAME", shell_complete=complete_branch, help="Commit there, not on the current branch."
)
@json_option
@click.pass_context
def merge(
    ctx: click.Context,
    revisions: tuple[str, ...],
    *,
    average: bool,  # noqa: ARG001 - the only way there is, named so that there can be others
    weights: tuple[float, ...] | None,
    items: tuple[str, ...],
    take_first: bool,
    message: str,
    branch: str | None,
    as_json: bool,
) -> None:
    """Merge commits by averaging their weights.

    What comes of it, a soup, has them all for parents.

    The commit goes on the branch that A is the tip of, or on a new one. It holds the averaged items only: other items,
    an optimizer above all, have no meaningful mean and are left out. Tensors have to match by name, dtype and shape;
    floats are summed in float64 and rounded once, integers and values have to be equal.
    """
    from store.comparing import merging  # needs NumPy, which who asks for help does not

    repo = open_store(ctx, writable=True)
    wanted = merging.Merge(
        commits=[repo.resolve(revision) for revision in revisions],
        branch=branch or repo.refs.head(),
        weights=weights,
        items=items,
        message=message or f"Average of {', '.join(revisions)}",
        take_first=take_first,
    )
    commit = merging.merge(repo, wanted)
    shares = merging.average_weights(wanted)
    if as_json:
        echo_json(
            {
                "commit": commit.hex(),
                "branch": wanted.branch,
                "parents": [parent.hex() for parent in wanted.commits],
                "weights": list(shares),
                "items": list(items),
            }
        )
        return
    parts = (f"{share:.3g} {printable(revision)}" for share, revision in zip(shares, revisions, strict=True))
    click.echo(f"{short(commit)} on branch {printable(wanted.branch)}: {' + '.join(parts)}")
