"""The model's own YAML (``lane.yaml`` beside ``lane.onnx``), and targets with it and the command line laid over."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from orchestrator.errors import CONFIG_FIELD, CONFIG_VALUE, NAME_INVALID, EnginefarmError, Where, raise_all
from orchestrator.matrix import rules
from orchestrator.matrix.axes import axis_values
from orchestrator.matrix.binder import Binder, Bound
from orchestrator.matrix.layers import EffectiveTarget, Source, Value, Values, nest, overlay, sources_of, validate, wrong_value
from orchestrator.matrix.model_name import normal, objection, suggest_name
from orchestrator.matrix.schema import ModelConfig, Target
from orchestrator.matrix.yaml_reader import display, read_file
from orchestrator.matrix.yaml_syntax import short

_OVER_TARGET = ("shapes", "precision", "samples", "tolerance")
_OPTION_NAMES = {"shapes": "--shape"}


@dataclass(frozen=True)
class LoadedModelConfig:
    """``positions`` maps dotted field names to their places in the file; ``values`` the same names to their values."""

    config: ModelConfig
    path: Path
    positions: dict[str, Where]
    values: dict[str, Any]

    def resolve(self, text: str) -> Path:
        """A path of this file, which is relative to it."""
        return self.path.parent / text


def find_model_config(model_path: Path) -> LoadedModelConfig | None:
    """The YAML of a model, or None when it has none. Raises EnginefarmError for what is wrong in it, or when both suffixes exist."""
    found = [path for path in (model_path.with_suffix(".yaml"), model_path.with_suffix(".yml")) if os.path.lexists(path)]
    if len(found) > 1:
        what = f"{display(found[0])} and {found[1].name} are both there"
        raise EnginefarmError(CONFIG_VALUE, what, where=Where(file=display(found[1])), fix="keep one of them")
    return load_model_config(found[0]) if found else None


def load_model_config(path: Path) -> LoadedModelConfig:
    """Read one model YAML. Raises EnginefarmError with every problem in it."""
    document = read_file(path)
    # one of comments only sets nothing
    if document.empty:
        return LoadedModelConfig(ModelConfig(), path, {}, {})
    problems = list(document.problems)
    if document.root is None:
        raise_all(problems)
        raise AssertionError("a document without a root has a problem")
    binder = Binder()
    bound = binder.fields(document.root, ModelConfig)
    problems += [_explain_target_field(problem, path) for problem in binder.problems]
    problems += _bad_name(bound)
    positions = {name: item.where for name, item in bound.items()}
    source = Source("model")
    config = None
    try:
        config = ModelConfig.model_validate(nest({name: Value(item.value, source) for name, item in bound.items()}))
    except ValidationError as error:
        for details in error.errors(include_url=False):
            name = ".".join(str(part) for part in details["loc"])
            place = positions.get(name) or positions.get(name.split(".", 1)[0]) or Where(file=display(path), line=1)
            problems.append(wrong_value(CONFIG_VALUE, name, dict(details), place))
    raise_all(problems)
    if config is None:
        raise AssertionError("a config that does not validate has a problem")
    return LoadedModelConfig(config, path, positions, {name: item.value for name, item in bound.items()})


def _bad_name(bound: dict[str, Bound]) -> list[EnginefarmError]:
    """The problem of a name that files cannot carry; it is taken out, since it was told."""
    said = bound.get("name")
    why = None if said is None or said.value is None else objection(normal(said.value))
    if said is None or why is None:
        return []
    del bound["name"]
    fix = f"write name: {json.dumps(suggest_name(said.value), ensure_ascii=False)}"
    return [EnginefarmError(NAME_INVALID, f"model name {short(said.value)!r} cannot be used", where=said.where, why=why, fix=fix)]


def _explain_target_field(problem: EnginefarmError, path: Path) -> EnginefarmError:
    """A field of targets in a model file: say where it goes instead."""
    if problem.kind is not CONFIG_FIELD:
        return problem
    name = problem.what.split('"')[1]
    if name not in Target.model_fields:
        return problem
    what = f'"{name}" is a field of targets, not of a model'
    fix = f"write it into the target's file in targets/; {path.name} takes {', '.join(sorted(ModelConfig.model_fields))}"
    return EnginefarmError(CONFIG_FIELD, what, where=problem.where, fix=fix)


def apply_model(effective: EffectiveTarget, config: LoadedModelConfig | None, cli: Mapping[str, Any]) -> EffectiveTarget:
    """Lay a model's YAML and then the command line over a target, and check again that the result can exist.

    ``cli`` maps field names of Target to values (``precision``: str, ``shapes``: input name -> Profile); None and empty mean not given.
    Shapes and tolerances are merged input by input and field by field. Sample paths of the YAML become relative to its folder.
    A cell keeps its axis values, whatever is laid over it: what the command line says picks cells (``Matrix.select``).
    Raises EnginefarmError: CONFIG_VALUE for a bad value, TARGET_IMPOSSIBLE or TARGET_CONFLICT naming the layer and its place.
    """
    given = _command_line(cli)
    if config is None and not given:
        return effective
    values = effective.values
    if config is not None:
        values = overlay(values, _model_layer(config))
    values = overlay(overlay(values, given), axis_values(effective))
    home = Where(target=effective.target.name)
    broken: set[str] = set()
    target, problems = validate(values, effective.target.name, home, broken)
    sources = sources_of(values)
    if target is not None:
        problems += rules.check(target, sources, home)
    raise_all(problems)
    if target is None:
        raise AssertionError("a target that does not validate has a problem")
    return EffectiveTarget(target, sources, values, effective.cell_of)


def _model_layer(config: LoadedModelConfig) -> Values:
    layer: Values = {}
    for name, value in config.values.items():
        if name.split(".", 1)[0] in _OVER_TARGET:
            laid = tuple(str(config.resolve(item)) for item in value) if name == "samples" else value
            if laid is not None or name == "tolerance":
                layer[name] = Value(laid, Source("model", config.positions[name]))
    return layer


def _command_line(cli: Mapping[str, Any]) -> Values:
    layer: Values = {}
    for name, value in cli.items():
        if value is None or value in ({}, ()):
            continue
        source = Source("command line", Where(file=_OPTION_NAMES.get(name, "--" + name.replace("_", "-"))))
        if isinstance(value, Mapping):
            layer |= {f"{name}.{key}": Value(item, source) for key, item in value.items()}
        else:
            layer[name] = Value(value, source)
    return layer
