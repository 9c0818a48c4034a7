"""Fault injection for the store: disks that fail, fill up, write short, or lose what was not synced.

``faults`` makes system calls fail; ``recording`` remembers them; ``power`` builds, from what was remembered, the
directory that a power cut could have left. All sit under ``store.disk.files.Files``, so that the code under test is the
code that ships.

``operations`` are the things people do to a store, and what must hold after any of them was cut short; ``trials`` and
``cuts`` cut one short everywhere, by faults and by power cuts; ``python -m tools.crash`` does so with all.

``roles`` are what processes do to one store at once; ``python -m tools.crash.soak`` has them all at it.
"""
