"""Pickle, by request only. Unpickling runs code: nothing here runs unless a :class:`Policy` says so by name."""

import io
import pickle
from typing import Any

from store.errors import Corrupt, Incompatible, Unsafe
from store.format.values import Plain

from .classes import dotted
from .policy import Policy
from .refusals import Refused


def to_pickle(obj: object, policy: Policy) -> Plain:
    """Name of the class and the pickle, if the policy allows it.

    Raises:
        Refused: it does not, or the object cannot be pickled.
    """
    cls = type(obj)
    text = dotted((cls.__module__, cls.__qualname__))
    if not (policy.allow_pickle or text in policy.classes):
        raise Refused(
            Incompatible,
            f"{text} is no type that can be kept without pickle; convert it, or pass allow=[{text!r}] to pickle it",
        )
    try:
        return (text, pickle.dumps(obj, protocol=5))
    except Exception as error:  # whatever __reduce__ or __getstate__ raises
        raise Refused(Incompatible, f"{text} cannot be pickled ({error})") from error


def from_pickle(payload: Plain, policy: Policy) -> object:
    """Unpickle, if the policy allows it: anything with ``allow_pickle``, else only the classes it lists.

    Raises:
        Refused: it does not, or the pickle is malformed.
    """
    if not (type(payload) is tuple and len(payload) == 2 and type(payload[0]) is str and type(payload[1]) is bytes):
        raise Refused(Corrupt, "malformed pickle payload")
    text, data = payload
    if not (policy.allow_pickle or text in policy.classes):
        raise Refused(
            Unsafe,
            f"this is a pickle of {text}, and unpickling runs code; if you trust its author, pass allow=[{text!r}] or "
            "allow_pickle=True",
        )
    try:
        return _Unpickler(io.BytesIO(data), policy).load()
    except Refused:
        raise
    except Exception as error:  # a pickle may raise anything
        raise Refused(Incompatible, f"the pickle of {text} cannot be read ({error})") from error


class _Unpickler(pickle.Unpickler):
    """Finds the classes that the policy lists, or any with ``allow_pickle``."""

    def __init__(self, file: io.BytesIO, policy: Policy) -> None:
        super().__init__(file)
        self._policy = policy

    def find_class(self, module: str, name: str, /) -> Any:
        text = dotted((module, name))
        if not (self._policy.allow_pickle or text in self._policy.classes):
            raise Refused(Unsafe, f"the pickle asks for {text}; if you trust its author, add it to allow=[...]")
        return super().find_class(module, name)
