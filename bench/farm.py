"""The farm's speed: what a step costs, how fast a model travels, how well builds are spread. One command, its own engines.

    python bench/farm.py [steps] [send] [makespan] [--times 2]

Needs root and Docker's daemon (Debian: docker.io). Writes bench/results/farm_*.json, each with all its runs, and docs/bench.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
sys.path[:0] = [str(BENCH), str(ROOT)]

import farm_makespan  # noqa: E402  (scripts beside this one)
import farm_send  # noqa: E402
import farm_steps  # noqa: E402
from run import machine  # noqa: E402


def _versions() -> dict[str, str]:
    """What the figures depend on beside the machine."""
    import docker

    said = subprocess.run(["dockerd", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return {"dockerd": said[2].rstrip(","), "docker SDK": docker.__version__}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", metavar="WHAT", help="steps, send or makespan; all of them when none is named")
    parser.add_argument("--times", type=int, default=2, help="runs of each measurement")
    parser.add_argument("--rounds", type=int, help="pairs of one run")
    parser.add_argument("--nice", type=int, default=0, help="priority of everything measured; below 0 on a machine that others use")
    arguments = parser.parse_args()
    os.nice(arguments.nice)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # engines and files go with the program
    known: dict[str, tuple[Callable[[int], dict[str, Any]], int]] = {
        "steps": (farm_steps.measure, 25),
        "send": (farm_send.measure, 5),
        "makespan": (farm_makespan.measure, 3),
    }
    if wrong := set(arguments.what) - set(known):
        parser.error(f"there is no measurement {', '.join(sorted(wrong))}")
    for name in arguments.what or known:
        measure, rounds = known[name]
        runs = []
        for number in range(arguments.times):
            print(f"== {name}, run {number + 1} of {arguments.times}", file=sys.stderr, flush=True)
            runs.append(measure(arguments.rounds or rounds))
        result = {
            "schema": "enginefarm.bench.farm/1",
            "what": name,
            "nice": arguments.nice,
            "machine": machine() | {"versions": _versions()},
            "runs": runs,
        }
        (BENCH / "results" / f"farm_{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    return subprocess.call([sys.executable, str(ROOT / "tools/generate_bench_docs.py")])


if __name__ == "__main__":
    sys.exit(main())
