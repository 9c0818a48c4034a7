"""The command line: git's words, and git's feel.

One module for each command or group of commands; :mod:`.app` finds them. Commands that only look back load neither
torch nor NumPy, and nothing that is stored is ever executed.
"""

from .app import main

__all__ = ["main"]
