"""Moonclip's engine: a content-addressed object store for named tensors.

The engine deals in bytes, shapes and dtype names. It has never heard of PyTorch; everything that knows what a
state dict is lives in the ``moonclip`` package. See ``docs/design.md`` for the layers and ``docs/format.md`` for
what lies on disk.
"""
