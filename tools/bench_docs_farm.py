"""The part of docs/bench.md on the farm's speed, from bench/results/farm_*.json (bench/farm.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

HEAD = """
# The farm's speed

Generated from `bench/results/farm_*.json`, which `python bench/farm.py` writes; do not edit. Both sides of a ratio are measured in turns
in one run; a cell holds one figure per run of the whole measurement. The machine was shared meanwhile: its load is given below.
"""
STEPS = """
## What a step costs over the same done by hand

By hand = the Docker SDK's calls alone: create a container with the same limits, put the same files, start, wait, get the folder, remove.
Wanted: at most 60 ms more, and at most 1.15 times as long. The first build of a model also puts that model into a volume that all later
builds on that engine use; by hand it goes into the container and is lost with it.
"""
SEND = """
## A model of 2 GB to an engine

Into a new volume, against `docker cp` of the same file. Wanted: at least 0.9 times as fast, memory that does not grow with the model, and
nothing of the model sent for its second build (what is left are the worker, the request and the calls).
"""
MAKESPAN = """
## How builds are spread

24 recorded builds (`bench/farm_durations.json`) on 8 slots of three engines, against the best schedule: the one that branch and bound
proved, else a lower bound, which even the best may not reach. Wanted: at most 1.15 times as long. Everything but the builds is real;
a build is a process that sleeps. "Any engine": no build needs a GPU. "By GPU": each needs one that only some engines have.
"""
DRAWN = """
With known durations, in simulated time, over drawn instances of 24 builds between 1 and 32 units long, against the lower bound:
"""

Rows = list[Sequence[str]]


def is_farm(result: Mapping[str, Any]) -> bool:
    """Whether a file of bench/results is one of bench/farm.py."""
    return str(result["schema"]).startswith("enginefarm.bench.farm/")


def _table(header: Sequence[str], rows: Rows) -> list[str]:
    return ["| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)]


def _each(runs: Sequence[Mapping[str, Any]], show: Callable[[Mapping[str, Any]], str]) -> str:
    return "; ".join(show(run) for run in runs)


def _steps(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    rows: Rows = []
    for number, first in enumerate(runs[0]["cases"]):
        same = [run["cases"][number] for run in runs]
        rows.append(
            [
                first["step"],
                str(first["rounds"]),
                _each(same, lambda case: f"{case['median_ms']['runner']:.0f}"),
                _each(same, lambda case: f"{case['median_ms']['by hand']:.0f}"),
                _each(
                    same,
                    lambda case: f"{case['added_ms']:+.0f} ({case['added_quartiles_ms'][0]:+.0f} to {case['added_quartiles_ms'][2]:+.0f})",
                ),
                _each(same, lambda case: f"{case['ratio']:.2f}"),
                _each(same, lambda case: f"{case['tenth_ms']['runner']:.0f} / {case['tenth_ms']['by hand']:.0f}"),
                _each(same, lambda case: f"{case['client_cpu_ms']['runner']:.0f} / {case['client_cpu_ms']['by hand']:.0f}"),
                _each(same, lambda case: f"{case['daemon_cpu_ms']['runner']:.0f} / {case['daemon_cpu_ms']['by hand']:.0f}"),
            ]
        )
    header = (
        "step",
        "pairs",
        "runner, ms",
        "by hand, ms",
        "added, ms (middle half)",
        "ratio",
        "quickest tenth, ms",
        "client CPU, ms",
        "engine CPU, ms",
    )
    note = "Medians (CPU of the engine: means); `added` is the median of the pairs' differences. Two numbers: runner / by hand."
    return [STEPS, *_table(header, rows), "", note]


def _send(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    through = [run["throughput"] for run in runs]
    twice = [run["twice"] for run in runs]
    rows: Rows = [
        ["runner, MB/s", _each(through, lambda run: f"{run['median_mb_s']['runner']:.0f}")],
        ["`docker cp`, MB/s", _each(through, lambda run: f"{run['median_mb_s']['docker cp']:.0f}")],
        ["ratio", _each(through, lambda run: f"{run['ratio']:.2f}")],
        ["median of the pairs' ratios", _each(through, lambda run: f"{run['ratio_of_pairs']:.2f}")],
        [
            "client CPU, s: runner / `docker cp`",
            _each(through, lambda run: f"{run['client_cpu_s']['runner']} / {run['client_cpu_s']['docker cp']}"),
        ],
        [
            "peak memory, MB: with 20 MB / with 2 GB",
            _each(through, lambda run: f"{run['peak_rss_mb']['20 MB']} / {run['peak_rss_mb']['2 GB']}"),
        ],
        ["first build sends, MB", _each(twice, lambda run: f"{run['first_build_bytes'] / 1e6:.1f}")],
        ["second build sends, MB", _each(twice, lambda run: f"{run['second_build_bytes'] / 1e6:.1f}")],
    ]
    return [SEND, *_table((f"medians of {through[0]['rounds']} pairs", "found"), rows)]


def _makespan(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    rows: Rows = []
    drawn: Rows = []
    for number, first in enumerate(runs[0]["cases"]):
        same = [run["cases"][number] for run in runs]
        kind = "proven" if first["best_is_proven"] else "lower bound"
        best = first["best_found_s"] if first["best_is_proven"] else first["lower_bound_s"]
        for way in first["median_s"]:
            seconds, ratio = (_each(same, lambda case, key=key, way=way: f"{case[key][way]:.2f}") for key in ("median_s", "ratio"))  # type: ignore[misc]
            rows.append([first["case"], way, seconds, f"{best:.2f} ({kind})", ratio])
        found = first["drawn"]
        drawn.append([first["case"], str(found["instances"]), f"{found['median']:.2f}", f"{found['p95']:.2f}", f"{found['worst']:.2f}"])
    text = [MAKESPAN, *_table(("builds", "order", "makespan, s", "best, s", "ratio"), rows), DRAWN]
    return [*text, *_table(("builds", "instances", "median ratio", "95 % below", "worst"), drawn)]


def farm_part(results: Sequence[Mapping[str, Any]]) -> str:
    """The part of the page; empty without results."""
    if not results:
        return ""
    by_name = {result["what"]: result for result in results}
    text = [HEAD.rstrip("\n")]
    for name, show in (("steps", _steps), ("send", _send), ("makespan", _makespan)):
        if name in by_name:
            text += show(by_name[name]["runs"])
    text += ["", "## Where the farm was measured", ""]
    for name, result in by_name.items():
        at, loads = result["machine"], [f"{run['load_before'][0]:.1f} to {run['load_after'][0]:.1f}" for run in result["runs"]]
        versions = ", ".join(f"{what} {version}" for what, version in at["versions"].items())
        where = f"{at['cpu']}, {at['cores']} cores, {at['memory_gib']} GiB, {versions}"
        text.append(f"- {name}: {where}; load average {'; '.join(loads)}; nice {result['nice']}")
    return "\n".join(text) + "\n"
