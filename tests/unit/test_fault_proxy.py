"""Each rule of the fault proxy is seen to work; without rules nobody can tell that it is there."""

import http.client
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore import httpchecksum
from botocore.exceptions import ClientError, ConnectionClosedError, EndpointConnectionError, ResponseStreamingError

from tests.s3servers import bucket, client, server
from tools.s3 import SERVERS, Account
from tools.s3.exchange import Request, Response
from tools.s3.proxy import FaultProxy
from tools.s3.rules import (
    Answer,
    Beyond,
    CutBody,
    Delay,
    DropReply,
    EqualParts,
    ExpiredToken,
    IgnoreConditions,
    Kill,
    MangleChunked,
    Match,
)
from tools.s3.stale import Stale

MIB = 1 << 20


@pytest.fixture(scope="module")
def upstream() -> Account:
    return server("moto")


@pytest.fixture
def proxy(upstream: Account) -> Iterator[FaultProxy]:
    with FaultProxy(upstream) as made:
        yield made


@pytest.fixture
def s3(proxy: FaultProxy) -> Iterator[Any]:
    with client(proxy.account) as made:
        yield made


@pytest.fixture
def direct(upstream: Account) -> Iterator[Any]:
    with client(upstream) as made:
        yield made


@pytest.fixture
def place(upstream: Account) -> dict[str, str]:
    return {"Bucket": bucket(upstream), "Key": "some/key"}


def read(s3: Any, place: dict[str, str], **kwargs: Any) -> bytes:
    with closing(s3.get_object(**place, **kwargs)["Body"]) as body:  # by `with` one gets urllib3's, and its errors
        return bytes(body.read())


def refusal(call: Any, **kwargs: Any) -> tuple[int, str]:
    with pytest.raises(ClientError) as caught:
        call(**kwargs)
    answer = caught.value.response
    return answer["ResponseMetadata"]["HTTPStatusCode"], answer["Error"]["Code"]


@pytest.fixture
def framing(monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore sends bodies in chunks with trailers, as it does over https."""
    monkeypatch.setattr(httpchecksum, "urlparse", lambda url: type("Url", (), {"scheme": "https"}))


@pytest.mark.parametrize("name", list(SERVERS))
def test_signatures_pass_unchanged(name: str, framing: None) -> None:
    upstream = server(name)
    with FaultProxy(upstream) as proxy, client(proxy.account) as s3:
        place = {"Bucket": bucket(upstream), "Key": "odd/a b+c/ü%20/key"}
        s3.put_object(**place, Body=b"whole", Metadata={"odd": "value"})
        assert read(s3, place) == b"whole"
        assert [each["Key"] for each in s3.list_objects_v2(Bucket=place["Bucket"], Prefix="odd/")["Contents"]] == [
            place["Key"]
        ]
        with client(replace(proxy.account, secret_key="not it")) as stranger:
            if upstream.traits.checks_signature:
                assert refusal(stranger.put_object, **place, Body=b"forged")[0] == 403
        if upstream.traits.decodes_chunked:
            with client(proxy.account, request_checksum_calculation="when_supported") as framed:
                framed.put_object(**place, Body=b"in chunks")
            assert read(s3, place) == b"in chunks"
        assert [(each.method, each.key, each.status) for each in proxy.requests[:2]] == [
            ("PUT", place["Key"], 200),
            ("GET", place["Key"], 200),
        ]


@pytest.mark.parametrize("name", list(SERVERS))
def test_rules_sign_what_they_change(name: str) -> None:
    upstream = server(name)
    with FaultProxy(upstream, IgnoreConditions(), Stale("odd/*")) as proxy, client(proxy.account) as s3:
        place = {"Bucket": bucket(upstream), "Key": "odd/a b+c/ü%20/key"}
        s3.put_object(**place, Body=b"1")
        s3.put_object(**place, Body=b"2", IfNoneMatch="*")
        assert read(s3, place) == b"1"
        assert read(s3, place) == b"2"


def test_log(s3: Any, proxy: FaultProxy, place: dict[str, str]) -> None:
    s3.put_object(**place, Body=bytes(1000))
    read(s3, place, Range="bytes=0-99")
    s3.list_objects_v2(Bucket=place["Bucket"], Prefix="some")
    put, get, listing = proxy.requests
    assert put[:6] == ("PUT", place["Bucket"], "some/key", {}, 200, 1000)
    assert (get.method, get.status, get.received_bytes, get.sent_bytes) == ("GET", 206, 0, 100)
    assert (listing.key, listing.query["prefix"], listing.query["list-type"]) == ("", "some", "2")
    proxy.forget()
    assert proxy.requests == []


def test_turns() -> None:
    def turns(match: Match) -> list[int]:
        return [count for count in range(1, 10) if match.picks(count)]

    assert turns(Match()) == list(range(1, 10))
    assert turns(Match(every=3)) == [3, 6, 9]
    assert turns(Match(after=4, times=1)) == [5]
    assert turns(Match(after=1, every=2, times=2)) == [3, 5]


def test_what_a_rule_is_for() -> None:
    request = Request("GET", "/bucket/packs/a%20b?uploadId=1", {})
    assert Match("GET", "packs/*").fits(request)
    assert Match(query="uploadId").fits(request)
    assert Match(key="packs/a b").fits(request)
    assert not Match("PUT").fits(request)
    assert not Match(key="refs/*").fits(request)
    assert not Match(query="list-type").fits(request)


def test_rules_count_only_what_they_are_for(s3: Any, proxy: FaultProxy, place: dict[str, str]) -> None:
    proxy.place(Answer(503, "SlowDown", on=Match("PUT", "some/*", every=2)))
    s3.put_object(**place, Body=b"1")
    read(s3, place)
    s3.put_object(**{**place, "Key": "other"}, Body=b"2")
    assert refusal(s3.put_object, **place, Body=b"3") == (503, "SlowDown")
    proxy.place()
    s3.put_object(**place, Body=b"4")


def test_cut_body(s3: Any, proxy: FaultProxy, place: dict[str, str]) -> None:
    data = bytes(range(100)) * 10
    s3.put_object(**place, Body=data)
    proxy.place(CutBody(0.5))
    with pytest.raises(ResponseStreamingError):
        read(s3, place)
    assert proxy.requests[-1].sent_bytes == 500
    url = urlsplit(s3.generate_presigned_url("get_object", Params=place))
    with closing(http.client.HTTPConnection(url.netloc)) as plain:
        plain.request("GET", f"{url.path}?{url.query}")
        with pytest.raises(http.client.IncompleteRead) as caught, plain.getresponse() as answer:
            answer.read()
    assert caught.value.partial == data[:500]
    # Who goes on by ranges gets the last byte at last.
    assert read(s3, place, Range="bytes=999-999") == data[999:]


def test_answer(s3: Any, proxy: FaultProxy, direct: Any, place: dict[str, str]) -> None:
    proxy.place(Answer(503, "SlowDown", retry_after="7", on=Match(every=3)))
    s3.put_object(**place, Body=b"1")
    s3.put_object(**place, Body=b"2")
    with pytest.raises(ClientError) as caught:
        s3.put_object(**place, Body=b"3")
    assert caught.value.response["Error"]["Code"] == "SlowDown"
    assert caught.value.response["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "7"
    assert read(direct, place) == b"2"


def test_expired_token(s3: Any, proxy: FaultProxy, place: dict[str, str]) -> None:
    rule = ExpiredToken()
    proxy.place(rule)
    assert refusal(s3.put_object, **place, Body=b"1") == (400, "ExpiredToken")
    rule.renewed.set()
    s3.put_object(**place, Body=b"1")


def test_expired_token_of_one_key(s3: Any, proxy: FaultProxy, place: dict[str, str]) -> None:
    proxy.place(ExpiredToken(access_key=proxy.account.access_key, status=403))
    assert refusal(s3.put_object, **place, Body=b"1") == (403, "ExpiredToken")
    with client(replace(proxy.account, access_key="renewed")) as renewed:
        renewed.put_object(**place, Body=b"1")


def test_delay(s3: Any, proxy: FaultProxy, direct: Any, place: dict[str, str]) -> None:
    rule = Delay(on=Match("PUT", times=1))
    proxy.place(rule)
    with ThreadPoolExecutor(1) as thread:
        slow = thread.submit(s3.put_object, **place, Body=b"slow")
        try:
            assert rule.arrived.wait(60)
            s3.put_object(**place, Body=b"fast")
            assert read(direct, place) == b"fast"
        finally:
            rule.release.set()
        slow.result()
    assert read(direct, place) == b"slow"


def test_drop_reply(s3: Any, proxy: FaultProxy, direct: Any, place: dict[str, str]) -> None:
    proxy.place(DropReply(on=Match("PUT")))
    with pytest.raises(ConnectionClosedError):
        s3.put_object(**place, Body=b"done")
    assert read(direct, place) == b"done"
    assert proxy.requests[-1].status == 0


def test_kill_and_revive(s3: Any, proxy: FaultProxy, direct: Any, place: dict[str, str]) -> None:
    proxy.place(Kill(on=Match(after=1, times=1)))
    s3.put_object(**place, Body=b"1")
    s3.put_object(**place, Body=b"2")
    for _ in range(2):
        with pytest.raises(EndpointConnectionError):
            s3.put_object(**place, Body=b"3")
    assert read(direct, place) == b"2"
    proxy.revive()
    s3.put_object(**place, Body=b"4")
    assert read(direct, place) == b"4"


def test_ignore_conditions(s3: Any, proxy: FaultProxy, place: dict[str, str]) -> None:
    s3.put_object(**place, Body=b"1", IfNoneMatch="*")
    assert refusal(s3.put_object, **place, Body=b"2", IfNoneMatch="*")[0] == 412
    proxy.place(IgnoreConditions())
    s3.put_object(**place, Body=b"3", IfNoneMatch="*")
    s3.put_object(**place, Body=b"4", IfMatch='"not it"')
    assert read(s3, place) == b"4"
    upload = s3.create_multipart_upload(**place)["UploadId"]
    etag = s3.upload_part(**place, UploadId=upload, PartNumber=1, Body=b"5")["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
    s3.complete_multipart_upload(**place, UploadId=upload, MultipartUpload=parts, IfNoneMatch="*")
    assert read(s3, place) == b"5"


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [([6, 6, 1], True), ([6, 6], True), ([1], True), ([6, 5, 1], False), ([5, 6], False)],
)
def test_equal_parts(s3: Any, proxy: FaultProxy, place: dict[str, str], sizes: list[int], taken: bool) -> None:
    proxy.place(EqualParts())
    upload = s3.create_multipart_upload(**place)["UploadId"]
    parts = [
        {
            "PartNumber": number,
            "ETag": s3.upload_part(**place, UploadId=upload, PartNumber=number, Body=bytes(size * MIB))["ETag"],
        }
        for number, size in enumerate(sizes, 1)
    ]
    complete = {**place, "UploadId": upload, "MultipartUpload": {"Parts": parts}}
    if taken:
        s3.complete_multipart_upload(**complete)
        assert s3.head_object(**place)["ContentLength"] == sum(sizes) * MIB
    else:
        assert refusal(s3.complete_multipart_upload, **complete) == (400, "InvalidPart")
        s3.abort_multipart_upload(**place, UploadId=upload)


def test_mangle_chunked(proxy: FaultProxy, s3: Any, place: dict[str, str], framing: None) -> None:
    proxy.place(MangleChunked())
    s3.put_object(**place, Body=b"plain")
    assert read(s3, place) == b"plain"
    with client(proxy.account, request_checksum_calculation="when_supported") as framed:
        framed.put_object(**place, Body=b"hello")
    stored = read(s3, place)
    assert stored.startswith(b"5\r\nhello\r\n0\r\nx-amz-checksum-crc32:")


def test_stale_object(s3: Any, proxy: FaultProxy, place: dict[str, str]) -> None:
    proxy.place(Stale("some/*", reads=2))
    s3.put_object(**place, Body=b"first")
    assert refusal(s3.get_object, **place) == (404, "NoSuchKey")
    assert refusal(s3.head_object, **place)[0] == 404
    assert read(s3, place) == b"first"
    s3.put_object(**place, Body=b"second one")
    assert s3.head_object(**place)["ContentLength"] == 5
    assert read(s3, place, Range="bytes=1-2") == b"ir"
    assert read(s3, place) == b"second one"
    s3.delete_objects(Bucket=place["Bucket"], Delete={"Objects": [{"Key": place["Key"]}]})
    assert read(s3, place) == b"second one"
    assert read(s3, place, Range="bytes=7-") == b"one"
    assert refusal(s3.get_object, **place) == (404, "NoSuchKey")
    other = {**place, "Key": "other"}
    s3.put_object(**other, Body=b"fresh")
    assert read(s3, other) == b"fresh"


def test_stale_listing(s3: Any, proxy: FaultProxy, place: dict[str, str]) -> None:
    def listed() -> dict[str, int]:
        answer = s3.list_objects_v2(Bucket=place["Bucket"], Prefix="some/")
        found = {each["Key"]: each["Size"] for each in answer.get("Contents", [])}
        assert answer["KeyCount"] == len(found)
        return found

    odd = {**place, "Key": "some/a b+ü"}
    proxy.place(Stale())
    s3.put_object(**odd, Body=b"1")
    assert listed() == {}
    assert listed() == {odd["Key"]: 1}
    s3.put_object(**odd, Body=b"12")
    s3.put_object(**place, Body=b"123")
    assert listed() == {odd["Key"]: 1}
    assert listed() == {odd["Key"]: 2, place["Key"]: 3}
    s3.delete_object(**odd)
    assert listed() == {odd["Key"]: 2, place["Key"]: 3}
    assert listed() == {place["Key"]: 3}


def test_rules_apply_in_order(s3: Any, proxy: FaultProxy, place: dict[str, str]) -> None:
    proxy.place(Answer(503, "SlowDown", on=Match(times=1)), Answer(500, "InternalError"))
    assert refusal(s3.put_object, **place, Body=b"1") == (503, "SlowDown")
    assert refusal(s3.put_object, **place, Body=b"1") == (500, "InternalError")


def test_half_a_request_never_arrives(proxy: FaultProxy, direct: Any, s3: Any, place: dict[str, str]) -> None:
    url = urlsplit(s3.generate_presigned_url("put_object", Params=place))
    with socket.create_connection((url.hostname or "", url.port or 0)) as connection:
        head = f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: 1000\r\n\r\n"
        connection.sendall(head.encode() + bytes(500))
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""
    assert proxy.requests == []
    assert refusal(direct.head_object, **place)[0] == 404


def test_a_server_that_is_down_looks_down(upstream: Account) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    with FaultProxy(replace(upstream, endpoint_url=url)) as proxy, client(proxy.account) as s3:
        with pytest.raises(ConnectionClosedError):
            s3.list_buckets()
        assert proxy.requests[-1].status == 0


class Broke:
    on = Match()

    def handle(self, request: Request, beyond: Beyond) -> Response:
        raise ZeroDivisionError("as planned")


def test_errors_of_rules_come_out_at_the_end(upstream: Account) -> None:
    proxy = FaultProxy(upstream, Broke())
    with client(proxy.account) as s3, pytest.raises(ConnectionClosedError):
        s3.list_buckets()
    with pytest.raises(ZeroDivisionError, match="as planned"):
        proxy.close()
