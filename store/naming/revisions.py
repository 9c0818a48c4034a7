"""Revisions: what people type to name a commit, as a grammar and its syntax tree.

    revision  =  base move*
    base      =  name | [name] "@{" number "}" | [name "@"] "step:" number
    name      =  "HEAD" | "@" | ref name, short or full | at least four hex digits of a commit's id
    move      =  "~" [number] | "^" [number]

``~3`` is three first parents back, ``^2`` the second parent, ``^0`` the commit itself. ``@`` is ``HEAD``. A base
that names no ref (``@{2}``, ``step:800``) speaks of the bound branch. Ref names can hold none of these signs, so
every text has one reading.

Everything here is pure; :mod:`store.naming.resolve` finds the commits.
"""

import re
from dataclasses import dataclass
from typing import Final

from ..errors import Incompatible
from ..ids import ID_BYTES
from ..limits import MIN_PREFIX_DIGITS
from .refnames import HEAD, is_full_name, problem_with


@dataclass(frozen=True, slots=True)
class Named:
    """A ref by short or full name, ``HEAD``, or a commit by a prefix of its id."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Logged:
    """``name@{back}``: the value a ref had that many moves ago; the bound branch's if ``name`` is ``None``."""

    name: str | None
    back: int

    def __str__(self) -> str:
        return f"{self.name or ''}@{{{self.back}}}"


@dataclass(frozen=True, slots=True)
class AtStep:
    """``name@step:N``: the newest commit of that step on a first-parent line; the bound branch's if ``None``.

    One that has been pruned is it only if all of that step have been.
    """

    name: str | None
    step: int

    def __str__(self) -> str:
        return f"step:{self.step}" if self.name is None else f"{self.name}@step:{self.step}"


@dataclass(frozen=True, slots=True)
class Back:
    """``~count``: that many first parents back."""

    count: int

    def __str__(self) -> str:
        return f"~{self.count}"


@dataclass(frozen=True, slots=True)
class Parent:
    """``^number``: one of the parents, counted from 1; 0 is the commit itself."""

    number: int

    def __str__(self) -> str:
        return f"^{self.number}"


Base = Named | Logged | AtStep
Move = Back | Parent


@dataclass(frozen=True, slots=True)
class Revision:
    """A parsed revision. ``str()`` gives a text that parses to the same."""

    base: Base
    moves: tuple[Move, ...] = ()

    def __str__(self) -> str:
        return str(self.base) + "".join(map(str, self.moves))


_NUMBER: Final = "[0-9]{1,18}"
_PREFIX = re.compile(f"[0-9a-fA-F]{{{MIN_PREFIX_DIGITS},{2 * ID_BYTES}}}")
_MOVE = re.compile(f"([~^])((?:{_NUMBER})?)")
_MOVES = re.compile(f"(?:[~^](?:{_NUMBER})?)*")
_AT_STEP = re.compile(f"(?:(?P<name>.*)@)?step:(?P<step>{_NUMBER})", re.DOTALL)
_LOGGED = re.compile(rf"(?P<name>.*)@\{{(?P<back>{_NUMBER})\}}", re.DOTALL)


def parse(text: str) -> Revision:
    """Parse what a person typed.

    Raises:
        Incompatible: ``text`` is not a revision; the message says where it stops being one.
    """
    start = min((place for place in map(text.find, "~^") if place >= 0), default=len(text))
    base, moves = text[:start], text[start:]
    if not base:
        raise _refusal(text, "it names nothing; try HEAD, a branch, a tag, or the beginning of a commit's id")
    if not _MOVES.fullmatch(moves):
        raise _refusal(text, f"{moves!r} should be made of ~, ~N, ^ and ^N")
    return Revision(_parse_base(text, base), tuple(_move(sign, number) for sign, number in _MOVE.findall(moves)))


def is_id_prefix(name: str) -> bool:
    """Whether ``name`` may be the beginning of a commit's id, or all of it."""
    return _PREFIX.fullmatch(name) is not None


def _parse_base(text: str, base: str) -> Base:
    if match := _LOGGED.fullmatch(base):
        name = match["name"]
        return Logged(_checked_name(text, name) if name else None, int(match["back"]))
    if match := _AT_STEP.fullmatch(base):
        name = match["name"]
        return AtStep(None if name is None else _checked_name(text, name), int(match["step"]))
    if "@{" in base:
        raise _refusal(text, "between @{ and } belongs a number: how many moves of the ref to go back")
    if base.startswith("step:") or "@step:" in base:
        raise _refusal(text, "after step: belongs a number")
    return Named(_checked_name(text, base))


def _checked_name(text: str, name: str) -> str:
    if name in (HEAD, "@"):
        return HEAD
    if is_id_prefix(name) or is_full_name(name):
        return name
    problem = problem_with(name)
    if problem is not None:
        raise _refusal(text, problem)
    return name


def _move(sign: str, number: str) -> Move:
    count = int(number) if number else 1
    return Back(count) if sign == "~" else Parent(count)


def _refusal(text: str, problem: str) -> Incompatible:
    return Incompatible(f"{text!r} is not a revision: {problem}", revision=text)
