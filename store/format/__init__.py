"""What lies on disk, bit by bit: canonical encodings, entries, trees, commits, packs. Pure. Spec: docs/format.md."""
