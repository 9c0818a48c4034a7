"""Benches: what a store of real training states takes on disk, and how fast the codec is. ``make bench``."""
