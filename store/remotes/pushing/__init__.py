"""To a remote: what it lacks, as packs that are known before a byte is read, and then refs."""
