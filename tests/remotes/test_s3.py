"""What a bucket does as a storage beside what all of them do (tests/conformance): credentials, lies, forks, the end."""

import ast
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from store.errors import (
    Conflict,
    MoonclipError,
    RemoteDenied,
    RemoteError,
    RemoteMissing,
    RemoteUnavailable,
    RemoteUnsupported,
)
from store.limits import MIB
from store.remotes.configured import RemoteConfig
from store.remotes.storages.clients import open_storage
from store.remotes.storages.credentials import ACCESS_KEY, SECRET_KEY, Keys
from store.remotes.storages.s3 import S3Storage
from store.remotes.storages.storage import Storage
from tests.killing import forked
from tests.s3servers import bucket, server
from tests.storages import PART_BYTES, Bytes, Heard, keys_of, noise, options, read, s3_storage
from tools.s3 import Account
from tools.s3.exchange import Request, Response
from tools.s3.proxy import FaultProxy
from tools.s3.rules import Answer, Beyond, ExpiredToken, Match

pytestmark = pytest.mark.usefixtures("small_parts")

ROOT = Path(__file__).parents[2]
PACK = "packs/" + "ef" * 32 + ".pack"
OLD, NEW, SECRET = "AKIAOLDOLDOLDOLDOLD0", "AKIANEWNEWNEWNEWNEW0", "hunter2hunter2hunter2"


@dataclass(frozen=True)
class Change:
    """What the server answers is changed."""

    how: Callable[[Request, Response], Response]
    on: Match = field(default_factory=Match)

    def handle(self, request: Request, beyond: Beyond) -> Response:
        return self.how(request, beyond.send(request))


@pytest.fixture
def moto() -> Account:
    return server("moto")


@pytest.fixture
def proxy(moto: Account) -> Iterator[FaultProxy]:
    with FaultProxy(moto) as proxy:
        yield proxy


@pytest.fixture
def storage(moto: Account, proxy: FaultProxy) -> Iterator[S3Storage]:
    with s3_storage(proxy.account, bucket(moto)) as storage:
        yield storage


@pytest.fixture
def credentials_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that boto3 reads; nothing else gives it credentials."""
    for name in [name for name in os.environ if name.startswith(("AWS_", "MOONCLIP_S3_"))]:
        monkeypatch.delenv(name)
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    write_credentials(path, OLD)
    return path


def write_credentials(path: Path, access_key: str) -> None:
    path.write_text(
        f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = {SECRET}\n", encoding="utf-8"
    )


@pytest.fixture
def chained(moto: Account, proxy: FaultProxy, credentials_file: Path) -> Iterator[S3Storage]:
    """A storage whose credentials come from that file."""
    storage = S3Storage(replace(options(proxy.account, bucket(moto)), keys=None))
    yield storage
    storage.close()


def assert_silent(error: BaseException, *secrets: str) -> None:
    """Nothing of an error, nor of what it is chained to, holds a secret."""
    details = getattr(error, "details", {})
    told = (
        "".join(traceback.format_exception(error)) + f"{error!r} {details!r} {error.__context__!r} {error.__cause__!r}"
    )
    assert not [secret for secret in secrets if secret in told]
    assert not [word for word in ("Signature=", "X-Amz-", "Credential=", "Authorization:") if word in told]


# --- credentials ----------------------------------------------------------------------------------------------------


def test_f7_credentials_that_expire_are_looked_for_anew(
    chained: S3Storage, proxy: FaultProxy, credentials_file: Path
) -> None:
    chained.put("format", b"1")
    proxy.place(ExpiredToken(OLD))
    write_credentials(credentials_file, NEW)
    chained.put("format", b"2")
    assert chained.get("format", 1) is not None
    assert [each.status for each in proxy.requests] == [200, 400, 200, 200]


def test_f7_credentials_that_expire_within_an_upload_are_renewed(
    chained: S3Storage, proxy: FaultProxy, credentials_file: Path
) -> None:
    data, heard = noise(2 * PART_BYTES + 1), Heard()
    proxy.place(ExpiredToken(OLD, on=Match(query="partNumber", after=1)))
    chained.put("format", b"1")
    write_credentials(credentials_file, NEW)
    chained.upload(PACK, Bytes(data), heard)
    assert heard.total_bytes == len(data)
    assert read(chained, PACK, 0, len(data)) == data


def test_f7_an_answer_that_gives_no_reason_is_tried_with_new_credentials(
    chained: S3Storage, proxy: FaultProxy, credentials_file: Path
) -> None:
    chained.put("format", b"1")
    proxy.place(ExpiredToken(OLD, on=Match(method="HEAD")))
    with pytest.raises(RemoteError):
        chained.stat("format")
    write_credentials(credentials_file, NEW)
    assert chained.stat("format") is not None


def test_f7_credentials_that_stay_expired_are_a_denial(chained: S3Storage, proxy: FaultProxy) -> None:
    proxy.place(ExpiredToken())
    with pytest.raises(
        RemoteDenied, match=r"format: the credentials have expired; renew them \(ExpiredToken"
    ) as caught:
        chained.put("format", b"1")
    assert_silent(caught.value, OLD, SECRET)
    assert len(proxy.requests) == 2
    with pytest.raises(RemoteDenied, match="expired"):
        chained.upload(PACK, Bytes(bytes(100)), Heard())


def test_keys_given_in_python_are_not_replaced_by_others(
    moto: Account, proxy: FaultProxy, credentials_file: Path
) -> None:
    proxy.place(ExpiredToken(NEW))
    with s3_storage(proxy.account, bucket(moto), keys=Keys(NEW, SECRET)) as storage, pytest.raises(RemoteDenied):
        storage.put("format", b"1")
    assert [each.status for each in proxy.requests] == [400]


def test_our_own_variables_come_before_what_boto3_finds(
    chained: S3Storage, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ACCESS_KEY, NEW)
    monkeypatch.setenv(SECRET_KEY, SECRET)
    proxy.place(ExpiredToken(OLD))
    chained.put("format", b"1")
    assert [each.status for each in proxy.requests] == [200]


def test_no_credentials_are_a_denial_that_says_where_to_put_them(chained: S3Storage, credentials_file: Path) -> None:
    credentials_file.unlink()
    with pytest.raises(RemoteDenied, match=r"no usable credentials.*MOONCLIP_S3_ACCESS_KEY"):
        chained.put("format", b"1")
    with pytest.raises(RemoteDenied, match="no usable credentials"):
        chained.upload(PACK, Bytes(b"1"), Heard())


def test_an_unknown_profile_is_a_denial(chained: S3Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(RemoteDenied, match="ProfileNotFound"):
        chained.stat("format")


@pytest.mark.parametrize("name", ["ministack", "ceph", "swift"])
def test_f7_a_wrong_secret_is_denied_and_not_told(name: str, caplog: pytest.LogCaptureFixture) -> None:
    account = server(name)
    wrong = Keys(account.access_key, SECRET)
    caplog.set_level(logging.DEBUG, "store")
    with s3_storage(account, bucket(account), keys=wrong) as storage:
        acts: list[Callable[[], object]] = [
            lambda: storage.put("format", b"1"),
            lambda: storage.put_if("format", b"1", None),
            lambda: storage.get("format", 1),
            lambda: storage.stat("format"),
            lambda: list(storage.list("")),
            lambda: storage.upload(PACK, Bytes(bytes(2 * PART_BYTES)), Heard()),
            lambda: storage.delete(["a", "b"]),
        ]
        for act in acts:
            with pytest.raises(RemoteDenied, match="access denied") as caught:
                act()
            assert_silent(caught.value, account.access_key, SECRET)
        assert SECRET not in f"{storage!r} {vars(storage)!r} {vars(storage._connection)!r}"
    assert not [record for record in caplog.records if record.name.startswith(("store", "moonclip"))]


# --- what is not there ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["moto", "ceph", "swift"])
def test_a_missing_bucket_is_named(name: str) -> None:
    account = server(name)
    with s3_storage(account, "moonclip-there-is-none") as storage:
        acts: list[Callable[[], object]] = [
            lambda: storage.stat("format"),
            lambda: storage.get("format", 1),
            lambda: storage.put("format", b"1"),
            lambda: list(storage.list("")),
            lambda: storage.upload(PACK, Bytes(bytes(2 * PART_BYTES)), Heard()),
            lambda: storage.read_into(PACK, 0, memoryview(bytearray(1)), Heard()),
        ]
        for act in acts:
            with pytest.raises(RemoteMissing, match=r"s3://moonclip-there-is-none/some/where at http.*no such bucket"):
                act()


def test_a_server_that_is_not_there_is_unavailable(moto: Account, proxy: FaultProxy) -> None:
    proxy.close()
    with s3_storage(proxy.account, "bucket") as storage:
        acts: list[Callable[[], object]] = [
            lambda: storage.get("format", 1),
            storage.now_ns,
            lambda: storage.upload(PACK, Bytes(bytes(10)), Heard()),
        ]
        for act in acts:
            with pytest.raises(RemoteUnavailable) as caught:
                act()
            assert_silent(caught.value, moto.access_key, moto.secret_key)


def test_prefixes_of_one_bucket_do_not_see_each_other(moto: Account) -> None:
    name = bucket(moto)
    with s3_storage(moto, name, prefix="a/") as one, s3_storage(moto, name, prefix="ab/") as other:
        one.put("format", b"1")
        assert keys_of(one) == ["format"]
        assert not keys_of(other) and other.stat("format") is None


# --- what lies, or lacks something ----------------------------------------------------------------------------------


def listing(key: str, token: str = "") -> Response:
    """A page of a listing, and that there is another."""
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    found = f"<Contents><Key>{key}</Key><Size>1</Size></Contents>"
    body = f"<ListBucketResult>{more}{found}</ListBucketResult>"
    return Response(200, {"content-type": "application/xml"}, body.encode())


def test_f10_a_listing_without_end_has_one(storage: S3Storage, proxy: FaultProxy) -> None:
    proxy.place(Change(lambda *_: listing("some/where/format", "again"), Match(query="list-type")))
    with pytest.raises(RemoteError, match="again and again"):
        list(storage.list(""))
    assert len(proxy.requests) == 2


def test_f10_a_listing_that_goes_on_and_on_has_an_end(
    storage: S3Storage, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.remotes.storages.s3.LIST_PAGES", 5)
    proxy.place(Change(lambda *_: listing("some/where/format", f"{len(proxy.requests)}x"), Match(query="list-type")))
    with pytest.raises(RemoteError, match="no end"):
        list(storage.list(""))
    assert len(proxy.requests) == 5


@pytest.mark.parametrize("key", ["../../x", "/etc/passwd", "some/whereabouts", "some/where/" + "x" * 2000])
def test_f10_keys_that_were_not_asked_for_are_passed_over(storage: S3Storage, proxy: FaultProxy, key: str) -> None:
    proxy.place(Change(lambda *_: listing(key), Match(query="list-type")))
    assert not keys_of(storage)


def without_range(request: Request, response: Response) -> Response:
    """An answer as of a server that has not heard of ranges."""
    headers = {name: value for name, value in response.headers.items() if name != "content-range"}
    return replace(response, status=200, headers=headers)


def test_a_server_without_ranges_sends_all_and_some_is_dropped(storage: S3Storage, proxy: FaultProxy) -> None:
    data = noise(MIB)
    storage.put(PACK, data)

    def whole(_: Request, response: Response) -> Response:
        return Response(200, {"etag": '"x"', "content-length": str(len(data))}, data)

    proxy.place(Change(whole, Match(method="GET")))
    assert read(storage, PACK, 1000, 5000) == data[1000:6000]
    assert read(storage, PACK, 0, 5000) == data[:5000]


def test_a_range_that_may_be_the_beginning_is_refused(storage: S3Storage, proxy: FaultProxy) -> None:
    storage.put(PACK, noise(MIB))
    proxy.place(Change(without_range, Match(method="GET")))
    with pytest.raises(RemoteUnsupported, match="does not read ranges"):
        storage.read_into(PACK, 10, memoryview(bytearray(10)), Heard())


def test_another_range_than_was_asked_for_is_refused(storage: S3Storage, proxy: FaultProxy) -> None:
    storage.put(PACK, noise(MIB))

    def shifted(_: Request, response: Response) -> Response:
        return replace(response, headers={**response.headers, "content-range": "bytes 11-20/1048576"})

    proxy.place(Change(shifted, Match(method="GET")))
    with pytest.raises(RemoteUnsupported, match="sends byte 11 when asked for byte 10"):
        storage.read_into(PACK, 10, memoryview(bytearray(10)), Heard())


def test_an_object_that_is_replaced_within_a_read_is_read_anew(storage: S3Storage, proxy: FaultProxy) -> None:
    storage.put("format", b"a" * 100)
    storage_version = storage.stat("format")
    assert storage_version is not None
    replaced = []

    def cut_and_replace(_: Request, response: Response) -> Response:
        if replaced:
            return response
        replaced.append(True)
        with s3_storage(proxy.account, storage._connection.bucket) as other:
            other.put("format", b"b" * 100)
        return replace(response, sent_bytes=50)

    proxy.place(Change(cut_and_replace, Match(method="GET")))
    got = storage.get("format", 100)
    assert got is not None and got[0] == b"b" * 100


def test_what_has_no_version_never_looks_unchanged(storage: S3Storage, proxy: FaultProxy) -> None:
    storage.put("format", b"1")

    def nameless(_: Request, response: Response) -> Response:
        headers = {name: value for name, value in response.headers.items() if name != "etag"}
        return replace(response, headers=headers)

    proxy.place(Change(nameless))
    first, second = storage.get("format", 1), storage.get("format", 1)
    assert first is not None and second is not None and first[1] != second[1]
    assert storage.put("format", b"2")


def test_keys_are_deleted_one_by_one_where_many_cannot_be(storage: S3Storage, proxy: FaultProxy) -> None:
    for status in (501, 400):
        for number in range(3):
            storage.put(f"packs/{number}", b"1")
        proxy.place(Answer(status, "MissingContentMD5", on=Match(method="POST", query="delete")))
        storage.delete(keys_of(storage))
        assert not keys_of(storage)
    assert sum(each.method == "POST" for each in proxy.requests) == 1  # it is not asked again


def test_a_key_that_may_not_be_deleted_is_named(storage: S3Storage, proxy: FaultProxy) -> None:
    def refused(_: Request, response: Response) -> Response:
        key = "some/where/packs/1"
        body = f"<DeleteResult><Error><Key>{key}</Key><Code>AccessDenied</Code></Error></DeleteResult>"
        return Response(200, {"content-type": "application/xml"}, body.encode())

    proxy.place(Change(refused, Match(method="POST")))
    with pytest.raises(RemoteDenied, match="packs/1"):
        storage.delete(["packs/0", "packs/1"])


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (411, "MissingContentLength", RemoteUnsupported),
        (501, "NotImplemented", RemoteUnsupported),
        (403, "InvalidAccessKeyId", RemoteDenied),
        (400, "InvalidToken", RemoteDenied),
        (404, "NoSuchBucket", RemoteMissing),
        (400, "AuthorizationHeaderMalformed", RemoteError),
        (400, "InvalidArgument", RemoteError),
        (412, "PreconditionFailed", Conflict),
        (418, "AKIA hunter2", RemoteError),
    ],
)
def test_what_answers_mean(
    storage: S3Storage, proxy: FaultProxy, status: int, code: str, kind: type[MoonclipError]
) -> None:
    proxy.place(Answer(status, code))
    with pytest.raises(MoonclipError) as caught:
        storage.put_if("format", b"1", None)
    assert type(caught.value) is kind
    assert_silent(caught.value, "hunter2")
    assert f"status {status}" in str(caught.value) or kind is Conflict
    assert sum(each.method == "PUT" for each in proxy.requests) == 1


def test_a_server_without_a_clock_is_told(storage: S3Storage, proxy: FaultProxy) -> None:
    def timeless(_: Request, response: Response) -> Response:
        return replace(response, headers={name: value for name, value in response.headers.items() if name != "date"})

    proxy.place(Change(timeless))
    with pytest.raises(RemoteUnsupported, match="what time it is"):
        storage.now_ns()


# --- processes ------------------------------------------------------------------------------------------------------


def test_a_forked_child_connects_anew(storage: S3Storage) -> None:
    storage.upload(PACK, Bytes(bytes(10)), Heard())  # its threads are not the child's

    def work() -> None:
        storage.put("format", b"child")
        storage.upload("packs/child", Bytes(noise(2 * PART_BYTES)), Heard())
        storage.close()

    _, status = os.waitpid(forked(work), 0)
    assert status == 0
    assert keys_of(storage) == ["format", "packs/child", PACK]


_AT_EXIT = """
import atexit, sys
from tests.s3servers import server
from tests.storages import Bytes, s3_storage

def push():
    storage.upload("packs/late", Bytes(bytes(20 << 20)), lambda _: None)
    held.__exit__(None, None, None)

held = s3_storage(server("moto"), sys.argv[1])
storage = held.__enter__()
storage.upload("packs/early", Bytes(b"1"), lambda _: None)
atexit.register(push)
"""


def test_an_upload_works_while_the_interpreter_ends(moto: Account) -> None:
    name = bucket(moto)
    ended = subprocess.run(
        [sys.executable, "-c", _AT_EXIT, name], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0 and not ended.stderr, ended.stderr
    with s3_storage(moto, name) as storage:
        assert keys_of(storage) == ["packs/early", "packs/late"]


def test_urls_choose_the_storage(tmp_path: Path, moto: Account) -> None:
    directory = open_storage(RemoteConfig("origin", tmp_path.as_uri()))
    assert directory.put("format", b"1") and (tmp_path / "format").read_bytes() == b"1"
    config = RemoteConfig("origin", f"s3://{bucket(moto)}/team", moto.endpoint_url, moto.region, path_style=True)
    opened: Storage = open_storage(config, Keys(moto.access_key, moto.secret_key))
    assert opened.put("format", b"1")
    assert opened.url == config.url
    opened.close()
    opened.close()


def test_boto3_is_loaded_for_buckets_only_and_by_one_module() -> None:
    program = "import sys, store.remotes.storages.clients; print([each for each in sys.modules if each[:4] == 'boto'])"
    loaded = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
    knowing = set()
    for path in [*(ROOT / "store").rglob("*.py"), *(ROOT / "moonclip").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if any(name.partition(".")[0] in {"boto3", "botocore", "s3transfer", "urllib3"} for name in names):
                knowing.add(path.name)
    assert knowing == {"s3client.py"}


def test_without_boto3_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("store.remotes.storages.s3", "boto3"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(RemoteError, match=r"pip install 'moonclip-store\[s3\]'"):
        open_storage(RemoteConfig("origin", "s3://bucket"))
