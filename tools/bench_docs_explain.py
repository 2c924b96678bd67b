"""The part of docs/bench.md on `enginefarm explain`, from bench/results/explain.json (bench/explain.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SCHEMA = "enginefarm.bench-explain/1"
HEAD = """
# Reading logs

Generated from `bench/results/explain.json`, which `python bench/explain.py` writes; do not edit. `enginefarm explain` on logs made while
they are read; CPU time of the reading alone. *Growth* is how much more memory the whole log took than its first megabyte.
"""


def explain_part(every: Sequence[Mapping[str, Any]]) -> str:
    """Empty without a result."""
    return "".join(_part(result) for result in every if result["schema"] == SCHEMA)


def _part(result: Mapping[str, Any]) -> str:
    lines = ["| Python | log | MB | lines/s, median | lines/s, best | MB/s | growth, KiB |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for row in result["results"]:
        cells = (row["python"], row["log"], row["megabytes"], row["lines_per_second"], row["best_lines_per_second"])
        lines.append("| " + " | ".join(map(str, (*cells, row["megabytes_per_second"], row["rss_growth_kib"]))) + " |")
    rounds = len(result["results"][0]["every"])
    machine = result["machine"]
    lines += [
        "",
        f"{rounds} runs each; {machine['cores']} cores, load {machine['load_before'][0]} before and {machine['load_after'][0]:.2f} after.",
    ]
    return HEAD + "\n" + "\n".join(lines) + "\n"
