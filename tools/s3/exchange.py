"""Requests and responses as they pass through the fault proxy, whole and in memory."""

import http.client
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import parse_qs, quote, unquote, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from .server import Account

Headers = Mapping[str, str]
"""By lower-case name."""

_SIGNATURE = ("authorization", "x-amz-date", "x-amz-content-sha256", "x-amz-security-token")
_OF_THE_CONNECTION = ("connection", "keep-alive", "transfer-encoding", "proxy-connection")
_CREDENTIAL = re.compile(r"Credential=([^/]+)/")
_TIMEOUT_S = 120


@dataclass(frozen=True)
class Request:
    """A request to a server that is addressed by path."""

    method: str
    target: str
    """Path and query, as they were signed."""

    headers: Headers
    body: bytes = b""
    in_http_chunks: bool = False
    """Sent without a length, by `Transfer-Encoding: chunked`."""

    @property
    def bucket(self) -> str:
        """The first part of the path."""
        return unquote(urlsplit(self.target).path).lstrip("/").partition("/")[0]

    @property
    def key(self) -> str:
        """The rest of the path; empty where a bucket is asked."""
        return unquote(urlsplit(self.target).path).lstrip("/").partition("/")[2]

    @property
    def query(self) -> dict[str, str]:
        """The last value of each argument."""
        given = parse_qs(urlsplit(self.target).query, keep_blank_values=True)
        return {name: values[-1] for name, values in given.items()}

    @property
    def access_key(self) -> str:
        """Of whoever signed this; empty if nobody did."""
        found = _CREDENTIAL.search(self.headers.get("authorization", ""))
        return found[1] if found else ""

    def without(self, *names: str) -> "Request":
        """This, less some headers."""
        return replace(self, headers={name: value for name, value in self.headers.items() if name not in names})


@dataclass(frozen=True)
class Response:
    """An answer, and how much of it arrives."""

    status: int
    headers: Headers
    body: bytes = b""
    sent_bytes: int | None = None
    """Of the body, then the connection is cut; none: all of it."""

    is_lost: bool = False
    """The connection is closed instead of answering."""

    is_last: bool = False
    """From now on all connections are refused."""


def object_request(account: Account, method: str, bucket: str, key: str) -> Request:
    """A signed request for a whole object."""
    host = urlsplit(account.endpoint_url).netloc
    return signed(Request(method, f"/{bucket}/{quote(key, safe='/~')}", {"host": host}), account)


def signed(request: Request, account: Account) -> Request:
    """This request, signed anew: it has been changed since it was signed first."""
    bare = request.without(*_SIGNATURE)
    url = f"http://{bare.headers['host']}{bare.target}"
    aws = AWSRequest(bare.method, url, dict(bare.headers), bare.body)
    S3SigV4Auth(Credentials(account.access_key, account.secret_key), "s3", account.region).add_auth(aws)
    return replace(bare, headers={name.lower(): value for name, value in aws.headers.items()})


def send(request: Request, account: Account) -> Response:
    """What the server answers. `Host` arrives as it was signed.

    Raises:
        OSError: the server cannot be reached, or closed the connection.
    """
    address = urlsplit(account.endpoint_url)
    connection = http.client.HTTPConnection(address.netloc, timeout=_TIMEOUT_S)
    try:
        connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
        for name, value in request.without(*_OF_THE_CONNECTION, "content-length", "expect").headers.items():
            connection.putheader(name, value)
        if request.in_http_chunks:
            connection.putheader("Transfer-Encoding", "chunked")
        elif request.body or "content-length" in request.headers:
            connection.putheader("Content-Length", str(len(request.body)))
        connection.endheaders(request.body or None, encode_chunked=request.in_http_chunks)
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        for name in _OF_THE_CONNECTION:
            headers.pop(name, None)
        return Response(answer.status, headers, answer.read())
    except http.client.HTTPException as error:
        raise ConnectionError(f"{account.server} broke off: {error!r}") from error
    finally:
        connection.close()


def failure(status: int, code: str, message: str, **headers: str) -> Response:
    """An error as S3 words it."""
    body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'
    return Response(status, {"content-type": "application/xml", **headers}, body.encode())
