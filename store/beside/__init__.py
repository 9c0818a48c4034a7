"""Files beside tensors: stored with a commit, or copied to and from a prefix of a remote."""
