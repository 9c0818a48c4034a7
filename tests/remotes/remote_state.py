"""What a remote really holds, found out without the code that pushes and fetches: each pack is read and taken apart."""

from dataclasses import dataclass, field

from store.format.objects import Commit, Kind, TreeNode
from store.format.pack import FOOTER_BYTES, HEADER_BYTES, check_header, decode_footer, decode_table, unseal
from store.ids import CommitId, ObjectId, chunk_id, commit_id, tree_id
from store.reading.decoding import decode_chunk
from store.reading.reader import Stored, decode_small
from store.remotes.condemned import decode_condemned
from store.remotes.idx import decode_idx
from store.remotes.names import parse_pack, parse_ref
from store.remotes.storages.storage import Storage
from store.upkeep.absences import WHOLE, decode_record

MAX_BYTES = 1 << 30


@dataclass
class RemoteState:
    """What a remote holds.

    Attributes:
        refs: by key, what each names; deleted ones are left out.
        objects: stored objects, of packs that have an idx and are not condemned.
        copy_count: how often each object is there.
        absent: what may be absent: commit and item, as it is written.
    """

    refs: dict[str, CommitId] = field(default_factory=dict)
    objects: dict[ObjectId, Stored] = field(default_factory=dict)
    copy_count: dict[ObjectId, int] = field(default_factory=dict)
    absent: set[tuple[CommitId, str]] = field(default_factory=set)
    raw: dict[ObjectId, bytes] = field(default_factory=dict)


def read_remote(storage: Storage) -> RemoteState:
    """Read all of it. Every object is compared with its id; whatever is wrong raises."""
    state = RemoteState()
    condemned = storage.get("gc/condemned", MAX_BYTES)
    doomed = set() if condemned is None else decode_condemned(*condemned).names()
    keys = {found.key for found in storage.list("")}
    for key in keys:
        parsed, found = parse_pack(key), storage.get(key, MAX_BYTES)
        assert found is not None
        if parsed and parsed[1] and parsed[0] not in doomed:
            assert parsed[0].pack_key in keys, "an idx without its pack"
            _read_pack(state, storage, key)
        elif parse_ref(key) and found[0] != b"0" * 64 + b"\n":
            state.refs[key] = CommitId(ObjectId(bytes.fromhex(found[0].decode().strip())))
        elif key.startswith("absent/"):
            records = [decode_record(line) for line in found[0].splitlines()]
            state.absent |= {(record.commit, record.item) for record in records if record is not None}
    return state


def require_whole(storage: Storage) -> RemoteState:
    """See that a remote has all that its refs need, with the right content, but for what may be absent."""
    state = read_remote(storage)
    seen: set[CommitId] = set()
    waiting = list(state.refs.values())
    while waiting:
        commit_id_ = waiting.pop()
        if commit_id_ in seen:
            continue
        seen.add(commit_id_)
        commit = Commit.decode(content(state, commit_id_))
        waiting += commit.parents
        for item, tree in commit.items.items():
            if not state.absent & {(commit_id_, item), (commit_id_, WHOLE)}:
                _require_tree(state, tree)
    return state


def content(state: RemoteState, object_id: ObjectId) -> bytes:
    """What an object decodes to."""
    if object_id not in state.raw:
        assert object_id in state.objects, f"{object_id.hex()} is missing"
        header, payload = state.objects[object_id]
        if header.kind is not Kind.CHUNK:
            raw = decode_small(header, payload)
            assert object_id == (tree_id if header.kind is Kind.TREE else commit_id)(raw)
        else:
            out = bytearray(header.raw_bytes)
            base = None if header.base is None else memoryview(content(state, header.base))
            decode_chunk(header, payload, base, memoryview(out))
            raw = bytes(out)
            assert object_id == chunk_id(raw)
        state.raw[object_id] = raw
    return state.raw[object_id]


def _require_tree(state: RemoteState, tree: ObjectId) -> None:
    node = TreeNode.decode(content(state, tree))
    for subtree in node.subtrees:
        _require_tree(state, subtree.tree)
    for _, entry in node.entries:
        for chunk in entry.chunks:
            content(state, chunk)


def _read_pack(state: RemoteState, storage: Storage, idx_key: str) -> None:
    parsed = parse_pack(idx_key)
    assert parsed is not None
    name = parsed[0]
    pack, idx = storage.get(name.pack_key, MAX_BYTES), storage.get(idx_key, MAX_BYTES)
    assert pack is not None
    assert idx is not None
    data = memoryview(pack[0])
    check_header(data[:HEADER_BYTES], name.text)
    footer = decode_footer(data[-FOOTER_BYTES:], len(data), name.text)
    table = decode_table(data[footer.table_offset : -FOOTER_BYTES], footer, name.text)
    decoded = decode_idx(idx[0], name.id)
    assert decoded.table == table
    assert decoded.pack_bytes == len(data)
    for entry in table.entries:
        stored = unseal(data[entry.offset : entry.end], name.text)
        assert stored[0] == entry.header
        state.objects.setdefault(entry.id, stored)
        state.copy_count[entry.id] = state.copy_count.get(entry.id, 0) + 1
