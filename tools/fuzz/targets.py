"""All targets by name."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from . import fetching, formats, payloads, settings


class Target(NamedTuple):
    """What is fuzzed.

    Attributes:
        run: given any bytes, raises if something is wrong with us.
        seeds: bytes to begin with.
        max_bytes: longest input that is tried.
        share: of the time, relative to the others.
        watched: the package whose branches steer the fuzzer; watching makes it ten times as slow.
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]
    max_bytes: int = 8192
    share: int = 1
    watched: str = "store"


TARGETS = {
    "idx": Target(formats.idx, formats.idx_seeds),
    "pack": Target(formats.pack_file, formats.pack_seeds),
    "object": Target(formats.stored_object, formats.object_seeds),
    "tree": Target(formats.tree, formats.tree_seeds),
    "commit": Target(formats.commit, formats.commit_seeds),
    "settings": Target(settings.text_files, settings.seeds, 4096),
    "payload": Target(payloads.payload, payloads.seeds, 1 << 16, 3),
    "fetch": Target(fetching.mutated_remote, fetching.seeds, 512, 6, "store.remotes"),
}
