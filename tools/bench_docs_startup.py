"""The part of docs/bench.md on what it costs to start, from bench/results/startup.json (bench/startup.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SCHEMA = "enginefarm.bench-startup/1"
HEAD = """
# Start-up

Generated from `bench/results/startup.json`, which `python bench/startup.py` writes; do not edit. CPU time (user and system) of the whole
process, commands run in turns. Peers start up only: what they would do next is not ours to compare.
"""


def startup_part(every: Sequence[Mapping[str, Any]]) -> str:
    """Empty without a result."""
    return "".join(_part(result) for result in every if result["schema"] == SCHEMA)


def _part(result: Mapping[str, Any]) -> str:
    rows = [f"| `{name}` | {row['min_ms']:.0f} | {row['median_ms']:.0f} |" for name, row in result["commands"].items()]
    ratios = [f"| {row['of']} | {row['to']} | {row['min']:.2f} | {row['median']:.2f} | {row['most']} |" for row in result["ratios"]]
    times = len(next(iter(result["commands"].values()))["every_ms"])
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    machine = result["machine"]
    lines = ["| command | least, ms | median, ms |", "| --- | --- | --- |", *rows, ""]
    lines += ["| of | to | ratio of the least | of the medians | at most |", "| --- | --- | --- | --- | --- |", *ratios, ""]
    lines.append(
        f"{times} runs each; {machine['cpu']}, {machine['cores']} cores, Python {machine['python']}, load {result['load']}; {versions}."
    )
    return HEAD + "\n" + "\n".join(lines) + "\n"
