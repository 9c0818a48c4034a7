"""Leaves: objects without parts that the engine has no type for, and the tags they are kept under.

Tags are a white-list. Payloads use tuples, never lists, so that a tagged leaf can be a key or a member of a set.
"""

import enum
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from pathlib import Path, PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import torch

from store.beside import composed
from store.errors import Corrupt, Incompatible
from store.format.values import Plain, Tagged

from .classes import name_of, resolve
from .pickles import from_pickle, to_pickle
from .policy import Policy
from .refusals import Refused

PLAIN_LEAVES: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types the engine keeps as they are."""

_SCALAR_KINDS: Final = "biufcmM"
"""Kinds of NumPy scalars that are kept by dtype and bytes: numbers, truth values, dates and intervals."""


def to_plain_leaf(obj: object, policy: Policy) -> Plain:
    """Plain form of a leaf.

    Raises:
        Refused: no type on the white-list, and the policy does not have it pickled.
    """
    kind = type(obj)
    if kind in PLAIN_LEAVES:
        return obj
    if kind in _WRITERS:
        tag, write = _WRITERS[kind]
        return Tagged(tag, write(obj))
    if isinstance(obj, enum.Enum):
        return Tagged("enum", _enum_payload(obj))
    if isinstance(obj, np.generic) and obj.dtype.kind in _SCALAR_KINDS:
        return Tagged("numpy.scalar", (obj.dtype.str, obj.tobytes()))
    return Tagged("pickle", to_pickle(obj, policy))


def from_tagged_leaf(value: Tagged, policy: Policy) -> object:
    """Inverse of :func:`to_plain_leaf` for tagged leaves.

    Raises:
        Refused: an unknown tag, a payload that does not fit its tag, a class or pickle the policy does not allow.
    """
    try:
        if value.tag == "enum":
            return _enum_from(value.payload, policy)
        if value.tag == "pickle":
            return from_pickle(value.payload, policy)
        read = _READERS[value.tag]
    except KeyError:
        raise Refused(Incompatible, f"unknown type {value.tag!r}; a newer moonclip may know it") from None
    try:
        return read(value.payload)
    except Exception as error:  # payloads come from anywhere, and constructors vary in what they raise
        raise Refused(Corrupt, f"malformed {value.tag} ({error})") from error


# --- enums ------------------------------------------------------------------------------------------------------


def _enum_payload(member: enum.Enum) -> Plain:
    """Class, name and value; combined flags have a value only."""
    cls = type(member)
    if cls.__members__.get(member.name) is member:
        return (name_of(cls), member.name, None)
    if isinstance(member, enum.Flag):
        return (name_of(cls), None, int(member.value))
    raise Refused(Incompatible, f"{member!r} is no member of its class by its name")


def _enum_from(payload: Plain, policy: Policy) -> enum.Enum:
    if type(payload) is not tuple or len(payload) != 3:
        raise Refused(Corrupt, f"malformed enum {payload!r:.80}")
    cls = resolve(payload[0], enum.Enum, policy)
    if payload[1] in cls.__members__:
        return cls.__members__[payload[1]]
    if payload[1] is None and issubclass(cls, enum.Flag) and type(payload[2]) is int:
        return _flags_from(cls, payload[2])
    raise Refused(Incompatible, f"{cls.__name__} has no member {payload[1]!r} any more")


def _flags_from(cls: type[enum.Flag], value: int) -> enum.Flag:
    try:
        return cls(value)
    except ValueError as error:
        raise Refused(Incompatible, str(error)) from None


# --- time -------------------------------------------------------------------------------------------------------


def _zone_payload(zone: object) -> Plain:
    if zone is None:
        return None
    if type(zone) is timezone:
        return _interval_payload(zone.utcoffset(None))
    if type(zone) is ZoneInfo and zone.key is not None:
        return zone.key
    raise Refused(Incompatible, f"cannot keep the time zone {zone!r}; use datetime.timezone or zoneinfo.ZoneInfo")


def _zone_from(payload: Plain) -> timezone | ZoneInfo | None:
    if payload is None:
        return None
    return ZoneInfo(payload) if type(payload) is str else timezone(timedelta(*payload))


def _interval_payload(interval: timedelta) -> Plain:
    return (interval.days, interval.seconds, interval.microseconds)


def _moment_payload(moment: datetime | time) -> Plain:
    return (moment.replace(tzinfo=None, fold=0).isoformat(), moment.fold, _zone_payload(moment.tzinfo))


def _moment_from(cls: type[datetime] | type[time]) -> Callable[[Plain], object]:
    def read(payload: Plain) -> object:
        text, fold, zone = payload
        return cls.fromisoformat(text).replace(fold=fold, tzinfo=_zone_from(zone))

    return read


# --- torch and NumPy ----------------------------------------------------------------------------------------------


def _named_constant(kind: type) -> tuple[Callable[[Any], Plain], Callable[[Plain], object]]:
    """Writer and reader of ``torch.float32`` and the like, by their name in ``torch``."""

    def read(name: Plain) -> object:
        constant = vars(torch).get(name)
        if type(constant) is not kind:
            raise ValueError(f"this torch has no torch.{name}")
        return constant

    return lambda constant: str(constant).removeprefix("torch."), read


def _scalar_from(payload: Plain) -> np.generic:
    dtype, data = np.dtype(payload[0]), payload[1]
    if dtype.kind not in _SCALAR_KINDS or dtype.itemsize != len(_bytes(data)):
        raise ValueError(f"{len(data)} bytes are no {dtype}")
    scalar: np.generic = np.frombuffer(data, dtype)[0]
    return scalar


def _generator_payload(generator: torch.Generator) -> Plain:
    return (str(generator.device), generator.get_state().numpy().tobytes())


def _generator_from(payload: Plain) -> torch.Generator:
    generator = torch.Generator(payload[0])
    generator.set_state(torch.frombuffer(bytearray(_bytes(payload[1])), dtype=torch.uint8))
    return generator


def _bytes(payload: Plain) -> bytes:
    """The payload, if it is bytes: a number here would ask the constructors for that much memory."""
    if type(payload) is not bytes:
        raise TypeError(f"bytes expected, got {payload!r:.40}")
    return payload


def _text(payload: Plain) -> str:
    if type(payload) is not str:
        raise TypeError(f"text expected, got {payload!r:.40}")
    return payload


# --- the white-list -----------------------------------------------------------------------------------------------

_DTYPE, _LAYOUT, _MEMORY_FORMAT = (_named_constant(kind) for kind in (torch.dtype, torch.layout, torch.memory_format))

_WRITERS: Final[dict[type, tuple[str, Callable[[Any], Plain]]]] = {
    bytearray: ("bytearray", bytes),
    composed.Composed: (composed.TAG, lambda file: composed.to_plain(file).payload),
    range: ("range", lambda r: (r.start, r.stop, r.step)),
    PosixPath: ("path", str),
    WindowsPath: ("path", str),
    PurePosixPath: ("posix path", str),
    PureWindowsPath: ("windows path", str),
    date: ("date", date.isoformat),
    datetime: ("datetime", _moment_payload),
    time: ("time", _moment_payload),
    timedelta: ("timedelta", _interval_payload),
    timezone: ("time zone", _zone_payload),
    ZoneInfo: ("time zone", _zone_payload),
    np.bytes_: ("numpy.bytes", bytes),
    np.str_: ("numpy.str", str),
    torch.Size: ("torch.Size", tuple),
    torch.device: ("torch.device", str),
    torch.Generator: ("torch.Generator", _generator_payload),
    torch.torch_version.TorchVersion: ("torch.version", str),
    torch.dtype: ("torch.dtype", _DTYPE[0]),
    torch.layout: ("torch.layout", _LAYOUT[0]),
    torch.memory_format: ("torch.memory_format", _MEMORY_FORMAT[0]),
}

_READERS: Final[dict[str, Callable[[Plain], object]]] = {
    "bytearray": lambda data: bytearray(_bytes(data)),
    composed.TAG: composed.from_payload,
    "range": lambda bounds: range(*bounds),
    "path": Path,
    "posix path": PurePosixPath,
    "windows path": PureWindowsPath,
    "date": date.fromisoformat,
    "datetime": _moment_from(datetime),
    "time": _moment_from(time),
    "timedelta": lambda parts: timedelta(*parts),
    "time zone": _zone_from,
    "torch.Size": torch.Size,
    "torch.device": torch.device,
    "torch.Generator": _generator_from,
    "torch.version": lambda text: torch.torch_version.TorchVersion(_text(text)),
    "torch.dtype": _DTYPE[1],
    "torch.layout": _LAYOUT[1],
    "torch.memory_format": _MEMORY_FORMAT[1],
    "numpy.scalar": _scalar_from,
    "numpy.bytes": lambda data: np.bytes_(_bytes(data)),
    "numpy.str": lambda text: np.str_(_text(text)),
}
