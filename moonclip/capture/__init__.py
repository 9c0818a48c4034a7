"""Copying a state into memory of ours, in the training loop's time or beside it.

``staging`` is what the rest of the package calls; it hands out a ``capturing.Capture``.
"""
