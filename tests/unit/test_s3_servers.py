"""Each server does what its traits say, no less and no more: tests that rely on a trait rely on what was seen."""

import base64
import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from botocore import httpchecksum
from botocore.exceptions import ClientError

from tests.s3servers import bucket, client, server
from tools.s3 import SERVERS, Account, Traits, Unavailable

MIB = 1 << 20
WRONG_ETAG = f'"{"0" * 32}"'


@pytest.fixture(params=list(SERVERS), scope="module")
def account(request: pytest.FixtureRequest) -> Account:
    return server(request.param)


@pytest.fixture(scope="module")
def traits(account: Account) -> Traits:
    return account.traits


@pytest.fixture
def s3(account: Account) -> Iterator[Any]:
    with client(account) as made:
        yield made


@pytest.fixture
def place(account: Account) -> dict[str, str]:
    return {"Bucket": bucket(account), "Key": "some/key"}


def status(call: Any, *args: Any, **kwargs: Any) -> int:
    """The status of an answer, be it an error or not."""
    try:
        answer = call(*args, **kwargs)
    except ClientError as error:
        answer = error.response
    return int(answer["ResponseMetadata"]["HTTPStatusCode"])


def read(s3: Any, place: dict[str, str], **kwargs: Any) -> bytes:
    with s3.get_object(**place, **kwargs)["Body"] as body:
        return bytes(body.read())


def noise(count: int, seed: bytes = b"") -> bytes:
    return hashlib.shake_128(seed).digest(count)


def test_reads_what_was_written(s3: Any, place: dict[str, str]) -> None:
    data = noise(MIB + 17)
    s3.put_object(**place, Body=data)
    assert read(s3, place) == data
    assert s3.head_object(**place)["ContentLength"] == len(data)
    assert [each["Key"] for each in s3.list_objects_v2(Bucket=place["Bucket"])["Contents"]] == [place["Key"]]
    s3.delete_object(**place)
    assert status(s3.get_object, **place) == 404


def test_ranges(s3: Any, place: dict[str, str], traits: Traits) -> None:
    data = noise(1000)
    s3.put_object(**place, Body=data)
    assert read(s3, place, Range="bytes=100-299") == data[100:300]
    assert (status(s3.get_object, **place, Range="bytes=100-299") == 206) == traits.answers_ranges


def test_signatures(account: Account, place: dict[str, str], traits: Traits) -> None:
    with client(replace(account, secret_key="not it")) as stranger:
        assert status(stranger.list_objects_v2, Bucket=place["Bucket"]) == (403 if traits.checks_signature else 200)


def changed_on_the_way(s3: Any) -> None:
    """Have the client send another body than it signed."""

    def spoil(request: Any, **_: Any) -> None:
        request.body = b"hellO"

    s3.meta.events.register("before-send.s3.PutObject", spoil)


def test_body_digests(account: Account, s3: Any, place: dict[str, str], traits: Traits) -> None:
    with client(account, s3={"addressing_style": "path", "payload_signing_enabled": True}) as liar:
        changed_on_the_way(liar)
        refused = status(liar.put_object, **place, Body=b"hello") in (400, 403)
    assert refused == traits.checks_body_digest
    assert refused or read(s3, place) == b"hellO"


def test_crc32(s3: Any, place: dict[str, str], traits: Traits) -> None:
    refused = status(s3.put_object, **place, Body=b"hello", ChecksumCRC32=base64.b64encode(bytes(4)).decode()) == 400
    assert refused == traits.checks_crc32


def test_bodies_in_chunks(
    account: Account, s3: Any, place: dict[str, str], traits: Traits, monkeypatch: pytest.MonkeyPatch
) -> None:
    # botocore sends trailers over https alone; these servers listen on http.
    monkeypatch.setattr(httpchecksum, "urlparse", lambda url: type("Url", (), {"scheme": "https"}))
    with client(account, request_checksum_calculation="when_supported") as chunking:
        got = status(chunking.put_object, **place, Body=b"hello")
    assert got == (200 if traits.decodes_chunked else 411)
    assert not traits.decodes_chunked or read(s3, place) == b"hello"


def parts_sent(s3: Any, place: dict[str, str], parts: list[bytes]) -> dict[str, Any]:
    """What completes an upload whose parts are there."""
    upload = s3.create_multipart_upload(**place)["UploadId"]
    sent = [
        s3.upload_part(**place, UploadId=upload, PartNumber=number, Body=part)["ETag"]
        for number, part in enumerate(parts, 1)
    ]
    listed = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(sent, 1)]
    return {"UploadId": upload, "MultipartUpload": {"Parts": listed}}


def test_multipart(s3: Any, place: dict[str, str]) -> None:
    parts = [noise(5 * MIB, b"1"), noise(5 * MIB, b"2"), noise(1000, b"3")]
    ready = parts_sent(s3, place, parts)
    assert status(s3.head_object, **place) == 404
    s3.complete_multipart_upload(**place, **ready)
    assert read(s3, place) == b"".join(parts)


def test_small_parts(s3: Any, place: dict[str, str], traits: Traits) -> None:
    ready = parts_sent(s3, place, [b"small", b"last"])
    assert (status(s3.complete_multipart_upload, **place, **ready) == 400) == traits.refuses_small_parts


def test_completing_under_a_condition(s3: Any, place: dict[str, str], traits: Traits) -> None:
    s3.put_object(**place, Body=b"first")
    ready = parts_sent(s3, place, [b"second"])
    refused = status(s3.complete_multipart_upload, **place, **ready, IfNoneMatch="*") == 412
    assert refused == traits.conditional_complete
    assert read(s3, place) == (b"first" if refused else b"second")


def test_creating(s3: Any, place: dict[str, str], traits: Traits) -> None:
    s3.put_object(**place, Body=b"first", IfNoneMatch="*")
    refused = status(s3.put_object, **place, Body=b"second", IfNoneMatch="*") == 412
    assert refused == traits.conditional_create
    assert read(s3, place) == (b"first" if refused else b"second")


@pytest.mark.parametrize("quoted", [True, False])
def test_replacing(s3: Any, place: dict[str, str], traits: Traits, quoted: bool) -> None:
    etag = s3.put_object(**place, Body=b"first")["ETag"]
    known, wrong = (etag, WRONG_ETAG) if quoted else (etag.strip('"'), WRONG_ETAG.strip('"'))
    refused = status(s3.put_object, **place, Body=b"second", IfMatch=wrong) in (412, 501)
    taken = status(s3.put_object, **place, Body=b"third", IfMatch=known) == 200
    assert (refused and taken) == (traits.quoted_if_match if quoted else traits.unquoted_if_match)
    assert traits.conditional_replace == (traits.quoted_if_match or traits.unquoted_if_match)


def winners(s3: Any, place: dict[str, str], **condition: str) -> int:
    """How many of eight that write under a condition at once are told that they did."""
    together = threading.Barrier(8)

    def write(number: int) -> bool:
        s3.head_bucket(Bucket=place["Bucket"])  # connected
        together.wait()
        return status(s3.put_object, **place, Body=bytes([number]) * 200_000, **condition) == 200

    with ThreadPoolExecutor(8) as threads:
        return sum(threads.map(write, range(8)))


def test_racing_to_create(s3: Any, place: dict[str, str], traits: Traits) -> None:
    won = [winners(s3, {**place, "Key": str(number)}, IfNoneMatch="*") for number in range(6)]
    if traits.atomic_create:
        assert won == [1] * 6
    elif not traits.conditional_create:
        assert max(won) > 1


def test_racing_to_replace(s3: Any, place: dict[str, str], traits: Traits) -> None:
    if not traits.conditional_replace:
        assert not traits.atomic_replace
        return
    won = []
    for _ in range(6):
        etag = s3.put_object(**place, Body=b"to be replaced")["ETag"]
        won.append(winners(s3, place, IfMatch=etag if traits.quoted_if_match else etag.strip('"')))
    assert not traits.atomic_replace or won == [1] * 6


def test_deleting_many(s3: Any, place: dict[str, str], traits: Traits) -> None:
    keys = [{"Key": f"many/{number}"} for number in range(20)]
    for key in keys:
        s3.put_object(Bucket=place["Bucket"], **key, Body=b"")
    absent = [{"Key": f"absent/{number}"} for number in range(980)]
    got = status(s3.delete_objects, Bucket=place["Bucket"], Delete={"Objects": keys + absent})
    assert (got == 200) == traits.deletes_many
    assert ("Contents" in s3.list_objects_v2(Bucket=place["Bucket"])) != traits.deletes_many


def test_a_key_that_is_a_prefix_too(s3: Any, place: dict[str, str], traits: Traits) -> None:
    s3.put_object(**place, Body=b"1")
    below = {**place, "Key": place["Key"] + "/below"}
    together = status(s3.put_object, **below, Body=b"2") == 200 and read(s3, place) == b"1" and read(s3, below) == b"2"
    assert together == traits.key_and_prefix


SLOW_TO_START = ("ceph", "swift")


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """Not where tests' directories are: swift keeps attributes of files, which Linux has in memory since 6.6 only."""
    with TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW_TO_START else []) for name in SERVERS]
)
def test_what_a_kill_leaves(name: str, on_disk: Path) -> None:
    kind = SERVERS[name]
    try:
        started = kind.start(on_disk / "server")
    except Unavailable as lacking:
        assert not kind.required
        pytest.skip(f"no {name} on this machine: {lacking}")
    with started:
        place = {"Bucket": bucket(started.account), "Key": "kept"}
        with client(started.account) as s3:
            s3.put_object(**place, Body=b"acknowledged")
        url = started.account.endpoint_url
        started.kill()
        started.restart()
        assert started.account.endpoint_url == url
        with client(started.account) as s3:
            if kind.traits.persists:
                assert read(s3, place) == b"acknowledged"
            else:
                assert status(s3.get_object, **place) == 404
