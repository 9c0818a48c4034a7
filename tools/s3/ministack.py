"""MiniStack: an emulator that checks signatures and keeps objects in files, and starts in half a second."""

import json
import re
from collections.abc import Callable
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from .installing import Failed, installed_by_pip
from .processes import LOOPBACK, environment, free_ports
from .server import REGION, SECRET, Account, Kind, Running, Traits, launched

_TRAITS = Traits(
    checks_body_digest=False,
    refuses_small_parts=False,
)
_ROOT = "rootkey"
_USER = "tester"
_TIMEOUT_S = 60
_EVERYTHING = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}],
}


def _prepare(program: Path, directory: Path) -> Callable[[], Running]:
    (port,) = free_ports(1)
    url = f"http://{LOOPBACK}:{port}"
    objects, temporary = directory / "objects", directory / "temporary"
    objects.mkdir()
    temporary.mkdir()
    env = environment(
        AUTH="true",
        AWS_ACCESS_KEY_ID=_ROOT,
        AWS_SECRET_ACCESS_KEY=SECRET,
        BIND_HOST=LOOPBACK,
        GATEWAY_PORT=str(port),
        SERVICES="s3,iam,sts",
        S3_PERSIST="1",
        S3_DATA_DIR=str(objects),
        TMPDIR=str(temporary),
        LOG_LEVEL="WARNING",
    )

    def account() -> Account:
        # The root key's signature goes unchecked, and users are forgotten at the end: each start makes one.
        access_key, secret_key = _new_user(url)
        return Account("ministack", url, access_key, secret_key, _TRAITS)

    def launch() -> Running:
        return launched({"ministack": [str(program / "ministack")]}, env, directory, [url], account)

    return launch


def _new_user(url: str) -> tuple[str, str]:
    _ask(url, Action="CreateUser", UserName=_USER)
    _ask(url, Action="PutUserPolicy", UserName=_USER, PolicyName="all", PolicyDocument=json.dumps(_EVERYTHING))
    answer = _ask(url, Action="CreateAccessKey", UserName=_USER)
    found = [re.search(f"<{tag}>(.*?)</{tag}>", answer) for tag in ("AccessKeyId", "SecretAccessKey")]
    access_key, secret_key = (match[1] for match in found if match is not None)
    return access_key, secret_key


def _ask(url: str, **fields: str) -> str:
    """An answer of its IAM, which is asked by hand: botocore would read somebody's settings."""
    body = urlencode({**fields, "Version": "2010-05-08"}).encode()
    request = AWSRequest("POST", f"{url}/", {"Content-Type": "application/x-www-form-urlencoded"}, body)
    SigV4Auth(Credentials(_ROOT, SECRET), "iam", REGION).add_auth(request)
    with closing(HTTPConnection(urlsplit(url).netloc, timeout=_TIMEOUT_S)) as connection:
        connection.request("POST", "/", body, dict(request.headers.items()))
        answer = connection.getresponse()
        text = answer.read().decode()
    if answer.status != HTTPStatus.OK:
        raise Failed(f"ministack's IAM answered {answer.status}: {text[:200]}")
    return text


KIND = Kind("ministack", _TRAITS, lambda: installed_by_pip("ministack"), _prepare, required=True)
