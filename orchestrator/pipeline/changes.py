"""Which inputs differ, by name and from what to what."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{12})[0-9a-f]{4,}")


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """``precision fp32 -> fp16``: one text per input that differs, in the order of ``after``; nested inputs by dotted names.

    A model's digest is left out when one of its parts says more.
    """
    old, new = _flat(before), _flat(after)
    names = [*new, *(name for name in old if name not in new)]
    found = {name: f"{name} {_shown(old, name)} -> {_shown(new, name)}" for name in names if old.get(name) != new.get(name)}
    if any(name.startswith(("model graph", "external data")) for name in found):
        found.pop("model", None)
    return list(found.values())


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        dotted = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{dotted}.")
        elif value not in ({}, [], (), None):
            flat[dotted] = list(value) if isinstance(value, tuple) else value
    return flat


def _shown(values: Mapping[str, Any], name: str) -> str:
    if name not in values:
        return "none"
    value = values[name]
    if isinstance(value, list):
        return "x".join(map(str, value)) if all(isinstance(item, int) for item in value) else ", ".join(_short(item) for item in value)
    return _short(value)


def _short(value: Any) -> str:
    """Digests by their first twelve digits; the rest as it is."""
    if isinstance(value, bool):
        return str(value).lower()
    return _DIGEST.sub(lambda match: match[1], str(value))
