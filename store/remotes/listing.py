"""The refs of a remote, read without a store."""

from collections.abc import Iterator

from ..ids import CommitId
from ..limits import MAX_REMOTE_REF_BYTES, MAX_REMOTE_REFS
from .names import REFS, RefKey, parse_ref
from .packlist import all_keys
from .refcontent import decode_ref
from .storages.storage import Storage


def listed_refs(storage: Storage) -> Iterator[tuple[RefKey, CommitId]]:
    """All refs of all stores, but for deleted ones. One request, and one for each.

    Raises:
        Corrupt: one is damaged.
    """
    for found in all_keys(storage, REFS, MAX_REMOTE_REFS):
        ref = parse_ref(found.key)
        content = None if ref is None else storage.get(found.key, MAX_REMOTE_REF_BYTES)
        if ref is None or content is None:  # none of ours, or gone meanwhile
            continue
        commit = decode_ref(content[0], found.key)
        if commit is not None:
            yield ref, commit
