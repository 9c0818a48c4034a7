"""Tensors that many ranks hold: which box of each a rank has, and which of them it writes.

``layouts`` and ``writers`` are pure and know nothing of torch; ``dtensors`` reads a layout off a DTensor.
"""
