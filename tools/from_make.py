"""Turns the variables of a make call into one command of .venv and becomes it: `python tools/from_make.py GOAL`.

The values come as EF_MODEL, EF_TARGETS, ... in the environment and never pass through a shell, so that a model may be
called `a b`, `$(x)` or `-x`. TARGETS is split at spaces and commas; ARGS is split like shell words, without expansion.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

BIN = Path(__file__).resolve().parent.parent / ".venv" / "bin"
USAGE = 2
WORKER = "from pathlib import Path; from orchestrator.runners.bundle import write_pyz; write_pyz(Path('dist/worker.pyz'))"
SCRIPTS = {"test": ["-m", "pytest"], "bench": ["bench/run.py"], "lock": ["tools/lock.py"], "worker": ["-c", WORKER]}


def words(text: str, name: str) -> list[str]:
    """Shell words of a variable; a quote left open is the caller's mistake."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise SystemExit(f"enginefarm: {name} cannot be split into words ({error}): {text}") from None


def command(goal: str, env: Mapping[str, str]) -> list[str]:
    """The arguments to execute; the first is a program of .venv."""
    extra = words(env.get("EF_ARGS", ""), "ARGS")
    if goal in SCRIPTS:
        return ["python", *SCRIPTS[goal], *extra]
    options: list[str] = []
    for target in env.get("EF_TARGETS", "").replace(",", " ").split():
        options += ["--target", target]
    for variable, flag in (("EF_JOBS", "--jobs"), ("EF_MODEL_VERSION", "--model-version")):
        if env.get(variable, "").strip():
            options += [flag, env[variable].strip()]
    options += {"engines": ["--available"], "plan": ["--dry-run"], "nightly": ["--available", "--force"]}[goal]
    model = env.get("EF_MODELS" if goal == "nightly" else "EF_MODEL", "")
    if not model:
        raise SystemExit(f"enginefarm: which model? Say: make {goal} MODEL=examples/lane.onnx")
    # `--` ends the options: a model may be called -x.onnx
    return ["enginefarm", "build", *options, *extra, "--", model]


def main() -> None:
    try:
        program, *arguments = command(sys.argv[1], os.environ)
    except SystemExit as error:
        print(error, file=sys.stderr)
        sys.exit(USAGE)
    sys.stdout.flush()
    # With its whole path: Python finds its venv by the name it was started under
    os.execv(BIN / program, [str(BIN / program), *arguments])


if __name__ == "__main__":
    main()
