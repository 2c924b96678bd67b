"""The part of docs/bench.md on plan, cache and reuse, from bench/results/cached_*.json (bench/cached.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SCHEMA = "enginefarm.bench.cached/1"
HEAD = """
# Plan, cache and reuse

Generated from `bench/results/cached_*.json`, which `python bench/cached.py` writes; do not edit. All commands of a table were run in
turns, in an order that turns around each round, after a round that does not count; figures are medians. CPU time is user and system time
of a process and of those that it waited for, memory the peak of the largest of them. Limits were set before anything was measured.
"""
RUN = """
## A run in which nothing changed

`enginefarm build` of one small model when every engine is in the output folder and every verdict stands. The targets are files of their own
(the CPU with ONNX Runtime), each for another shape, all built and validated by the real thing first. Peers: GNU make compares times of
files; the other two only start up and list what they would do.
"""
DIGEST = """
## Hashing and planning a large model

`enginefarm plan` of a model of {gigabytes:.2f} GB with external data (random blocks, no holes), whose digest is not known, against
`hashlib.file_digest` over the same two files. The page cache holds all of it, for both.
"""
BUILDS = """
## Real models, from nothing

{models} models of `bench/models.yaml` for {targets} TensorRT-RTX targets: {builds} engines. `enginefarm build` starts without cache,
history and engines: it probes the runner, reads, hashes and copies the models, converts those that need fp16, builds each engine in a
process of its own, checks its header, hashes it, keeps it in the cache, and writes it with a manifest to the disk. The bare builder
(`bench/cached_bare.py`) is one process per engine too; it gets files that are ready to be built (fp16 included), with the same profiles
and flags, and writes the engine. Neither side validates: no GPU was there, so all engines are `unvalidated`. What the conversion takes by
itself is a row of its own; in the ratios only enginefarm pays for it.
"""
SCALE = """
## Many models

Plans of models that were never built, their digests known; runs of builds in which nothing changed. No two models are alike. The engines
were built, validated, kept and committed by the project's own code, with all steps in one process (`bench/cached_fill.py`); only the
commands below were measured. make has one stamp per model and target.
"""

Rows = list[Sequence[str]]


def _table(header: Sequence[str], rows: Rows) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)]


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.2f}"


def _claims(result: Mapping[str, Any]) -> list[str]:
    rows: Rows = []
    for claim in result["claims"]:
        limit = f"at most {claim['most']:g}" if claim["most"] is not None else f"at least {claim['least']:g}"
        rows.append([claim["claim"], _number(claim["value"]), limit, "yes" if claim["met"] else "**no**"])
    return _table(("what", "found", "wanted", "met"), rows)


def _rows(result: Mapping[str, Any]) -> list[str]:
    rows: Rows = []
    for name, row in result["rows"].items():
        cpu = [f"{row['cpu_s']:.3f}", f"{row['least_cpu_s']:.3f}"]
        rows.append([f"`{name}`", *cpu, f"{row['wall_s']:.3f}", f"{row['rss_mb']:.0f}"])
    return _table(("command", "CPU, s", "least CPU, s", "elapsed, s", "peak memory, MB"), rows)


def _read(result: Mapping[str, Any]) -> list[str]:
    """How it was seen that nothing was hashed."""
    read = result["read"]
    if read["by"] is None:
        return ["", "Bytes read were not counted: strace was not there."]
    touched, sizes = read["all touched"], read["sizes"]
    parts = ", ".join(f"{touched[part]:,} bytes of {part} ({sizes[part]:,} in all)" for part in sizes)
    return ["", f"Bytes read were counted with {read['by']}. After every file was touched, the same run read {parts}: so it counts."]


def _where(result: Mapping[str, Any]) -> str:
    at = result["machine"]
    versions = ", ".join(f"{what} {version}" for what, version in at["versions"].items())
    loads = f"load average {result['load_before'][0]:.1f} to {result['load_after'][0]:.1f}"
    where = f"{at['cpu']}, {at['cores']} cores, {at['memory_gib']} GiB, Python {at['python']}"
    return f"- {result['what']}: {result['rounds']} rounds; {where}; {versions}; {loads}"


def _heading(result: Mapping[str, Any]) -> str:
    if result["what"] == "run":
        return RUN
    if result["what"] == "digest":
        return DIGEST.format(gigabytes=result["bytes"] / 1e9)
    if result["what"] == "builds":
        models = len(result["models"])
        return BUILDS.format(models=models, targets=result["builds"] // models, builds=result["builds"])
    return SCALE


def cached_part(every: Sequence[Mapping[str, Any]]) -> str:
    """The part of the page; empty without results."""
    by_name = {result["what"]: result for result in every if result["schema"] == SCHEMA}
    found = [by_name[name] for name in ("run", "digest", "builds", "scale") if name in by_name]
    if not found:
        return ""
    text = [HEAD.rstrip("\n")]
    for result in found:
        text += [_heading(result), *_claims(result), "", *_rows(result), *(_read(result) if result["what"] == "run" else [])]
    text += ["", "## Where plan, cache and reuse were measured", "", *map(_where, found)]
    return "\n".join(text) + "\n"
