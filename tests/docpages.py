"""Pages of documentation that run: their Python, and their commands with what these print.

Blocks run in the order in which they stand, in one directory:

- ``python``: all in one namespace; ``python train.py`` is written to that file instead.
- ``console``: each line that begins with ``$`` is run. What stands below it, if anything does, is what it prints; ``…``
  stands for anything in a line, alone for one or more lines. Ids, times, sizes and decimals may be others.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from click.testing import CliRunner

from moonclip.cli.app import commands

ROOT = Path(__file__).parents[1]
SHOWN_DIRECTORY = "/home/you/try"
"""What pages call the directory they run in."""
_BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```", re.MULTILINE | re.DOTALL)
_MASKS = (
    (re.compile(r"[\d.,]+ ?(B|[KMG]iB|bytes)\b"), "SIZE"),
    (re.compile(r"-?\d+(\.\d+e[+-]\d+|e[+-]\d+|\.\d+)"), "NUMBER"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d [+-]\d{4})?"), "TIME"),
    (re.compile(r"just now|\d+ (second|minute|hour)s? ago"), "AGO"),
    (re.compile(r"\b[0-9a-f]{8,64}\b"), "ID"),
    (re.compile(r"\s+"), " "),
)


class Block(NamedTuple):
    """A block of code.

    Attributes:
        language: what it is written in.
        name: the file that it is, or ``""``.
        text: the code.
    """

    language: str
    name: str
    text: str


def blocks(page: Path) -> list[Block]:
    """All blocks of code of a page."""
    return [Block(*found) for found in _BLOCK.findall(page.read_text())]


def links(page: Path) -> list[str]:
    """What a page's links to other files name."""
    return re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())


def play(page: Path, names: dict[str, Any], bucket_name: str = "bucket") -> None:
    """Run a page's blocks in the working directory.

    Args:
        page: the page.
        names: what its Python takes for granted, and where it leaves what it makes.
        bucket_name: what is to stand where the page says ``s3://bucket``.
    """
    for block in blocks(page):
        text = block.text.replace("s3://bucket", f"s3://{bucket_name}")
        if block.name:
            Path(block.name).write_text(text)
        elif block.language == "python":
            exec(compile(text, page.name, "exec"), names)
        elif block.language == "console":
            for command, shown in _commands(text):
                _require_shown(command, shown)


def _commands(text: str) -> Iterator[tuple[str, list[str]]]:
    for each in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *shown = each.rstrip("\n").split("\n")
        yield command, shown


def _require_shown(command: str, shown: Sequence[str]) -> None:
    exit_code, printed = run(command)
    is_to_fail = any(line.startswith(("error: ", "Killed")) for line in shown)
    assert (exit_code != 0) == is_to_fail, f"$ {command}\n{printed}"
    if shown:
        pattern = "\n".join(map(_pattern, shown))
        told = "\n".join(map(_masked, printed.replace(str(Path.cwd()), SHOWN_DIRECTORY).splitlines()))
        assert re.fullmatch(pattern, told), f"$ {command}\n{printed}"


def _pattern(line: str) -> str:
    if line == "…":
        return "(.*\n)*?.*"
    return ".*".join(re.escape(_masked(part)) for part in line.split("…"))


def _masked(line: str) -> str:
    for pattern, mask in _MASKS:
        line = pattern.sub(mask, line)
    return line.strip()


def run(command: str) -> tuple[int, str]:
    """Run a command; its exit code, and all that it prints.

    Moonclip's own commands run in this process: starting one for each would take most of a page's time.
    """
    if command.startswith("moonclip ") and not re.search(r"[|>]", command):
        result = CliRunner().invoke(commands, shlex.split(command, comments=True)[1:], prog_name="moonclip")
        return result.exit_code, result.output
    settings = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    ended = subprocess.run(["bash", "-c", command], env=settings, capture_output=True, text=True, check=False)
    killed = "Killed\n" if ended.returncode in {-signal.SIGKILL, 128 + signal.SIGKILL} else ""
    return ended.returncode, ended.stdout + ended.stderr.replace(killed, "") + killed
