"""Writes bench/farm_durations.json: the 24 longest of the recorded builds for rtx-turing, rtx-ampere and rtx-ada (bench/results).

python bench/farm_durations.py
"""

from __future__ import annotations

import json
from pathlib import Path

BENCH = Path(__file__).resolve().parent
CAPABILITIES = {"rtx-turing": "7.5", "rtx-ampere": "8.0", "rtx-ada": "8.9"}
COUNT = 24


def main() -> None:
    found = []
    for path in sorted((BENCH / "results").glob("*.json")):
        result = json.loads(path.read_text())
        if result["schema"] != "enginefarm.bench/1":
            continue
        (model,) = result["result"]["models"]
        for build in model["builds"]:
            if build["target"] in CAPABILITIES:
                capability = CAPABILITIES[build["target"]]
                found.append(
                    {"model": result["model"]["name"], "target": build["target"], "capability": capability, "seconds": build["seconds"]}
                )
    kept = set(sorted(range(len(found)), key=lambda number: -found[number]["seconds"])[:COUNT])
    rows = [row for number, row in enumerate(found) if number in kept]  # in the order of the plan: model by model
    (BENCH / "farm_durations.json").write_text(json.dumps({"source": "bench/results", "builds": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
