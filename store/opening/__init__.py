"""The index in use: which one it is, and how it is rebuilt."""
