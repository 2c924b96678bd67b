"""Values laid over each other, each with the place it came from, and the targets that result."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from orchestrator.errors import CONFIG_VALUE, EnginefarmError, Kind, Where
from orchestrator.matrix.binder import nested_model
from orchestrator.matrix.schema import Target
from orchestrator.matrix.yaml_syntax import short


@dataclass(frozen=True)
class Source:
    """``layer`` is built-in, project, model, command line, axis, default, or ``extends NAME``."""

    layer: str
    where: Where | None = None

    def __str__(self) -> str:
        return self.layer if self.where is None else f"{self.layer} {self.where}"


@dataclass(frozen=True)
class Value:
    value: Any
    source: Source


Values = dict[str, Value]
"""Dotted field name -> value: ``backend``, ``limits.memory``, ``shapes.<input>``."""


@dataclass(frozen=True)
class EffectiveTarget:
    """A target after all layers. ``sources`` names where each field came from: every field of Target by its name, and those
    of nested models and each input's shape by dotted name as well. ``cell_of`` is the target that forks into this one by its axes."""

    target: Target
    sources: dict[str, Source]
    values: Values = field(repr=False, compare=False)
    cell_of: str | None = None


DEFAULT = Source("default")
AXIS = "axis"
"""The layer of a cell's axis values."""


def overlay(base: Values, upper: Values) -> Values:
    """``upper`` over ``base``. ``tolerance: null`` removes ``tolerance.rtol``, and the other way round."""
    result = dict(base)
    for name in upper:
        parent = name.split(".", 1)[0]
        for other in [key for key in result if key == parent or (name == parent and key.startswith(f"{name}."))]:
            del result[other]
    return result | upper


def nest(values: Values) -> dict[str, Any]:
    """``{"limits.memory": 1}`` -> ``{"limits": {"memory": 1}}``."""
    nested: dict[str, Any] = {}
    for name, item in values.items():
        head, dot, rest = name.partition(".")
        if dot:
            nested.setdefault(head, {})[rest] = item.value
        else:
            nested[head] = item.value
    return nested


def sources_of(values: Values) -> dict[str, Source]:
    """A nested field's source is that of the last of its parts in file order; a field that nothing sets is a default."""
    sources = dict.fromkeys(Target.model_fields, DEFAULT)
    for name, item in values.items():
        sources[name.split(".", 1)[0]] = item.source
        sources[name] = item.source
    return sources


def validate(values: Values, name: str, home: Where, broken: set[str]) -> tuple[Target | None, list[EnginefarmError]]:
    """The target, or what is wrong with the values. Fields in ``broken`` were told already; wrong ones are added to it."""
    try:
        return Target.model_validate(nest(values)), []
    except ValidationError as error:
        problems = []
        for details in error.errors(include_url=False):
            top = str(details["loc"][0])
            # what a target extends may hold the field, when it could be read
            unsure = details["type"] == "missing" and "extends" in broken
            if top not in broken and not unsure:
                problems.append(_constraint(dict(details), values, name, home))
        broken.update(str(details["loc"][0]) for details in error.errors(include_url=False))
        return None, problems


def partial(values: Values, broken: set[str]) -> Target:
    """A target of the fields that are right, for rules that read nothing else; broken fields hold their defaults or are absent."""
    right: dict[str, Any] = {}
    for name, value in nest(values).items():
        if name in broken:
            continue
        model = nested_model(Target.model_fields[name].annotation)
        right[name] = model.model_validate(value) if model is not None and isinstance(value, Mapping) else value
    return Target.model_construct(**right)


_MISSING_FIX = {
    "backend": "add a line like backend: tensorrt (or tensorrt-rtx, or onnxruntime)",
    "tag": "add a line like tag: {name} (it stands in the engine's file name; `extends` does not pass it on)",
    "name": "add the line name: {name}",
}


def _constraint(details: dict[str, Any], values: Values, name: str, home: Where) -> EnginefarmError:
    """One pydantic error in our words, at the place of the value."""
    path = [str(part) for part in details["loc"]]
    dotted = ".".join(path[:2]) if ".".join(path[:2]) in values else path[0]
    where = values[dotted].source.where if dotted in values else home
    if details["type"] == "missing":
        return EnginefarmError(
            CONFIG_VALUE, f"{path[0]} is missing", where=home, fix=_MISSING_FIX.get(path[0], "").format(name=name) or None
        )
    return wrong_value(CONFIG_VALUE, dotted, details, where)


def wrong_value(kind: Kind, name: str, details: Mapping[str, Any], where: Where | None) -> EnginefarmError:
    """A value that breaks a constraint of the schema."""
    given = details["input"]
    what = f'{name} cannot be "{short(str(given))}"'
    if details["type"] == "string_pattern_mismatch" and isinstance(given, str):
        why, fix = _pattern(name, given)
        return EnginefarmError(kind, what, where=where, why=why, fix=fix)
    return EnginefarmError(
        kind, what, where=where, why=str(details["msg"]).replace("Input should", "it should").replace("String should", "it should")
    )


def _pattern(name: str, given: str) -> tuple[str, str | None]:
    if name.startswith(("name", "tag", "extends")):
        return name_advice(given)
    if name == "jetpack":
        return "it is a version, or a condition on one", 'write it like ">=4.6.1" or "6.1"'
    if name.startswith("labels"):
        return "a label has no spaces and none of , { } * ? [ ]", None
    return "it is a version of one to four numbers", 'write it like "8.6.1"'


def name_advice(given: str) -> tuple[str, str | None]:
    """Why a text cannot be (part of) a target's name, and what to write instead."""
    fixed = re.sub(r"[^a-z0-9._]+", "-", given.lower()).strip("-._")
    if given != given.lower():
        return (
            f'only lower case is allowed: "{short(given)}" and "{short(given.lower())}" would be one file on a case-insensitive disk',
            f"write {fixed}",
        )
    return (
        "it becomes part of a file name: lower-case letters, digits, and single . _ - between them",
        f"write {fixed}" if fixed else None,
    )
