"""From a remote: what is lacking here, each object compared with its hash first; clones, pulls and lazy reads."""
