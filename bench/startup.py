"""What it costs to start: CPU time of the light commands, beside the least that Typer costs and beside other programs.

    python bench/startup.py [--times 25] [--peers FOLDER]

FOLDER is a virtual environment with cibuildwheel and nox (`python -m venv FOLDER; FOLDER/bin/pip install cibuildwheel nox`); without it,
and without GNU make, their rows are left out. Writes bench/results/startup.json, with every single time. Commands are run in turns, so that
what else the machine does falls on all of them alike.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BENCH = Path(__file__).resolve().parent
sys.path.insert(0, str(BENCH))
from run import machine  # noqa: E402  (a script beside this one)

RESULT = BENCH / "results" / "startup.json"
STAMPS = 30
BARE = """import typer

app = typer.Typer()


@app.command()
def build(model: str, jobs: int = 1) -> None:
    "Build."


@app.command()
def show(name: str) -> None:
    "Show."


app()
"""
# (command, what it is compared with, the most that the ratio of CPU times may be)
WANTED = (("enginefarm --version", "import typer", 0.5), ("enginefarm --help", "bare Typer app --help", 1.4))


def commands(folder: Path, peers: Path | None) -> dict[str, list[str]]:
    """Name -> command line; every command runs in ``folder``, which holds what it needs."""
    python = sys.executable
    enginefarm = str(Path(python).with_name("enginefarm"))
    (folder / "bare.py").write_text(BARE)
    found = {
        "python": [python, "-c", "pass"],
        "import typer": [python, "-c", "import typer"],
        "enginefarm --version": [enginefarm, "--version"],
        "bare Typer app --help": [python, "bare.py", "--help"],
        "enginefarm --help": [enginefarm, "--help"],
        "enginefarm build --help": [enginefarm, "build", "--help"],
        "enginefarm runs": [enginefarm, "runs"],
        "enginefarm targets list": [enginefarm, "targets", "list"],
    }
    if make := shutil.which("make"):
        (folder / "Makefile").write_text(f"all: $(patsubst %,stamp%,$(shell seq {STAMPS}))\nstamp%: bare.py\n\t@touch $@\n")
        subprocess.run([make, "-s"], cwd=folder, check=True)
        found[f"make, {STAMPS} fresh stamps"] = [make, "-s"]
    if peers is not None:
        (folder / "noxfile.py").write_text("import nox\n\n\n@nox.session\ndef tests(session):\n    session.run('true')\n")
        (folder / "pyproject.toml").write_text('[project]\nname = "bare"\nversion = "1"\n')
        found["nox --list"] = [str(peers / "bin" / "nox"), "--list"]
        words = ["--platform", "linux", "--print-build-identifiers"]
        found["cibuildwheel --print-build-identifiers"] = [str(peers / "bin" / "cibuildwheel"), *words]
    return found


def cpu_ms(command: Sequence[str], folder: Path) -> float:
    """User and system time of the process and of those that it waited for."""
    process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    process.stderr.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {said.decode(errors='replace')}")
    return (usage.ru_utime + usage.ru_stime) * 1000


def measure(found: Mapping[str, Sequence[str]], folder: Path, times: int) -> dict[str, list[float]]:
    """CPU milliseconds of every run by command; the first round, which compiles and reads from disk, does not count."""
    taken: dict[str, list[float]] = {name: [] for name in found}
    for number in range(times + 1):
        for name, command in found.items():
            spent = cpu_ms(command, folder)
            if number:
                taken[name].append(round(spent, 2))
    return taken


def versions(peers: Path | None) -> dict[str, str]:
    import typer

    found = {"typer": str(typer.__version__)}
    if make := shutil.which("make"):
        found["make"] = subprocess.run([make, "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    if peers is not None:
        lines = subprocess.run([peers / "bin" / "pip", "freeze"], capture_output=True, text=True, check=True).stdout.splitlines()
        found |= dict(line.split("==") for line in lines if line.startswith(("nox==", "cibuildwheel==")))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--times", type=int, default=25, help="runs of each command")
    parser.add_argument("--peers", type=Path, help="virtual environment with cibuildwheel and nox")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        taken = measure(commands(folder, given.peers), folder, given.times)
    rows: dict[str, Any] = {
        name: {"min_ms": min(every), "median_ms": statistics.median(every), "every_ms": every} for name, every in taken.items()
    }
    ratios = [
        {"of": of, "to": to, "most": most}
        | {figure: round(rows[of][f"{figure}_ms"] / rows[to][f"{figure}_ms"], 3) for figure in ("min", "median")}
        for of, to, most in WANTED
    ]
    result = {"schema": "enginefarm.bench-startup/1", "machine": machine(), "load": round(load, 2), "versions": versions(given.peers)}
    RESULT.write_text(json.dumps(result | {"ratios": ratios, "commands": rows}, indent=1) + "\n")
    for name, row in rows.items():
        print(f"{name:40} min {row['min_ms']:7.1f} ms   median {row['median_ms']:7.1f} ms")
    for ratio in ratios:
        print(f"{ratio['of']} / {ratio['to']}: {ratio['min']} of the least, {ratio['median']} of the medians; at most {ratio['most']}")
    return 0 if all(float(str(ratio["median"])) <= float(str(ratio["most"])) for ratio in ratios) else 1


if __name__ == "__main__":
    sys.exit(main())
