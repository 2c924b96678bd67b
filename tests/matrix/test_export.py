from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import yaml

from orchestrator.matrix.export import export_schema, schema_text
from orchestrator.matrix.schema import Target, TargetFile, field_classes
from orchestrator.resources import builtin_targets


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(export_schema())


def test_the_committed_schema_is_current() -> None:
    assert (builtin_targets() / "schema.json").read_text(encoding="utf-8") == schema_text()


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(export_schema())
    assert export_schema()["additionalProperties"] is False


def test_every_field_is_classified() -> None:
    assert set(field_classes()) == set(Target.model_fields)
    assert set(field_classes().values()) == {"build", "validate", "place", "name"}
    properties = export_schema()["properties"]
    assert {name: properties[name]["x-enginefarm-class"] for name in properties} == field_classes(TargetFile)


def test_what_axes_are_expanded_from_is_no_part_of_a_target() -> None:
    files, targets = field_classes(TargetFile), field_classes()
    assert {name: files[name] for name in files.keys() - targets.keys()} == {"axes": "name", "exclude": "name"}


def test_every_field_is_described() -> None:
    assert [name for name, field in export_schema()["properties"].items() if not field.get("description")] == []


def test_builtin_targets_fulfil_it(validator: jsonschema.Draft202012Validator) -> None:
    paths = sorted(builtin_targets().glob("*.yaml"))
    assert paths
    for path in paths:
        text = path.read_text(encoding="utf-8")
        assert text.startswith("# yaml-language-server: $schema=schema.json\n"), path.name
        validator.validate(yaml.safe_load(text))


@pytest.mark.parametrize(
    "value",
    [
        {"name": "a", "compute_capability": "8.6"},
        {"name": "a", "compute_capability": ["8.6"], "labels": "x"},
        {"name": "a", "workspace": "4 GiB", "limits": {"memory": 5}},
        {"name": "a", "shapes": {"x": "1x3", "y": [1, 3], "z": {"min": [1], "opt": [1], "max": [1]}, "w": "1x3:2x3:4x3"}},
        {"name": "a", "extends": "b", "image": None},
        {"name": "a", "axes": {"precision": ["fp32", "fp16"]}, "exclude": [{"precision": "fp32", "why": "slow"}]},
        {"name": "a", "axes": {"precision": "fp16", "shapes": {"small": {"x": "1x3"}, "large": {"x": [4, 3]}}}},
        {"name": "a", "axes": None, "exclude": None},
    ],
)
def test_what_the_loader_takes_fulfils_it(validator: jsonschema.Draft202012Validator, value: dict[str, Any]) -> None:
    validator.validate(json.loads(json.dumps(value)))


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"name": "A"},
        {"name": "a", "arch": "x"},
        {"name": "a", "tensorrt": 8.1},
        {"name": "a", "backend": "tensorrtx"},
        {"name": "a", "workspace": "lots"},
        {"name": "a", "shapes": {"x": "1x3:2x3"}},
        {"name": False},
        {"name": "a", "axes": {}},
        {"name": "a", "axes": {"precision": []}},
        {"name": "a", "axes": {"profile": {"small": {"x": "1x3"}}}},
        {"name": "a", "axes": {"shapes": {"Small": {"x": "1x3"}}}},
        {"name": "a", "axes": {"shapes": {"small": {}}}},
        {"name": "a", "exclude": [{"precision": "fp32"}]},
        {"name": "a", "exclude": [{"why": "slow"}]},
        {"name": "a", "exclude": [{"precision": None, "why": "slow"}]},
    ],
)
def test_what_the_loader_refuses_does_not(validator: jsonschema.Draft202012Validator, value: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(value)
