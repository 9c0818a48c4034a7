"""Whether everything a commit reaches is here: the check behind every publication and every ref that moves.

A commit is *closed* when its trees, their chunks and the delta bases of those all have good copies. What the trees of
a closed commit hold need not be looked at again: only what is new is checked. Which trees a commit has to have is told
by ``absences.expected_items``.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from ..format.objects import TreeNode
from ..ids import ObjectId, TreeId
from ..index import Place

Load = Callable[[TreeId], TreeNode]


def missing_objects(
    roots: Collection[TreeId],
    load: Load,
    lacking: Callable[[Sequence[ObjectId]], Sequence[ObjectId]],
    closed: Collection[TreeId] = (),
) -> list[ObjectId]:
    """Objects that trees reach and that are not here, themselves among them, bases aside.

    Args:
        roots: the trees that a commit has to have.
        load: reads a tree object; called only for trees that are here.
        lacking: of some ids, those that have no good copy.
        closed: trees known to be complete, with all below them.

    Cost: one look-up for each chunk of each tree that is not in ``closed``.
    """
    missing: list[ObjectId] = []
    seen: set[TreeId] = set(closed)
    waiting = [tree for tree in roots if tree not in seen]
    while waiting:
        absent = set(lacking(waiting))
        missing += absent
        nodes = [load(tree) for tree in waiting if tree not in absent]
        seen.update(waiting)
        missing += lacking([chunk for node in nodes for chunk in _chunks(node)])
        below = {subtree.tree for node in nodes for subtree in node.subtrees}
        waiting = sorted(below - seen)
    return missing


def trees_below(roots: Collection[TreeId], load: Load) -> Iterator[TreeId]:
    """All tree objects of a commit, by the roots of its items: each root first."""
    for root in roots:
        yield root
        yield from (subtree.tree for subtree in load(root).subtrees)


def is_readable(object_id: ObjectId, places: Callable[[ObjectId], Sequence[Place]]) -> bool:
    """Whether an object has a good copy, and so has each delta base below that.

    A copy whose base is lost is as good as lost: it must neither spare a save from storing the object again nor be
    what another object is stored against.

    Args:
        object_id: the object.
        places: good copies of an object, each by itself.

    Cost: one look-up, and one for each delta base.
    """
    copies = places(object_id)
    if not copies or copies[0].base is None:  # most objects there are, and all that are new
        return bool(copies)
    seen: set[ObjectId] = set()

    def look(sought: ObjectId) -> bool:
        if sought in seen:  # has failed, or leads back to what is being looked at: no way to read it
            return False
        seen.add(sought)
        return any(place.base is None or look(place.base) for place in places(sought))

    return look(object_id)


def readable(
    object_ids: Collection[ObjectId],
    places_below: Callable[[Collection[ObjectId]], Mapping[ObjectId, Sequence[Place]]],
) -> dict[ObjectId, Place]:
    """Of some objects, those that :func:`is_readable` says can be read, and where their best copy is.

    Args:
        object_ids: the objects.
        places_below: good copies, the shallowest first, of some objects and of all delta bases below them.
    """
    known = places_below(object_ids)
    return {object_id: known[object_id][0] for object_id in object_ids if is_readable(object_id, known.__getitem__)}


def _chunks(node: TreeNode) -> Iterator[ObjectId]:
    for _, entry in node.entries:
        yield from entry.chunks
