"""A large file in place of another: whoever opens that name finds the old one or all of the new one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .files import TEMPORARY_PREFIX, BlockWriter, Files


@contextmanager
def replacing(files: Files, path: Path) -> Iterator[BlockWriter]:
    """Write a file aside, and give it its name once the block is done without an error.

    Args:
        files: does the I/O.
        path: where it goes; what is there is replaced.

    Raises:
        OSError: it could not be written. What was there before is there still.
    """
    temporary = path.with_name(TEMPORARY_PREFIX + os.urandom(8).hex())
    blocks = files.open_blocks(temporary)
    try:
        yield blocks
        blocks.finish()
        files.rename_durable(temporary, path)
    except BaseException:
        blocks.abandon()
        raise
