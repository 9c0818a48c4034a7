"""Other places that hold packs and refs: S3, or a directory.

``storages`` are places for keys. ``names`` says which keys a remote has, ``idx`` what lies beside each pack, ``remote``
is one that is opened, ``holdings`` what its packs hold. What is done with one: ``pushing``, ``fetching``, ``checking``.

Spec: docs/format.md, section on remotes.
"""
