"""A disk that is full to the last byte: no process dies of it, and what was committed can be read."""

from pathlib import Path

from store.repository import Repository
from tests.indexing import run
from tests.mounting import small_file_system
from tests.storing import load, save, weights_of

_REOPEN = """
import sys
from store.repository import Repository
try:
    Repository.open(sys.argv[1]).close()
except OSError as error:
    print("refused", error.errno)
else:
    print("opened")
"""


def fill(directory: Path) -> None:
    with (directory / "filler").open("wb", buffering=0) as filler:
        for size_bytes in (1 << 16, 4096, 1):
            try:
                while True:
                    filler.write(bytes(size_bytes))
            except OSError:
                continue


def test_c7_without_an_index_a_full_disk_is_an_error_or_none_but_no_death(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "mounted", 16 << 20) as mounted:
        with Repository.init(mounted / "store") as repository:
            save(repository, 1)
        run("import shutil, sys; shutil.rmtree(sys.argv[1])", mounted / "store" / "index")
        fill(mounted)
        assert run(_REOPEN, mounted / "store").split() in (["refused", "28"], ["opened"])
        with Repository.open(mounted / "store", read_only=True) as repository:
            assert load(repository, "main") == weights_of(1)
        (mounted / "filler").unlink()
        with Repository.open(mounted / "store") as repository:
            save(repository, 2)
            assert load(repository, "main~1") == weights_of(1)
