"""File systems of their own, where the machine lets us mount some."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_file_system(path: Path, size_bytes: int) -> Iterator[Path]:
    """A file system in memory; the test is skipped where it cannot be mounted."""
    path.mkdir()
    _mount("-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path))
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@contextmanager
def overlay_file_system(path: Path) -> Iterator[Path]:
    """A file system as containers have it, above that of ``path``; the test is skipped where it cannot be mounted."""
    parts = {name: path / name for name in ("lower", "upper", "work", "merged")}
    for part in parts.values():
        part.mkdir(parents=True)
    layers = ",".join(f"{name}dir={parts[name]}" for name in ("lower", "upper", "work"))
    _mount("-t", "overlay", "overlay", "-o", layers, str(parts["merged"]))
    try:
        yield parts["merged"]
    finally:
        subprocess.run(["umount", "-l", str(parts["merged"])], check=True)


def make_read_only(path: Path, *, everywhere: bool) -> None:
    """Mount a file system anew: this mount of it read-only, or the file system itself."""
    _mount("-o", "remount,ro" if everywhere else "remount,bind,ro", str(path))


def _mount(*arguments: str) -> None:
    try:
        finished = subprocess.run(["mount", *arguments], check=False, capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"no mount: {error}")
    if finished.returncode:
        pytest.skip(f"cannot mount here: {finished.stderr.strip()}")
