"""Which packs of a remote are needed, and which may go. Pure.

Of each object that is needed one copy has to stay, and it is the one in the newest pack: what was sent again, because
an older copy was damaged or about to be deleted, is never given up for that one. A pack stays if a copy that has to
stay is in it, or is what such a copy is stored against.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from ...ids import ObjectId
from ..condemned import Condemned
from ..holdings import Holdings, newest_first, readable
from ..names import PackName
from ..packlist import Listing


@dataclass(frozen=True, slots=True)
class Sentence:
    """What is to become of packs.

    Attributes:
        condemned: what the list of condemned packs is to say: names, and since when, by the remote's clock.
        doomed: those of them that are being deleted, or were lately.
        due: those of these that are there.
    """

    condemned: dict[str, int] = field(default_factory=dict)
    doomed: dict[str, int] = field(default_factory=dict)
    due: list[PackName] = field(default_factory=list)

    @property
    def waiting(self) -> dict[str, int]:
        """Packs that are condemned and not doomed yet."""
        return {name: since for name, since in self.condemned.items() if name not in self.doomed}


def needed_packs(
    holdings: Holdings, packs: Listing, objects: Iterable[ObjectId], young: Collection[PackName]
) -> set[PackName]:
    """Packs without which some object could not be read.

    Args:
        holdings: what the packs hold.
        packs: what the remote lists.
        objects: what is needed; what no pack has is passed over.
        young: packs that stay anyway.

    Cost: 10 µs an object.
    """
    wanted = {object_id for object_id in objects if holdings.copies_of(object_id)}
    stay, live = _newest(holdings, packs, wanted)
    stay |= set(young)
    kept = (copy for each in live for copy in holdings.copies_of(each) if copy.pack in stay)
    if wanted & holdings.readable() <= readable(kept):
        return stay
    return _all(holdings, wanted) | set(young)  # newest copies that are stored against each other: rare


def _newest(holdings: Holdings, packs: Listing, wanted: Collection[ObjectId]) -> tuple[set[PackName], set[ObjectId]]:
    """Packs of the newest copies of objects and of their bases; and these objects."""
    live = set(wanted)
    stay: set[PackName] = set()
    waiting = list(wanted)
    while waiting:
        copies = newest_first(holdings.copies_of(waiting.pop()), packs)
        if copies:
            stay.add(copies[0].pack)
            base = copies[0].entry.base
            if base is not None and base not in live:
                live.add(base)
                waiting.append(base)
    return stay, live


def _all(holdings: Holdings, wanted: Collection[ObjectId]) -> set[PackName]:
    """Packs of whatever copy of objects and of their bases."""
    live = set(wanted)
    stay: set[PackName] = set()
    waiting = list(wanted)
    while waiting:
        for copy in holdings.copies_of(waiting.pop()):
            stay.add(copy.pack)
            if copy.entry.base is not None and copy.entry.base not in live:
                live.add(copy.entry.base)
                waiting.append(copy.entry.base)
    return stay


def sentence(dead: Iterable[PackName], before: Condemned, now_ns: int, grace_ns: int, most: int) -> Sentence:
    """Decide about packs that nothing needs.

    Args:
        dead: these; those that were doomed before are among them, if they are there.
        before: the list of condemned packs as it is.
        now_ns: the remote's time.
        grace_ns: how long a pack stays condemned before it is deleted, and its name is listed after that.
        most: how many may be condemned at once; others have to wait.
    """
    there = {name.text: name for name in dead}
    lately = {name: since for name, since in before.doomed.items() if name in there or now_ns - since < grace_ns}
    told = {name: before.packs[name] for name in lately}
    since = {name: before.packs.get(name, now_ns) for name in there if name not in lately}
    told |= {name: since[name] for name in sorted(since, key=lambda name: (since[name], name))[: most - len(told)]}
    ripe = [name for name in told if name in before.packs and now_ns - told[name] >= grace_ns]
    doomed = {name: lately.get(name, now_ns) for name in (*lately, *ripe)}
    return Sentence(told, doomed, [there[name] for name in sorted(doomed) if name in there])
