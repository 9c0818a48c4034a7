"""Names of refs: git's rules, and a few that keep revisions unambiguous.

A *short* name is what people type (``main``, ``exp/lr3``); a *full* name says what kind of ref it is
(``branches/main``, ``tags/best``, ``remotes/origin/main``). Only full names reach the disk.

Beyond git's rules a short name must not look like something else that a revision can say: a full object id, a full
ref name, or ``HEAD``. What ``~``, ``^``, ``:`` and ``@{`` say is refused by git's rules already, and ``:`` covers
``step:800``.

Spec: docs/format.md, section on refs.
"""

import re
from typing import Final, NewType

from ..errors import Incompatible
from ..limits import MAX_REF_NAME_BYTES

RefName = NewType("RefName", str)
"""A full ref name that has passed :func:`full_name`."""

HEAD: Final = "HEAD"
BRANCHES: Final = "branches"
TAGS: Final = "tags"
REMOTES: Final = "remotes"
KINDS: Final = (TAGS, BRANCHES, REMOTES)
"""The kinds of ref, in the order in which a short name is looked up: a tag hides a branch, as in git."""

_FORBIDDEN = re.compile(r"[\x00-\x20\x7f-\x9f~^:?*\[\\\ud800-\udfff]")
_OBJECT_ID = re.compile(r"(?:[0-9a-fA-F]{40}|[0-9a-fA-F]{64})")


def branch_name(short: str) -> RefName:
    """Full name of the branch ``short``.

    Raises:
        Incompatible: ``short`` breaks a rule; the message says which.
    """
    return _full(BRANCHES, short, "branch")


def tag_name(short: str) -> RefName:
    """Full name of the tag ``short``.

    Raises:
        Incompatible: ``short`` breaks a rule; the message says which.
    """
    return _full(TAGS, short, "tag")


def remote_name(remote: str, short: str) -> RefName:
    """Full name of the branch ``short`` as last seen on ``remote``.

    Raises:
        Incompatible: one of the names breaks a rule, or the remote's has a ``/``; the message says which.
    """
    if "/" in remote:
        raise Incompatible(f"remote name {remote!r}: '/' is not allowed", name=remote)
    _require_legal(short, "branch")
    return _full(REMOTES, f"{remote}/{short}", "remote branch")


def full_name(text: str) -> RefName:
    """Check that ``text`` is a full ref name.

    Raises:
        Incompatible: it does not begin with a kind of ref, or what follows breaks a rule.
    """
    kind, _, short = text.partition("/")
    if kind == BRANCHES:
        return branch_name(short)
    if kind == TAGS:
        return tag_name(short)
    if kind == REMOTES:
        return remote_name(*_remote_and_branch(short))
    raise Incompatible(f"{text!r} is not a full ref name: begin it with branches/, tags/ or remotes/", name=text)


def is_full_name(text: str) -> bool:
    """Whether ``text`` is a legal full ref name."""
    try:
        full_name(text)
    except Incompatible:
        return False
    return True


def short_name(ref: RefName) -> str:
    """What people type for ``ref``: the name without its kind."""
    return ref.partition("/")[2]


def describe(ref: RefName) -> str:
    """``ref`` as messages name it: ``branch 'main'``, ``tag 'best'``, ``remote branch 'origin/main'``."""
    kind, _, short = ref.partition("/")
    noun = {BRANCHES: "branch", TAGS: "tag"}.get(kind, "remote branch")
    return f"{noun} {short!r}"


def problem_with(short: str) -> str | None:
    """The first rule that ``short`` breaks, in words, or ``None`` if it is a legal name."""
    return _character_problem(short) or _component_problem(short) or _likeness_problem(short)


def _full(kind: str, short: str, noun: str) -> RefName:
    _require_legal(short, noun)
    return RefName(f"{kind}/{short}")


def _remote_and_branch(short: str) -> tuple[str, str]:
    remote, _, branch = short.partition("/")
    return remote, branch


def _require_legal(short: str, noun: str) -> None:
    problem = problem_with(short)
    if problem is not None:
        raise Incompatible(f"{noun} name {short!r}: {problem}", name=short)


def _character_problem(short: str) -> str | None:
    if not short:
        return "a name must not be empty"
    found = _FORBIDDEN.search(short)
    if found is not None:
        return f"{found.group()!r} is not allowed"
    for sequence in ("..", "@{", "//"):
        if sequence in short:
            return f"{sequence!r} is not allowed"
    if len(short.encode()) > MAX_REF_NAME_BYTES:
        return f"longer than {MAX_REF_NAME_BYTES} bytes"
    return None


def _component_problem(short: str) -> str | None:
    if short.startswith("/") or short.endswith("/"):
        return "a name must not begin or end with '/'"
    if short.endswith("."):
        return "a name must not end with '.'"
    for component in short.split("/"):
        if component.startswith("."):
            return "no part of a name may begin with '.'"
        if component.endswith(".lock"):
            return "no part of a name may end with '.lock'"
    return None


def _likeness_problem(short: str) -> str | None:
    if short.startswith("-"):
        return "a name must not begin with '-': it would read as an option"
    if short in (HEAD, "@"):
        return f"{short!r} means the current branch"
    if short.partition("/")[0] in KINDS:
        return "a name must not begin with branches/, tags/ or remotes/: it would read as a full name"
    if _OBJECT_ID.fullmatch(short):
        return "a name must not look like an object id"
    return None
