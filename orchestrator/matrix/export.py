"""The JSON Schema of a target file (targets/schema.json), for editors and for people without this program."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.matrix.schema import TargetFile

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_SHAPE = "[0-9]+(?:[xX][0-9]+)*"


def export_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of one target file.

    Only ``name`` is required: a file may override a built-in target, or start from another with ``extends``. Versions and
    capabilities are strings here, quotes included, also where the loader would take a plain ``12.2``.
    """
    schema = _without_titles(TargetFile.model_json_schema(mode="validation"))
    for field in schema["properties"].values():
        _one_or_many(field)
    profile = schema["$defs"]["Profile"]
    schema["$defs"]["Profile"] = {
        "description": profile.pop("description"),
        "anyOf": [
            profile,
            {"type": "array", "items": {"type": "integer", "minimum": 0}},
            {"type": "string", "pattern": f"^{_SHAPE}(?::{_SHAPE}:{_SHAPE})?$|^scalar$"},
        ],
    }
    _axes(schema["$defs"]["Axes"]["properties"], schema["$defs"]["Exclusion"])
    schema["required"] = ["name"]
    return {"$schema": _DIALECT, "title": "enginefarm target", **schema}


def schema_text() -> str:
    """The text of targets/schema.json."""
    return json.dumps(export_schema(), indent=2, ensure_ascii=False) + "\n"


def _without_titles(node: Any) -> Any:
    """Pydantic's titles repeat the field names."""
    if isinstance(node, dict):
        return {key: _without_titles(value) for key, value in node.items() if not (key == "title" and isinstance(value, str))}
    return [_without_titles(item) for item in node] if isinstance(node, list) else node


def _axes(axes: dict[str, Any], exclusion: dict[str, Any]) -> None:
    """No other names for sets of shapes than those that a pattern allows; nothing in an exclusion is null."""
    axes["shapes"]["anyOf"][0]["additionalProperties"] = False
    axes["precision"]["anyOf"].insert(0, axes["precision"]["anyOf"][0]["items"])
    exclusion["minProperties"] = 2
    for name, field in exclusion["properties"].items():
        if "anyOf" in field:
            said = {"description": field["description"]} if "description" in field else {}
            exclusion["properties"][name] = {**said, **field["anyOf"][0]}


def _one_or_many(field: dict[str, Any]) -> None:
    """A list of texts may be written as one text."""
    if field.get("type") == "array" and field["items"].get("type") == "string":
        item = field.pop("items")
        del field["type"]
        field["anyOf"] = [item, {"type": "array", "items": item}]
