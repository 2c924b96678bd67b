"""Many models: a plan of 1,000 models x 50 targets, and a run of 10,000 builds in which nothing changed.

The 10,000 engines are built, validated and committed by the project's own code, with every step in one process instead of in one of its own
(cached_fill.py); what is measured afterwards is the command itself.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cached_lab as lab

MOST_PLAN_S, MOST_BUILD_S = 5.0, 10.0
MOST_GROWTH = 1.25
"""How much more a build may cost among many than among few before it is no longer called linear."""
_AT_A_TIME = 50  # models of one run of the filler
_FILL = [sys.executable, str(Path(__file__).resolve().with_name("cached_fill.py")), "build", "--jobs", "1", "--progress", "plain", "-q"]


def fill(project: Path) -> None:
    """Build everything in ``project``, in two processes."""
    models = sorted(str(path.relative_to(project)) for path in (project / "models").glob("*.onnx"))
    parts = [models[start : start + _AT_A_TIME] for start in range(0, len(models), _AT_A_TIME)]
    with ThreadPoolExecutor(2) as pool:
        for number, _ in enumerate(pool.map(lambda part: lab.output_of([*_FILL, *part], project), parts)):
            sys.stderr.write(f"   filled {number + 1} of {len(parts)}\n")


def stamps(folder: Path, models: int, targets: int) -> Path:
    """A folder in which make has nothing left to do: for each of ``models`` sources one stamp per target."""
    for name in ("models", *(f"t{number}" for number in range(targets))):
        (folder / name).mkdir(parents=True)
    for number in range(models):
        (folder / "models" / f"net-{number:04}.onnx").write_text(f"{number}\n")
    lines = ["names := $(notdir $(wildcard models/*))", f"all: $(foreach t,$(shell seq 0 {targets - 1}),$(addprefix t$t/,$(names)))"]
    lines += [f"t{number}/%: models/%\n\t@touch $@" for number in range(targets)]
    (folder / "Makefile").write_text("\n".join(lines) + "\n")
    subprocess.run(["make", "-s"], cwd=folder, check=True)
    return folder


def plan_projects(folder: Path, counts: Sequence[int], targets: int) -> dict[str, lab.Run]:
    """A plan per number of models; the first one, which is not measured, hashes them."""
    found: dict[str, lab.Run] = {}
    for count in counts:
        project = lab.make_project(folder / f"plan-{count}", count, targets)
        command = [lab.ENGINEFARM, "plan", "models", *lab.HERE]
        lab.output_of(command, project)
        found[plan_name(count, targets)] = lambda command=command, project=project: lab.measured(command, project)  # type: ignore[misc]
    return found


def plan_name(models: int, targets: int) -> str:
    return f"enginefarm plan, {models} x {targets}"


def growth(found: dict[str, dict[str, Any]], sizes: Sequence[tuple[str, int]]) -> float:
    """What each further build costs in the upper half, over what it costs in the lower; 1 is linear, 2 and more is quadratic.

    By the least CPU times: a difference of medians says more about what else the machine did.
    """
    costs = [(float(found[name]["least_cpu_s"]), builds) for name, builds in sizes]
    steps = [(after[0] - before[0]) / (after[1] - before[1]) for before, after in itertools.pairwise(costs)]
    return round(steps[1] / steps[0], 3)


def measure(rounds: int, *, small: bool) -> dict[str, Any]:
    """``small``: a tenth of it, to try this out."""
    counts, plan_targets = ((10, 50, 100), 5) if small else ((100, 500, 1000), 50)
    models, targets = (100, 10) if small else (1000, 10)
    few = models // 10
    with lab.work_folder(4 << 30) as folder:
        project = lab.make_project(folder / "built", models, targets)
        fill(project)
        statuses = lab.check_reused(project, models * targets)
        build = [lab.ENGINEFARM, "build", *lab.HERE]
        some = [f"models/net-{number:04}.onnx" for number in range(few)]
        half = [f"models/net-{number:04}.onnx" for number in range(models // 2)]
        names = [f"enginefarm build, {count} x {targets}" for count in (few, models // 2, models)]
        runs: dict[str, lab.Run] = {
            **plan_projects(folder, counts, plan_targets),
            names[0]: lambda: lab.measured([*build, *some], project),
            names[1]: lambda: lab.measured([*build, *half], project),
            names[2]: lambda: lab.measured([*build, "models"], project),
            f"{plan_name(models, targets)}, all built": lambda: lab.measured([lab.ENGINEFARM, "plan", "models", *lab.HERE], project),
        }
        if shutil.which("make"):
            made = stamps(folder / "make", models, targets)
            runs[f"make, {models * targets} fresh stamps"] = lambda: lab.measured(["make", "-s"], made)
        before = lab.load()
        found = lab.rows(lab.in_turns(runs, rounds))
        after = lab.load()
        read = lab.bytes_read([*build, *some], project)
    plans = [(plan_name(count, plan_targets), count * plan_targets) for count in counts]
    built = list(zip(names, (few * targets, models // 2 * targets, models * targets), strict=True))
    claims = [
        lab.claim(f"plan of {counts[-1]} models x {plan_targets} targets, CPU time, s", found[plans[-1][0]]["cpu_s"], most=MOST_PLAN_S),
        lab.claim(f"plan of {counts[-1]} models x {plan_targets} targets, elapsed, s", found[plans[-1][0]]["wall_s"], most=MOST_PLAN_S),
        lab.claim("cost of each further planned build, upper half / lower half", growth(found, plans), most=MOST_GROWTH),
        lab.claim(f"cached run of {models * targets} builds, CPU time, s", found[names[2]]["cpu_s"], most=MOST_BUILD_S),
        lab.claim(f"cached run of {models * targets} builds, elapsed, s", found[names[2]]["wall_s"], most=MOST_BUILD_S),
        lab.claim("cost of each further reused build, upper half / lower half", growth(found, built), most=MOST_GROWTH),
    ]
    if read is not None:
        claims.append(lab.claim(f"bytes of models, engines and blobs read by {few * targets} builds", float(sum(read.values())), most=0))
    return {"load_before": before, "load_after": after, "claims": claims, "rows": found, "read": read, "statuses": statuses}
