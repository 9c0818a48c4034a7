"""Whatever is done to a remote: wrong data is never loaded, the store stays sound, and what is whole can be fetched."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.fuzz.fetching import TAMPERINGS, mutated_remote, original, require_harmless, seeds


@pytest.mark.slow
def test_every_way_of_tampering_is_harmless() -> None:
    for data in seeds():
        mutated_remote(data)


@given(st.binary(min_size=8, max_size=80))
@settings(max_examples=30)
def test_f10_tampering_at_random_is_harmless(data: bytes) -> None:
    mutated_remote(data)


@given(st.integers(0, 1 << 62))
@settings(max_examples=30)
def test_a_flipped_byte_in_any_file_loads_no_wrong_data(seed: int) -> None:
    draw, content = Random(seed), dict(original().content)
    for _ in range(draw.choice((1, 1, 3))):
        key = draw.choice(sorted(content))
        data = bytearray(content[key])
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        content[key] = bytes(data)
    require_harmless(content)


def test_each_way_of_tampering_changes_something() -> None:
    from tools.fuzz.drawn import Drawn

    for tamper in TAMPERINGS:
        changed = 0
        for seed in range(8):
            content = dict(original().content)
            try:
                tamper(content, Drawn(Random(seed).randbytes(40)))
            except ValueError:
                continue
            changed += content != original().content
        assert changed, tamper.__name__
