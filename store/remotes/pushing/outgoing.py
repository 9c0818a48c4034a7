"""What a push has to send: commits that the remote lacks, and of what these need all that it cannot be known to have.

What the remote has is not asked for. It has all that its refs reach, but for what its absence records except; of that,
what the parents of new commits and the newest tips hold is looked through, tree by tree, and a tree that is the same is
passed over with all below it; for bases that none of them holds, also what came before, as far back as they are. So the
cost goes by what is new and by what it is next to, never by the whole history.

To send too much costs bytes; to send too little would lose data. Where both are possible, this sends.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice

from ...batches import batches
from ...errors import Corrupt, NotFound, telling
from ...format import canonical
from ...format.objects import Commit
from ...gc.marking import LOOKUP_BATCH
from ...gc.scanning import chunk_ids, subtree_ids
from ...history.walks import newest_first
from ...ids import CommitId, ObjectId, TreeId, short
from ...index import CommitRow, Place
from ...limits import MAX_CHAIN_DEPTH, PUSH_BOUNDARY_TIPS, PUSH_OLDER_COMMITS
from ...reading.closure import missing_objects
from ...repository import Repository
from ...upkeep.absences import WHOLE, Absence, Why, expected_items

_READ_BATCH = 32


DepthsThere = Callable[[Collection[ObjectId]], Mapping[ObjectId, int]]
"""Tells of some objects that a remote has how many have to be decoded before each there, as far as that is known."""


@dataclass(slots=True)
class Outgoing:
    """What a push has to send.

    Attributes:
        commits: commits that the remote lacks, oldest first.
        objects: where each object lies that is to be sent, the commits among them; in the order in which they came up.
        absent: records of what of these commits is not here, and so is not sent.
        relied: objects that are not sent since the remote has them.
    """

    commits: list[CommitId] = field(default_factory=list)
    objects: dict[ObjectId, Place] = field(default_factory=dict)
    absent: list[Absence] = field(default_factory=list)
    relied: set[ObjectId] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class There:
    """What is known of a remote.

    Attributes:
        tips: what its refs name.
        absent: what it lacks of commits that it has.
        distrusted: objects that are not to be relied on: lost, or in packs that are about to be deleted.
        lost: objects that are sent if they are here, although nothing new needs them.
        depths: tells how deep objects lie there; ``None`` if they lie as deep as here.
    """

    tips: Collection[CommitId] = ()
    absent: Mapping[CommitId, Sequence[Absence]] = field(default_factory=dict)
    distrusted: Collection[ObjectId] = frozenset()
    lost: Collection[ObjectId] = frozenset()
    depths: DepthsThere | None = None


def outgoing(repo: Repository, wanted: Iterable[CommitId], there: There) -> Outgoing:
    """Find out what has to be sent so that a remote has some commits with all that they need.

    Args:
        repo: the store.
        wanted: the commits.
        there: what is known of the remote.

    Raises:
        Pruned: one of the commits is wholly absent here.
        Corrupt: something that has to be here is missing or damaged; names the commit.

    Cost: 60 µs a new commit, 90 a tree object that is new or next to new ones, 6 an object.
    """
    tips = list(dict.fromkeys(wanted))
    for tip in tips:
        repo.absences.require(tip)
    new, boundary = _new_commits(repo, tips, there.tips)
    haves = _Closure(repo, there.absent)
    for commit in boundary:
        with suppress(NotFound, Corrupt):  # what cannot be looked through here is sent again, if it is needed
            haves.add([commit])
    sought = _Closure(repo, {}, known=haves.trees)
    for commits in batches(new, _READ_BATCH):
        _add_new(sought, commits)
    found = Outgoing(new, absent=[record for commit in new for record in repo.absences.records(commit)])
    found.relied = haves.met.keys() - there.distrusted
    needed = dict.fromkeys((*new, *sought.met, *(haves.met.keys() & there.distrusted)))
    lacking = _place(repo, found, [each for each in needed if each not in found.relied])
    if lacking:
        for commit in new:
            _require_whole(repo, commit, haves.trees)
        # What is left are bytes of names that look like ids: see ``gc.scanning``.
    _place(repo, found, there.lost)
    _rely_on_older(haves, found, boundary, there.distrusted)
    _add_bases(repo, found, there.depths)
    return found


def needed_by(
    repo: Repository, tips: Iterable[CommitId], absent: Mapping[CommitId, Sequence[Absence]]
) -> list[ObjectId]:
    """All that commits and their ancestors need, but for what may be absent here or there; bases aside.

    What cannot be read here is left out, with what it needs. It comes in the order in which :func:`outgoing` has it: of
    what was sent and is lost, the same packs are made again.

    Cost: as :func:`outgoing`, for the whole history.
    """
    closure = _Closure(repo, absent)
    commits = [row.id for row in newest_first(repo.lookup, tips)][::-1]
    for commit in commits:
        with suppress(NotFound, Corrupt):
            closure.add([commit])
    return [*commits, *closure.met]


def again(repo: Repository, lacking: Iterable[ObjectId], depths: Mapping[ObjectId, int]) -> Outgoing:
    """Where objects lie that a remote has lost, and their bases but for those that it has.

    Args:
        repo: the store.
        lacking: the objects.
        depths: what it has, and how deep that lies there.

    Raises:
        Corrupt: one of them is not here either.
    """
    found = Outgoing(relied=set(depths))
    lost = _place(repo, found, lacking)
    if lost:
        raise Corrupt(
            f"the remote lost {len(lost)} objects that are not here either, the first {lost[0].hex()}; push from where"
            " they are",
            objects=[object_id.hex() for object_id in lost],
        )
    _add_bases(repo, found, lambda _: depths)
    return found


# --- commits --------------------------------------------------------------------------------------------------------


def _new_commits(
    repo: Repository, wanted: Sequence[CommitId], haves: Collection[CommitId]
) -> tuple[list[CommitId], list[CommitId]]:
    """Commits that ``wanted`` reach and ``haves`` do not, oldest first; and those that the remote has next to them.

    Children arrive after their parents, so a walk by arrival has seen all children of a commit when it comes to it.
    """
    walk = _Walk(repo)
    known = [row for row in map(repo.index.commit, dict.fromkeys(haves)) if row is not None]
    for row in known:
        walk.meet(row, is_there=True)
    for tip in wanted:
        walk.meet(walk.row(tip), is_there=False)
    new = walk.run()
    newest = heapq.nlargest(PUSH_BOUNDARY_TIPS, known, key=lambda row: row.sequence) if new else []
    return new, list(dict.fromkeys([*walk.boundary, *(row.id for row in newest)]))


class _Walk:
    """Walks from commits towards their ancestors, the latest arrival first, until only what is there is left."""

    def __init__(self, repo: Repository) -> None:
        self.boundary: list[CommitId] = []
        self._repo = repo
        self._waiting: list[tuple[int, CommitId, CommitRow]] = []
        self._is_there: dict[CommitId, bool] = {}
        self._new_count = 0

    def row(self, commit: CommitId) -> CommitRow:
        row = self._repo.lookup.commit(commit)
        if row is None:
            raise Corrupt(
                f"commit {commit.hex()} is not here, although history leads to it; run `moonclip fsck`",
                commit=commit.hex(),
            )
        return row

    def meet(self, row: CommitRow, *, is_there: bool) -> None:
        known = self._is_there.get(row.id)
        if known is None:
            heapq.heappush(self._waiting, (-row.sequence, row.id, row))
            self._new_count += not is_there
        elif is_there and not known:
            self._new_count -= 1
        self._is_there[row.id] = bool(known) or is_there

    def run(self) -> list[CommitId]:
        new: list[CommitRow] = []
        while self._new_count:
            _, commit, row = heapq.heappop(self._waiting)
            is_there = self._is_there[commit]
            if not is_there:
                new.append(row)
                self._new_count -= 1
            for parent in row.parents:
                if parent not in self._is_there:
                    self.meet(self.row(parent), is_there=is_there)
                elif is_there and not self._is_there[parent]:
                    self._is_there[parent] = True
                    self._new_count -= 1
        self.boundary = [parent for row in new for parent in row.parents if self._is_there[parent]]
        return [row.id for row in reversed(new)]


# --- trees and chunks -----------------------------------------------------------------------------------------------


class _Closure:
    """Trees and chunks of commits, but for what may be absent.

    Args:
        repo: the store.
        absent: what else may be, beside what the store's own records say.
        known: trees that are not looked into.

    Attributes:
        met: trees and chunks, in the order in which they were met; known trees are none of them.
        trees: the trees among them.
    """

    def __init__(
        self,
        repo: Repository,
        absent: Mapping[CommitId, Sequence[Absence]],
        known: Collection[TreeId] = frozenset(),
    ) -> None:
        self.met: dict[ObjectId, None] = {}
        self.trees: set[TreeId] = set()
        self.repo = repo
        self.known = known
        self._absent = absent

    def add(self, commits: Sequence[CommitId]) -> None:
        trees: list[TreeId] = []
        for commit, encoded in zip(commits, self.repo.reader.encoded_commits(commits), strict=True):
            items = canonical.parse(encoded, f"commit {short(commit)}")["items"]
            expected = expected_items(Commit(items), self.repo.absences, commit)
            trees += [tree for item, tree in expected.items() if not self._is_absent(commit, item)]
        while trees := [tree for tree in dict.fromkeys(trees) if tree not in self.trees and tree not in self.known]:
            self.trees.update(trees)
            self.met.update(dict.fromkeys(trees))
            trees = [each for encoded in self.repo.reader.encoded_trees(trees) for each in self._look_into(encoded)]

    def _is_absent(self, commit: CommitId, item: str) -> bool:
        records = self._absent.get(commit)
        written = (WHOLE, Absence.of(commit, item, Why.PRUNED, 0).item)
        return records is not None and any(record.item in written for record in records)

    def _look_into(self, tree: bytes) -> list[TreeId]:
        self.met.update(dict.fromkeys(chunk_ids(tree)))
        return subtree_ids(tree)


def _add_new(sought: _Closure, commits: Sequence[CommitId]) -> None:
    try:
        sought.add(commits)
    except (NotFound, Corrupt):
        for commit in commits:  # of which one is to blame
            _require_whole(sought.repo, commit, sought.known)
        raise


def _require_whole(repo: Repository, commit: CommitId, there: Collection[TreeId]) -> None:
    """See that what a commit has to have is here, but for trees that the remote has with all below them.

    Raises:
        Corrupt: it is not.
    """
    with telling(f"commit {short(commit)}"):
        expected = expected_items(repo.commit(commit), repo.absences, commit).values()
        missing = missing_objects(
            expected, repo.reader.tree_node, lambda ids: [each for each in ids if not repo.lookup.places(each)], there
        )
    if missing:
        raise Corrupt(
            f"commit {commit.hex()} lacks {len(missing)} objects, the first {missing[0].hex()}, so it cannot be pushed;"
            " run `moonclip fsck`",
            commit=commit.hex(),
            objects=[object_id.hex() for object_id in missing],
        )


# --- places ---------------------------------------------------------------------------------------------------------


def _place(repo: Repository, found: Outgoing, wanted: Iterable[ObjectId]) -> list[ObjectId]:
    """Note where the best copy of each object is, and return those that have none."""
    lacking: list[ObjectId] = []
    for batch in batches((each for each in wanted if each not in found.objects), LOOKUP_BATCH):
        for object_id, places in repo.lookup.places_of_each(batch).items():
            if places:
                found.objects[object_id] = places[0]
            else:
                lacking.append(object_id)
    return lacking


def _rely_on_older(
    haves: _Closure, found: Outgoing, boundary: Sequence[CommitId], distrusted: Collection[ObjectId]
) -> None:
    """Rely on bases that the remote has because commits before those next to the new ones hold them.

    Where little changes, a chunk is stored against what was in its place many commits ago.
    """
    sought = {place.base for place in found.objects.values() if place.base is not None}
    sought -= found.objects.keys() | found.relied
    for row in islice(newest_first(haves.repo.lookup, boundary), PUSH_OLDER_COMMITS):
        if sought <= haves.met.keys():
            break
        with suppress(NotFound, Corrupt):  # as above
            haves.add([row.id])
    found.relied |= (sought & haves.met.keys()).difference(distrusted)


def _add_bases(repo: Repository, found: Outgoing, depths: DepthsThere | None) -> None:
    """Add what the copies are stored against, what those of these are, and so on, unless the remote has it.

    What would lie too deep there gets its base sent along, although the remote has that: as it is stored here.
    """
    _add_lacking_bases(repo, found, found.objects.values())
    while depths is not None and (deep := _too_deep(found, depths)):
        found.relied -= deep
        _place_bases(repo, found, deep)
        _add_lacking_bases(repo, found, [found.objects[each] for each in deep])


def _add_lacking_bases(repo: Repository, found: Outgoing, places: Iterable[Place]) -> None:
    waiting = list(places)
    while waiting:
        bases = dict.fromkeys(place.base for place in waiting if place.base is not None)
        new = [each for each in bases if each not in found.objects and each not in found.relied]
        _place_bases(repo, found, new)
        waiting = [found.objects[each] for each in new]


def _place_bases(repo: Repository, found: Outgoing, bases: Iterable[ObjectId]) -> None:
    lacking = _place(repo, found, bases)
    if lacking:
        raise Corrupt(
            f"chunk {lacking[0].hex()}, which others are stored against, is in no pack of this store; run"
            " `moonclip fsck`",
            object=lacking[0].hex(),
        )


def _too_deep(found: Outgoing, depths: DepthsThere) -> set[ObjectId]:
    """Bases that the remote has, and that lie too deep there, or nobody knows how deep, for what is stored on them."""
    sent = found.objects
    borrowed = {place.base for place in sent.values() if place.base is not None and place.base not in sent}
    known: dict[ObjectId, tuple[int, ObjectId | None]] = {}  # depth, and the base at the bottom that is borrowed
    there = depths(borrowed)
    for base in borrowed:
        known[base] = there.get(base, MAX_CHAIN_DEPTH), base
    for object_id in sent:
        chain: list[ObjectId] = []
        following: ObjectId | None = object_id
        while following is not None and following not in known:
            chain.append(following)
            following = sent[following].base
        depth, bottom = (-1, None) if following is None else known[following]
        for each in reversed(chain):
            depth += 1
            known[each] = depth, bottom
    return {bottom for depth, bottom in known.values() if bottom is not None and depth > MAX_CHAIN_DEPTH}
