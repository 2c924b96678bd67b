"""Turns docs/facts/*.yaml into orchestrator/portable/facts/data/*.json, which is what the code reads.

``python tools/generate_facts.py`` writes; ``--check`` writes nothing and exits 5 when a file is stale, missing or left over.
The JSON holds what code decides from: sources and free-text rules stay in the YAML, and so does a whole file marked ``for_people``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
FACTS = ROOT / "docs" / "facts"
DATA = ROOT / "orchestrator" / "portable" / "facts" / "data"
STALE = 5
FOR_PEOPLE = {
    *("source", "sources", "rules", "cudnn", "ubuntu", "gpu_families"),
    *("oss_default_archs", "csv_files"),
    *("fields", "runtime_messages", "message", "message_values", "message_patterns"),
    *("behaviour", "build", "progress", "memory", "conversions", "size"),
    *("nvidia_require", "violations", "excluded", "gpu_dropped", "cuda_toolkit", "compatibility"),
}


def without(value: Any, keys: set[str]) -> Any:
    """``value`` without the mapping keys that only people read."""
    if isinstance(value, dict):
        return {key: without(item, keys) for key, item in value.items() if key not in keys}
    return [without(item, keys) for item in value] if isinstance(value, list) else value


def render(table: Any) -> str:
    """JSON with sorted keys and one line per row of a list, so that a changed row is a changed line."""
    parts = []
    for key in sorted(table):
        value = table[key]
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n  ".join(json.dumps(row, sort_keys=True, ensure_ascii=False) for row in value)
            parts.append(f"{json.dumps(key)}: [\n  {rows}\n ]")
        elif isinstance(value, dict) and any(isinstance(item, dict) for item in value.values()):
            rows = ",\n  ".join(f"{json.dumps(k)}: {json.dumps(value[k], sort_keys=True, ensure_ascii=False)}" for k in sorted(value))
            parts.append(f"{json.dumps(key)}: {{\n  {rows}\n }}")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value, sort_keys=True, ensure_ascii=False)}")
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def generated() -> dict[str, str]:
    """File name -> content of every table."""
    tables = {}
    for path in sorted(FACTS.glob("*.yaml")):
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not table.get("for_people"):
            tables[path.stem + ".json"] = render(without(table, FOR_PEOPLE))
    return tables


def stale(tables: dict[str, str]) -> list[str]:
    """Names of files that differ from what would be generated, or that nothing generates."""
    present = {path.name: path.read_text(encoding="utf-8") for path in DATA.glob("*.json")}
    return sorted(name for name in tables.keys() | present.keys() if tables.get(name) != present.get(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 5 when a file is stale")
    check = parser.parse_args().check
    tables = generated()
    names = stale(tables)
    if check:
        for name in names:
            print(f"stale: {DATA.relative_to(ROOT) / name}; run: python tools/generate_facts.py", file=sys.stderr)
        return STALE if names else 0
    DATA.mkdir(exist_ok=True)
    for name in names:
        if name in tables:
            (DATA / name).write_text(tables[name], encoding="utf-8")
        else:
            (DATA / name).unlink()
    print(f"{len(tables)} tables, {len(names)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
