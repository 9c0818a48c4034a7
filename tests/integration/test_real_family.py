"""A real sentence model and eleven fine-tunes of it, of all kinds that people make."""

from pathlib import Path

import pytest

from moonclip.exchange.importing import Wanted, import_files
from moonclip.exchange.ranges import Ranges
from moonclip.exchange.sources import Source, items_of
from moonclip.families.expected import total
from moonclip.families.forecast import Forecaster
from moonclip.families.listing import family as listed_family
from store.disk.files import Files
from store.repository import Repository
from store.saving.inputs import ItemInput
from tools.finetunes import Family, Member, small_family


@pytest.fixture(scope="module")
def family() -> Family:
    return small_family()


def items(member: Member) -> list[ItemInput]:
    return items_of([Source(member.path)], Ranges(Files()))


@pytest.mark.slow
def test_each_comes_from_what_it_was_tuned_from(family: Family, tmp_path: Path) -> None:
    commits = {}
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        forecaster = Forecaster(None, repo.threads)
        forecasts = [forecaster.add(member.name, items(member)) for member in family.members]
        for member in family.members:
            wanted = Wanted([Source(member.path)], member.name, base="search")
            imported = import_files(repo, items(member), wanted)
            commits[imported.commit] = member.name
            base = None if member.kind == "adapter" else member.base  # whose names and shapes are its own
            assert commits.get(imported.base.commit) == base, member.description  # type: ignore[call-overload]
        assert [forecast.base for forecast in forecasts] == [
            listed.base_names[0] if listed.base_names else None for listed in listed_family(repo, [])
        ]
        taken_bytes = sum(listed.takes.added_bytes for listed in listed_family(repo, []))
    assert total(forecasts).added_bytes == pytest.approx(taken_bytes, rel=0.03)
