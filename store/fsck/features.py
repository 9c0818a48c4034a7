"""Whether ``format`` names all that the packs take to be read: it may be from an older backup than they are."""

from collections.abc import Iterator

from ..features import need_feature
from ..layout import PURPOSES, VIEWS, features_named
from ..repository import Repository
from .findings import Report, Stock
from .mending import Mend


def check_features(repository: Repository, stock: Stock, report: Report) -> None:
    """Tell of what ``format`` does not name. Packs were looked at before: who names one has seen to ``format``."""
    if _lacks_views(repository, stock):
        report.find(
            "format",
            f"{repository.layout.format} does not name {VIEWS!r}, which packs need: older versions would take these for"
            " damaged, and not leave the store as it is",
        )


def mended_features(repository: Repository, stock: Stock) -> Iterator[Mend]:
    """What can be done about it."""
    if _lacks_views(repository, stock):
        layout, files = repository.layout, repository.files
        yield Mend(f"format: {VIEWS!r} is named, which packs need", lambda: need_feature(layout, files, VIEWS))


def _lacks_views(repository: Repository, stock: Stock) -> bool:
    layout = repository.layout
    data = repository.files.read_bytes(layout.format)
    is_named = all(VIEWS in features_named(layout.root, data, purpose) for purpose in PURPOSES)
    return not is_named and any(entry.viewed for entries in stock.tables.values() for entry in entries)
