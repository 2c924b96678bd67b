"""Writes the table of README.md from results/h200_docker.json; `--check` writes nothing and exits 5 when it is stale."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULT = HERE / "results/h200_docker.json"
DOCUMENT = HERE / "README.md"
START, END = "<!-- tables.py: start -->", "<!-- tables.py: end -->"
STALE = 5
_LABELS = {
    "docker": "engine",
    "image": "image",
    "probe": "`runners probe` through a container",
    "whole_way": "`ort-cuda`: build, fresh validation",
    "lock_down": "each of these containers",
    "lease": "a second job meanwhile",
    "wrong": "an injected wrong output",
    "escape": "code in such a container",
    "clean": "`runners clean`",
}


def docker(part: Mapping[str, Any]) -> str:
    place = f"{part['OperatingSystem']}, kernel {part['KernelVersion']}, cgroup v{part['CgroupVersion']}"
    return f"dockerd {part['ServerVersion']} on {place}; {part['Driver']}; runtimes {', '.join(part['Runtimes'])}: no NVIDIA toolkit"


def image(part: Mapping[str, Any]) -> str:
    cuda = f", {len(part['cuda_libraries'])} CUDA libraries opened at run time" if part["cuda_libraries"] else ""
    return f"{part['size_bytes'] / 1e9:.1f} GB of the machine's own Python, onnxruntime and what they need{cuda}; {part['seconds']:.0f} s"


def probe(part: Mapping[str, Any]) -> str:
    (gpu,), driver = part["gpus"], part["driver"]
    what = f"{gpu['name']}, compute capability {gpu['compute_capability']}, {gpu['memory_bytes'] / 2**30:.0f} GiB, {gpu['uuid']}"
    ort = part["onnxruntime"]
    return f"{what}; driver {driver['version']}, CUDA {driver['cuda']}; onnxruntime {ort['version']} ({', '.join(ort['providers'])})"


def whole_way(part: Mapping[str, Any]) -> str:
    verdict = part["verdict"]
    built, checked = (step["id"][:12] for step in part["containers"] if step["gpu"])
    worst = max(output["max_abs"] for output in verdict["outputs"])
    how = f"{verdict['reason']}; largest difference {worst:.1e}, median {verdict['median_ms']:.2f} ms a run"
    return f"**{verdict['status']}**: {how}. Built in container {built}, validated in {checked}"


def lock_down(part: Mapping[str, Any]) -> str:
    steps = [step["locked_down"] for step in part["containers"] if step["gpu"]]
    one = steps[0]
    words = [
        f"network {one['network']}",
        f"root file system {'read-only' if one['read_only_root'] else 'writable'}",
        f"capabilities dropped: {', '.join(one['cap_drop'])}",
        ", ".join(one["security_opt"]),
        f"user {one['user']}",
        f"{one['pids']} processes",
        f"{one['memory'] / 2**30:.0f} GiB without swap",
        f"devices {', '.join(Path(node).name for node in one['devices'])}",
        f"mounts {', '.join(f'{where} ({mode})' for _, where, mode in steps[0]['mounts'])}",
    ]
    return "; ".join(words)


def lease(part: Mapping[str, Any]) -> str:
    told, ended, started = part["said"]["second"][0], part["first"][-1]["die"], part["second"][0]["start"]
    waited = f"said “{told['phase']}” {told['at'] - part['second_started']:.1f} s after its start, waited {part['seconds_waited']:.1f} s"
    gap = f"its first GPU step began {started - ended:.2f} s after the other's last one ended"
    return f"{waited}; {gap}; {len(part['overlaps'])} GPU steps overlap; both {' and '.join(dict.fromkeys(part['statuses']))}"


def wrong(part: Mapping[str, Any]) -> str:
    evidence = ", ".join(part["quarantine"])
    return f"**{part['status']}**, exit code {part['exit_code']}: {part['reason']}. No engine left; quarantine: {evidence}"


def escape(part: Mapping[str, Any]) -> str:
    found = part["found"]
    refused = [*(f"writing {path}" for path in found["write"]), "mknod", "mount", "chroot", "setuid", "connect", "resolve"]
    seen = (
        f"interfaces {', '.join(found['interfaces'])}, {len(found['processes'])} processes, no capability, {found['gpus']} GPU that works"
    )
    return f"refused: {', '.join(refused)}; sees {seen}"


def clean(part: Mapping[str, Any]) -> str:
    left = {name: len(part[f"{name}_left"]) for name in ("containers", "volumes", "leases")}
    return f"exit code {part['exit_code']}; left: {', '.join(f'{count} {name}' for name, count in left.items())}"


def table(seen: Mapping[str, Any]) -> list[str]:
    """One line for each check; one that is not as it must be says so."""
    lines = ["| what | seen |", "| --- | --- |"]
    for check in (docker, image, probe, whole_way, lock_down, lease, wrong, escape, clean):
        part = seen["whole_way" if check is lock_down else check.__name__]
        text = check(part) if part["ok"] else f"**not as it must be** {part.get('error') or ''}".strip()
        lines.append(f"| {_LABELS[check.__name__]} | {text.replace('|', '&#124;')} |")
    return lines


def render(document: str) -> str:
    """``document`` with the table between its marks."""
    before, _, rest = document.partition(START)
    after = rest.partition(END)[2]
    if RESULT.exists():
        seen = json.loads(RESULT.read_bytes())
        if seen["mode"] != "hardware":
            raise SystemExit(f"{RESULT.name} is of a {seen['mode']}")
        lines = ["", f"From [results/{RESULT.name}](results/{RESULT.name}):", "", *table(seen), ""]
    else:
        lines = ["", "**Not run yet**: rehearsed without a GPU only.", ""]
    return f"{before}{START}\n" + "\n".join(lines) + f"\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    now = DOCUMENT.read_text()
    new = render(now)
    if check:
        return STALE if new != now else 0
    DOCUMENT.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
