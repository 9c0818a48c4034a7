"""Keys that somebody asks commits for. One that none has is a slip, and should not look as if all were well."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field

import click

from store.format.objects import Commit
from store.naming.meant import did_you_mean


@dataclass(slots=True)
class Asked:
    """Keys that are asked for, and those that commits turn out to have.

    Attributes:
        keys: what is asked for.
        seen: what the commits have that were looked at.
    """

    keys: Sequence[str]
    seen: set[str] = field(default_factory=set)

    def note(self, commit: Commit) -> None:
        """Take in what a commit has: its metadata, and what every commit says of itself."""
        self.seen.update(commit.metadata, ("branch", "message"), () if commit.step is None else ("step",))

    def tell(self) -> None:
        """Say on stderr which keys none had; nothing if no commit was looked at."""
        if not self.seen:
            return
        for key in dict.fromkeys(self.keys):
            if key not in self.seen:
                near = difflib.get_close_matches(key, sorted(self.seen))
                hint = did_you_mean(near) if near else "`moonclip log` shows what they have"
                click.echo(f"warning: no commit looked at has {key!r}; {hint}", err=True)
