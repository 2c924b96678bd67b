"""Axes fork a target into cells: ``axes: {precision: [fp32, fp16]}`` in NAME makes NAME-fp32 and NAME-fp16.

A cell is the target with its axis values laid over, as if the file had said them: it has the same keys as a target that does.
``exclude`` takes cells out; those that cannot exist at all (``matrix/rules.py``) leave by themselves. Both say why.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.errors import CONFIG_VALUE, TARGET_CONFLICT, TARGET_IMPOSSIBLE, EnginefarmError, Where
from orchestrator.matrix import yaml_reader
from orchestrator.matrix.binder import CLOSE, Binder, is_null
from orchestrator.matrix.layers import AXIS, EffectiveTarget, Source, Value, Values, name_advice, overlay
from orchestrator.matrix.schema import NAME_PATTERN, PRECISIONS, Axes, Exclusion, Name, Precision, Profile
from orchestrator.matrix.shapes import format_profile
from orchestrator.matrix.yaml_syntax import short

FIELDS = ("axes", "exclude")
"""Fields of a target's file that no target has: they are expanded away."""
MAX_CELLS = 256
MAX_NAME = 64  # as schema.Name says
ORDER = ("precision", "shapes")
"""Of the parts of a cell's name; that of the lines in the file does not count."""

_FORM = "write axes: {precision: [fp32, fp16]}, or axes: {shapes: {small: {INPUT: 1x3x224x224}}}"
_EXCLUDE_FORM = "write - {precision: fp32, why: does not fit into 8 GB}"


@dataclass(frozen=True)
class Choice:
    """One value of an axis: ``label`` is its part of a cell's name, ``values`` what it lays over the target."""

    label: str
    values: Values
    where: Where


@dataclass(frozen=True)
class Excluded:
    """One entry of ``exclude``: axis -> value and its place."""

    chosen: dict[str, tuple[str, Where]]
    why: str
    where: Where

    def covers(self, labels: Mapping[str, str]) -> bool:
        return all(labels[axis] == label for axis, (label, _) in self.chosen.items())


@dataclass(frozen=True)
class Cell:
    """One cell before it is checked: ``values`` are those of its target with the axis values over them."""

    name: str
    values: Values
    where: Where
    excluded: Excluded | None


@dataclass(frozen=True)
class ExcludedCell:
    """A cell that is not built: ``where`` is the place that excludes it, or that makes it impossible."""

    effective: EffectiveTarget
    why: str
    where: Where

    @property
    def name(self) -> str:
        return self.effective.target.name

    @property
    def refusal(self) -> EnginefarmError:
        """What is said to someone who asks for it."""
        fix = f"select other cells: enginefarm targets show {self.effective.cell_of}"
        return EnginefarmError(TARGET_IMPOSSIBLE, f"{self.name} is excluded", where=self.where, why=self.why, fix=fix)


def read_axes(root: yaml_reader.Mapping, layer: str, binder: Binder) -> Values:
    """``axes`` and ``exclude`` of a file: ``axes.<axis>`` -> choices, ``exclude`` -> entries; None where null unsets them.

    Problems go to ``binder``, which calls the field broken.
    """
    values: Values = {}
    for name, read in (("axes", _axes), ("exclude", _exclude)):
        node = root.entries.get(name)
        if node is None:
            continue
        before = len(binder.problems)
        found = {name: None} if is_null(node) else read(node, binder)
        if len(binder.problems) > before:
            binder.broken.add(name)
        else:
            values |= {key: Value(value, Source(layer, node.where)) for key, value in found.items()}
    return values


def _told(binder: Binder, what: str, where: Where, fix: str, why: str | None = None) -> None:
    binder.problems.append(EnginefarmError(CONFIG_VALUE, what, where=where, why=why, fix=fix))


def _axes(node: yaml_reader.Node, binder: Binder) -> dict[str, Any]:
    if not isinstance(node, yaml_reader.Mapping):
        binder.value(node, Axes, "axes")
        return {}
    if not node.entries:
        _told(binder, "axes is empty", node.where, _FORM)
    known = dict.fromkeys(ORDER, Any)
    others = {key: child for key, child in node.entries.items() if key not in known}
    binder.fields(yaml_reader.Mapping(others, node.keys, node.where), known, "axes.")
    readers = {"precision": _precisions, "shapes": _shape_sets}
    found: dict[str, Any] = {}
    for axis, read in readers.items():
        child = node.entries.get(axis)
        if child is not None:
            found[f"axes.{axis}"] = None if is_null(child) else tuple(read(child, binder))
    return found


def _precisions(node: yaml_reader.Node, binder: Binder) -> Iterator[Choice]:
    items = node.items if isinstance(node, yaml_reader.Sequence) else (node,)
    if not items:
        _told(binder, "axes.precision is empty", node.where, f"name some of {', '.join(PRECISIONS)}, or remove the line")
    seen: dict[str, Where] = {}
    for item in items:
        label = binder.value(item, Precision, "axes.precision")
        if label in seen:
            _told(binder, f"{label} is given twice", item.where, "name each precision once", f"the first is on line {seen[label].line}")
        elif label is not None:
            seen[label] = item.where
            yield Choice(label, {"precision": Value(label, Source(AXIS, item.where))}, item.where)


def _shape_sets(node: yaml_reader.Node, binder: Binder) -> Iterator[Choice]:
    if not isinstance(node, yaml_reader.Mapping):
        binder.value(node, dict[str, Any], "axes.shapes")
        return
    if not node.entries:
        _told(binder, "axes.shapes is empty", node.where, "write lines like small: {INPUT: 1x3x224x224}, or remove the line")
    for label, child in node.entries.items():
        key = node.keys[label]
        if binder.value(key, Name, "axes.shapes") is None:
            continue
        if not re.fullmatch(NAME_PATTERN, label):
            why, fix = name_advice(label)
            _told(binder, f'axes.shapes cannot have the name "{short(label)}"', key.where, fix or "choose another name", why)
            continue
        dotted = f"axes.shapes.{label}"
        if not isinstance(child, yaml_reader.Mapping) or not child.entries:
            _told(binder, f"{dotted} names no input", child.where, f"write {label}: {{INPUT: 1x3x224x224}}")
            continue
        alone = yaml_reader.Mapping({label: child}, {label: key}, node.where)
        bound = binder.fields(alone, {label: dict[str, Profile]}, "axes.shapes.")
        shapes = {f"shapes{name[len(dotted) :]}": Value(item.value, Source(AXIS, item.where)) for name, item in bound.items()}
        yield Choice(label, shapes, key.where)


def _exclude(node: yaml_reader.Node, binder: Binder) -> dict[str, Any]:
    if not isinstance(node, yaml_reader.Sequence):
        _told(binder, "exclude needs a list", node.where, _EXCLUDE_FORM)
        return {}
    if not node.items:
        _told(binder, "exclude is empty", node.where, f"{_EXCLUDE_FORM}, or remove the line")
    entries = [_entry(item, binder) for item in node.items]
    return {"exclude": tuple(entry for entry in entries if entry is not None)}


def _entry(node: yaml_reader.Node, binder: Binder) -> Excluded | None:
    if not isinstance(node, yaml_reader.Mapping):
        binder.value(node, Exclusion, "exclude")
        return None
    before = len(binder.problems)
    bound = binder.fields(node, {"precision": Precision, "shapes": Name, "why": str}, "exclude.")
    if len(binder.problems) > before:
        return None
    why = bound.pop("exclude.why", None)
    if why is None or not why.value.strip():
        _told(binder, "why is missing", node.where, _EXCLUDE_FORM, "what is not built says why, in every table")
    if not bound:
        _told(binder, "the entry names no axis", node.where, _EXCLUDE_FORM, "it would exclude every cell")
    if why is None or not bound:
        return None
    return Excluded({name[len("exclude.") :]: (item.value, item.where) for name, item in bound.items()}, why.value.strip(), node.where)


def is_axis_field(name: str) -> bool:
    """Whether a dotted field name belongs to ``axes`` or ``exclude``."""
    return name.split(".", 1)[0] in FIELDS


def forks(values: Values) -> bool:
    return any(name.startswith("axes.") and item.value is not None for name, item in values.items())


def plain(values: Values) -> Values:
    """What a target is but for its axes."""
    return {name: item for name, item in values.items() if not is_axis_field(name)}


def expand(name: str, values: Values, problems: list[EnginefarmError]) -> list[Cell]:
    """The cells of a target, excluded ones too; none, with problems added, when its axes or exclusions are wrong."""
    axes = {axis: values[f"axes.{axis}"] for axis in ORDER if f"axes.{axis}" in values and values[f"axes.{axis}"].value is not None}
    said = values.get("exclude")
    entries: tuple[Excluded, ...] = () if said is None or said.value is None else said.value
    if not axes:
        if said is not None and entries:
            what, fix = "there is nothing to exclude from", "add axes, or remove exclude"
            problems.append(EnginefarmError(CONFIG_VALUE, what, where=_in(said.source.where, name), why=f"{name} has no axes", fix=fix))
        return []
    choices = {axis: value.value for axis, value in axes.items()}
    place = _in(next(iter(axes.values())).source.where, name)
    wrong = list(_wrong_size(values, choices, place)) or list(_wrong_entries(name, choices, entries))
    problems += wrong
    return [] if wrong else [_cell(name, plain(values), picked, entries) for picked in _product(choices)]


def _in(where: Where | None, name: str) -> Where:
    return replace(where or Where(), target=name)


def _product(choices: Mapping[str, Sequence[Choice]]) -> Iterator[dict[str, Choice]]:
    return (dict(zip(choices, picked, strict=True)) for picked in itertools.product(*choices.values()))


def _labels(picked: Mapping[str, Choice]) -> dict[str, str]:
    return {axis: choice.label for axis, choice in picked.items()}


def _cell(name: str, values: Values, picked: Mapping[str, Choice], entries: Iterable[Excluded]) -> Cell:
    labels = _labels(picked)
    end = "".join(f"-{label}" for label in labels.values())
    upper: Values = {}
    for choice in picked.values():
        upper |= choice.values
    for field in ("name", "tag"):
        if field in values:
            upper[field] = Value(f"{values[field].value}{end}", values[field].source)
    where = list(picked.values())[-1].where
    return Cell(name + end, overlay(values, upper), where, next((entry for entry in entries if entry.covers(labels)), None))


def _wrong_size(values: Values, choices: Mapping[str, Sequence[Choice]], place: Where) -> Iterator[EnginefarmError]:
    count = 1
    for options in choices.values():
        count *= len(options)
    if count > MAX_CELLS:
        fix = "make several targets of it, with extends"
        yield EnginefarmError(CONFIG_VALUE, f"the axes make {count} cells", where=place, why=f"at most {MAX_CELLS} are taken", fix=fix)
    end = "".join("-" + max((choice.label for choice in options), key=len) for options in choices.values())
    for field in ("name", "tag"):
        longest = f"{values[field].value}{end}" if field in values else ""
        if len(longest) > MAX_NAME:
            why = f"it has {len(longest)} characters, at most {MAX_NAME} are taken"
            yield EnginefarmError(CONFIG_VALUE, f'the {field} "{longest}" is too long', where=place, why=why, fix="use shorter names")
            return


def _wrong_entries(name: str, choices: Mapping[str, Sequence[Choice]], entries: Sequence[Excluded]) -> Iterator[EnginefarmError]:
    """Entries that exclude nothing: by an axis or a value that is not there, or since others did."""
    left = [_labels(picked) for picked in _product(choices)]
    for entry in entries:
        wrong = [problem for axis, (label, where) in entry.chosen.items() if (problem := _wrong_choice(name, choices, axis, label, where))]
        yield from wrong
        if wrong:
            continue
        rest = [labels for labels in left if not entry.covers(labels)]
        if len(rest) == len(left):
            what, why = "the entry excludes nothing", "the ones before it exclude these cells already"
            yield EnginefarmError(CONFIG_VALUE, what, where=_in(entry.where, name), why=why, fix="remove it")
        left = rest


def _wrong_choice(name: str, choices: Mapping[str, Sequence[Choice]], axis: str, label: str, where: Where) -> EnginefarmError | None:
    place = _in(where, name)
    if axis not in choices:
        what, fix = f"{axis} is not an axis of {name}", f"its axes: {', '.join(choices)}"
        return EnginefarmError(CONFIG_VALUE, what, where=place, why="the entry excludes nothing", fix=fix)
    known = [choice.label for choice in choices[axis]]
    if label in known:
        return None
    close = difflib.get_close_matches(label, known, n=1, cutoff=CLOSE)
    fix = f"did you mean {close[0]}?" if close else f"one of: {', '.join(known)}"
    what = f'axes.{axis} has no "{short(label)}"'
    return EnginefarmError(CONFIG_VALUE, what, where=place, why="the entry excludes nothing", fix=fix)


@dataclass(frozen=True)
class Checked:
    """A cell with what is wrong with it; ``effective`` is None when it cannot be read as a target at all."""

    cell: Cell
    effective: EffectiveTarget | None
    problems: list[EnginefarmError]


def sort_out(name: str, checked: Sequence[Checked], problems: list[EnginefarmError]) -> tuple[list[EffectiveTarget], list[ExcludedCell]]:
    """The cells that can be built and those that cannot; what is wrong with the file goes to ``problems``.

    Impossible in some cells is an exclusion. Impossible in all of them, or a contradiction, is an error of the file.
    """
    asked = [item for item in checked if item.cell.excluded is None]
    common = set.intersection(*({_key(problem) for problem in item.problems} for item in asked)) if asked else set()
    told: dict[Any, EnginefarmError] = {}
    kept: list[EffectiveTarget] = []
    excluded: list[ExcludedCell] = []
    for item in checked:
        mine = [] if item.cell.excluded else item.problems
        wrong = [problem for problem in mine if _key(problem) in common or problem.kind is not TARGET_IMPOSSIBLE]
        for problem in wrong:
            problem.where = _in(problem.where, name)
            told.setdefault(_key(problem), problem)
        if wrong or item.effective is None:
            continue
        if item.cell.excluded:
            excluded.append(ExcludedCell(item.effective, item.cell.excluded.why, item.cell.excluded.where))
        elif mine:
            why = "; ".join(problem.why or problem.what for problem in mine)
            excluded.append(ExcludedCell(item.effective, why, replace(mine[0].where or item.cell.where, target=None)))
        else:
            kept.append(item.effective)
    problems += told.values()
    problems += _same(name, checked, kept)
    if excluded and not kept and not told:
        what = f"every cell of {name} is excluded"
        why = "; ".join(f"{cell.name}: {cell.why}" for cell in excluded)
        problems.append(EnginefarmError(TARGET_IMPOSSIBLE, what, where=_in(excluded[0].where, name), why=why, fix="leave at least one"))
    return kept, excluded


def _key(problem: EnginefarmError) -> Any:
    """What makes two problems one; the name of the cell does not count."""
    return problem.kind, problem.what, problem.where and replace(problem.where, target=None)


def _same(name: str, checked: Sequence[Checked], kept: Iterable[EffectiveTarget]) -> Iterator[EnginefarmError]:
    """Cells that would be built twice: their shapes are equal, or become so with those of the target."""
    places = {item.cell.name: item.cell.where for item in checked}
    seen: dict[str, str] = {}
    for effective in kept:
        target = effective.target
        text = json.dumps(target.model_dump(mode="json", exclude={"name", "tag"}), sort_keys=True)
        first = seen.setdefault(text, target.name)
        if first != target.name:
            what, fix = f"{first} and {target.name} are the same engine", "remove one of the two values"
            yield EnginefarmError(TARGET_CONFLICT, what, where=_in(places[target.name], name), fix=fix)


def axis_values(effective: EffectiveTarget) -> Values:
    """What makes a cell that cell: nothing is laid over these."""
    return {name: item for name, item in effective.values.items() if item.source.layer == AXIS}


def differs(effective: EffectiveTarget, given: Mapping[str, Any]) -> str | None:
    """Which of ``given`` (``precision``: str, ``shapes``: input -> Profile) a cell is not for, as text; None when it is for them."""
    if effective.cell_of is None:
        return None
    fixed = {name: item.value for name, item in axis_values(effective).items()}
    precision = given.get("precision")
    if precision and fixed.get("precision", precision) != precision:
        return f"precision {precision}"
    for name, profile in (given.get("shapes") or {}).items():
        if fixed.get(f"shapes.{name}", profile) != profile:
            return f"shape {name}:{format_profile(profile)}"
    return None
