"""docs/format.md states constants: they are read out of it and compared with the code, so that neither drifts."""

import re
from pathlib import Path

import pytest

from moonclip.state import composites, containers, leaves
from store import ids, limits
from store.codec import Transform
from store.format.dtypes import DTYPES, Element
from store.format.objects import Kind
from store.layout import FEATURES

SPEC = (Path(__file__).parents[2] / "docs" / "format.md").read_text()


def test_every_named_constant_has_the_stated_value() -> None:
    stated = {name: int(value) for name, value in re.findall(r"`([A-Z_]{6,})` =\s+(\d+)", SPEC)}
    assert len(stated) >= 12
    unknown = {name for name in stated if not hasattr(limits, name)} - {"PACK_VERSION"}
    assert not unknown
    assert {name: getattr(limits, name) for name in stated if hasattr(limits, name)} == {
        name: value for name, value in stated.items() if hasattr(limits, name)
    }


def test_every_constant_marked_as_format_is_stated() -> None:
    source = Path(limits.__file__).read_text()
    marked = re.findall(r'^([A-Z_]+): Final[^\n]*\n"""\*format\*', source, re.MULTILINE)
    assert len(marked) >= 10
    stated_by_value = {"RANK_GRID": "2, 4 and 8 ranks"}
    missing = [name for name in marked if stated_by_value.get(name, f"`{name}`") not in SPEC]
    assert not missing


def test_contexts_of_ids() -> None:
    stated = set(re.findall(r"`(moonclip \d{4}-\d\d [a-z ]+ v\d)`", SPEC))
    assert stated == {ids.TREE_CONTEXT, ids.COMMIT_CONTEXT, ids.PACK_CONTEXT}


def test_feature_name() -> None:
    assert {f"`{feature}`" in SPEC for feature in FEATURES} == {True}


@pytest.mark.parametrize(
    ("field", "codes"), [("kind", Kind), ("transform", Transform), ("element", Element)], ids=lambda x: str(x)[:9]
)
def test_codes_in_an_objects_header(field: str, codes: type[Kind] | type[Transform] | type[Element]) -> None:
    row = re.search(rf"\| u8 \| {field}: ([^|(]+)", SPEC)
    assert row is not None
    stated = {name.upper(): int(code) for code, name in re.findall(r"(\d+) (\w+)", row[1])}
    assert stated == {member.name: int(member) for member in codes}


def test_table_of_dtypes() -> None:
    table = SPEC[SPEC.index("### 4.1") : SPEC.index("### 4.2")]
    stated: dict[str, tuple[int, str]] = {}
    for names, sizes, element in re.findall(r"^\| (`.+) \| ([\d, ]+) \| (\w+) \|$", table, re.MULTILINE):
        written = re.sub(r"`(u?)int1` … `u?int7`", ", ".join(rf"`\g<1>int{n}`" for n in range(1, 8)), names)
        found = re.findall(r"`(\w+)`", written)
        each = [int(size) for size in sizes.split(",")]
        for number, name in enumerate(found):
            stated[name] = (each[number if len(each) > 1 else 0], element)
    assert stated == {name: (known.item_bytes, known.element.name) for name, known in DTYPES.items()}


def names_after(start: str, stop: str) -> set[str]:
    section = SPEC[SPEC.index("## 9.") :]
    listed = section[section.index(start) : section.index(stop)]
    return set(re.findall(r"`([^`/]+)`", listed))


def test_types_of_containers() -> None:
    built = containers.BUILDERS.keys() | composites.BUILDERS.keys()
    assert names_after("Types of containers:", "Their `info`") == built


def test_tags_of_values() -> None:
    written = {tag for tag, _ in leaves._WRITERS.values()} | {"enum", "numpy.scalar", "pickle"}
    assert written == leaves._READERS.keys() | {"enum", "pickle"}
    assert names_after("**Tags** of values:", "Classes are looked up") - {"dict", "list", "tuple"} == written
