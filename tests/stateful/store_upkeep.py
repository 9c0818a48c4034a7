"""People keep a store small: they pin, prune, collect garbage and repack, and time passes."""

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import get_args

from hypothesis import strategies as st
from hypothesis.stateful import rule

from store.errors import NotFound, Pruned
from store.gc import collect
from store.ids import CommitId
from store.limits import REFLOG_EXPIRY_NS
from store.opening.indexes import rebuild_index
from store.repack import Goal, repack
from store.repository import Repository
from store.saving.saver import SaveRequest
from store.upkeep.absences import WHOLE
from store.upkeep.prune import Drop, Pruner
from store.upkeep.retention import Keep
from tests.pruning import age_reflogs
from tests.stateful.store_machine import ALONE, WHO, Befallen, Interruption, Process
from tests.stateful.store_model import Model
from tests.stateful.store_people import AGO, PICK, Naming, error_of, picked


class Pruning(Naming):
    """What may be dropped, and what may not."""

    @rule(who=WHO, ago=AGO)
    def pin(self, who: Process, ago: int) -> None:
        if not self.model.commits:
            return
        commit = self.commit_ago(ago)
        if self.model.is_whole(commit):
            with suppress(Befallen):
                self.do(lambda repo: repo.pin(commit), lambda model: model.pins.add(commit), who)
        else:
            error_of(Pruned, lambda: self.handle(who).pin(commit))

    @rule(ago=AGO)
    def unpin(self, ago: int) -> None:
        if not self.model.pins:
            return
        commit = self.commit_ago(ago, self.model.pins)
        with suppress(Befallen):
            self.do(lambda repo: repo.unpin(commit), lambda model: model.pins.remove(commit))

    @rule(last=st.integers(1, 4), which=st.none() | PICK, who=WHO)
    def prune(self, last: int, which: int | None, who: Process) -> None:
        """Drop all but the newest commits of some branches."""
        branches = self._some_branches(which)
        expected = self.model.dropped(last, branches)
        self._prune(lambda pruner: pruner.by_policy(Keep(last=last), branches), expected, WHOLE, who)

    @rule(last=st.integers(1, 4), which=st.none() | PICK, who=ALONE)
    def prune_optimizers(self, last: int, which: int | None, who: Process) -> None:
        """Drop the optimizer of all but the newest commits of some branches."""
        branches = self._some_branches(which)
        old = self.model.dropped(last, branches)
        if old & self.model.doubtful:
            return
        if any("optimizer" in self.model.commits[each].items for each in old):
            expected = {each for each in old if "optimizer" in self.model.items(each)}
            self._prune(lambda pruner: pruner.items(["optimizer"], last, branches), expected, "optimizer", who)
        elif old:
            error_of(NotFound, lambda: Pruner(self.handle(who)).items(["optimizer"], last, branches))

    @rule()
    def let_reflogs_expire(self) -> None:
        age_reflogs(self.repo, 2 * REFLOG_EXPIRY_NS)
        self.model.expire_reflogs()

    def _some_branches(self, which: int | None) -> Collection[str]:
        branches = list(self.model.branches)
        return branches if which is None or not branches else [picked(branches, which)]

    def _prune(self, choose: Callable[[Pruner], list[Drop]], expected: set[CommitId], what: str, who: Process) -> None:
        def prune(repo: Repository) -> set[CommitId]:
            pruner = Pruner(repo)
            return {drop.row.id for drop in pruner.apply(choose(pruner))}

        with suppress(Befallen):
            dropped = self.do(prune, lambda model: model.drop(expected, what), who)
            assert dropped <= expected or isinstance(who, Interruption)


class Collecting(Pruning):
    """What nothing needs goes, and all else stays, however it is stored."""

    @rule(who=WHO)
    def collect_garbage(self, who: Process) -> None:
        def change(model: Model) -> None:
            model.drop(model.garbage, WHOLE)

        with suppress(Befallen):
            self.do(collect, change, who)
            if isinstance(who, Interruption):  # there may be more by now
                self.do(collect, change)
            self.require_collected()

    @rule(goal=st.sampled_from(get_args(Goal)), who=WHO)
    def repack(self, goal: Goal, who: Process) -> None:
        with suppress(Befallen):
            self.do(lambda repo: repack(repo, goal), who=who)
            if goal == "restore" and not isinstance(who, Interruption):  # what is saved meanwhile may be deltas
                tips = self.objects_of(self.model.refs.values())
                assert not [each for each, places in self.repo.index.places_of_each(tips).items() if places[0].depth]

    def require_collected(self) -> None:
        """What is needed is there, and of all that ever was there, nothing but that and the bases of deltas."""
        index = self.repo.index
        needed = self.objects_of(self.model.live)
        places = index.places_below(needed | self.objects_of(self.model.reached(self.model.doubtful)))
        assert all(places[each] for each in needed)
        ever = index.places_of_each(self.all_objects())
        assert not [each for each, copies in ever.items() if copies and each not in places]
        packs = {f"{pack.hex()}.pack" for pack in index.packs()}
        assert not packs ^ {path.name for path in self.repo.layout.packs.iterdir()}

    def meanwhile(self, what: str, repo: Repository, asked: SaveRequest) -> None:
        match what:
            case "save":
                repo.save(asked)
            case "prune":
                pruner = Pruner(repo)
                pruner.apply(pruner.by_policy(Keep(last=1)))
                collect(repo)
            case "gc":
                collect(repo)
            case "reindex":
                rebuild_index(repo.layout, repo.files, repo.packs)
            case _:
                repack(repo, what)  # type: ignore[arg-type]
