"""Writes requirements/*.txt from pyproject.toml: hashed pins for every Python and platform, naming no index host.

    python tools/lock.py [--upgrade] [--check]

Pins that still satisfy pyproject.toml stay, unless --upgrade. --check compares digests only and needs no network.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "requirements"
STALE = 5

# file -> (what it pins, files whose pins it must repeat because they share one venv); in the order they are written
FILES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "run": (("dependencies",), ()),
    "build": (("build",), ("run",)),
    "test": (("dependencies", "test"), ("run", "build")),
    "lint": (("dependencies", "test", "lint"), ("test", "build")),
    "lock": (("lock",), ()),
    "bench": (("bench",), ()),
    "rtx": (("rtx",), ()),
}


def requirements(project: Mapping[str, Any], parts: Sequence[str]) -> list[str]:
    """The requirement lines of the named tables of pyproject.toml, sorted."""
    tables = {
        "dependencies": project["project"]["dependencies"],
        **project["project"]["optional-dependencies"],
        **project["dependency-groups"],
    }
    return sorted(line for part in parts for line in tables[part])


def header(project: Mapping[str, Any], name: str) -> str:
    """First lines of a file; the digest tells later whether pyproject.toml asks for something else by now."""
    asked = {part: requirements(project, FILES[part][0]) for part in (name, *FILES[name][1])}
    asked["python"] = [project["project"]["requires-python"]]
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    return f"# Written by `make lock`.\n# pyproject.toml: sha256:{digest}\n"


def compile_pins(project: Mapping[str, Any], name: str, uv: str, *, upgrade: bool) -> str:
    """Text of one file without its header."""
    output = FOLDER / f"{name}.txt"
    oldest = project["project"]["requires-python"].removeprefix(">=")
    command = [uv, "pip", "compile", "-", "--universal", "--python-version", oldest, "--generate-hashes", "--quiet"]
    command += ["--no-emit-index-url", "--no-emit-find-links", "--no-header", "--no-annotate"]
    command += [flag for other in FILES[name][1] for flag in ("--constraint", f"requirements/{other}.txt")]
    # uv takes the pins of an output file that is there as its first choice
    if upgrade:
        output.unlink(missing_ok=True)
    command += ["--output-file", str(output.relative_to(ROOT))]
    lines = "\n".join(requirements(project, FILES[name][0]))
    subprocess.run(command, cwd=ROOT, input=lines, text=True, stdout=subprocess.DEVNULL, check=True)
    return output.read_text()


def check(project: Mapping[str, Any]) -> int:
    stale = [name for name in FILES if not (FOLDER / f"{name}.txt").read_text().startswith(header(project, name))]
    for name in stale:
        print(f"requirements/{name}.txt is stale: pyproject.toml has changed; run `make lock`", file=sys.stderr)
    return STALE if stale else 0


def main(arguments: Sequence[str]) -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    if "--check" in arguments:
        return check(project)
    uv = str(Path(sys.executable).with_name("uv"))
    FOLDER.mkdir(exist_ok=True)
    for name in FILES:
        pins = compile_pins(project, name, uv, upgrade="--upgrade" in arguments)
        (FOLDER / f"{name}.txt").write_text(header(project, name) + pins)
        print(f"requirements/{name}.txt: {sum(not line.startswith(' ') for line in pins.splitlines())} pins")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
