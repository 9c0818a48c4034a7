"""Which storage a remote is, by its URL."""

from ...errors import RemoteError
from ...forks import loading
from ..configured import RemoteConfig
from .credentials import Keys
from .directory import DirectoryStorage
from .storage import Storage
from .urls import BucketPlace, DirectoryPlace, parse_url

__all__ = ["Keys", "open_storage"]


def open_storage(config: RemoteConfig, keys: Keys | None = None) -> Storage:
    """The storage that a remote is. Nothing is asked of it yet; close it.

    Args:
        config: the remote.
        keys: credentials, which are not stored; without, they come from the environment, or as boto3 finds them.

    Raises:
        Incompatible: its URL, or that of its endpoint, cannot be one.
        RemoteError: boto3 is not installed.
    """
    place = parse_url(config.url)
    if isinstance(place, DirectoryPlace):
        return DirectoryStorage(place.path)
    return _s3_storage(place, config, keys)


def _s3_storage(place: BucketPlace, config: RemoteConfig, keys: Keys | None) -> Storage:
    try:
        with loading:  # boto3 takes 0.2 s to load, so that only those load it who need it
            from .s3 import S3Storage
            from .s3client import S3Options
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"boto3", "botocore", "s3transfer", "urllib3"}:
            raise
        raise RemoteError(f"{config.url} needs boto3: pip install 'moonclip-store[s3]'") from error
    return S3Storage(S3Options(place, config.endpoint_url, config.region, config.path_style, keys))
