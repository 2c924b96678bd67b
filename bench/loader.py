"""What the loader costs: its import, and what ``load`` adds to a bare ``onnxruntime.InferenceSession`` of the same bytes.

    python bench/loader.py MANIFEST [--rounds 30] [--import-with PYTHON]... [--json FILE]

Both sides of a comparison alternate within one run, so that whatever else the machine does hits both, and the load averages before and
after are in the result. Each figure is wall time and the process's CPU time, in milliseconds, with all raw values; the least of many is
what is least disturbed. Hashing is excluded: the file is hashed before the clock starts. Bytecode is there, as after an installation.

First loads are each measured in a process of their own (what a service pays at its start), later ones in one process. Both have imported
``logging``, as services do, but for the case that says so: there the loader's warning that it is degraded imports it. "with a GPU
described" replaces what the loader finds out about this machine by a host with a GPU, so that the rules for GPU engines are asked, and the
choice ends at the same ONNX file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

SCHEMA = "enginefarm.bench-loader/1"
LIMITS = {"import_ms": 60, "added_ms": 15}

# argv: manifest, file, rounds, "logging" or not, "gpu" or not, kinds; prints [[kind, wall, cpu], ...] in seconds
MEASURE = """
import hashlib, json, sys, time
manifest, file, rounds, kinds = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[6:]
import numpy, onnxruntime
if sys.argv[4] == "logging":
    import logging
from enginefarm_runtime import load
from enginefarm_runtime.runtime import host
from enginefarm_runtime.runtime.files import Expected, check
if sys.argv[5] == "gpu":
    A10 = {"index": 0, "name": "NVIDIA A10", "compute_capability": "8.6", "memory_bytes": 24 << 30}
    FACTS = {"platform": "linux/amd64", "gpus": [A10], "driver": {"version": "580.65.06", "cuda": "13.0"}, "jetson": None}
    host._look = lambda: FACTS
data = open(file, "rb").read()
check(Expected(file, "sha256:" + hashlib.sha256(data).hexdigest(), len(data)))
found = []
for _ in range(rounds):
    for kind in kinds:
        wall, cpu = time.perf_counter(), time.process_time()
        if kind == "bare":
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            with open(file, "rb") as stream:
                session = onnxruntime.InferenceSession(stream.read(), options, providers=["CPUExecutionProvider"])
        else:
            session = load(manifest)
        found.append([kind, time.perf_counter() - wall, time.process_time() - cpu])
        del session
print(json.dumps(found))
"""
# argv: modules that are imported before the clock starts
IMPORT = """
import sys, time, json
for name in sys.argv[1:]:
    __import__(name)
wall, cpu = time.perf_counter(), time.process_time()
import enginefarm_runtime
print(json.dumps([["import", time.perf_counter() - wall, time.process_time() - cpu]]))
"""

Times = list[tuple[float, float]]
"""Wall and CPU time of each round, in seconds."""


def run(code: str, package: Path, *arguments: object, python: str = sys.executable) -> list[tuple[str, float, float]]:
    """What ``code`` prints in a fresh process that imports the loader from ``package``."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPATH": str(package)}
    command = [python, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
    return [(kind, wall, cpu) for kind, wall, cpu in json.loads(done.stdout)]


def figures(times: Times) -> dict[str, Any]:
    """Least, median and middle half of wall and CPU time in milliseconds, with the raw values."""
    answer = {}
    for name, seconds in (("wall", [wall for wall, _ in times]), ("cpu", [cpu for _, cpu in times])):
        raw = [round(value * 1e3, 3) for value in seconds]
        low, median, high = statistics.quantiles(raw, n=4)
        quartiles = [round(low, 3), round(high, 3)]
        answer[name] = {"least_ms": min(raw), "median_ms": round(median, 3), "quartiles_ms": quartiles, "raw_ms": raw}
    return answer


def compare(name: str, bare: Times, loader: Times) -> dict[str, Any]:
    """Both sides, and what the loader adds: difference and ratio of the least and of the medians."""
    left, right = figures(bare), figures(loader)
    added = {}
    for clock in ("wall", "cpu"):
        for what in ("least_ms", "median_ms"):
            one, two = left[clock][what], right[clock][what]
            added[f"{clock}_{what}"] = {"added_ms": round(two - one, 3), "ratio": round(two / one, 3)}
    return {"case": name, "bare": left, "loader": right, "added": added}


def machine() -> dict[str, Any]:
    """What the numbers depend on; nothing that names the machine."""
    import onnxruntime

    versions = {"python": platform.python_version(), "onnxruntime": onnxruntime.__version__}
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    return {"cpu": cpu, "cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}", **versions}


def exported(folder: Path, pythons: Sequence[str]) -> Path:
    """The loader as it is installed, with bytecode for every interpreter."""
    from orchestrator.portable.runtime.package import write_package

    write_package(str(folder), "bench")
    for python in pythons:
        subprocess.run([python, "-m", "compileall", "-q", str(folder)], check=True)
    return folder


def imports(package: Path, pythons: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """The import in a bare interpreter, and in this one after numpy, as a service has it."""
    cases: list[tuple[str, str, tuple[str, ...]]] = [(python, "bare", ()) for python in pythons]
    cases.append((sys.executable, "after numpy", ("numpy",)))
    times: list[Times] = [[] for _ in cases]
    for _ in range(rounds):
        for (python, _, before), found in zip(cases, times, strict=True):
            found += [(wall, cpu) for _, wall, cpu in run(IMPORT, package, *before, python=python)]
    version = "import platform; print(platform.python_version())"
    answer = []
    for (python, case, _), found in zip(cases, times, strict=True):
        said = subprocess.run([python, "-c", version], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        answer.append({"python": said, "case": case, **figures(found)})
    return answer


def loads(package: Path, manifest: Path, file: Path, rounds: int) -> list[dict[str, Any]]:
    """First loads under several conditions, and later loads."""
    conditions = {
        "": ("logging", "no"),
        ", with a GPU described": ("logging", "gpu"),
        ", with a GPU described, logging not imported": ("no", "gpu"),
    }
    first: dict[tuple[str, str], Times] = {(note, kind): [] for note in conditions for kind in ("bare", "loader")}
    for _ in range(rounds):
        for (note, kind), found in first.items():
            found += [(wall, cpu) for _, wall, cpu in run(MEASURE, package, manifest, file, 1, *conditions[note], kind)]
    answer = [compare(f"first load of a process{note}", first[note, "bare"], first[note, "loader"]) for note in conditions]
    again = run(MEASURE, package, manifest, file, rounds + 1, "logging", "gpu", "bare", "loader")[2:]
    later = [[(wall, cpu) for kind, wall, cpu in again if kind == side] for side in ("bare", "loader")]
    return [*answer, compare("later loads, with a GPU described", *later)]


def within(result: dict[str, Any]) -> dict[str, bool]:
    """Whether the least of every figure keeps its limit."""
    least = [found["wall"]["least_ms"] for found in result["import"]]
    added = [case["added"]["wall_least_ms"]["added_ms"] for case in result["cases"]]
    return {"import_ms": max(least) <= LIMITS["import_ms"], "added_ms": max(added) <= LIMITS["added_ms"]}


def show(result: dict[str, Any]) -> None:
    for found in result["import"]:
        wall, cpu = found["wall"], found["cpu"]
        print(f"import, Python {found['python']}, {found['case']}: least {wall['least_ms']}, median {wall['median_ms']}", end="")
        print(f" ms (CPU {cpu['least_ms']}, {cpu['median_ms']})")
    for case in result["cases"]:
        least, median = case["added"]["wall_least_ms"], case["added"]["wall_median_ms"]
        print(f"{case['case']}: adds {least['added_ms']} ms to the least (ratio {least['ratio']})", end="")
        print(f", {median['added_ms']} ms to the median; bare {case['bare']['wall']['least_ms']} ms")
    print(f"load averages {result['load_average']}; within the limits: {result['within']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--import-with", action="append", default=[], metavar="PYTHON", help="also measure the import with this one")
    parser.add_argument("--json", type=Path, help="write all figures here")
    arguments = parser.parse_args()
    manifest = arguments.manifest.resolve()
    records = json.loads(manifest.read_text())["engines"]
    record = next(item for item in records if item["backend"] == "onnxruntime" and item["provider"] == "cpu" and item["file"])
    before = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        pythons = [*arguments.import_with, sys.executable]
        package = exported(Path(folder), pythons)
        result: dict[str, Any] = {
            "schema": SCHEMA,
            "machine": machine(),
            "limits": LIMITS,
            "engine": {"file": record["file"], "bytes": record["size_bytes"], "engines_in_manifest": len(records)},
            "import": imports(package, pythons, arguments.rounds),
            "cases": loads(package, manifest, manifest.parent / record["file"], arguments.rounds),
        }
    result["load_average"] = {"before": list(before), "after": list(os.getloadavg())}
    result["within"] = within(result)
    show(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
