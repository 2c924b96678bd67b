"""What the loader adds to the backend's own load: ``load`` against a bare ``onnxruntime.InferenceSession`` of the same bytes.

    python bench/loader.py MANIFEST [--rounds 30] [--json FILE]

The first loads are each measured in a process of their own (what a service pays at its start), the later ones in one process. Hashing is
excluded: the file is hashed before the clock starts. Figures are the median of the rounds, their middle half and the least, in
milliseconds; first loads of both kinds alternate, so that the machine's mood hits both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

# argv: manifest, file, kind, rounds; prints one list of seconds. The backend and numpy are imported before the clock starts.
MEASURE = """
import json, sys, time
manifest, file, kind, rounds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
import logging, numpy, onnxruntime
logging.disable(logging.CRITICAL)
from orchestrator.portable.runtime.api import load
from orchestrator.portable.runtime.files import Expected, check
import hashlib
data = open(file, "rb").read()
check(Expected(file, "sha256:" + hashlib.sha256(data).hexdigest(), len(data)))
found = []
for _ in range(rounds):
    started = time.perf_counter()
    if kind == "bare":
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        with open(file, "rb") as stream:
            session = onnxruntime.InferenceSession(stream.read(), options, providers=["CPUExecutionProvider"])
    else:
        session = load(manifest)
    found.append(time.perf_counter() - started)
    del session
print(json.dumps(found))
"""
IMPORT = """
import json, time
started = time.perf_counter()
import orchestrator.portable.runtime.api
print(json.dumps([time.perf_counter() - started]))
"""


def run(code: str, *arguments: object) -> list[float]:
    """The seconds that ``code`` prints, in a fresh process."""
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: list[float] = json.loads(done.stdout)
    return found


def figures(seconds: list[float]) -> dict[str, Any]:
    """Median and middle half in milliseconds, with the raw values."""
    low, median, high = (value * 1e3 for value in statistics.quantiles(seconds, n=4))
    raw = [round(value * 1e3, 3) for value in seconds]
    return {"median_ms": round(median, 3), "quartiles_ms": [round(low, 3), round(high, 3)], "least_ms": min(raw), "raw_ms": raw}


def compare(name: str, bare: list[float], loader: list[float]) -> dict[str, Any]:
    """Both sides, what the loader adds, and the ratio."""
    left, right = figures(bare), figures(loader)
    pairs = [(b - a) * 1e3 for a, b in zip(bare, loader, strict=True)]
    added = {"median_ms": round(statistics.median(pairs), 3), "of_least_ms": round(right["least_ms"] - left["least_ms"], 3)}
    return {"case": name, "bare": left, "loader": right, "added": added, "ratio": round(right["median_ms"] / left["median_ms"], 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path, help="write all figures here")
    arguments = parser.parse_args()
    manifest = arguments.manifest.resolve()
    records = json.loads(manifest.read_text())["engines"]
    record = next(item for item in records if item["backend"] == "onnxruntime" and item["provider"] == "cpu" and item["file"])
    file = manifest.parent / record["file"]
    first: dict[str, list[float]] = {"bare": [], "loader": []}
    for _ in range(arguments.rounds):
        for kind, seconds in first.items():
            seconds += run(MEASURE, manifest, file, kind, 1)
    again = {kind: run(MEASURE, manifest, file, kind, arguments.rounds)[1:] for kind in ("bare", "loader")}
    imports = [value for _ in range(arguments.rounds) for value in run(IMPORT)]
    result: dict[str, Any] = {
        "engine": {"file": record["file"], "bytes": record["size_bytes"]},
        "engines_in_manifest": len(records),
        "import": figures(imports),
        "cases": [
            compare("first load of a process", first["bare"], first["loader"]),
            compare("later loads", again["bare"], again["loader"]),
        ],
    }
    for case in result["cases"]:
        print(f"{case['case']}: bare {case['bare']['median_ms']} ms, loader {case['loader']['median_ms']} ms", end=", ")
        print(f"added {case['added']['median_ms']} ms (of the least of each: {case['added']['of_least_ms']} ms), ratio {case['ratio']}")
    print(f"import of the loader: {result['import']['median_ms']} ms (least {result['import']['least_ms']} ms)")
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
