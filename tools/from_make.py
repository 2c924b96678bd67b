# ruff: noqa: PTH110, PTH208, UP006, UP035
"""Turns the variables of a make call into one command of .venv and becomes it: `python tools/from_make.py GOAL`.

The values come as EF_MODEL, EF_TARGETS, ... in the environment and never pass through a shell, so that a model may be
called `a b`, `$(x)` or `-x`. TARGETS is split at spaces and commas; ARGS is split like shell words, without expansion.
Python 3.6 syntax: start.py calls `check` before there is a .venv.
"""

import difflib
import os
import shlex
import sys
from pathlib import Path
from typing import List, Mapping

BIN = Path(__file__).resolve().parent.parent / ".venv" / "bin"
USAGE = 2
WORKER = "from pathlib import Path; from orchestrator.runners.bundle import write_pyz; write_pyz(Path('dist/worker.pyz'))"
BUILDS = {"engines": ["--available"], "plan": ["--dry-run"], "nightly": ["--available", "--force"]}
SCRIPTS = {"test": ["-m", "pytest"], "bench": ["bench/run.py"], "lock": ["tools/lock.py"], "worker": ["-c", WORKER]}


def words(text: str, name: str) -> List[str]:
    """Shell words of a variable; a quote left open is the caller's mistake."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise SystemExit(f"enginefarm: {name} cannot be split into words ({error}): {text}") from None


def command(goal: str, env: Mapping[str, str]) -> List[str]:
    """The arguments to execute; the first is a program of .venv."""
    extra = words(env.get("EF_ARGS", ""), "ARGS")
    if goal in SCRIPTS:
        return ["python", *SCRIPTS[goal], *extra]
    options: List[str] = []
    for target in env.get("EF_TARGETS", "").replace(",", " ").split():
        options += ["--target", target]
    for variable, flag in (("EF_JOBS", "--jobs"), ("EF_MODEL_VERSION", "--model-version")):
        if env.get(variable, "").strip():
            options += [flag, env[variable].strip()]
    options += BUILDS[goal]
    model = env.get("EF_MODELS" if goal == "nightly" else "EF_MODEL", "")
    if not model:
        raise SystemExit(f"enginefarm: which model? Say: make {goal} MODEL=examples/lane.onnx")
    # `--` ends the options: a model may be called -x.onnx
    return ["enginefarm", "build", *options, *extra, "--", model]


def check(goal: str, env: Mapping[str, str]) -> str:
    """What is wrong with the call, or "": asked before anything is installed, so a wrong name does not cost minutes."""
    if goal not in (*SCRIPTS, *BUILDS):
        return ""
    try:
        model = command(goal, env)[-1]
    except SystemExit as error:
        return str(error)
    if goal in SCRIPTS or os.path.exists(model):
        return ""
    if goal == "nightly":
        return f"enginefarm: there is no folder {shown(model)}; say where the models are: make nightly MODELS=examples"
    return f"enginefarm: there is no {shown(model)}; {instead(Path(model))}"


def instead(model: Path) -> str:
    """What could be meant by a model that does not exist."""
    folder = model.parent
    try:
        names = sorted(name for name in os.listdir(str(folder)) if name.lower().endswith(".onnx"))
    except OSError as error:
        return f"{shown(str(folder))}: {error.strerror}"
    close = difflib.get_close_matches(model.name, names, 1, 0.75) or (names if len(names) == 1 else [])
    if close:
        return f"did you mean {shown(str(folder / close[0]))}?"
    if names:
        return f"models in that folder: {shown(', '.join(names[:8]))}"
    return "no .onnx file is in that folder; one to try: MODEL=examples/lane.onnx"


def shown(text: str) -> str:
    """A name from outside as one line that cannot drive the terminal."""
    return "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in text)


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
