"""Which modules a light command may not import: what is heavy belongs to the command that needs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import events
from orchestrator.pipeline.history import History
from orchestrator.pipeline.runfolder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
MODULES = (
    "asyncio",
    "cryptography",
    "docker",
    "filelock",
    "http.client",
    "jinja2",
    "multiprocessing",
    "numpy",
    "onnx",
    "onnxruntime",
    "paramiko",
    "platformdirs",
    "pydantic",
    "pygments",
    "ray",
    "requests",
    "rich",
    "sqlite3",
    "ssl",
    "stamina",
    "tensorrt_rtx_bindings",
    "urllib.request",
    "yaml",
)
# newer versions of Typer convert arguments with pydantic: what a bare app imports cannot be spared
BARE = """
import typer
app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
@app.command()
def one(name: str, number: int = 1): ...
@app.command()
def two(): ...
app(["one", "x"], standalone_mode=False)
"""
TELL = """
import json, os, sys
try:
    {code}
except SystemExit as end:
    code = end.code
else:
    code = 0
with open(os.environ["MODULES_FILE"], "w") as file:
    json.dump([code, sorted(sys.modules)], file)
"""
RUN = "from orchestrator.cli.entry import run; run()"

STORED = {"sqlite3"}
MATRIX = {"yaml", "pydantic"}
# words of a command -> the heavy modules that it does need
LIGHT: dict[str, set[str]] = {
    "--version": set(),
    "--help": set(),
    "--show-completion": set(),
    "version": set(),
    "build --help": set(),
    "plan --help": set(),
    "targets --help": set(),
    "explain EF302": set(),
    "explain build.log": set(),
    "runs": STORED,
    "runs --json": STORED,
    "logs cpu": STORED,
    "logs cpu --path": STORED,
    "history cpu": STORED,
    "cache ls": STORED,
    "targets list": MATRIX,
    "targets show cpu": MATRIX,
    "select .": {"filelock"} | MATRIX,
    "doctor": {"platformdirs"},
    "runners list": {"platformdirs"} | MATRIX,
    "inspect engine.onnx": {"numpy"},
    "nonsense": set(),
}

# what depends on this machine (a doctor finds what it finds), and errors, which are light too
CODES = {"doctor": (0, 4), "runners list": (0, 4), "select .": (2, 6), "inspect engine.onnx": (2, 6), "nonsense": (2,)}


def modules(folder: Path, code: str, *words: str, **environment: str) -> tuple[int, set[str]]:
    """(exit code, all that was imported when the process ended)"""
    told = folder / "modules.json"
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "MODULES_FILE": str(told), **environment}
    script = TELL.format(code=f"exec({code!r})")
    subprocess.run([sys.executable, "-c", script, *words], cwd=folder, env=variables, capture_output=True, check=True)
    code_of, imported = json.loads(told.read_text())
    return code_of, set(imported)


@pytest.fixture(scope="module")
def typer_itself(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    code, imported = modules(tmp_path_factory.mktemp("bare"), BARE)
    assert code == 0
    return imported


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with one run in it."""
    history = History(tmp_path / ".enginefarm" / "history.db", command=["build"])
    run = RunFolder(tmp_path / ".enginefarm" / "runs" / "r1", "r1")
    (run.logs / "net").mkdir()
    (run.logs / "net" / "cpu.build.log").write_text("built\n")
    history(events.RunStarted(run="r1", builds=1, folder=str(run.folder)))
    history(events.BuildFinished(model="net", target="cpu", status="passed", detail=""))
    history(events.RunFinished(run="r1", exit_code=0, counts={"passed": 1}, manifests=(), seconds=1.0))
    history.close()
    run.close()
    (tmp_path / "build.log").write_text("[E] [TRT] 1: [defaultAllocator.cpp::allocate::20] Error Code 1: Cuda Runtime (out of memory)\n")
    (tmp_path / "engine.onnx").write_bytes(b"\x08\x07")
    return tmp_path


@pytest.mark.parametrize("words", sorted(LIGHT))
def test_a_light_command_imports_nothing_heavy_that_it_does_not_need(folder: Path, typer_itself: set[str], words: str) -> None:
    code, imported = modules(folder, RUN, *words.split())
    assert code in CODES.get(words, (0, None))
    assert imported.intersection(MODULES) - typer_itself <= LIGHT[words]


def test_version_does_not_even_import_typer(folder: Path) -> None:
    _, imported = modules(folder, RUN, "--version")
    ours = imported - at_start(folder)
    assert ours.isdisjoint({"typer", "click", "inspect", "pathlib", "subprocess", "orchestrator.cli.main", "orchestrator.errors"})


def at_start(folder: Path) -> set[str]:
    """What Python itself and the packages of this environment (.pth files) import before anything runs."""
    return modules(folder, "pass")[1]


@pytest.mark.parametrize(
    ("words", "position"), [("build x.onnx --target rtx-a", "4"), ("history n", "2"), ("logs c", "2"), ("logs cpu --run r", "4")]
)
def test_a_completion_imports_nothing_heavy(folder: Path, typer_itself: set[str], words: str, position: str) -> None:
    environment = {"_ENGINEFARM_COMPLETE": "complete_bash", "COMP_WORDS": f"enginefarm {words}", "COMP_CWORD": position}
    _, imported = modules(folder, RUN, **environment)
    assert imported.intersection(MODULES) - typer_itself <= STORED
