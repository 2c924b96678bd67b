"""Reads the generated fact tables (``data/*.json``, made from ``docs/facts/*.yaml`` by ``tools/generate_facts.py``)."""

import json
import pkgutil
from typing import Any, Dict

_LOADED: Dict[str, Any] = {}


def load(name: str) -> Any:
    """The table ``data/<name>.json``, read once; works from a folder and from inside a zip archive.

    Raises FileNotFoundError when the package holds no such table.
    """
    if name not in _LOADED:
        raw = pkgutil.get_data(__package__, "data/" + name + ".json")
        if raw is None:
            raise FileNotFoundError("no fact table named " + name)
        _LOADED[name] = json.loads(raw.decode("utf-8"))
    return _LOADED[name]
