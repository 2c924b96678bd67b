"""Real models for all TensorRT-RTX targets, from nothing, against the bare builder as one process per build.

The models are those of models.yaml. enginefarm starts without cache, history and engines in every round, and does all that it does: it
asks the runner what it is, reads, hashes and copies the models, converts those that need fp16, builds each engine in a process of its own,
checks its header, keeps it in the cache and writes it, with a manifest, to the disk. The bare builder (cached_bare.py) gets files that are
ready to be built, fp16 included, and writes the engine. Neither runs an engine: the machine need not have a GPU.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import cached_lab as lab
from fetch import download, lay_out, models

from orchestrator.matrix.load import load_matrix
from orchestrator.models.convert import convert_precision
from orchestrator.models.load import load_model

MOST_RATIO, LEAST_THROUGHPUT = 1.35, 0.85
ROOT = Path(__file__).resolve().parent.parent
TARGETS = "rtx-*"
# argv: processes at a time, file with the commands
_SIDE_BY_SIDE = """
import json, os, sys
at_once, running = int(sys.argv[1]), 0

def one_ended():
    if os.wait()[1]:
        sys.exit("a build failed")

for command in json.load(open(sys.argv[2])):
    if running == at_once:
        one_ended()
        running -= 1
    os.posix_spawn(command[0], command, os.environ)
    running += 1
for _ in range(running):
    one_ended()
"""

# argv: ONNX file, converted file
_CONVERT = """
import sys
from orchestrator.models import convert
convert.rewrite({"source": sys.argv[1], "dest": sys.argv[2], "half": True})
"""


def ready(model: Path, folder: Path) -> dict[str, Path]:
    """The files that a builder gets, by precision, made by the code that enginefarm converts with."""
    read = load_model(model, stage=folder / "staged", deep=False)
    for precision in ("fp32", "fp16"):
        convert_precision(read, folder / "staged", folder / precision, precision)
    return {precision: folder / precision / "model.onnx" for precision in ("fp32", "fp16")}


def bare_commands(rows: Iterable[dict[str, Any]], project: Path, folder: Path) -> list[list[str]]:
    """One command per build, model by model, as enginefarm plans them."""
    targets = [effective.target for effective in load_matrix().select([TARGETS])]
    (folder / "engines").mkdir(parents=True)
    script = str(ROOT / "bench" / "cached_bare.py")
    commands = []
    for row in rows:
        files = ready(project / "models" / f"{row['name']}.onnx", folder / row["name"])
        profile = {key: {k: spec[k] for k in ("min", "opt", "max")} for key, spec in row["inputs"].items() if "opt" in spec}
        for target in targets:
            capabilities = ",".join(target.compute_capability)
            engine = str(folder / "engines" / f"{row['name']}-{target.name}.engine")
            commands.append([sys.executable, script, str(files[target.precision]), capabilities, json.dumps(profile), engine])
    return commands


def check_built(project: Path, builds: int) -> dict[str, int]:
    """How the last run of enginefarm ended: every engine is there."""
    found: list[dict[str, Any]] = []
    for manifest in sorted((project / "artifacts").glob("*/v1/*_v1.json")):
        found += json.loads(manifest.read_text())["engines"]
    good = [engine for engine in found if engine["file"] is not None and engine["verdict"]["status"] in ("unvalidated", "passed")]
    if len(good) != builds:
        raise SystemExit(f"{len(good)} of {builds} engines were built")
    return {status: sum(engine["verdict"]["status"] == status for engine in good) for status in ("passed", "unvalidated")}


def measure(rounds: int, *, small: bool) -> dict[str, Any]:
    """``small``: two models, to try this out."""
    chosen: Sequence[dict[str, Any]] = [row for row in models() if not small or row["name"].startswith("silero")]
    wheels = ROOT / ".enginefarm/bench/wheels"
    download(wheels)
    with lab.work_folder(8 << 30) as folder:
        project = lab.make_project(folder / "project", 0, 0)
        for row in chosen:
            lay_out(row, wheels, project / "models")
        commands = bare_commands(chosen, project, folder / "bare")
        converted = str(folder / "converted.onnx")
        conversions = [[sys.executable, "-c", _CONVERT, str(path), converted] for path in sorted((project / "models").glob("*.onnx"))]
        for name, made in (("builds", commands), ("conversions", conversions)):
            (folder / f"{name}.json").write_text(json.dumps(made))

        def ours(jobs: int) -> lab.Figures:
            for name in (".enginefarm", "artifacts"):
                shutil.rmtree(project / name, ignore_errors=True)
            words = ["build", "models", "--target", TARGETS, "--jobs", str(jobs), "--allow-unvalidated", *lab.HERE]
            return lab.measured([lab.ENGINEFARM, *words], project)

        def bare(at_once: int, what: str = "builds") -> lab.Figures:
            return lab.measured([sys.executable, "-I", "-S", "-c", _SIDE_BY_SIDE, str(at_once), f"{what}.json"], folder)

        before = lab.load()
        runs: dict[str, lab.Run] = {
            "bare builder, one after the other": lambda: bare(1),
            "enginefarm, 1 job": lambda: ours(1),
            "bare builder, two side by side": lambda: bare(2),
            "enginefarm, 2 jobs": lambda: ours(2),
            # what the bare builder is spared and enginefarm is not
            "conversion of the models to fp16 alone, one after the other": lambda: bare(1, "conversions"),
        }
        found = lab.rows(lab.in_turns(runs, rounds))
        after = lab.load()
        statuses = check_built(project, len(commands))
    one, alone, two, both = "enginefarm, 1 job", "bare builder, one after the other", "enginefarm, 2 jobs", "bare builder, two side by side"
    claims = [
        lab.claim("1 job / bare builds one after the other, elapsed", lab.ratio(found, one, alone, "wall_s"), most=MOST_RATIO),
        lab.claim("1 job / bare builds one after the other, CPU time", lab.ratio(found, one, alone), most=MOST_RATIO),
        lab.claim("throughput of 2 jobs / of two bare builds side by side", lab.ratio(found, both, two, "wall_s"), least=LEAST_THROUGHPUT),
    ]
    return {
        "load_before": before,
        "load_after": after,
        "models": [row["name"] for row in chosen],
        "builds": len(commands),
        "statuses": statuses,
        "claims": claims,
        "rows": found,
    }
