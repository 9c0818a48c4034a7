"""What a manager is told of its remote: a URL or a name, or a bucket in another engine's words; and credentials."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypedDict

from store.errors import Conflict, Incompatible, NotFound
from store.remotes.configured import RemoteConfig, add_remote, remotes
from store.remotes.remote import open_remote
from store.remotes.storages.credentials import Keys
from store.remotes.storages.urls import BucketPlace, parse_url
from store.repository import Repository
from store.worker.messages import Follow
from store.worker.pushes import Pushes

DEFAULT_REMOTE: Final = "origin"

_BUCKET_PUSH_EVERY: Final = 100
"""Who says ``s3_bucket`` says so in the words of an engine that pushes by itself."""


class S3Arguments(TypedDict, total=False):
    """Keywords for a remote in an S3 bucket, for :class:`~moonclip.CheckpointManager`.

    Attributes:
        s3_bucket: the bucket, instead of ``remote="s3://bucket/prefix"``; the other keywords go with either. With it, a
            push follows every 100 saves if nothing else is said. If it is said to be ``None``, they mean nothing.
        s3_prefix: what keys in it begin with.
        s3_endpoint: URL of the server, if it is not AWS.
        s3_region: region, if the environment does not say.
        s3_path_style: whether the bucket is part of the path and not of the host's name.
        s3_access_key: id of the credentials, which are kept nowhere. Better leave them to the environment.
        s3_secret_key: the secret that belongs to it.
        s3_session_token: goes with temporary credentials.
        sync_every_n_saves: another name of ``push_every``.
    """

    s3_bucket: str
    s3_prefix: str
    s3_endpoint: str
    s3_region: str
    s3_path_style: bool
    s3_access_key: str
    s3_secret_key: str
    s3_session_token: str
    sync_every_n_saves: int


@dataclass(frozen=True, slots=True)
class RemoteArguments:
    """What was said of a remote, as far as it can be understood without the store.

    Attributes:
        place: URL, path or name.
        settings: what was said of how to reach it, as fields of its configuration.
        keys: credentials; ``None`` if the environment has them.
        push_every: how many saves a push follows; ``None`` if none follows by itself.
    """

    place: str
    settings: Mapping[str, Any]
    keys: Keys | None = field(default=None, repr=False)
    push_every: int | None = None


@dataclass(frozen=True, slots=True)
class Link:
    """A manager's remote.

    Attributes:
        remote: its name.
        keys: credentials; ``None`` if the environment has them.
        push_every: how many saves a push follows; ``None`` if none follows by itself.
    """

    remote: str
    keys: Keys | None = field(default=None, repr=False)
    push_every: int | None = None

    def pushes(self, repo: Repository) -> Pushes | None:
        """The pushes that follow saves; ``None`` if none do."""
        return None if self.push_every is None else Pushes(repo, Follow(self.remote, self.keys), self.push_every)


def remote_arguments(
    remote: str | Path | None, push_every: int | None, s3: Mapping[str, Any]
) -> RemoteArguments | None:
    """Understand what was said. Touches nothing; ``None`` if nothing was.

    Raises:
        Incompatible: it cannot be meant so. No credentials are repeated.
    """
    if remote is None and push_every is None and "s3_bucket" in s3 and s3["s3_bucket"] is None:
        return None  # a script that may have a bucket says how to reach it in any case
    given = {key: value for key, value in s3.items() if value is not None}
    every = _the_one("push_every", push_every, "sync_every_n_saves", given.pop("sync_every_n_saves", None))
    if every is not None and (not isinstance(every, int) or every < 1):
        name = "push_every" if push_every is not None else "sync_every_n_saves"
        raise Incompatible(f"{name} counts saves, from 1; it is {every!r}")
    bucket, prefix = given.pop("s3_bucket", None), given.pop("s3_prefix", "")
    if bucket is not None and every is None:
        every = _BUCKET_PUSH_EVERY
    place = _the_one("remote", remote, "s3_bucket", None if bucket is None else f"s3://{bucket}/{prefix}")
    if place is None:
        left = next(iter([*given, *(["push_every"] if every is not None else [])]), "s3_prefix" if prefix else None)
        if left is not None:
            raise Incompatible(f"{left} needs to know where: give remote='s3://bucket/prefix' as well")
        return None
    if prefix and bucket is None:
        raise Incompatible("s3_prefix goes with s3_bucket; in remote='s3://bucket/prefix' it is part of the URL")
    names = {"s3_endpoint": "endpoint_url", "s3_region": "region", "s3_path_style": "path_style"}
    settings = {field_name: given[key] for key, field_name in names.items() if key in given}
    return RemoteArguments(str(place), settings, _keys(given), every)


def linked(repo: Repository, asked: RemoteArguments | None) -> Link | None:
    """The remote that was asked for; a URL that the store does not know becomes its remote ``origin``.

    Closes the store if that cannot be.

    Raises:
        Incompatible: ``origin`` is somewhere else, or this is no place for a remote.
        NotFound: there is no remote of that name.
        ReadOnly: the store cannot be written from here, and does not know the remote yet.
    """
    if asked is None:
        return None
    try:
        link = Link(_name_of(repo, asked), asked.keys, asked.push_every)
    except BaseException:
        repo.close()
        raise
    if link.keys is not None:  # what is read lazily needs them too
        repo.remote_openers[link.remote] = partial(open_remote, repo, link.remote, keys=link.keys)
    return link


def default_remote(repo: Repository) -> str:
    """Name of the remote that is meant if none is named: ``origin``, or the only one.

    Raises:
        NotFound: there is none.
    """
    known = remotes(repo.layout, repo.files)
    if DEFAULT_REMOTE in known or not known:
        if not known:
            raise NotFound(
                "this store has no remote; name one with CheckpointManager(…, remote='s3://bucket/prefix'), or with"
                " `moonclip remote add origin s3://bucket/prefix`"
            )
        return DEFAULT_REMOTE
    if len(known) > 1:
        raise NotFound(f"which remote? There are {', '.join(sorted(known))}, and none is called {DEFAULT_REMOTE}")
    return next(iter(known))


# --- how ------------------------------------------------------------------------------------------------------------


def _the_one(name: str, value: Any, other_name: str, other: Any) -> Any:
    if value is not None and other is not None:
        raise Incompatible(f"{name} and {other_name} say the same thing; give one of them")
    return other if value is None else value


def _keys(given: Mapping[str, Any]) -> Keys | None:
    access_key, secret_key = given.get("s3_access_key"), given.get("s3_secret_key")
    token = given.get("s3_session_token") or None
    if access_key and secret_key:
        return Keys(access_key, secret_key, token)
    if access_key or secret_key or token:
        raise Incompatible("s3_access_key and s3_secret_key go together; without either the environment is asked")
    return None


def _name_of(repo: Repository, asked: RemoteArguments) -> str:
    known = remotes(repo.layout, repo.files)
    named = known.get(asked.place)
    if named is not None:
        _require_same(named, replace(named, **asked.settings))
        return named.name
    if "/" not in asked.place and not asked.place.startswith((".", "~")):
        names = ", ".join(sorted(known)) or "none"
        raise NotFound(
            f"no remote {asked.place!r} here; there are: {names}. The path of a directory has a '/' in it, as in"
            f" './{asked.place}'",
            name=asked.place,
        )
    place = parse_url(asked.place)
    if not isinstance(place, BucketPlace) and (asked.settings or asked.keys):
        raise Incompatible(f"{place.url} is a directory: endpoint, region, path style and keys are for s3:// URLs")
    for config in known.values():
        if config == replace(config, url=place.url, **asked.settings):
            return config.name
    wanted = RemoteConfig(DEFAULT_REMOTE, place.url, **asked.settings)
    if DEFAULT_REMOTE in known:
        _require_same(known[DEFAULT_REMOTE], wanted)
    else:
        repo.require_writable()
        with suppress(Conflict):  # another process of the same run was faster
            add_remote(repo.layout, repo.files, wanted)
        _require_same(remotes(repo.layout, repo.files)[DEFAULT_REMOTE], wanted)
    return DEFAULT_REMOTE


def _require_same(known: RemoteConfig, wanted: RemoteConfig) -> None:
    if known == replace(wanted, lazy=known.lazy):
        return
    raise Incompatible(
        f"remote {known.name!r} of this store is {_told(known)}, not {_told(wanted)}. For what it is, say"
        f" remote={known.name!r}; to put the other in its place, `moonclip remote remove {known.name}` first; to have"
        " both, add the other under a name with `moonclip remote add`",
        name=known.name,
        expected=known.url,
        got=wanted.url,
    )


def _told(config: RemoteConfig) -> str:
    settings = {"endpoint": config.endpoint_url, "region": config.region, "path style": config.path_style or None}
    told = ", ".join(f"{name} {value}" for name, value in settings.items() if value is not None)
    return f"{config.url} ({told})" if told else config.url
