"""Keys to S3 servers: from the environment, or given in Python. They are never stored, printed or told in an error."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...errors import RemoteDenied

ACCESS_KEY = "MOONCLIP_S3_ACCESS_KEY"
SECRET_KEY = "MOONCLIP_S3_SECRET_KEY"  # noqa: S105 - the name of a variable
SESSION_TOKEN = "MOONCLIP_S3_SESSION_TOKEN"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Keys:
    """Credentials of one account; their ``repr`` shows none of them.

    Attributes:
        access_key: its id.
        secret_key: what requests are signed with.
        session_token: goes with temporary ones.
    """

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


def keys_from_environment(environment: Mapping[str, str] = os.environ) -> Keys | None:
    """The keys in ``MOONCLIP_S3_…``; ``None`` if there are none, and boto3 looks for some.

    They are taken whole or not at all: half of one account and half of another would be nobody.

    Raises:
        RemoteDenied: some of them are set, but not enough.
    """
    access_key, secret_key, token = (environment.get(name) or None for name in (ACCESS_KEY, SECRET_KEY, SESSION_TOKEN))
    if access_key and secret_key:
        return Keys(access_key, secret_key, token)
    if access_key or secret_key or token:
        missing = " and ".join(
            name for name, value in ((ACCESS_KEY, access_key), (SECRET_KEY, secret_key)) if not value
        )
        raise RemoteDenied(f"{missing} must be set as well, or none of MOONCLIP_S3_…")
    return None
