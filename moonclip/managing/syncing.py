"""What a manager does with remotes: pushing to them, and getting from them what is not here."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from store.errors import Incompatible
from store.naming.listed import listed
from store.remotes.configured import remotes
from store.remotes.remote import Remote, open_remote
from store.repository import Repository
from store.worker.pushing import require_taken

from ..saving.binding import Binding
from ..saving.branches import branches_of
from ..saving.recording import Recorder
from .remoteargs import Link, default_remote

if TYPE_CHECKING:
    from store.remotes.fetching.fetch import Fetched
    from store.remotes.fetching.pull import Pulled
    from store.remotes.pushing.push import Pushed

    from ..ranks.recorder import RankRecorder
    from ..ranks.talk import Talk


class Syncing:
    """Remotes, as methods of a manager."""

    _repo: Repository
    _binding: Binding
    _recorder: "Recorder | RankRecorder"
    _link: Link | None
    _talk: "Talk | None"

    def remotes(self) -> dict[str, str]:
        """URL of each remote that the store knows, by name."""
        return {name: config.url for name, config in remotes(self._repo.layout, self._repo.files).items()}

    def push(
        self,
        remote: str | None = None,
        branches: str | Sequence[str] | None = None,
        *,
        all: bool = False,  # noqa: A002 - as in `push --all`
        tags: str | Sequence[str] = (),
        force_with_lease: bool = False,
        dry_run: bool = False,
    ) -> "Pushed":
        """Bring branches to a remote, with all that they reach and it lacks, after waiting for pending saves.

        It may be cut off at any time: the remote's branches move last, and another push sends only what is left. Other
        threads save meanwhile; what they make is for the next push, which waits for this one.

        Args:
            remote: name of the remote; the manager's own if ``None``.
            branches: name or names; the bound branch if ``None``.
            all: push all branches.
            tags: tags to push as well. One that the remote has stays where it is.
            force_with_lease: also move branches of the remote that have what is not here, if they are as last seen.
            dry_run: only say what would be sent.

        Returns:
            What was sent, and what became of each ref.

        Raises:
            Conflict: a branch of the remote has what is not here; the message says what to do. Nothing moved there.
            NotFound: there is no such remote, branch or tag.
            RemoteError: the remote did not do what was asked of it.
            Corrupt: something that it needs is damaged here.
        """
        from store.remotes.pushing.push import push

        named = [self._binding.branch] if branches is None and not all else listed(branches or ())
        with self._pushing_alone(), self._opened(remote) as opened:
            done = push(
                self._repo,
                opened,
                named,
                every=all,
                tags=listed(tags),
                force_with_lease=force_with_lease,
                dry_run=dry_run,
            )
        if not dry_run:
            require_taken(done)
        return done

    def sync_now(self) -> "Pushed":
        """Push the bound branch to the manager's remote, and wait until that is done: :meth:`push`, in other words."""
        return self.push()

    def fetch(
        self,
        remote: str | None = None,
        branches: str | Sequence[str] | None = None,
        *,
        items: str | Sequence[str] | None = None,
        depth: int | None = None,
        lazy: bool | None = None,
        prune: bool = False,
        dry_run: bool = False,
    ) -> "Fetched":
        """Get from a remote what is not here. Branches stay; ``origin/main`` tells where the remote's is.

        It may be cut off at any time: another fetch gets only what is left.

        Args:
            remote: name of the remote; the manager's own if ``None``.
            branches: name or names; all if ``None``.
            items: name or names of the items to get; all if ``None``. Others can be got later.
            depth: get the content of so many newest commits only; of older ones just the history.
            lazy: get no content, only history: what is read later is got then. If ``None``, unless items are named, as
                the remote is configured; one that an empty store was resumed from is lazy.
            prune: forget branches that the remote has no more.
            dry_run: only say what would be got.

        Returns:
            What was got, and what became of each ref.

        Raises:
            NotFound: there is no such remote or branch.
            RemoteError: the remote did not do what was asked of it.
            Corrupt: what it has is damaged. Nothing of that was taken.
        """
        from store.remotes.fetching.fetch import fetch

        self._recorder.wait()
        with self._opened(remote) as opened:
            return fetch(
                self._repo,
                opened,
                listed(branches or ()),
                items=listed(items),
                depth=depth,
                lazy=lazy,
                prune=prune,
                dry_run=dry_run,
            )

    def pull(
        self, remote: str | None = None, *, items: str | Sequence[str] | None = None, depth: int | None = None
    ) -> "Pulled":
        """Get the bound branch from a remote and move it on to there. Loads nothing: :meth:`resume` does.

        A branch that has saves which the remote has not stays where it is.

        Args:
            remote: name of the remote; the manager's own if ``None``.
            items: see :meth:`fetch`.
            depth: likewise.

        Returns:
            Where the branch was and is, and what was got.

        Raises:
            Conflict: each side has saves that the other has not; the message says what to do.
            NotFound: there is no such remote or branch.
            RemoteError: the remote did not do what was asked of it.
            Corrupt: what it has is damaged. Nothing of that was taken.
        """
        from store.remotes.fetching.pull import pull

        with self._recorder.exclusively():
            self._recorder.wait()
            branch = self._binding.branch
            with self._opened(remote) as opened:
                done = pull(self._repo, opened, branch, items=listed(items), depth=depth)
            self._binding.bind(branch, done.new)
            return done

    def restore_from_remote(self) -> bool:
        """Fill an empty store from the manager's remote, as :meth:`resume` does by itself: history, the newest commit.

        Older commits are got when they are read.

        Returns:
            Whether anything came. A store that has a branch takes nothing: see :meth:`pull`.

        Raises:
            NotFound: there is no remote, or it has not the branch that was asked for.
            Incompatible: this is one of several ranks, whose ``resume`` does it.
            RemoteError: the remote did not do what was asked of it.
            Corrupt: what it has is damaged. Nothing of that was taken.
        """
        if self._talk is not None:
            raise Incompatible("of several ranks none restores a store: resume does so on all of them")
        with self._recorder.exclusively():
            self._recorder.wait()
            if branches_of(self._repo):
                return False
            if self._link is None:
                self._link = Link(default_remote(self._repo))
            self._bring(None, None, ())
            self._binding.bind(self._binding.branch, self._binding.current())
            return self._binding.tip is not None

    # --- how --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _pushing_alone(self) -> Iterator[None]:
        """Once what was saved is durable, and other pushes have ended. No turn is held: no save waits for a remote."""
        with self._recorder.push_turns.exclusively(), ExitStack() as beside_saves:
            with self._recorder.exclusively():
                self._recorder.wait()
                beside_saves.enter_context(self._recorder.pushing())
            self._recorder.await_pushes()
            yield

    def _bring(self, branch: str | None, rev: str | None, items: Sequence[str]) -> None:
        """Get from the manager's remote what a resume needs, if there is no branch here yet."""
        if self._link is None or self._repo.read_only or branches_of(self._repo):
            return
        from .bringing import bring

        with self._opened(None) as opened:
            wanted = branch or self._binding.branch
            is_asked = rev is None and (branch is not None or self._binding.is_chosen)
            found = bring(self._repo, opened, wanted, items, rev=rev, is_asked=is_asked)
        if found is not None and (branch is None or rev is not None):  # else the branch is about to be bound
            self._repo.refs.set_head(found)
            self._binding.bind(found, None)

    def _opened(self, name: str | None) -> Remote:
        if self._talk is not None and self._talk.group.rank != 0:
            raise Incompatible(f"rank {self._talk.group.rank} talks with no remotes: do so on rank 0")
        link = self._link
        if name is None:
            name = link.remote if link is not None else default_remote(self._repo)
        return open_remote(self._repo, name, keys=link.keys if link is not None and link.remote == name else None)
