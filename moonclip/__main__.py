"""``python -m moonclip``: the same as ``moonclip``."""

from .cli import main

if __name__ == "__main__":
    main()
