"""How much memory saving may take, as people write it."""

import pytest

from moonclip.capture.budget import fits_beside, parse_bytes
from store.errors import Incompatible, NoRoom
from store.limits import WORKER_BYTES


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        (12_000, 12_000),
        ("12000", 12_000),
        ("12GB", 12 * 10**9),
        ("12 GiB", 12 * 2**30),
        ("1.5gb", 1_500_000_000),
        ("3g", 3 * 10**9),
        (" 500 MB ", 5 * 10**8),
        ("1TiB", 2**40),
        ("7 B", 7),
    ],
)
def test_sizes_are_read_with_their_unit(text: int | str, size_bytes: int) -> None:
    assert parse_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "GB", "12XB", "-3GB", "1e9", "12 G B", "nan", -3, True])
def test_what_is_no_size_is_refused(text: int | str) -> None:
    with pytest.raises(Incompatible, match="no size"):
        parse_bytes(text)


def test_the_last_save_stays_where_both_fit() -> None:
    assert fits_beside(10, 10, None)
    assert fits_beside(10, 10, WORKER_BYTES + 20)
    assert not fits_beside(10, 10, WORKER_BYTES + 19)
    with pytest.raises(NoRoom) as caught:
        fits_beside(0, 10, WORKER_BYTES + 9)
    assert caught.value.details == {"needed_bytes": WORKER_BYTES + 10, "max_bytes": WORKER_BYTES + 9}
