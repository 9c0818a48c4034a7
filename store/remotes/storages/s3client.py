"""The one module that knows boto3: clients of it, what they raise, and when they ask again.

What botocore raises is never chained to what we raise: it holds addresses, headers and what servers wrote, and so
perhaps a signature or the id of a key.
"""

import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionClosedError,
    ConnectionError,  # noqa: A004 - botocore's, which is no OSError
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    LoginError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ReadTimeoutError,
    ResponseStreamingError,
    SSOError,
    TokenRetrievalError,
)
from botocore.parsers import ResponseParserError
from s3transfer.manager import TransferConfig, TransferManager
from urllib3.exceptions import HTTPError

from ...errors import MoonclipError, RemoteDenied, RemoteError, RemoteUnavailable
from ...limits import (
    REMOTE_CONNECT_SECONDS,
    REMOTE_CONNECTIONS,
    REMOTE_READ_SECONDS,
    UPLOAD_PART_BYTES,
    UPLOAD_PARTS_HELD,
    UPLOAD_THREADS,
)
from .credentials import Keys, keys_from_environment
from .executing import DaemonExecutor
from .retrying import Retries, is_passing
from .s3answers import BoundedSession
from .s3errors import EXPIRED, error_for
from .urls import CREDENTIALS_ADVICE, BucketPlace, check_endpoint

for _name in ("boto3", "botocore", "s3transfer", "urllib3"):
    # At the level of debugging these log headers, and so ids of keys and signatures. Whoever sets a level of theirs
    # before, gets it: a root logger that is set to debugging does not mean that.
    if logging.getLogger(_name).level == logging.NOTSET:
        logging.getLogger(_name).setLevel(logging.INFO)

_DEFAULT_REGION: Final = "us-east-1"
_AWS: Final = (".amazonaws.com", ".amazonaws.com.cn")

_LOST = (
    ConnectionError,
    ConnectionClosedError,
    ReadTimeoutError,
    ResponseStreamingError,
    IncompleteReadError,
    HTTPError,
)
"""What says that a connection failed, or an answer did not arrive whole."""

_NO_CREDENTIALS = (
    CredentialRetrievalError,
    LoginError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    SSOError,
    TokenRetrievalError,
)

_UNREAD: Final = (ResponseParserError, ValueError, OverflowError, KeyError, TypeError, AttributeError)
"""What botocore's parsers raise on answers that no server gives by mistake: a length or a date that is none."""

FAILURES: Final = (ClientError, BotoCoreError, HTTPError, ResponseParserError)
"""All that boto3 raises because of what a server did, or did not."""


@dataclass(frozen=True, slots=True)
class S3Options:
    """How a bucket is reached.

    Attributes:
        place: the bucket, and where in it.
        endpoint_url: the server, if it is not AWS or the environment's.
        region: its region, if the environment does not say.
        path_style: whether the bucket's name is part of the path.
        keys: credentials given in Python; else they are looked for.
        retries: how patient to be.
    """

    place: BucketPlace
    endpoint_url: str | None = None
    region: str | None = None
    path_style: bool = False
    keys: Keys | None = None
    retries: Retries = field(default_factory=Retries)


class Connected:
    """A client, with the credentials that it was made with.

    Attributes:
        client: boto3's; thread-safe.
        manager: what uploads with it.
        pid: the process that it is of.
        credentials: its keys, for comparison only.
    """

    def __init__(self, options: S3Options) -> None:
        self.pid = os.getpid()
        self.client, self.credentials = _client(options)
        self._lock = threading.Lock()
        self._manager: Any = None

    @property
    def manager(self) -> Any:
        """s3transfer's, made when it is first needed: it has threads."""
        with self._lock:
            if self._manager is None:
                self._manager = TransferManager(self.client, _transfer_config(), executor_cls=DaemonExecutor)
            return self._manager

    def close(self) -> None:
        """End its threads and connections, unless they are another process's."""
        if self.pid == os.getpid():
            if self._manager is not None:
                self._manager.shutdown(cancel=True)
            self.client.close()


class S3Connection:
    """A bucket, connected: requests to it, with our errors. Thread-safe; a forked child connects anew.

    Args:
        options: how it is reached.

    Attributes:
        where: the bucket and its server, for errors.
        retries: how patient to be.
        lengths_kept: whether uploads in parts (``True``), or at once, are known to arrive as long as they were sent.

    Raises:
        Incompatible: the endpoint cannot be one.
    """

    def __init__(self, options: S3Options) -> None:
        endpoint = check_endpoint(options.endpoint_url) if options.endpoint_url else None
        self.where = options.place.url + (f" at {endpoint}" if endpoint else "")
        self.retries = options.retries
        self._options = options
        self._lock = threading.Lock()
        self.lengths_kept: set[bool] = set()
        self._connected: Connected | None = None
        self._outdated: list[Connected] = []

    def full_key(self, key: str) -> str:
        """A key as the bucket has it."""
        return self._options.place.prefix + key

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return self._options.place.bucket

    def connected(self) -> Connected:
        """The client of now.

        Raises:
            RemoteDenied: there are no credentials, or only half of some.
        """
        with self._lock:
            if self._connected is None or self._connected.pid != os.getpid():
                self._connected = self._connect()
            return self._connected

    def renew(self, outdated: Connected, error: MoonclipError) -> bool:
        """Look for credentials anew after a refusal, and say whether asking again makes sense.

        An answer to HEAD does not say why: then it does if there are other credentials now.
        """
        if self._options.keys is not None or not isinstance(error, RemoteDenied | RemoteError):
            return False
        is_expired = error.details.get("code") in EXPIRED
        if not is_expired and (error.details.get("code") or error.details.get("status") not in {400, 403}):
            return False
        with self._lock:
            if self._connected is not outdated:
                return True  # another thread was faster
            fresh = self._connect()
            if not is_expired and fresh.credentials == outdated.credentials:
                fresh.close()
                return False
            self._outdated.append(outdated)  # others may be in the middle of using it
            self._connected = fresh
            return True

    def call(self, operation: str, key: str = "", **parameters: Any) -> dict[str, Any]:
        """Make a request, again if need be, and return what boto3 makes of the answer.

        Args:
            operation: name of the client's method.
            key: what it concerns, for errors.
            parameters: those of the method, without the bucket.

        Raises:
            NotFound: status 404; details["code"] says of what.
            Conflict: status 409 or 412.
            RemoteError: and those below it, for everything else.
        """
        may_renew, attempt = True, 1
        while True:
            connected = self.connected()
            try:
                answer: dict[str, Any] = getattr(connected.client, operation)(Bucket=self.bucket, **parameters)
                return answer
            except (*FAILURES, *_UNREAD) as error:
                failure = self.error_of(error, key)
                is_unread = isinstance(error, (HTTPError, *_UNREAD)) and not isinstance(error, BotoCoreError)
            # Outside of the handler: nobody gets to see what botocore said.
            pause = self.retries.pause(attempt) if is_unread else None
            if pause is not None:
                attempt += 1
                time.sleep(pause)
            elif may_renew and self.renew(connected, failure):
                may_renew = False
            else:
                raise failure

    def error_of(self, error: BaseException, key: str) -> MoonclipError:
        """What to raise for what boto3 raised; outside of the handler, so that it is not chained."""
        if isinstance(error, ClientError):
            metadata = error.response.get("ResponseMetadata", {})
            code = str(error.response.get("Error", {}).get("Code", ""))
            status = int(metadata.get("HTTPStatusCode", 0))
            return error_for(self.where, key, status, code, retried=bool(metadata.get("RetryAttempts")))
        what = f"{self.where}: {key}" if key else self.where
        name = type(error).__name__
        if isinstance(error, _NO_CREDENTIALS):
            return RemoteDenied(f"{self.where}: there are no usable credentials ({name}); {CREDENTIALS_ADVICE}")
        is_unread = isinstance(error, _UNREAD) and not isinstance(error, BotoCoreError)
        if is_unread or isinstance(error, (*_LOST, HTTPClientError)):
            advice = "check the endpoint and the network, or try later"
            return RemoteUnavailable(f"{what}: no answer of use, also when asked again ({name}); {advice}", key=key)
        return RemoteError(f"{what}: boto3 cannot do this ({name})", key=key)

    def close(self) -> None:
        """Close all connections; again does nothing."""
        with self._lock:
            connected = [*self._outdated, *([self._connected] if self._connected else [])]
            self._outdated, self._connected = [], None
        for each in connected:
            each.close()

    def _connect(self) -> Connected:
        try:
            connected = Connected(self._options)
        except BotoCoreError as error:
            failure = self.error_of(error, "")
        else:
            connected.client.meta.events.register("needs-retry.s3", self._pause)
            endpoint = connected.client._endpoint  # noqa: SLF001 - no public way leads to what reads answers
            endpoint.http_session = BoundedSession(endpoint.http_session)
            return connected
        raise failure

    def _pause(
        self, response: Any, caught_exception: Exception | None, attempts: int, operation: Any, **_: Any
    ) -> float | None:
        """Seconds until botocore makes a request again; ``None``: not any more. It is botocore that calls this."""
        if caught_exception is not None:
            return self.retries.pause(attempts) if _is_lost(caught_exception) else None
        answer, parsed = response
        status: int = answer.status_code
        if status < 300 or not is_passing(status, str(parsed.get("Error", {}).get("Code", ""))):
            return None
        if operation.name == "CompleteMultipartUpload" and status == 500 and attempts > 1:
            return None  # Ceph's way of saying that it is complete already: whoever uploads looks
        headers: Mapping[str, str] = answer.headers
        return self.retries.pause(attempts, headers)


def _is_lost(error: Exception) -> bool:
    """Whether a request failed on its way. What else ends one, an upload that was called off, is wrapped as well."""
    if type(error) is HTTPClientError:
        facts: dict[str, object] = vars(error)["kwargs"]
        return isinstance(facts.get("error"), OSError | HTTPError)
    return isinstance(error, _LOST)


def _client(options: S3Options) -> tuple[Any, tuple[Any, ...] | None]:
    """A client, and the credentials that it has."""
    keys = options.keys or keys_from_environment()
    session = boto3.session.Session(
        aws_access_key_id=keys.access_key if keys else None,
        aws_secret_access_key=keys.secret_key if keys else None,
        aws_session_token=keys.session_token if keys else None,
    )
    found = session.get_credentials()
    client = _new_client(session, options, "when_required")
    if (client.meta.endpoint_url or "").rstrip("/").endswith(_AWS):
        client.close()
        # Checksums come in a trailer, which several other servers refuse, and some store with the data.
        client = _new_client(session, options, "when_supported")
    return client, tuple(found.get_frozen_credentials()) if found else None


def _new_client(session: Any, options: S3Options, checksums: str) -> Any:
    config = Config(
        signature_version="s3v4",
        s3={"addressing_style": "path" if options.path_style else "auto", "payload_signing_enabled": True},
        request_checksum_calculation=checksums,
        response_checksum_validation=checksums,
        connect_timeout=REMOTE_CONNECT_SECONDS,
        read_timeout=REMOTE_READ_SECONDS,
        max_pool_connections=REMOTE_CONNECTIONS,
        tcp_keepalive=True,
        retries={"mode": "standard", "total_max_attempts": 1},  # see S3Connection._pause
    )
    region = options.region or session.region_name or _DEFAULT_REGION
    return session.client("s3", endpoint_url=options.endpoint_url, region_name=region, config=config)


def _transfer_config() -> Any:
    return TransferConfig(
        multipart_threshold=UPLOAD_PART_BYTES,
        multipart_chunksize=UPLOAD_PART_BYTES,
        max_request_concurrency=UPLOAD_THREADS,
        max_submission_concurrency=1,  # reads parts, one pack after the other, into memory that is used again
        max_in_memory_upload_chunks=UPLOAD_PARTS_HELD,
    )
