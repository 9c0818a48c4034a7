"""Which keys a remote has. Pure.

    format                        which features it needs, and how its refs are kept
    packs/<name>.pack             a pack; its name is its id, with -<8 hex digits> behind it if it had to be sent again
    packs/<name>.idx              its table, and its commits; written after the pack: what has none is not there
    refs/branches/exp~lr3         a commit's id and a newline, 64 zeros if the ref was deleted; tags/ likewise
    refs/by/<store>/branches/…    the same, of one store alone, where the server cannot compare and swap
    absent/<store>                what that store pushed without its content
    gc/condemned                  packs that are about to be deleted
    scratch/<32 hex digits>       what servers are probed with

What a remote says is not to be trusted: other keys are passed over, whatever they are called.

Spec: docs/format.md, section on remotes.
"""

import re
from typing import Final, NamedTuple

from ..ids import PackId
from ..naming.refnames import BRANCHES, TAGS, RefName, is_full_name

FORMAT: Final = "format"
PACKS: Final = "packs/"
REFS: Final = "refs/"
ABSENT: Final = "absent/"
CONDEMNED: Final = "gc/condemned"
SCRATCH: Final = "scratch/"

_PACK = re.compile(r"packs/(([0-9a-f]{64})(?:-[0-9a-f]{8})?)\.(pack|idx)")
_SHARED = re.compile(r"refs/((?:branches|tags)/[^/]+)")
_OWN = re.compile(r"refs/by/([0-9a-f]{32})/((?:branches|tags)/[^/]+)")
_ABSENT = re.compile(r"absent/([0-9a-f]{32})")


class PackName(NamedTuple):
    """A pack as the remote calls it.

    Attributes:
        text: its name.
        id: the pack's id.
    """

    text: str
    id: PackId

    @property
    def pack_key(self) -> str:
        """Where the pack lies."""
        return f"{PACKS}{self.text}.pack"

    @property
    def idx_key(self) -> str:
        """Where its idx lies."""
        return f"{PACKS}{self.text}.idx"


class RefKey(NamedTuple):
    """A ref as the remote keeps it.

    Attributes:
        store: id of the store that alone may move it; ``None`` if all share it.
        name: full name there, ``branches/…`` or ``tags/…``.
    """

    store: str | None
    name: RefName

    @property
    def key(self) -> str:
        """Where it lies. No ref is a directory of another there either."""
        kind, _, short = self.name.partition("/")
        whose = "" if self.store is None else f"by/{self.store}/"
        return f"{REFS}{whose}{kind}/{short.replace('/', '~')}"


def pack_name(pack: PackId, nonce: bytes = b"") -> PackName:
    """What a pack is called; ``nonce``, four bytes, makes another name of it, if the first may be about to go."""
    return PackName(pack.hex() + (f"-{nonce.hex()}" if nonce else ""), pack)


def parse_pack(key: str) -> tuple[PackName, bool] | None:
    """The pack that a key belongs to, and whether it is its idx; ``None`` for other keys."""
    match = _PACK.fullmatch(key)
    return None if match is None else (PackName(match[1], PackId(bytes.fromhex(match[2]))), match[3] == "idx")


def pack_name_in(text: str) -> PackName | None:
    """The pack that is called so; ``None`` if none can be."""
    parsed = parse_pack(f"{PACKS}{text}.pack")
    return None if parsed is None else parsed[0]


def parse_ref(key: str) -> RefKey | None:
    """The ref that a key holds; ``None`` for other keys."""
    shared, own = _SHARED.fullmatch(key), _OWN.fullmatch(key)
    store, name = (None, shared[1]) if shared else (own[1], own[2]) if own else (None, "")
    name = name.replace("~", "/")
    is_ours = name.startswith((f"{BRANCHES}/", f"{TAGS}/")) and is_full_name(name)
    return RefKey(store, RefName(name)) if is_ours else None


def parse_absent(key: str) -> str | None:
    """The store whose absence records a key holds; ``None`` for other keys."""
    match = _ABSENT.fullmatch(key)
    return None if match is None else match[1]


def absent_key(store: str) -> str:
    """Where a store says what it pushed without its content."""
    return ABSENT + store
