"""What people call remotes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import Incompatible
from store.remotes.storages.urls import BucketPlace, DirectoryPlace, check_endpoint, parse_url


@pytest.mark.parametrize(
    ("text", "bucket", "prefix"),
    [
        ("s3://bucket", "bucket", ""),
        ("s3://bucket/", "bucket", ""),
        ("S3://my.bucket-1/team/run_7", "my.bucket-1", "team/run_7/"),
        ("s3://bucket/team/run/", "bucket", "team/run/"),
    ],
)
def test_a_bucket_and_a_prefix(text: str, bucket: str, prefix: str) -> None:
    place = parse_url(text)
    assert place == BucketPlace(bucket, prefix)
    assert parse_url(place.url) == place


def test_directories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for text, path in (
        ("file:///some/place%20of%20mine", Path("/some/place of mine")),
        ("file://localhost/some", Path("/some")),
        ("/some/place%20", Path("/some/place%20")),
        ("backup", tmp_path / "backup"),
        ("~/backup", tmp_path / "backup"),
    ):
        place = parse_url(text)
        assert place == DirectoryPlace(path)
        assert parse_url(place.url) == place


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a\0b",
        "https://bucket.s3.amazonaws.com/x",
        "s3:/bucket/x",
        "S3:bucket/x",
        "file:/dir",
        "s3://",
        "s3:///prefix",
        "s3://b",
        "s3://bucket:80/x",
        "s3://bucket/a//b",
        "s3://bucket/../x",
        "s3://bucket/x?versionId=1",
        "s3://bucket/x#y",
        "s3://bucket/ü",
        f"s3://bucket/{'x' * 600}",
        "s3://[bucket",
        "file://host/dir",
        "file:///dir?x",
    ],
)
def test_what_names_no_place_is_refused(text: str) -> None:
    with pytest.raises(Incompatible):
        parse_url(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3://key:hunter2@bucket/x",
        " s3://key:hunter2@bucket/x",
        "s3://key:hunter2@bucket:x/y",
        "file://me:hunter2@localhost/dir",
        "ftp://a:hunter2@b/",
    ],
)
def test_f7_no_url_holds_a_password_and_no_error_repeats_it(text: str) -> None:
    with pytest.raises(Incompatible) as caught:
        parse_url(text)
    assert "hunter2" not in f"{caught.value} {caught.value.details} {caught.value.__context__!r}"


def test_endpoints() -> None:
    assert check_endpoint("http://127.0.0.1:9000/") == "http://127.0.0.1:9000"
    assert check_endpoint("https://s3.example.org/storage") == "https://s3.example.org/storage"


@pytest.mark.parametrize(
    "text", ["", "example.org", "ftp://example.org", "https://", "http://h:x", "https://h/?a=b", "https://k:hunter2@h"]
)
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(Incompatible) as caught:
        check_endpoint(text)
    assert "hunter2" not in str(caught.value)


@given(st.text())
def test_any_text_is_a_place_or_incompatible(text: str) -> None:
    for prefix in ("", "s3://", "file://", "s3://bucket/"):
        try:
            place = parse_url(prefix + text)
        except Incompatible:
            continue
        assert isinstance(place, BucketPlace | DirectoryPlace)
