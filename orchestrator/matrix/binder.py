"""From YAML nodes to values of the schema's types, with every problem at its line and column.

A plain scalar is read by its raw text, never by what YAML 1.1 makes of it. Where the two differ (``8.10`` is the number
8.1, ``no`` is false, ``012`` is 10, ``12:30`` is 750) the file would mean something else to every other reader of it, so
quotes are asked for.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
import types
import typing
from collections.abc import Mapping as MappingABC
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

import yaml
from pydantic import BaseModel

from orchestrator.errors import CONFIG_FIELD, CONFIG_TRAP, CONFIG_VALUE, EnginefarmError, Kind, Where
from orchestrator.matrix.schema import Profile, Spelled
from orchestrator.matrix.shapes import profile_problem, read_profile
from orchestrator.matrix.yaml_reader import Mapping, Node, Scalar, Sequence
from orchestrator.matrix.yaml_syntax import short
from orchestrator.portable.facts import capability

_DECIMAL = re.compile(r"^[+-]?(?:0|[1-9][0-9]{0,18})$")
_FLOAT = re.compile(r"^[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?$")
_SIZE = re.compile(r"^([0-9]{1,15}(?:\.[0-9]{1,6})?) ?(?:([kKMGT])(i?))?B?$")
_LONGEST_NUMBER = 100  # characters of a number that is worth showing; converting far longer ones takes long, or fails
_UNITS = {"k": 1, "m": 2, "g": 3, "t": 4}

CLOSE = 0.65  # two of three letters right still helps; less is a guess
"""How alike a name must be to be suggested (difflib's ratio): names are short, and so are the accidents that make them alike."""

# names of other tools and of older habits -> what is meant here
_SYNONYMS = {
    "arch": ("tag", "compute_capability"),
    "sm": ("compute_capability",),
    "cc": ("compute_capability",),
    "compute_capabilities": ("compute_capability",),
    "capability": ("compute_capability",),
    "container": ("image",),
    "docker": ("image",),
    "docker_image": ("image",),
    "base_image": ("image",),
    "trt": ("tensorrt",),
    "version": ("tensorrt", "tensorrt_rtx"),
    "trt_version": ("tensorrt",),
    "tensorrt_version": ("tensorrt",),
    "cuda_version": ("cuda",),
    "fp16": ("precision",),
    "int8": ("precision",),
    "dtype": ("precision",),
    "profile": ("shapes",),
    "profiles": ("shapes",),
    "input_shapes": ("shapes",),
    "workspace_size": ("workspace",),
    "opt_level": ("optimization_level",),
    "memory": ("limits.memory",),
    "timeout": ("limits.build_timeout", "build_timeout"),
    "build_timeout": ("limits.build_timeout",),
    "validate_timeout": ("limits.validate_timeout",),
    "rtol": ("tolerance.rtol",),
    "atol": ("tolerance.atol",),
    "matrix": ("axes",),
    "except": ("exclude",),
    "reason": ("why",),
    "because": ("why",),
    "base": ("extends",),
    "inherits": ("extends",),
    "runner": ("runs_on", "runners"),
    "target": ("targets",),
    "model": ("models",),
    "shape": ("shapes",),
    "artifacts": ("output",),
    "keep_going": ("exitfirst",),
    "validate": ("no_validate",),
}


@functools.cache
def _hints(model: type[BaseModel]) -> dict[str, Any]:
    return typing.get_type_hints(model, include_extras=True)


@dataclass(frozen=True)
class Bound:
    """A value and where it stands."""

    value: Any
    where: Where


class Binder:
    """Collects the problems of one file; methods return None for what could not be bound (and say so in ``problems``)."""

    def __init__(self) -> None:
        self.problems: list[EnginefarmError] = []
        self.broken: set[str] = set()

    def fields(self, node: Mapping, model: type[BaseModel] | MappingABC[str, Any], prefix: str = "") -> dict[str, Bound]:
        """Bind a mapping to a model, or to field types by name: dotted field name -> value.

        Nested models and dicts are flattened; a null unsets a field.
        """
        hints = model if isinstance(model, MappingABC) else _hints(model)
        bound: dict[str, Bound] = {}
        for name, child in node.entries.items():
            if name not in hints:
                self._unknown_field(node.keys[name], hints, prefix)
                continue
            before = len(self.problems)
            nested = nested_model(hints[name])
            item = _dict_item(hints[name])
            if nested is not None and isinstance(child, Mapping):
                bound |= self.fields(child, nested, f"{prefix}{name}.")
            elif item is not None and isinstance(child, Mapping):
                for key, entry in child.entries.items():
                    value = self.value(entry, item, f"{prefix}{name}.{key}")
                    if value is not None:
                        bound[f"{prefix}{name}.{key}"] = Bound(value, entry.where)
            else:
                value = self.value(child, hints[name], f"{prefix}{name}")
                if len(self.problems) == before:
                    bound[prefix + name] = Bound(value, child.where)
            if len(self.problems) > before:
                self.broken.add((prefix + name).split(".")[0])
        return bound

    def value(self, node: Node, hint: Any, name: str) -> Any:
        """Bind one node to the type ``hint`` (what schema.py uses: scalars, Literal, tuples, dicts, models, ``| None``)."""
        hint, spelled = _unwrap(hint)
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (types.UnionType, typing.Union):
            return self._optional(node, arguments, name)
        if is_null(node):
            return self._problem(CONFIG_VALUE, f"{name} says nothing", node.where, fix="give it a value, or remove the line")
        if origin is tuple:
            return self._tuple(node, arguments[0], name)
        if origin is dict:
            return self._kind_of(node, name, "lines of the form name: value")
        if hint is Profile:
            return self._profile(node, name)
        if isinstance(hint, type) and issubclass(hint, BaseModel):
            return self._kind_of(node, name, "lines of the form name: value")
        if not isinstance(node, Scalar):
            return self._kind_of(node, name, "a single value")
        if origin is typing.Literal:
            return self._choice(node, arguments, name)
        return self._scalar(node, hint, spelled, name)

    def _problem(self, kind: Kind, what: str, where: Where, why: str | None = None, fix: str | None = None) -> None:
        self.problems.append(EnginefarmError(kind, what, where=where, why=why, fix=fix))

    def _unknown_field(self, key: Scalar, hints: MappingABC[str, Any], prefix: str) -> None:
        meant = _SYNONYMS.get(key.text.lower(), ()) if prefix in ("", "axes.", "exclude.") else ()
        names = [name for name in meant if name.split(".")[0] in hints] or difflib.get_close_matches(key.text, hints, n=1, cutoff=CLOSE)
        known = ", ".join(sorted(hints))
        fix = f"did you mean {' or '.join(names)}?" if names else f"known here: {known}"
        self._problem(CONFIG_FIELD, f'"{prefix}{short(key.text)}" is not a field', key.where, fix=fix)

    def _kind_of(self, node: Node, name: str, needed: str) -> None:
        got = {Scalar: "a single value", Sequence: "a list", Mapping: "a mapping"}[type(node)]
        fix = None
        if isinstance(node, Mapping):
            fix = "a plain text that starts with { is a mapping to YAML, and so is one with a colon and a space: put it in quotes"
        elif isinstance(node, Sequence):
            fix = "write one value; a plain text that starts with [ is a list to YAML: put it in quotes"
        self._problem(CONFIG_VALUE, f"{name} needs {needed}, not {got}", node.where, fix=fix)

    def _optional(self, node: Node, arguments: tuple[Any, ...], name: str) -> Any:
        if is_null(node):
            if isinstance(node, Scalar) and not node.text:
                self._problem(CONFIG_VALUE, f"{name} says nothing", node.where, fix=f"give it a value, or write {name}: null to unset it")
            return None
        return self.value(node, next(argument for argument in arguments if argument is not type(None)), name)

    def _tuple(self, node: Node, item: Any, name: str) -> Any:
        if isinstance(node, Mapping):
            return self._kind_of(node, name, "a list")
        items = node.items if isinstance(node, Sequence) else (node,)
        return tuple(self.value(child, item, name) for child in items)

    def _profile(self, node: Node, name: str) -> Any:
        try:
            profile: Profile | None
            if isinstance(node, Scalar):
                if self._trap(node, name):
                    return None
                profile = read_profile(node.text)
            elif isinstance(node, Sequence):
                dims = tuple(self.value(child, int, name) for child in node.items)
                profile = Profile(min=dims, opt=dims, max=dims) if None not in dims else None
            else:
                profile = self._long_profile(node, name)
        except ValueError as error:
            return self._problem(
                CONFIG_VALUE,
                f"{name}: {short(str(error), 200)}",
                node.where,
                fix="write 1x3x224x224, or MIN:OPT:MAX like 1x3x8x8:2x3x8x8:4x3x8x8",
            )
        if profile is not None and (wrong := profile_problem(profile)):
            return self._problem(CONFIG_VALUE, f"{name}: {wrong}", node.where, fix="every dimension needs min <= opt <= max")
        return profile

    def _long_profile(self, node: Mapping, name: str) -> Profile | None:
        fields = {key: bound.value for key, bound in self.fields(node, Profile, f"{name}.").items()}
        dims = {part: fields.get(f"{name}.{part}") for part in ("min", "opt", "max")}
        missing = [part for part, value in dims.items() if value is None and part not in node.entries]
        if missing:
            raise ValueError(f"{' and '.join(missing)} missing")
        if any(value is None for value in dims.values()):
            return None
        return Profile(min=dims["min"], opt=dims["opt"], max=dims["max"])  # type: ignore[arg-type]

    def _choice(self, node: Scalar, choices: tuple[Any, ...], name: str) -> Any:
        if node.text in choices:
            return node.text
        close = difflib.get_close_matches(node.text.lower().replace("_", "-"), choices, n=1, cutoff=0.5)
        fix = f'did you mean "{close[0]}"?' if close else f"one of: {', '.join(choices)}"
        return self._problem(
            CONFIG_VALUE, f'{name} cannot be "{short(node.text)}"', node.where, why=f"it is one of {', '.join(choices)}", fix=fix
        )

    def _scalar(self, node: Scalar, hint: Any, spelled: str | None, name: str) -> Any:
        if spelled == "bytes":
            return self._bytes(node, name)
        if spelled == "capability":
            return self._capability(node, name)
        if hint is bool:
            return self._bool(node, name)
        if hint in (int, float):
            return self._number(node, hint, name)
        if self._trap(node, name):
            return None
        if any(not character.isprintable() for character in node.text):
            return self._problem(CONFIG_VALUE, f'{name} holds a control character: "{short(node.text)}"', node.where)
        return node.text

    def _trap(self, node: Scalar, name: str) -> bool:
        read = yaml_reads(node)
        if read is None:
            return False
        self._problem(
            CONFIG_TRAP,
            f"YAML reads {short(node.text)} as {read}",
            node.where,
            why=f"{name} is text, and this is not what was written",
            fix=f'put it in quotes: {name.split(".")[-1]}: "{short(node.text)}"',
        )
        return True

    def _bool(self, node: Scalar, name: str) -> Any:
        if node.plain and node.text in ("true", "false"):
            return node.text == "true"
        meant = "true" if node.text.lower() in ("true", "yes", "on", "y", "1") else "false"
        return self._problem(CONFIG_VALUE, f'{name} is true or false, not "{short(node.text)}"', node.where, fix=f"write {name}: {meant}")

    def _number(self, node: Scalar, hint: Any, name: str) -> Any:
        if node.plain and (_DECIMAL if hint is int else _FLOAT).match(node.text):
            number = hint(node.text)
            if not isinstance(number, float) or math.isfinite(number):
                return number
        kind = "a whole number" if hint is int else "a number"
        read = yaml_reads(node)
        if read is not None:
            return self._problem(
                CONFIG_TRAP,
                f"YAML reads {short(node.text)} as {read}",
                node.where,
                why=f"{name} is {kind}",
                fix="write plain decimal digits",
            )
        fix = "remove the quotes" if not node.plain and _FLOAT.match(node.text) else None
        return self._problem(CONFIG_VALUE, f'{name} is {kind}, not "{short(node.text)}"', node.where, fix=fix)

    def _bytes(self, node: Scalar, name: str) -> Any:
        try:
            if node.plain and yaml_reads(node) is not None:
                raise ValueError
            return read_bytes(node.text)
        except ValueError:
            return self._problem(
                CONFIG_VALUE,
                f'{name} is a size, not "{short(node.text)}"',
                node.where,
                fix=f"write it like {name}: 4 GiB (or 512 MiB, or bytes)",
            )

    def _capability(self, node: Scalar, name: str) -> Any:
        if node.plain and (read := yaml_reads(node)) is not None:
            found = capability.candidates(node.text)
            why, fix = "a compute capability is major.minor", 'write it like "8.6"'
            if len(found) == 1:
                fix = f'write {name}: "{found[0]}"'
            elif found:
                why = f"no GPU has compute capability {short(node.text)}"
                fix = f"did you mean {capability.one_of(found)}?"
            return self._problem(CONFIG_TRAP, f"YAML reads {short(node.text)} as {read}", node.where, why=why, fix=fix)
        try:
            return capability.parse(node.text)
        except ValueError as error:
            return self._problem(CONFIG_VALUE, f"{name}: {short(str(error), 200)}", node.where)


def read_bytes(text: str) -> int:
    """``"4 GiB"`` (powers of 1024), ``"4 GB"`` or ``"4G"`` (powers of 1000), ``"1024"`` -> bytes. Raises ValueError."""
    match = _SIZE.match(text.strip())
    if not match:
        raise ValueError(f'"{text}" is not a size like "4 GiB"')
    size = Decimal(match[1]) * (1024 if match[3] else 1000) ** _UNITS.get((match[2] or "").lower(), 0)
    if size != int(size):
        raise ValueError(f'"{text}" is not a whole number of bytes')
    return int(size)


def yaml_reads(node: Scalar) -> str | None:
    """What YAML 1.1 makes of a plain scalar when that is not its text (``8.10`` -> ``"8.1"``); None when nothing is lost."""
    return _plain_reads(node.text) if node.plain and node.text else None


@functools.lru_cache(maxsize=1024)
def _plain_reads(text: str) -> str | None:
    loader: Any = yaml.SafeLoader("")
    tag = loader.resolve(yaml.ScalarNode, text, (True, False))
    if tag == "tag:yaml.org,2002:str":
        return None
    if len(text) > _LONGEST_NUMBER:
        return "something else"
    try:
        value = loader.construct_object(yaml.ScalarNode(tag, text))
    except (ValueError, OverflowError, yaml.YAMLError):
        return "something else"
    if isinstance(value, bool):
        return str(value).lower()
    return None if str(value) == text or text == "null" else f"the number {value}" if isinstance(value, (int, float)) else str(value)


def is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.plain and node.text in ("", "~", "null", "Null", "NULL")


def nested_model(hint: Any) -> type[BaseModel] | None:
    """The model inside ``Model`` or ``Model | None``; Profile counts as a value."""
    for candidate in (hint, *typing.get_args(hint)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel) and candidate is not Profile:
            return candidate
    return None


def _dict_item(hint: Any) -> Any:
    """The type of the values of a ``dict[str, T]``; None for other types."""
    inner, _ = _unwrap(hint)
    return typing.get_args(inner)[1] if typing.get_origin(inner) is dict else None


def _unwrap(hint: Any) -> tuple[Any, str | None]:
    """Strip Annotated; the Spelled inside it, if any."""
    if typing.get_origin(hint) is not Annotated:
        return hint, None
    inner, *extras = typing.get_args(hint)
    return inner, next((extra.kind for extra in extras if isinstance(extra, Spelled)), None)
