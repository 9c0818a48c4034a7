"""Fuzzing of everything that reads what a remote sent: ``python -m tools.fuzz`` (``make fuzz``).

Each target takes bytes and either passes or raises: what it tolerates are our own errors, what it looks for is anything
else. libFuzzer, by way of atheris, makes the bytes; atheris lives in an environment of its own, beside the project's.
"""
