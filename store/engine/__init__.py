"""What a runtime calls to keep NumPy arrays and other buffers by name; docs/engine.md is its manual."""
