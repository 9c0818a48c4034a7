"""Stores to begin with, and what is known of them."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from store.ids import CommitId
from store.limits import REFLOG_EXPIRY_NS
from store.naming.refnames import branch_name, tag_name
from store.repository import Repository
from store.saving.saver import SaveRequest
from store.upkeep.absences import WHOLE
from store.upkeep.prune import Pruner
from store.upkeep.retention import Keep
from tests.arrays import item, noise
from tests.pruning import age_reflogs
from tests.stateful.store_model import Items, Model, edited
from tools.crash.scratch import scratch


def request(items: Items, branch: str, parent: CommitId | None, **more: object) -> SaveRequest:
    """Of what a model knows."""
    given = [item(state, name) for name, state in items.items()]
    return SaveRequest(given, branch=branch, parent=parent, **more)  # type: ignore[arg-type]


@cache
def new_store() -> tuple[Path, Model]:
    """Made once, and copied for each example."""
    root = Path(tempfile.mkdtemp(dir=scratch())) / "store"
    atexit.register(shutil.rmtree, root.parent)
    Repository.init(root, thread_count=1).close()
    (root / "ballast").unlink()  # 4 MiB
    return root, Model()


@cache
def used_store() -> tuple[Path, Model]:
    """Two branches, and a tag where one has left the other."""
    new, _ = new_store()
    root, model = new.with_name("used"), Model()
    shutil.copytree(new, root)
    state = {"a": noise("a", 30, 40), "b": noise("b", 25, 8), "tiny": noise("tiny", 3)}
    items: Items = {"model": state, "optimizer": {"m": noise("m", 600)}}
    with Repository.open(root, thread_count=1) as repo:

        def train(branch: str, items: Items, steps: range) -> Items:
            for step in steps:
                items = {name: edited(state, "drift", step) for name, state in items.items()}
                parent = model.branches.get(branch)
                commit = repo.save(request(items, branch, parent, step=step)).commit
                model.learn(commit, items, (parent,) if parent else ())
                model.move(branch_name(branch), commit)
            return items

        items = train("main", items, range(2))
        for name in (branch_name("exp/lr3"), tag_name("best")):
            repo.set_ref(name, None, model.branches["main"], "branch")
            model.move(name, model.branches["main"])
        train("exp/lr3", items, range(10, 12))
        train("main", items, range(2, 4))
    return root, model


@cache
def littered_store() -> tuple[Path, Model]:
    """Of the same, one branch was given up long ago, and the first commits of the other are to be dropped."""
    used, model = used_store()
    root, model = used.with_name("littered"), model.copy()
    shutil.copytree(used, root)
    with Repository.open(root, thread_count=1) as repo:
        for name in (branch_name("exp/lr3"), tag_name("best")):
            repo.delete_ref(name)
            model.move(name, None)
        pruner = Pruner(repo)
        pruner.apply(pruner.by_policy(Keep(last=2)))
        age_reflogs(repo, 2 * REFLOG_EXPIRY_NS)
    model.drop(model.dropped(2, ["main"]), WHOLE)
    model.expire_reflogs()
    return root, model
