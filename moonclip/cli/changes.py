"""What differs between two commits, in words and as JSON. Pure."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from math import inf
from typing import Any, Final

import click

from store.comparing import CommitDiff, Form, ItemDiff, TensorDiff, ValueDiff
from store.format.values import Plain
from store.limits import DIFF_NUMBERS_COUNT

from ..loading.stored import full_name
from ..state.names import join, segment
from .plain import to_json, to_text
from .text import columns, counted, inline, printable, size

_MARKS: Final = {"changed": ("~", None), "added": ("+", "green"), "removed": ("-", "red")}
_TITLES: Final = ["", "tensor", "dtype", "shape", "rel. L2", "max abs", "cosine", "changed", "stored", ""]
_FIRST_NUMBER: Final = 4
_TEXT_WIDTH: Final = 60

Counts = dict[str, dict[str, int]]


# --- for people -----------------------------------------------------------------------------------------------------


def stat_lines(diff: CommitDiff) -> Iterator[str]:
    """A line for each item, and the sum."""
    if diff.items:
        yield from columns(
            [[f" {inline(item.name)}", _item_text(item), size(item.stored_bytes)] for item in diff.items]
        )
    totals: Counts = {
        kind: dict(sum((Counter(counts(item)[kind]) for item in diff.items), Counter()))
        for kind in ("tensors", "values")
    }
    is_absent = any(item.absent for item in diff.items)
    words = ", ".join(_words(totals)) or ("nothing can be compared" if is_absent else "nothing differs")
    yield f" {counted(len(diff.items), 'item')}: {words}; {size(diff.stored_bytes)} stored"


def header_lines(diff: CommitDiff) -> Iterator[str]:
    """What differs in the commits themselves."""
    return (_value_line(change, change.name) for change in diff.header)


def item_lines(item: ItemDiff, order: Callable[[TensorDiff], Any]) -> Iterator[str]:
    """An item, and each tensor and value in it that differs.

    Args:
        item: the item.
        order: key by which its tensors are sorted.
    """
    yield f"{inline(item.name)}: {_item_text(item)}; {size(item.stored_bytes)} stored"
    tensors = sorted(item.tensors, key=order)
    if tensors:
        title, *lines = _table([_tensor_row(item.name, tensor) for tensor in tensors])
        yield title
        yield from (_styled(line, tensor.status) for line, tensor in zip(lines, tensors, strict=True))
    for change in item.values:
        yield _value_line(change, full_name(item.name, change.name))


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows below their titles, without columns that are empty in all."""
    shown = [number for number in range(len(_TITLES)) if any(row[number] for row in rows)]
    aligned_right = [place for place, number in enumerate(shown) if number >= _FIRST_NUMBER]
    return columns([[row[number] for number in shown] for row in (_TITLES, *rows)], right=aligned_right)


def by_change(tensor: TensorDiff) -> tuple[Any, ...]:
    """Key that puts the largest change first: another shape, then by relative L2; what is new or gone comes last."""
    measures = tensor.measures
    if measures is None:
        change = inf
    elif measures.relative_l2 is None:
        change = measures.changed_count / max(measures.element_count, 1)
    else:
        change = measures.relative_l2
    return (tensor.status != "changed", -change, tensor.name)


def by_name(tensor: TensorDiff) -> tuple[Any, ...]:
    """Key that sorts by name."""
    return (tensor.name,)


def by_bytes(tensor: TensorDiff) -> tuple[Any, ...]:
    """Key that puts first what takes most."""
    return (-tensor.stored_bytes, tensor.name)


def _item_text(item: ItemDiff) -> str:
    words: list[str] = [] if item.before and item.after else [item.status]
    if item.absent:
        return ", ".join([*words, printable(item.absent)])
    words += _words(counts(item))
    if item.ties_differ:
        words.append("other names are one tensor")
    if item.status == "identical" and not item.is_same_tree:
        words.append("in another order or cut in other places")
    return ", ".join(words) or "empty"


def _words(by_kind: Counts) -> list[str]:
    """``["2 tensors changed", "1 tensor added", "46 tensors identical", "1 value changed"]``."""
    return [
        f"{counted(count, kind.removesuffix('s'))} {status}"
        for kind, by_status in by_kind.items()
        for status, count in by_status.items()
        if count
    ]


def _tensor_row(item: str, tensor: TensorDiff) -> list[str]:
    sides = [side for side in (tensor.before, tensor.after) if side is not None]
    name = inline(full_name(item, tensor.name))
    forms = [_arrow([side.dtype for side in sides]), _arrow([str(list(side.shape)) for side in sides])]
    stored = "" if tensor.after is None else size(tensor.stored_bytes)
    return [f"  {_MARKS[tensor.status][0]}", name, *forms, *_numbers(tensor), stored, _not_finite(tensor)]


def _numbers(tensor: TensorDiff) -> list[str]:
    measures = tensor.measures
    if measures is None:
        return [""] * 4
    changed = f"{100 * measures.changed_count / max(measures.element_count, 1):.3g} %"
    numbers = (measures.relative_l2, measures.max_abs)
    cosine = "-" if measures.cosine is None else f"{measures.cosine:.6f}"
    return [*("-" if number is None else f"{number:.3g}" for number in numbers), cosine, changed]


def _not_finite(tensor: TensorDiff) -> str:
    measures = tensor.measures
    if measures is None or not (measures.nonfinite_before or measures.nonfinite_after):
        return ""
    return f"NaN or infinite, left out: {measures.nonfinite_before:,} -> {measures.nonfinite_after:,}"


def _arrow(texts: Sequence[str]) -> str:
    return " -> ".join(dict.fromkeys(texts))


def _value_line(change: ValueDiff, name: str) -> str:
    path = inline(_path(name, change.keys))
    sides = {"added": (change.after,), "removed": (change.before,), "changed": (change.before, change.after)}
    return _styled(
        f"  {_MARKS[change.status][0]}  {path}: {' -> '.join(map(_brief, sides[change.status]))}", change.status
    )


def _path(name: str, keys: Sequence[Plain]) -> str:
    for key in keys:
        name = join(name, segment(key))
    return name


def _brief(value: Plain) -> str:
    """A value in a few words."""
    if isinstance(value, list | tuple | set | frozenset | dict) and len(value) > DIFF_NUMBERS_COUNT:
        return f"{type(value).__name__} of {len(value):,}"
    text = to_text(value[:_TEXT_WIDTH] if isinstance(value, str) else value)
    return text if len(text) <= _TEXT_WIDTH else f"{text[: _TEXT_WIDTH - 3]}..."


def _styled(line: str, status: str) -> str:
    return click.style(line, fg=_MARKS[status][1]) if _MARKS[status][1] else line


# --- for programs ---------------------------------------------------------------------------------------------------


def counts(item: ItemDiff) -> Counts:
    """Tensors and values of an item, by what became of them."""
    return {
        "tensors": _by_status(item.tensors, item.identical_tensor_count),
        "values": _by_status(item.values, item.identical_value_count),
    }


def _by_status(differing: Sequence[TensorDiff | ValueDiff], identical_count: int) -> dict[str, int]:
    found = Counter[str](each.status for each in differing)
    return {status: found[status] for status in ("changed", "added", "removed")} | {"identical": identical_count}


def item_json(item: ItemDiff, order: Callable[[TensorDiff], Any], *, in_full: bool) -> dict[str, Any]:
    """An item for programs.

    Args:
        item: the item.
        order: key by which its tensors are sorted.
        in_full: whether to list tensors and values, not only count them.
    """
    document: dict[str, Any] = {
        "name": item.name,
        "status": item.status,
        "absent": item.absent or None,
        "counts": counts(item),
        "ties_differ": item.ties_differ,
        "same_tree": item.is_same_tree,
        "stored_bytes": item.stored_bytes,
    }
    if in_full:
        document["tensors"] = [_tensor_json(item.name, tensor) for tensor in sorted(item.tensors, key=order)]
        document["values"] = [value_json(change, full_name(item.name, change.name)) for change in item.values]
    return document


def value_json(change: ValueDiff, name: str) -> dict[str, Any]:
    """A value that differs, for programs."""
    return {
        "path": _path(name, change.keys),
        "status": change.status,
        "before": to_json(change.before),
        "after": to_json(change.after),
    }


def _tensor_json(item: str, tensor: TensorDiff) -> dict[str, Any]:
    measures = tensor.measures
    return {
        "name": full_name(item, tensor.name),
        "status": tensor.status,
        "before": _form_json(tensor.before),
        "after": _form_json(tensor.after),
        "stored_bytes": tensor.stored_bytes,
        "measures": None if measures is None else {key: to_json(value) for key, value in asdict(measures).items()},
    }


def _form_json(form: Form | None) -> dict[str, Any] | None:
    return None if form is None else {"dtype": form.dtype, "shape": list(form.shape), "raw_bytes": form.raw_bytes}
