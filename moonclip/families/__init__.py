"""Families of models: which stored model another one comes from, and what is stored of it.

``finding`` chooses a base, by way of ``models`` (what may be one), ``pairing`` (which tensor resembles which),
``spots`` and ``sampling`` (how much). ``lineage`` is what a commit says of its base, ``forecast`` what models would
take that are not stored yet.
"""

from .finding import SEARCH, Found, base_for
from .lineage import How
from .pairing import against

__all__ = ["SEARCH", "Found", "How", "against", "base_for"]
