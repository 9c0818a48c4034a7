"""From an id to bytes: where objects are, their chains of deltas, and reads in parallel."""
