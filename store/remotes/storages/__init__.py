"""Places for keys: the seam, S3, a directory, and whether a server compares and swaps."""
