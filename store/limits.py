"""Every number that matters, each with its reason.

Constants marked *format* are part of the on-disk format: ``docs/format.md`` states them and a test compares.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

# --- format: cuts -----------------------------------------------------------------------------------------------

MAX_CHUNK_BYTES: Final = 4 * MIB
"""*format* Largest chunk. Fixed, so that stores dedup with each other; big enough that per-object cost vanishes."""

RANK_GRID: Final = (2, 4, 8)
"""*format* World sizes whose ``torch.chunk`` boundaries along dim 0 are cut points, so that they share chunks."""

MIN_GRID_PART_BYTES: Final = 512 * KIB
"""*format* A world size is left out of the grid when it would make a part smaller than this."""

MAX_INLINE_BYTES: Final = 256
"""*format* Tensors up to this size sit in the tree: Adam's thousands of ``step`` scalars must not become objects."""

# --- format: trees ----------------------------------------------------------------------------------------------

LEAF_MIN_BYTES: Final = 32 * KIB
"""*format* A leaf of a tree is closed at a name boundary only beyond this size."""

LEAF_MAX_BYTES: Final = 128 * KIB
"""*format* A leaf of a tree is closed in any case once it has reached this size."""

LEAF_BOUNDARY_MODULUS: Final = 256
"""*format* A name whose hash is 0 modulo this ends a leaf: with ~150 B an entry leaves come to ~64 KiB."""

MAX_INLINE_VALUE_BYTES: Final = 16 * KIB
"""*format* Encoded values beyond this size are cut into chunks instead of sitting in the tree."""

MAX_NESTING: Final = 128
"""*format* Deepest nesting of canonical CBOR that is written or read: bounds recursion on hostile input."""

MAX_VALUE_NESTING: Final = 36
"""*format* Deepest nesting of containers in one value. A mapping takes three levels of CBOR, a tree around it few."""

MAX_NAME_BYTES: Final = 4096
"""*format* Longest tensor name (UTF-8 bytes)."""

MAX_TREE_BYTES: Final = 64 * MIB
"""Largest raw tree or commit object a reader will allocate for."""

# --- format: delta chains ---------------------------------------------------------------------------------------

MAX_CHAIN_DEPTH: Final = 64
"""*format* Readers and ``publish`` refuse deeper delta chains."""

SAVE_CHAIN_DEPTH: Final = 4
"""Deepest chain a save makes: bounds what a restore has to decode."""

DELTA_KEEP_RATIO: Final = 0.9
"""A delta is kept only if its sampled size is at most this share of the best base-free encoding's."""

# --- packs ------------------------------------------------------------------------------------------------------

MAX_PACK_BYTES: Final = 1 * GIB
"""A save starts another pack beyond this size: bounds what a repack must rewrite at a time."""

WRITE_BLOCK_BYTES: Final = 8 * MIB
"""Pack bytes go out in page-aligned blocks of this size (O_DIRECT where the file system takes it)."""

PAGE_BYTES: Final = 4096
"""Alignment of O_DIRECT buffers, offsets and lengths."""

# --- index ------------------------------------------------------------------------------------------------------

INDEX_MAP_BYTES: Final = 64 * GIB
"""LMDB's map from the start: sparse, so it costs address space only, and it hardly ever has to grow."""

# --- space ------------------------------------------------------------------------------------------------------

BALLAST_BYTES: Final = 4 * MIB
"""Preallocated file that gc gives up first on a full disk."""

# --- retries ----------------------------------------------------------------------------------------------------

LOOKUP_ATTEMPTS: Final = 3
"""How often a read looks an object up again after its pack went away (gc or repack moved it)."""
