"""What a store comes to need: named in its ``format`` file before the first object that needs it has a place.

Spec: docs/format.md §1.1.
"""

import json

from .disk.files import Files
from .layout import PURPOSES, Layout, check_format, features_named


def need_feature(layout: Layout, files: Files, feature: str) -> None:
    """See that a store's ``format`` names a feature, durably, for whoever reads, writes or collects.

    A crash right after this leaves a store that says it needs more than it does.

    Args:
        layout: the store.
        files: does the I/O.
        feature: one of ``store.layout.FEATURES``.

    Raises:
        Incompatible: the store has come to need what this version lacks, since it was opened.
        OSError: the file cannot be read, or not be written.

    Cost: two syncs, or one where it is named already.
    """
    with files.lock_exclusive(layout.root / "config.lock"):
        data = files.read_bytes(layout.format)
        for purpose in ("read", "write"):  # whoever must not collect may write
            check_format(layout.root, data, purpose)
        named = {purpose: features_named(layout.root, data, purpose) for purpose in PURPOSES}
        if all(feature in names for names in named.values()):
            files.sync_directory(layout.root)  # whoever named it may have died before that
        else:
            lists = json.loads(data) | {purpose: sorted({*names, feature}) for purpose, names in named.items()}
            files.write_atomic(layout.format, (json.dumps(lists, indent=2) + "\n").encode())
