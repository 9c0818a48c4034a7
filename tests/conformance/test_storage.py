"""What every storage does, whatever server it is on: the suite that a new one has to pass."""

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import NamedTuple, Self

import pytest

from store.errors import Conflict, Corrupt, NotFound, RemoteUnsupported
from store.limits import DELETE_KEYS, MIB
from store.remotes.storages.conditional import is_atomic
from store.remotes.storages.storage import Storage, Unfinished
from tests.storages import PART_BYTES, PLACES, Bytes, Heard, keys_of, noise, read, storage_at
from tools.s3 import Traits

pytestmark = pytest.mark.usefixtures("small_parts")

PACK = "packs/" + "ab" * 32 + ".pack"


class Place(NamedTuple):
    storage: Storage
    traits: Traits


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with storage_at(request.param, tmp_path) as (storage, traits):
        yield Place(storage, traits)


def test_an_empty_storage_has_nothing(place: Place) -> None:
    storage = place.storage
    assert not list(storage.list(""))
    assert storage.stat("format") is None
    assert storage.get("format", 100) is None
    with pytest.raises(NotFound, match="packs/x"):
        storage.read_into("packs/x", 0, memoryview(bytearray(1)), Heard())


def test_what_was_put_is_there(place: Place) -> None:
    storage = place.storage
    storage.put("refs/branches/main", b"first")
    version = storage.put("refs/branches/main", b"second")
    got = storage.get("refs/branches/main", 6)
    stat = storage.stat("refs/branches/main")
    assert got is not None and stat is not None and got[0] == b"second"
    assert stat.key == "refs/branches/main" and stat.size_bytes == 6
    if not got[1].startswith("unknown"):
        assert got[1] == stat.version == version
        assert [found.version for found in storage.list("refs/")] == [version]


def test_another_content_has_another_version(place: Place) -> None:
    storage = place.storage
    versions = {storage.put("format", str(number).encode()) for number in range(10)}
    assert len(versions) == 10


def test_an_empty_object_is_one(place: Place) -> None:
    place.storage.put("absent/x", b"")
    got = place.storage.get("absent/x", 0)
    assert got is not None and got[0] == b""


def test_no_more_is_read_than_allowed(place: Place) -> None:
    place.storage.put("format", b"123456")
    with pytest.raises(Corrupt, match="format"):
        place.storage.get("format", 5)


def test_keys_are_listed_by_prefix(place: Place) -> None:
    storage = place.storage
    for key in ("packs/aa.pack", "packs/ab.idx", "refs/by/x/branches/exp~lr3", "packsaside", "format"):
        storage.put(key, key.encode())
    assert keys_of(storage, "packs/") == ["packs/aa.pack", "packs/ab.idx"]
    assert keys_of(storage, "packs/aa") == ["packs/aa.pack"]
    assert keys_of(storage, "refs/") == ["refs/by/x/branches/exp~lr3"]
    assert len(keys_of(storage)) == 5
    assert {found.key: found.size_bytes for found in storage.list("packs")} == {
        "packs/aa.pack": 13,
        "packs/ab.idx": 12,
        "packsaside": 10,
    }


def test_deleted_keys_are_gone_and_missing_ones_passed_over(place: Place) -> None:
    storage = place.storage
    for number in range(5):
        storage.put(f"packs/{number}", b"x")
    storage.delete(["packs/0", "packs/1", "packs/none", "packs/2"])
    storage.delete(["packs/3"])
    storage.delete(["packs/3"])
    storage.delete([])
    assert keys_of(storage) == ["packs/4"]


@pytest.mark.parametrize("size_bytes", [0, 1, PART_BYTES, 2 * PART_BYTES + 5], ids=str)
def test_an_upload_arrives_whole(place: Place, size_bytes: int) -> None:
    data, heard = noise(size_bytes), Heard()
    place.storage.upload(PACK, Bytes(data), heard)
    assert heard.total_bytes == size_bytes
    stat = place.storage.stat(PACK)
    assert stat is not None and stat.size_bytes == size_bytes
    assert read(place.storage, PACK, 0, size_bytes) == data
    assert not list(place.storage.unfinished())


def test_ranges_of_an_upload_are_read(place: Place) -> None:
    data = noise(3 * MIB)
    place.storage.upload(PACK, Bytes(data), Heard())
    for start, size_bytes in ((0, 1), (1, 2 * MIB), (3 * MIB - 1, 1), (17, 0)):
        assert read(place.storage, PACK, start, size_bytes) == data[start : start + size_bytes]


@pytest.mark.parametrize(("start", "size_bytes"), [(0, 1001), (999, 2), (1000, 1), (5000, 10)])
def test_a_range_beyond_the_end_is_corrupt(place: Place, start: int, size_bytes: int) -> None:
    place.storage.put(PACK, bytes(1000))
    with pytest.raises(Corrupt, match="ends"):
        place.storage.read_into(PACK, start, memoryview(bytearray(size_bytes)), lambda _: None)


def test_a_source_that_cannot_be_read_ends_its_upload(place: Place) -> None:
    class Failing(Bytes):
        def open(self) -> "Failing":  # type: ignore[override]
            return self

        def read(self, size_bytes: int = -1) -> bytes:
            raise LookupError("a damaged copy")

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    with pytest.raises(LookupError, match="a damaged copy"):
        place.storage.upload(PACK, Failing(bytes(10)), Heard())
    assert not keys_of(place.storage)
    assert not list(place.storage.unfinished())


def test_progress_may_end_an_upload(place: Place) -> None:
    def advance(_: int) -> None:
        raise InterruptedError("enough")

    with pytest.raises(InterruptedError, match="enough"):
        place.storage.upload(PACK, Bytes(noise(2 * PART_BYTES)), advance)
    assert not keys_of(place.storage)


def test_progress_may_end_a_read(place: Place) -> None:
    def advance(_: int) -> None:
        raise InterruptedError("enough")

    place.storage.put(PACK, noise(MIB))
    with pytest.raises(InterruptedError, match="enough"):
        place.storage.read_into(PACK, 0, memoryview(bytearray(MIB)), advance)


def test_conditions_are_kept_by_servers_that_have_them(place: Place) -> None:
    storage, traits = place
    if not traits.conditional_create:
        pytest.skip("this server ignores conditions: see the test below")
    version = storage.put_if("refs/branches/main", b"1", None)
    with pytest.raises(Conflict, match="refs/branches/main"):
        storage.put_if("refs/branches/main", b"2", None)
    if not traits.conditional_replace:
        with pytest.raises(RemoteUnsupported):
            storage.put_if("refs/branches/main", b"2", version)
        return
    newer = storage.put_if("refs/branches/main", b"2", version)
    with pytest.raises(Conflict, match="refs/branches/main"):
        storage.put_if("refs/branches/main", b"3", version)
    with pytest.raises(Conflict, match="refs/branches/gone"):
        storage.put_if("refs/branches/gone", b"3", newer)
    assert storage.get("refs/branches/main", 10) == (b"2", newer)
    assert keys_of(storage) == ["refs/branches/main"]  # nothing stays of what was tried out


def test_whether_one_writer_wins_is_found_out(place: Place) -> None:
    traits = place.traits
    is_good = traits.conditional_create and traits.atomic_create and traits.conditional_replace
    assert is_atomic(place.storage) == is_good
    assert not keys_of(place.storage)


def test_objects_are_dated_by_the_clock_of_the_storage(place: Place) -> None:
    storage = place.storage
    before_ns = storage.now_ns()
    storage.put("format", b"1")
    stat = storage.stat("format")
    after_ns = storage.now_ns()
    second_ns = 1_000_000_000  # S3 tells seconds, and some servers round
    assert stat is not None
    assert before_ns - second_ns <= stat.modified_ns <= after_ns + second_ns
    assert abs(after_ns - time.time_ns()) < 3600 * second_ns  # in nanoseconds since the epoch


def test_several_threads_share_a_storage(place: Place) -> None:
    data = {f"packs/{number}": noise(MIB + number, number) for number in range(6)}
    got: dict[str, bytes] = {}

    def work(key: str) -> None:
        place.storage.upload(key, Bytes(data[key]), Heard())
        got[key] = read(place.storage, key, 0, len(data[key]))

    threads = [Thread(target=work, args=(key,)) for key in data]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == data


def test_ending_an_upload_that_is_gone_is_no_error(place: Place) -> None:
    place.storage.abort(Unfinished("packs/.tmp-0123456789abcdef", "0123", 0))


@pytest.mark.slow
@pytest.mark.parametrize("place", ["directory", "moto", "ceph", "swift"], indirect=True)
def test_more_than_a_thousand_keys_are_listed_and_deleted(place: Place) -> None:
    storage, count = place.storage, DELETE_KEYS + 5

    def work(start: int) -> None:
        for number in range(start, count, 8):
            storage.put(f"packs/{number:04}", b"")

    threads = [Thread(target=work, args=(start,)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys_of(storage, "packs/")) == count
    storage.delete(keys_of(storage, "packs/"))
    assert not keys_of(storage)
