"""Plan, cache and reuse: what it costs when nothing, little or everything has to be built. One command.

    python bench/cached.py [run] [digest] [builds] [scale] [--rounds N] [--peers FOLDER] [--small]

``run``: a run over 30 targets in which nothing changed. ``digest``: hashing and planning a model of 4 GB. ``builds``: real models for
all RTX targets against the bare builder. ``scale``: 1,000 models. FOLDER is a virtual environment with cibuildwheel and nox. Writes
bench/results/cached_*.json, each with every single run, and docs/bench.md; ``--small`` tries everything out with small numbers and
only prints.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
ROOT = BENCH.parent
sys.path[:0] = [str(BENCH), str(ROOT)]

import cached_builds  # noqa: E402  (scripts beside this one)
import cached_digest  # noqa: E402
import cached_run  # noqa: E402
import cached_scale  # noqa: E402
from run import machine  # noqa: E402

SCHEMA = "enginefarm.bench.cached/1"


def _versions(peers: Path | None) -> dict[str, str]:
    """What the figures depend on beside the machine."""
    found = {name: metadata.version(name) for name in ("typer", "pydantic", "pyyaml", "onnxruntime")}
    for name in ("tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu12-bindings"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found["tensorrt-rtx"] = metadata.version(name)
    if shutil.which("make"):
        found["make"] = subprocess.run(["make", "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    if peers is not None:
        lines = subprocess.run([peers / "bin" / "pip", "freeze"], capture_output=True, text=True, check=True).stdout.splitlines()
        found |= dict(line.split("==") for line in lines if line.startswith(("nox==", "cibuildwheel==")))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", nargs="*", metavar="WHAT", help="run, digest, builds or scale; all of them when none is named")
    parser.add_argument("--rounds", type=int, help="rounds of each measurement, after one that does not count")
    parser.add_argument("--peers", type=Path, help="virtual environment with cibuildwheel and nox")
    parser.add_argument("--small", action="store_true", help="try it out: few and small things, nothing is written")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # files go with the program
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    known: dict[str, tuple[Callable[[int], dict[str, Any]], int]] = {
        "run": (lambda rounds: cached_run.measure(rounds, small=given.small, peers_environment=given.peers), 11),
        "digest": (lambda rounds: cached_digest.measure(rounds, small=given.small), 5),
        "builds": (lambda rounds: cached_builds.measure(rounds, small=given.small), 3),
        "scale": (lambda rounds: cached_scale.measure(rounds, small=given.small), 5),
    }
    if wrong := set(given.what) - set(known):
        parser.error(f"there is no measurement {', '.join(sorted(wrong))}")
    missed = 0
    for name in given.what or known:
        measure, rounds = known[name]
        print(f"== {name}", file=sys.stderr, flush=True)
        rounds = given.rounds or (1 if given.small else rounds)
        found = measure(rounds)
        for row, figures in found["rows"].items():
            print(f"{row:60} cpu {figures['cpu_s']:8.3f} s   wall {figures['wall_s']:8.3f} s   {figures['rss_mb']:6.1f} MB")
        for claim in found["claims"]:
            limit = f"at most {claim['most']}" if claim["most"] is not None else f"at least {claim['least']}"
            print(f"{'ok  ' if claim['met'] else 'MISS'} {claim['claim']}: {claim['value']} ({limit})")
            missed += not claim["met"]
        if given.small:
            continue
        result = {"schema": SCHEMA, "what": name, "rounds": rounds, "machine": machine() | {"versions": _versions(given.peers)}, **found}
        (BENCH / "results" / f"cached_{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    if not given.small:
        subprocess.run([sys.executable, str(ROOT / "tools/generate_bench_docs.py")], check=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
