"""What the answers of S3 servers mean to us. Pure.

Nothing that a server wrote goes into a message but its error code: servers repeat the key's id, and what was signed.
"""

import re
from typing import Final

from ...errors import (
    Conflict,
    MoonclipError,
    NotFound,
    RemoteDenied,
    RemoteError,
    RemoteMissing,
    RemoteUnavailable,
    RemoteUnsupported,
)
from .retrying import is_passing
from .urls import CREDENTIALS_ADVICE

EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})
"""Codes that say that credentials were right once."""

NO_SUCH_UPLOAD: Final = "NoSuchUpload"

_CODE = re.compile(r"[A-Za-z][A-Za-z0-9.]{1,63}")
_DENIED = EXPIRED | {
    "AccessDenied",
    "AccountProblem",
    "AllAccessDisabled",
    "InvalidAccessKeyId",
    "InvalidToken",
    "NotSignedUp",
    "SignatureDoesNotMatch",
}
_UNSUPPORTED = frozenset({"MissingContentLength", "MethodNotAllowed", "NotImplemented", "XNotImplemented"})
_ELSEWHERE = frozenset({"AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "PermanentRedirect"})


def error_for(where: str, key: str, status: int, code: str, *, retried: bool = False) -> MoonclipError:
    """The error that an answer is.

    Args:
        where: what people call the storage.
        key: what was asked for; empty for the bucket itself.
        status: HTTP's.
        code: S3's; for answers without a body, whatever botocore puts in its place.
        retried: whether it is the answer to a request that was made again.
    """
    code = code if _CODE.fullmatch(code) else ""
    what = f"{where}: {key}" if key else where
    said = f"{code}, status {status}" if code else f"status {status}"
    kind, message = _meaning(status, code)
    return kind(f"{what}: {message} ({said})", remote=where, key=key, status=status, code=code, retried=retried)


def _meaning(status: int, code: str) -> tuple[type[MoonclipError], str]:
    if code == "NoSuchBucket":
        return RemoteMissing, "there is no such bucket; make it, or mend the URL"
    if code == "RequestTimeTooSkewed":
        return RemoteDenied, "the clock of this machine and the server's differ too much; set it"
    if code in _ELSEWHERE or status in {301, 307}:
        return RemoteError, "the bucket is in another region; say which one"
    if code in EXPIRED:
        return RemoteDenied, "the credentials have expired; renew them"
    if code in _DENIED or status in {401, 403}:
        return RemoteDenied, f"access denied; {CREDENTIALS_ADVICE}, and see what they allow"
    if code in _UNSUPPORTED or status in {405, 411, 501}:
        return RemoteUnsupported, "the server does not know how to do this"
    if status == 404:
        return NotFound, "there is none (any more)"
    if status in {409, 412}:
        return Conflict, "it was written by somebody else"
    if is_passing(status, code):
        return RemoteUnavailable, "the server failed, also when asked again; try later"
    return RemoteError, "the server refused"
