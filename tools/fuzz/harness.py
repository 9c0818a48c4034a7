"""One target under libFuzzer: ``python -m tools.fuzz.harness TARGET CORPUS WATCHED [OPTION]...``, where atheris is.

Given ``--seeds`` in place of options, it writes the target's seeds into the corpus instead.
"""

import logging
import sys
from hashlib import sha256
from pathlib import Path


def main() -> None:
    """Fuzz, or write seeds."""
    logging.getLogger("store").setLevel(logging.ERROR)  # that something is damaged is what is wanted here
    name, corpus, watched, *options = sys.argv[1:]
    if options == ["--seeds"]:
        from .targets import TARGETS

        for data in TARGETS[name].seeds():
            (Path(corpus) / sha256(data).hexdigest()[:16]).write_bytes(data)
        return
    import atheris  # type: ignore[import-untyped] # lives in an environment of its own

    with atheris.instrument_imports(include=[watched]):  # what is imported before can be watched no more
        from .targets import TARGETS
    target = TARGETS[name]
    atheris.Setup([sys.argv[0], corpus, f"-max_len={target.max_bytes}", *options], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
