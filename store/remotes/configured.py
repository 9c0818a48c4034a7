"""The remotes that a store knows, and the store's own id: both in its ``config`` file.

What else is in that file stays as it is: an older or newer version may have put it there.

Spec: docs/format.md, section on remotes.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from ..disk.files import Files
from ..errors import Conflict, Incompatible, NotFound
from ..layout import Layout
from ..naming.refnames import remote_name
from .storages.urls import check_endpoint, parse_url, require_no_credentials

_KEY: Final = "remotes"
_ID_DIGITS: Final = 32


@dataclass(frozen=True, slots=True)
class RemoteConfig:
    """A remote, as it is configured. Credentials are no part of it.

    Attributes:
        name: what it is called here.
        url: ``s3://bucket/prefix``, or a directory.
        endpoint_url: the S3 server, if it is not AWS.
        region: the S3 region, if the environment does not say.
        path_style: whether the bucket is part of the path and not of the host's name.
        lazy: whether what is absent here is fetched from there when it is read.
    """

    name: str
    url: str
    endpoint_url: str | None = None
    region: str | None = None
    path_style: bool = False
    lazy: bool = False


def remotes(layout: Layout, files: Files) -> dict[str, RemoteConfig]:
    """The remotes of a store, by name.

    Raises:
        Incompatible: the ``config`` file cannot be understood.
    """
    return _remotes_in(_read(layout, files), layout.config)


def remote_config(layout: Layout, files: Files, name: str) -> RemoteConfig:
    """One of them.

    Raises:
        NotFound: there is none of that name.
        Incompatible: the ``config`` file cannot be understood.
    """
    return _known(remotes(layout, files), name)


def add_remote(layout: Layout, files: Files, config: RemoteConfig) -> None:
    """Remember a remote.

    Raises:
        Conflict: there is one of that name.
        Incompatible: a bad name, a URL that holds credentials or is none; or the ``config`` file cannot be understood.
    """
    check_remote(config)

    def change(known: dict[str, RemoteConfig]) -> None:
        if config.name in known:
            raise Conflict(
                f"there is a remote {config.name!r} already, at {known[config.name].url}; remove it, or take another"
                " name",
                name=config.name,
            )
        known[config.name] = config

    _change_remotes(layout, files, change)


def remove_remote(layout: Layout, files: Files, name: str) -> RemoteConfig:
    """Forget where a remote is, and say what it was: half of :func:`~store.remotes.forgetting.forget_remote`.

    Raises:
        NotFound: there is none of that name.
        Incompatible: the ``config`` file cannot be understood.
    """
    removed: list[RemoteConfig] = []
    _change_remotes(layout, files, lambda known: removed.append(known.pop(_known(known, name).name)))
    return removed[0]


def set_lazy(layout: Layout, files: Files, name: str, *, lazy: bool) -> None:
    """Say whether what is absent is fetched from a remote when it is read.

    Raises:
        NotFound: there is none of that name.
        Incompatible: the ``config`` file cannot be understood.
    """
    _change_remotes(layout, files, lambda known: known.update({name: replace(_known(known, name), lazy=lazy)}))


def store_id(layout: Layout, files: Files) -> str:
    """The store's id, 32 hex digits; a store without one gets it.

    Raises:
        Incompatible: the ``config`` file cannot be understood.
        OSError: there is none, and it could not be written.
    """
    found = _id_in(_read(layout, files))
    if found is None:
        given = _changed(layout, files, lambda config: config if _id_in(config) else {**config, "id": uuid4().hex})
        found = _id_in(given)
    assert found is not None
    return found


def change_id(layout: Layout, files: Files, old: str) -> str:
    """Give the store another id than ``old``, unless it has another already; returns it.

    Raises:
        Incompatible: the ``config`` file cannot be understood.
        OSError: it could not be written.
    """
    given = _changed(layout, files, lambda config: {**config, "id": uuid4().hex} if _id_in(config) == old else config)
    found = _id_in(given)
    return store_id(layout, files) if found is None else found


def check_remote(config: RemoteConfig) -> None:
    """See that a remote can be remembered.

    Raises:
        Incompatible: a bad name, a URL or endpoint that is none or holds credentials.
    """
    remote_name(config.name, "main")
    parse_url(config.url)
    if config.endpoint_url is not None:
        check_endpoint(config.endpoint_url)


# --- the file -------------------------------------------------------------------------------------------------------


def _read(layout: Layout, files: Files) -> dict[str, Any]:
    try:
        config = json.loads(files.read_bytes(layout.config))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise _not_understood(layout.config, str(error)) from error
    if not isinstance(config, dict):
        raise _not_understood(layout.config, "it is no JSON object")
    return config


def _changed(layout: Layout, files: Files, change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    with files.lock_exclusive(layout.config.with_name("config.lock")):
        before = _read(layout, files)
        after = change(before)
        if after != before:
            files.write_atomic(layout.config, (json.dumps(after, indent=2) + "\n").encode())
        return after


def _change_remotes(layout: Layout, files: Files, change: Callable[[dict[str, RemoteConfig]], None]) -> None:
    def changed(config: dict[str, Any]) -> dict[str, Any]:
        known = _remotes_in(config, layout.config)
        change(known)
        kept = config.get(_KEY, {})
        return {**config, _KEY: {name: {**kept.get(name, {}), **_written(each)} for name, each in known.items()}}

    _changed(layout, files, changed)


def _written(config: RemoteConfig) -> dict[str, Any]:
    return {key: value for key, value in asdict(config).items() if key != "name"}


def _remotes_in(config: dict[str, Any], path: Path) -> dict[str, RemoteConfig]:
    found = config.get(_KEY, {})
    try:
        return {name: _remote_in(name, values) for name, values in found.items()}
    except (TypeError, AttributeError, Incompatible) as error:
        raise _not_understood(path, str(error)) from error


def _remote_in(name: str, values: dict[str, Any]) -> RemoteConfig:
    known = {field.name for field in fields(RemoteConfig)} - {"name"}
    config = RemoteConfig(name, **{key: value for key, value in values.items() if key in known})
    texts = (config.url, config.endpoint_url or "", config.region or "")
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"remote {name!r}: its URL, endpoint or region is no text")
    remote_name(name, "main")
    for text in (config.url, config.endpoint_url or ""):
        require_no_credentials(text)  # and no more: of what a newer version knows, the other remotes may be used
    return config


def _id_in(config: dict[str, Any]) -> str | None:
    found = config.get("id")
    is_id = isinstance(found, str) and len(found) == _ID_DIGITS and set(found) <= set("0123456789abcdef")
    return found if is_id else None


def _known(known: dict[str, RemoteConfig], name: str) -> RemoteConfig:
    if name not in known:
        names = ", ".join(sorted(known)) or "none"
        raise NotFound(f"no remote {name!r} here; there are: {names}; see `moonclip remote`", name=name)
    return known[name]


def _not_understood(path: Path, why: str) -> Incompatible:
    return Incompatible(f"{path} cannot be understood ({why})", path=str(path))
