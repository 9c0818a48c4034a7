"""Lightning's classes, of each package that holds them: a trainer takes only those of its own."""

from importlib import import_module
from importlib.util import find_spec
from types import new_class
from typing import Any, Final

from store.errors import Incompatible

_FABRIC: Final = ("lightning.fabric", "lightning_fabric")
_PYTORCH: Final = ("lightning.pytorch", "pytorch_lightning")


def twins(module: str, name: str) -> list[Any]:
    """What goes by a name in a module of Fabric's (``plugins.io``) or of the trainer's (``callbacks``).

    Raises:
        Incompatible: Lightning is not installed.
    """
    packages = _PYTORCH if module == "callbacks" else _FABRIC
    found = [getattr(import_module(f"{package}.{module}"), name) for package in packages if _is_installed(package)]
    if not found:
        raise Incompatible("this needs Lightning: pip install lightning")
    return found


def base(module: str, name: str) -> Any:
    """A class that derives from all that go by a name.

    Raises:
        Incompatible: Lightning is not installed.
    """
    return new_class(name, tuple(twins(module, name)))


def _is_installed(package: str) -> bool:
    return find_spec(package.partition(".")[0]) is not None
