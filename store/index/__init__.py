"""The index: where each object is, and the graph of commits. It holds nothing that packs do not say as well.

``records`` is what is kept and how it is written; ``environment`` and ``sharing`` open LMDB so that threads, forks and
other processes get along; ``lmdb_index`` is the index; ``memory`` its twin for directories that cannot be written.
"""

from .lmdb_index import LmdbIndex
from .memory import MemoryIndex
from .records import BrokenIndex, CommitRow, Place, Version, WalkedPlace
from .removal import Copy, Unremoved
from .writer import BasesMissing, IndexWriter

__all__ = [
    "BasesMissing",
    "BrokenIndex",
    "CommitRow",
    "Copy",
    "IndexWriter",
    "LmdbIndex",
    "MemoryIndex",
    "Place",
    "Unremoved",
    "Version",
    "WalkedPlace",
]
