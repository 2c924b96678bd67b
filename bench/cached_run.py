"""A run in which nothing changed: what it costs for 30 targets, for each further one, and that it reads no model and no engine.

30 and 130 targets of one model, built for real first. Beside it, in turns: the imports that such a program cannot do without, GNU make
over as many stamps, and the start of two programs that spread one thing over many targets.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cached_lab as lab

FEW, MANY = 30, 130
MOST_RATIO, MOST_MB, MOST_MS = 3.5, 120.0, 4.0
IMPORTS = "import typer, pydantic, yaml"
BUILD = [lab.ENGINEFARM, "build", "models", *lab.HERE]
_NOXFILE = "import nox\n\n\n@nox.session\ndef tests(session):\n    session.run('true')\n"


def built(folder: Path, targets: int) -> tuple[Path, dict[str, int]]:
    """A project whose every target is built and validated by the real thing."""
    project = lab.make_project(folder / f"targets-{targets}", 1, targets)
    lab.output_of(BUILD, project)
    return project, lab.check_reused(project, targets)


def stamps(folder: Path, count: int) -> Path:
    """A folder in which make has nothing left to do for ``count`` stamps of one source."""
    folder.mkdir()
    (folder / "source").write_text("x\n")
    (folder / "Makefile").write_text(f"all: $(patsubst %,stamp%,$(shell seq {count}))\nstamp%: source\n\t@touch $@\n")
    subprocess.run(["make", "-s"], cwd=folder, check=True)
    return folder


def peers(folder: Path, few: int, environment: Path | None) -> dict[str, lab.Run]:
    """Other programs, where they are installed."""
    found: dict[str, lab.Run] = {}
    if shutil.which("make"):
        made = stamps(folder / "make", few)
        found[f"make, {few} fresh stamps"] = lambda: lab.measured(["make", "-s"], made)
    if environment is not None:
        other = folder / "peers"
        other.mkdir()
        (other / "noxfile.py").write_text(_NOXFILE)
        (other / "pyproject.toml").write_text('[project]\nname = "bare"\nversion = "1"\n')
        program = str(environment.absolute() / "bin")
        found["nox --list (start-up only)"] = lambda: lab.measured([f"{program}/nox", "--list"], other)
        words = ["--platform", "linux", "--print-build-identifiers"]
        found["cibuildwheel --print-build-identifiers (start-up only)"] = lambda: lab.measured([f"{program}/cibuildwheel", *words], other)
    return found


def rehashed(project: Path) -> dict[str, Any]:
    """Bytes read of models, engines and blobs by a run in which nothing changed, and, so that the count is known to count, by one after
    every model and engine was touched (same bytes, new mtime)."""
    quiet = lab.bytes_read(BUILD, project)
    files = [path for part in ("models", "artifacts") for path in (project / part).rglob("*.onnx")]
    for path in files:
        path.touch()
    touched = lab.bytes_read(BUILD, project)
    sizes = {part: sum(path.stat().st_size for path in (project / where).rglob("*.onnx")) for part, where in _PLACES.items()}
    return {"by": "strace" if quiet is not None else None, "nothing changed": quiet, "all touched": touched, "sizes": sizes}


_PLACES = {"models": "models", "engines": "artifacts"}


def measure(rounds: int, *, small: bool, peers_environment: Path | None) -> dict[str, Any]:
    """``small``: fewer targets, to try this out."""
    few, many = (3, 8) if small else (FEW, MANY)
    with lab.work_folder(1 << 30) as folder:
        first, statuses = built(folder, few)
        second, more = built(folder, many)
        before = lab.load()
        runs: dict[str, lab.Run] = {
            "python": lambda: lab.measured([sys.executable, "-c", "pass"], folder),
            IMPORTS: lambda: lab.measured([sys.executable, "-c", IMPORTS], folder),
            f"enginefarm build, {few} targets": lambda: lab.measured(BUILD, first),
            f"enginefarm build, {many} targets": lambda: lab.measured(BUILD, second),
            f"enginefarm plan, {few} targets": lambda: lab.measured([lab.ENGINEFARM, "plan", "models", *lab.HERE], first),
            **peers(folder, few, peers_environment),
        }
        found = lab.rows(lab.in_turns(runs, rounds))
        after = lab.load()
        reads = rehashed(first)
    few_name, many_name = f"enginefarm build, {few} targets", f"enginefarm build, {many} targets"
    further = (found[many_name]["cpu_s"] - found[few_name]["cpu_s"]) / (many - few) * 1000
    claims = [
        lab.claim(f"CPU time of a run over {few} targets / of {IMPORTS}", lab.ratio(found, few_name, IMPORTS), most=MOST_RATIO),
        lab.claim(f"peak memory over {few} targets, MB", found[few_name]["rss_mb"], most=MOST_MB),
        lab.claim(f"CPU time of each further target ({few} to {many}), ms", round(further, 2), most=MOST_MS),
    ]
    if reads["nothing changed"] is not None:
        claims.append(lab.claim("bytes read of models, engines and blobs", float(sum(reads["nothing changed"].values())), most=0))
    statuses = {str(few): statuses, str(many): more}  # type: ignore[dict-item]
    return {"load_before": before, "load_after": after, "claims": claims, "rows": found, "read": reads, "statuses": statuses}
