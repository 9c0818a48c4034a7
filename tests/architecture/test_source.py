"""What the source promises a reader: files of a size one can hold in mind, and errors that exist."""

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for package in ("store", "moonclip") for path in (ROOT / package).rglob("*.py"))
MAX_LINES = 400
MAX_FACADE_LINES = 480
FACADE = "moonclip/manager.py"
"""One class with one method for each thing a person can do: its length is its documentation."""
TABLE = "store/limits.py"
"""A list of numbers, looked up and never read through: it is as long as there are numbers."""
MAX_FUNCTION_LINES = 60

_RAISES = re.compile(r"^ *Raises:\n((?:\n| {4,}.*\n?)*)", re.MULTILINE)
_ERROR = re.compile(r"([A-Z]\w*):")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def errors_named_in(docstring: str) -> Iterator[str]:
    """The names at the least indentation under each *Raises*: deeper lines continue an explanation."""
    for section in _RAISES.finditer(docstring):
        lines = [line for line in section[1].splitlines() if line.strip()]
        margin = min((len(line) - len(line.lstrip()) for line in lines), default=0)
        for line in lines:
            match = _ERROR.match(line[margin:])
            if match:
                yield match[1]


def errors_defined() -> set[str]:
    """Names of all exception classes of ours."""
    bases = {
        node.name: [ast.unparse(base).rpartition(".")[2] for base in node.bases]
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    return {name for name in bases if _is_exception(name, bases)}


def _is_exception(name: str, bases: dict[str, list[str]]) -> bool:
    if name in bases:
        return any(_is_exception(base, bases) for base in bases[name])
    found = getattr(builtins, name, None)
    return isinstance(found, type) and issubclass(found, BaseException)


def docstrings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""


OUR_ERRORS = errors_defined()


@pytest.mark.parametrize("path", [path for path in SOURCES if name_of(path) != TABLE], ids=name_of)
def test_files_have_one_job(path: Path) -> None:
    most = MAX_FACADE_LINES if name_of(path) == FACADE else MAX_LINES
    assert len(path.read_text(encoding="utf-8").splitlines()) <= most


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_functions_fit_on_a_screen(path: Path) -> None:
    functions = [
        node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.FunctionDef)
    ]
    assert not [f.name for f in functions if f.end_lineno and f.end_lineno - f.lineno >= MAX_FUNCTION_LINES]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_errors_that_docstrings_name_exist(path: Path) -> None:
    named = {error for text in docstrings(path) for error in errors_named_in(text)}
    assert not named - OUR_ERRORS - set(vars(builtins))


def test_the_reader_of_docstrings_sees_what_they_name() -> None:
    raises = "Raises:\n    NotFound: none such: Really.\n        Corrupt: no name.\n    OSError: it broke.\n"
    text = f"Read.\n\n{raises}\nCost: none.\n"
    assert list(errors_named_in(text)) == ["NotFound", "OSError"]
