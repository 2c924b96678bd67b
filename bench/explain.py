"""How fast ``enginefarm explain`` reads logs, and with how much memory.

    python bench/explain.py [--megabytes 100] [--rounds 5] [--with PYTHON]... [--json FILE]

Each log is generated while it is read and measured in a process of its own: CPU time of the reading alone, the process's greatest resident
size after a first megabyte and at the end. ``verbose build`` is trtexec --verbose, ``container build`` is docker build with pip in it,
``job`` is a CI job's whole output with GitHub's timestamps, ``healthy`` repeats the healthy logs of tests/cases, which are dense with the
lines that matter; the last two end in a failure that has to be found.
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
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = "enginefarm.bench-explain/1"
MEGABYTE = 1_000_000

# argv: root, log, megabytes; prints one JSON object. Python 3.6, as the reader itself
MEASURE = r"""
import glob, io, json, resource, sys, time
sys.path.insert(0, sys.argv[1])
from orchestrator.portable.facts.explain import explain

def verbose(number):
    at = "[09/26/2026-10:%02d:%02d] [V] [TRT] " % (number // 6000 % 60, number // 100 % 60)
    name = "/model.%d/cv%d/conv/Conv" % (number // 40 % 300, number % 3)
    return [
        at + "=============== Computing costs for " + name,
        at + "*************** Autotuning format combination: Half(%d,1600,40,1) -> Half(%d,1600,40,1) ***************" % (number, number),
        at + "--------------- Timing Runner: %s + PWN(%s) (CaskConvolution[0x80000009])" % (name, name),
        at + "Skipping CaskConvolution: No valid tactics for " + name,
        at + "Tactic Name: sm80_xmma_fprop_implicit_gemm_f16f16_tilesize%dx64x64 Tactic: 0x%016x Time: 0.%d" % (
            number % 256, number * 2654435761 % 2 ** 64, number),
    ]

def container(number):
    return [
        "#%d %d.%d Collecting package-%d==1.%d" % (number % 20, number % 900, number % 1000, number % 7000, number % 40),
        "#%d %d.%d   Downloading package_%d-1.%d-py3-none-any.whl (%d kB)" % (
            number % 20, number % 900, number % 1000, number % 7000, number % 40, number % 900),
        "%012x: Pull complete" % (number * 2654435761 % 2 ** 48),
        "[%3d%%] Building CXX object plugin/CMakeFiles/plugins.dir/kernel_%d.cpp.o" % (number % 100, number % 900),
    ]

def job(number):
    stamp = "2025-08-01T10:%02d:%02d.%07dZ " % (number // 60 % 60, number % 60, number % 10000000)
    return [stamp + line for line in (verbose(number) + container(number))] + [stamp + "[I] [TRT] Layer %d of %d" % (number, number)]

HEALTHY = [line for path in sorted(glob.glob(sys.argv[1] + "/tests/cases/healthy/*.log"))
           for line in io.open(path, encoding="utf-8", errors="replace").read().split("\n")]

def healthy(number):
    start = number * 40 % len(HEALTHY)
    return HEALTHY[start:start + 40]

LOGS = {"verbose build": verbose, "container build": container, "job": job, "healthy": healthy}
LAST = "expecting library version 10.7.0.23 got 10.3.0.26, please rebuild.\n"

class Log(io.RawIOBase):
    def __init__(self, lines, size, last):
        self.lines, self.left, self.last, self.number = lines, size, last, 0
    def read(self, size=-1):
        if self.left <= 0:
            last, self.last = self.last, ""
            return last.encode()
        steps = 20 if self.lines is not healthy else 1
        data = "".join(line + "\n" for step in range(steps) for line in self.lines(self.number + step)).encode("utf-8")
        self.number += steps
        self.left -= len(data)
        return data

lines = LOGS[sys.argv[2]]
last = LAST if sys.argv[2] in ("job", "healthy") else ""
explain(Log(lines, 1000000, last))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
empty = Log(lines, int(sys.argv[3]) * 1000000, "")
start = time.process_time()
while empty.read():
    pass
making = time.process_time() - start
log = Log(lines, int(sys.argv[3]) * 1000000, last)
start = time.process_time()
answer = explain(log)
took = time.process_time() - start - making
assert [cause["code"] for cause in answer["causes"]] == (["EF801"] if last else []), answer["causes"]
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"lines": answer["lines"], "seconds": took, "rss_kib_first": before, "rss_kib": after}))
"""


def measured(python: str, log: str, megabytes: int) -> dict[str, Any]:
    """One process: lines, CPU seconds, greatest resident size in KiB after 1 MB and after all."""
    call = [python, "-c", MEASURE, str(ROOT), log, str(megabytes)]
    answer: dict[str, Any] = json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
    return answer


def version_of(python: str) -> str:
    call = [python, "-c", "import platform; print(platform.python_version())"]
    return subprocess.run(call, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--with", dest="pythons", action="append", default=[], metavar="PYTHON", help="measure with this interpreter too")
    parser.add_argument("--json", type=Path, default=ROOT / "bench" / "results" / "explain.json")
    chosen = parser.parse_args()
    load = [round(value, 2) for value in os.getloadavg()]
    results = []
    for python in [sys.executable, *chosen.pythons]:
        for log in ("verbose build", "container build", "job", "healthy"):
            every = [measured(python, log, chosen.megabytes) for _ in range(chosen.rounds)]
            rates = [one["lines"] / one["seconds"] for one in every]
            row = {
                "python": version_of(python),
                "log": log,
                "megabytes": chosen.megabytes,
                "lines_per_second": round(statistics.median(rates)),
                "best_lines_per_second": round(max(rates)),
                "megabytes_per_second": round(statistics.median(chosen.megabytes / one["seconds"] for one in every), 1),
                "rss_growth_kib": max(one["rss_kib"] - one["rss_kib_first"] for one in every),
                "every": every,
            }
            results.append(row)
            sys.stdout.write(f"{row['python']} {log}: {row['lines_per_second']} lines/s, {row['megabytes_per_second']} MB/s\n")
    machine = {"platform": platform.platform(), "cores": os.cpu_count(), "load_before": load, "load_after": list(os.getloadavg())}
    text = json.dumps({"schema": SCHEMA, "machine": machine, "results": results}, indent=1) + "\n"
    with tempfile.NamedTemporaryFile("w", dir=chosen.json.parent, delete=False, encoding="utf-8") as stream:
        stream.write(text)
    Path(stream.name).chmod(0o644)
    Path(stream.name).replace(chosen.json)


if __name__ == "__main__":
    main()
