"""Room on a full disk: what is removed has to be written down first."""

import errno
import logging
from collections.abc import Callable
from typing import TypeVar

from ..limits import BALLAST_PIECE_BYTES
from ..repository import Repository
from .ballast import Ballast

T = TypeVar("T")

_log = logging.getLogger(__name__)


class Room:
    """Gives up the ballast of a store when the disk is full, and makes it anew.

    Args:
        repository: the store.
    """

    def __init__(self, repository: Repository) -> None:
        self._root = repository.layout.root
        self._ballast = Ballast(repository.layout.root, repository.files)

    def make(self, step: Callable[[], T]) -> T:
        """Do something that takes space; while there is too little, give up some of the ballast and do it again.

        Raises:
            OSError: the disk failed, or is full although all the ballast is given up.
        """
        while True:
            try:
                return step()
            except OSError as error:
                if error.errno != errno.ENOSPC or not self._ballast.release(BALLAST_PIECE_BYTES):
                    raise
            _log.info("the disk is full: some of the ballast of %s is given up", self._root)

    def restore(self) -> bool:
        """Have ballast again, if there is space; whether there is."""
        try:
            self._ballast.ensure()
        except OSError as error:
            _log.warning("%s has too little ballast, which gc needs on a full disk: %s", self._root, error)
            return False
        return True
