"""Whether a remote is whole, and what of it nobody needs."""
