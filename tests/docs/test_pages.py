"""Pages that show how to do something run, the command line is described as it is, and links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from store.fsck import fsck
from store.repository import Repository
from tests.docpages import ROOT, links, play
from tools import clidocs
from tools.bench.__main__ import benches

DOCS = ROOT / "docs"
PAGES = [*DOCS.glob("*.md"), *ROOT.glob("*.md")]


def test_saving(tmp_path: Path, there: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    play(DOCS / "saving.md", {}, bucket_name=there)
    with Repository.open(tmp_path / "checkpoints") as here, Repository.open(tmp_path / "elsewhere") as clone:
        assert here.resolve("main") == clone.resolve("main")


def test_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state = torch.get_rng_state()
    play(DOCS / "history.md", {})
    torch.set_rng_state(state)
    with Repository.open(tmp_path / "checkpoints") as repository:
        assert {"branches/lr3", "branches/soup", "tags/best", "tags/paper"} <= set(repository.refs.list())
        assert fsck(repository, full=True).clean


def test_the_command_line_is_described_as_it_is() -> None:
    page = clidocs.PAGE.read_text()
    assert clidocs.filled(page) == page, "run `python -m tools.clidocs`"


def test_every_variable_of_the_environment_is_described() -> None:
    sources = [path.read_text() for package in ("store", "moonclip") for path in (ROOT / package).rglob("*.py")]
    used = {name for source in sources for name in re.findall(r"\bMOONCLIP_[A-Z0-9_]+[A-Z0-9]\b", source)}
    described = set(re.findall(r"`(MOONCLIP_\w+)`", (DOCS / "cli.md").read_text()))
    assert used == described


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in links(page) if not (page.parent / link).exists()] == []


def test_links_to_sections_lead_to_sections() -> None:
    broken = []
    for page in PAGES:
        for file, section in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text()):
            there = (page.parent / file if file else page).read_text()
            if section not in map(_anchor, re.findall(r"^#+ (.+)$", there, re.MULTILINE)):
                broken.append((page.name, file, section))
    assert broken == []


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_index_has_all_pages() -> None:
    listed = set(links(DOCS / "README.md"))
    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} <= listed


def test_figures_name_commands_that_there_are() -> None:
    page = (DOCS / "measured.md").read_text().replace("\n", " ")
    named = re.findall(r"`python -m tools\.bench ([^`]+)`", page)
    assert named
    for command in named:
        names, *options = shlex.split(command)
        for name in names.split("|"):
            benches.commands[name].make_context(name, list(options))


def test_targets_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = {name for page in PAGES for name in re.findall(r"`make (\w+)`", page.read_text())}
    assert {name for name in named if not re.search(rf"^{name}:", makefile, re.MULTILINE)} == set()
