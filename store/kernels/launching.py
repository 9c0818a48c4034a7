"""``python -P launching.py wait|detach ROOT PLACE…``: start what compiles the kernels, in a process that is new.

Run as a file, with nothing but the standard library: first it steps aside, then it imports. The ``store`` in ROOT is
the one that compiles, for what it makes is for that one alone. All else is looked for where Python itself looks, and
after that in the PLACEs, where the starting process found it; so nothing that lies there hides the standard library.
"""

import os
import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def main(mode: str, root: str, *places: str) -> None:
    """Compile, at once or as a process that nobody has to wait for."""
    if mode == "detach":
        _detach()
    sys.path += [place for place in places if place not in sys.path]
    spec = PathFinder.find_spec("store", [root])
    assert spec
    assert spec.loader
    sys.modules["store"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["store"])
    import_module("store.kernels.compiling").main(wait=mode == "wait")


def _detach() -> None:
    if os.fork():
        os._exit(0)
    os.setsid()
    os.nice(19)


if __name__ == "__main__":
    main(*sys.argv[1:])
