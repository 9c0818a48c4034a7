"""What people call a remote: ``s3://bucket/prefix``, ``file:///directory``, or a path. Pure.

A URL is stored and printed, so none with a user name or a password in it is taken.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from ...errors import Incompatible

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_MEANT = re.compile(r"(?:s3|file|https?):", re.IGNORECASE)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()/ +=,@-]*")
_USER = re.compile(r"://[^/?#]*@")
_MAX_PREFIX_BYTES = 500

CREDENTIALS_ADVICE = "give credentials in the environment (MOONCLIP_S3_ACCESS_KEY …, or as boto3 finds them)"


@dataclass(frozen=True, slots=True)
class BucketPlace:
    """A place in an S3 bucket.

    Attributes:
        bucket: its name.
        prefix: what keys there begin with: empty, or ending with ``/``.
    """

    bucket: str
    prefix: str

    @property
    def url(self) -> str:
        """What people call it."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


@dataclass(frozen=True, slots=True)
class DirectoryPlace:
    """A directory that is a remote.

    Attributes:
        path: absolute.
    """

    path: Path

    @property
    def url(self) -> str:
        """What people call it."""
        return self.path.as_uri()


def parse_url(text: str) -> BucketPlace | DirectoryPlace:
    """The place that a URL names.

    Args:
        text: ``s3://bucket/prefix``, ``file:///directory``, or a path, relative to the working directory.

    Raises:
        Incompatible: it names none that can be a remote. What it says is not repeated where it may hold a password.
    """
    require_no_credentials(text)
    match = _SCHEME.match(text)
    if match is None:
        if _MEANT.match(text):
            raise Incompatible("a URL has two slashes behind the colon, as in s3://bucket/prefix; a path begins with /")
        return DirectoryPlace(_absolute(text))
    if match[1].lower() == "s3":
        return _bucket_place(_split(text))
    if match[1].lower() == "file":
        parts = _split(text)
        if parts.netloc not in {"", "localhost"} or parts.query or parts.fragment:
            raise Incompatible("a file:// URL has three slashes and an absolute path behind them, and nothing else")
        return DirectoryPlace(_absolute(unquote(parts.path)))
    raise Incompatible(f"remotes are s3:// or file:// URLs, or paths; there is no such thing as {match[1]}://")


def check_endpoint(text: str) -> str:
    """The URL of an S3 server, without ``/`` at its end.

    Raises:
        Incompatible: it is none, or has more in it than a server and a path.
    """
    require_no_credentials(text)
    if _SCHEME.match(text) is None:
        raise Incompatible("the endpoint of an S3 server begins with https:// or http://")
    parts = _split(text)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise Incompatible("the endpoint of an S3 server is https://host or http://host:port, and nothing behind it")
    return text.rstrip("/")


def require_no_credentials(text: str) -> None:
    """See that a URL, of whatever scheme, names no user. A directory may have an ``@`` in its name.

    Raises:
        Incompatible: it does. It is not repeated.
    """
    if _USER.search(text) is not None:
        raise Incompatible(f"a URL of a remote must not hold a user name or password; {CREDENTIALS_ADVICE}")


def _split(text: str) -> SplitResult:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        parts = None
    if parts is None:  # outside of the handler: what is wrong with a URL may repeat what stands in it
        raise Incompatible("this URL of a remote cannot be understood")
    return parts


def _bucket_place(parts: SplitResult) -> BucketPlace:
    if parts.query or parts.fragment:
        raise Incompatible("an s3:// URL is s3://bucket/prefix; region and endpoint are options of their own")
    if not _BUCKET.fullmatch(parts.netloc):
        raise Incompatible("an s3:// URL is s3://bucket/prefix, and this one has no bucket's name in it")
    names = parts.path.strip("/").split("/") if parts.path.strip("/") else []
    prefix = "".join(f"{name}/" for name in names)
    if {"", ".", ".."} & set(names) or not _PREFIX.fullmatch(prefix) or len(prefix) > _MAX_PREFIX_BYTES:
        raise Incompatible(
            f"{prefix.rstrip('/')!r} cannot be a prefix: names with a / between, of letters, digits and !_.*'() +=,@-"
        )
    return BucketPlace(parts.netloc, prefix)


def _absolute(text: str) -> Path:
    if not text or "\0" in text:
        raise Incompatible("a remote needs a URL or a path")
    # Not of another user, who may not exist: `~x` may well be a name.
    return (Path.home() / text[2:] if text.startswith("~/") else Path(text)).absolute()
