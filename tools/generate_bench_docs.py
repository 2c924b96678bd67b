"""Writes docs/bench.md from bench/results/*.json; `--check` writes nothing and exits 5 when it is stale.

The page's parts on the farm, on the cache, on start-up and on logs are bench_docs_*.py.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from bench_docs_cached import cached_part
from bench_docs_explain import explain_part
from bench_docs_farm import farm_part, is_farm
from bench_docs_startup import startup_part

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
DOCUMENT = ROOT / "docs" / "bench.md"
STALE = 5

HEAD = """# Real models, every RTX target and the CPU

Generated from `bench/results/*.json` by `make bench`; do not edit. The models come out of wheels on PyPI, pinned in
`bench/models.yaml`, and are not part of this project. Each was built by `enginefarm build --target 'rtx-*' --target cpu`,
one build at a time.

What the words mean: `passed` = an independent reference agreed on the hardware that the target names; `unvalidated` =
built, and no GPU here could run it; `failed` = the builder refused or the check disagreed, in its own words below. The
machine had no GPU, so no RTX engine of this page was ever run.
"""


def cell(build: Mapping[str, Any]) -> str:
    """One build of the result table: status, size, seconds."""
    if build["status"] in ("failed", "skipped"):
        return f"**{build['status']}**"
    return f"{build['status']}, {build['size_bytes'] / 1e6:.1f} MB, {build['seconds']:.1f} s, {build['precision']}"


def row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in cells) + " |"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [row(header), "|" + " --- |" * len(header), *(row(cells) for cells in rows)]


def builds(result: Mapping[str, Any]) -> dict[str, Any]:
    (model,) = result["result"]["models"]
    return {build["target"]: build for build in model["builds"]}


def cpu_figures(result: Mapping[str, Any]) -> list[str]:
    """How the CPU engine was checked: reference, largest difference, median time of one run."""
    verdict = result["engines"].get("cpu", {}).get("verdict", {})
    worst = max((output["max_abs"] or 0.0 for output in verdict.get("outputs", [])), default=None)
    median = verdict.get("median_ms")
    return [
        result["model"]["name"],
        verdict.get("status", ""),
        verdict.get("reference") or "",
        "" if worst is None else f"{worst:.1e}",
        "" if median is None else f"{median:.1f}",
    ]


def failures(results: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for result in results:
        for target, build in builds(result).items():
            if build["status"] in ("failed", "skipped"):
                lines.append(f"- **{result['model']['name']}, {target}**: {build['reason']}")
                why = (build.get("problem") or {}).get("why")
                if why:
                    lines += ["", *("      " + line for line in why.strip().splitlines()[:6]), ""]
    return lines


def render(results: Sequence[Mapping[str, Any]]) -> str:
    """The whole page."""
    targets = list(builds(results[0]))
    source = [
        [r["model"][key] for key in ("name", "task", "package", "licence")] + [f"{r['model']['size_bytes'] / 1e6:.1f} MB"] for r in results
    ]
    rows = [[r["model"]["name"], *(cell(builds(r)[target]) for target in targets)] for r in results]
    machines = sorted({json.dumps(r["machine"], sort_keys=True) for r in results})
    versions = sorted(
        {f"{e['backend']} {e['backend_version']}" for r in results for e in r["engines"].values() if e.get("backend_version")}
    )
    text = [HEAD, "## Models", "", *table(("model", "task", "package", "licence", "ONNX"), source), ""]
    text += ["## Builds", "", "Size of the engine, time of the build and of its check where there was one, and precision.", ""]
    text += [*table(("model", *targets), rows), ""]
    text += ["## How the CPU engines were checked", ""]
    text += [*table(("model", "status", "reference", "largest difference", "median ms"), [cpu_figures(r) for r in results]), ""]
    refused = failures(results)
    if refused:
        text += ["## What was refused, and why", "", *refused, ""]
    text += ["## Where", ""]
    for machine in map(json.loads, machines):
        text.append(
            f"- {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['system']}, Python {machine['python']}"
        )
    text.append(f"- {', '.join(versions)}")
    return "\n".join(text) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 5 when the page is stale")
    check = parser.parse_args().check
    every = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    results = [result for result in every if result["schema"] == "enginefarm.bench/1"]
    text = render(results) if results else HEAD + "\nNo results yet: run `make bench`.\n"
    text += farm_part([result for result in every if is_farm(result)]) + cached_part(every) + startup_part(every) + explain_part(every)
    if check:
        fresh = DOCUMENT.is_file() and DOCUMENT.read_text() == text
        if not fresh:
            print(f"stale: {DOCUMENT.relative_to(ROOT)}; run: python tools/generate_bench_docs.py", file=sys.stderr)
        return 0 if fresh else STALE
    DOCUMENT.write_text(text)
    print(DOCUMENT.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
