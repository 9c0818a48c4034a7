"""Fault injection for the store: disks that fail, fill up, write short, or lose what was not synced.

``faults`` makes system calls fail; ``recording`` remembers them; ``power`` builds, from what was remembered, the
directory that a power cut could have left. All sit under ``store.files.Files``, so that the code under test is the
code that ships.
"""
