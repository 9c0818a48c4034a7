"""Target: the small text files that come from a remote, or are kept of one: refs, records, lists, names of keys."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from store.disk.files import Files
from store.errors import Corrupt, Incompatible
from store.layout import Layout
from store.naming.refnames import is_full_name
from store.remotes.cache import Cache
from store.remotes.condemned import decode_condemned, encode_condemned
from store.remotes.configured import remotes, store_id
from store.remotes.names import PackName, parse_absent, parse_pack, parse_ref
from store.remotes.refcontent import decode_ref, encode_ref
from store.remotes.remote import records_in
from store.remotes.remoteformat import decode_format, encode_format
from store.upkeep.absences import decode_record, encode_record

from ..crash.scratch import scratch


def text_files(data: bytes) -> None:
    """One of the readers, which the first byte chooses."""
    if data:
        _READERS[data[0] % len(_READERS)](data[1:])


def _ref(data: bytes) -> None:
    with suppress(Corrupt):
        assert encode_ref(decode_ref(data, "refs/branches/main")) == data


def _records(data: bytes) -> None:
    for line in data.split(b"\n"):
        record = decode_record(line)
        if record is not None:
            assert decode_record(encode_record(record)[:-1]) == record
    records_in(data.decode("ascii", "replace"))


def _condemned(data: bytes) -> None:
    with suppress(Corrupt):
        found = decode_condemned(data, "1")
        assert decode_condemned(encode_condemned(found.packs, found.doomed), "1") == found
        assert all(isinstance(name, PackName) for name in found.names())


def _format(data: bytes) -> None:
    with suppress(Corrupt, Incompatible):
        decode_format(data, "memory:")


def _key(data: bytes) -> None:
    key = data.decode("utf-8", "replace")
    ref, pack = parse_ref(key), parse_pack(key)
    parse_absent(key)
    if ref is not None:
        assert is_full_name(ref.name)
        assert ref.key == key
        assert ".." not in ref.name
    if pack is not None:
        assert key in {pack[0].pack_key, pack[0].idx_key}


def _config(data: bytes) -> None:
    layout, files = Layout(_directory()), Files()
    layout.config.write_bytes(data)
    with suppress(Incompatible):
        remotes(layout, files)
    with suppress(Incompatible):
        store_id(layout, files)


def _cache(data: bytes) -> None:
    (_directory() / "known").write_bytes(data)
    known = Cache(_directory(), "memory:", Files())
    answers: list[Any] = [known.entries("refs"), known.entries("absent"), known.is_atomic(), known.unchecked()]
    assert len(answers) == 4


@cache
def _directory() -> Path:
    return Path(tempfile.mkdtemp(prefix="fuzz-", dir=scratch()))


_READERS: list[Callable[[bytes], None]] = [_ref, _records, _condemned, _format, _key, _config, _cache]


def seeds() -> Iterator[bytes]:
    """One of each."""
    pack = "7" * 64
    texts = [
        b"7" * 64 + b"\n",
        b"7" * 64 + b" model pruned 1\n" + b"8" * 64 + b" * shallow 12 s3://a/b\n",
        encode_condemned({pack: 1, f"{pack}-12345678": 2}, {pack: 1}, "0" * 32),
        encode_format("shared"),
        b"refs/by/" + b"1" * 32 + b"/branches/exp~lr3",
        b'{"id": "' + b"1" * 32 + b'", "remotes": {"origin": {"url": "s3://a/b", "lazy": true}}}',
        b'{"url": "memory:", "refs": {"refs/branches/main": ["1", "x"]}, "atomic": true,'
        b' "unchecked": {"condemned": null, "commits": ["' + b"7" * 64 + b'"]}}',
    ]
    yield from (bytes([number]) + text for number, text in enumerate(texts))
    yield bytes([4]) + f"packs/{pack}-12345678.idx".encode()
    yield bytes([4]) + b"refs/tags/best"
