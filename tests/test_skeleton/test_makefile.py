"""The Makefile hands values over untouched: make itself, both the shell and the tool behind it really run here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WEIRD = [
    "a b.onnx",
    'it\'s "quoted".onnx',
    "$(touch pwned).onnx",
    "$(shell touch pwned).onnx",
    "`touch pwned`.onnx",
    "a;touch pwned.onnx",
    "$HOME ${HOME} $$HOME.onnx",
    "-x.onnx",
    "--help",
    "a#b%c.onnx",
    "*.onnx",
    "back\\slash.onnx",
    "ünïcødé 車線.onnx",
    "a\nb.onnx",
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose enginefarm and python write down how they were called."""
    folder = tmp_path / "the project"
    (folder / "tools").mkdir(parents=True)
    for name in ("Makefile", "tools/from_make.py"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "rtx-file").touch()  # a glob that a shell expanded would become this
    bin_folder = folder / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "python").symlink_to(sys.executable)
    recorder = bin_folder / "enginefarm"
    recorder.write_text(f"#!{sys.executable}\nimport json, sys\njson.dump(sys.argv[1:], open('called.json', 'w'))\n")
    recorder.chmod(0o755)
    return folder


def make(project: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    # `true` in place of Python: the bootstrap has tests of its own
    command = ["make", "PYTHON=true", *arguments]
    return subprocess.run(command, cwd=project, env={**os.environ, **env}, capture_output=True, text=True, timeout=60)


def called(project: Path) -> list[str]:
    arguments = json.loads((project / "called.json").read_text())
    assert isinstance(arguments, list)
    return arguments


@pytest.mark.parametrize("model", WEIRD)
def test_a_model_on_the_command_line_arrives_untouched(project: Path, model: str) -> None:
    done = make(project, "engines", f"MODEL={model}")
    assert done.returncode == 0, done.stderr
    assert called(project) == ["build", "--available", "--", model]
    assert not list(project.glob("pwned*"))


@pytest.mark.parametrize("model", WEIRD)
def test_a_model_in_the_environment_arrives_untouched(project: Path, model: str) -> None:
    done = make(project, "engines", MODEL=model)
    assert done.returncode == 0, done.stderr
    assert called(project) == ["build", "--available", "--", model]
    assert not list(project.glob("pwned*"))


def test_every_variable_becomes_its_option(project: Path) -> None:
    variables = ["MODEL=m.onnx", "TARGETS=rtx-*, cpu label:edge", "JOBS=2", "MODEL_VERSION=7", "ARGS=--shape 'x:1x3' --name \"a b\" -v"]
    assert make(project, "engines", *variables).returncode == 0
    targets = ["--target", "rtx-*", "--target", "cpu", "--target", "label:edge"]
    extra = ["--shape", "x:1x3", "--name", "a b", "-v"]
    assert called(project) == ["build", *targets, "--jobs", "2", "--model-version", "7", "--available", *extra, "--", "m.onnx"]


def test_args_are_words_and_nothing_is_expanded(project: Path) -> None:
    assert make(project, "engines", "MODEL=m.onnx", "ARGS=--name $(touch pwned) `touch pwned` $$HOME *").returncode == 0
    assert called(project)[2:-2] == ["--name", "$(touch", "pwned)", "`touch", "pwned`", "$$HOME", "*"]
    assert not (project / "pwned").exists()


def test_an_open_quote_in_args_is_explained(project: Path) -> None:
    done = make(project, "engines", "MODEL=m.onnx", "ARGS=--name 'a")
    assert done.returncode == 2
    assert "ARGS cannot be split into words (No closing quotation): --name 'a" in done.stderr


@pytest.mark.parametrize(
    ("goal", "arguments"),
    [("plan", ["build", "--dry-run", "--", "m.onnx"]), ("nightly", ["build", "--available", "--force", "--", "models"])],
)
def test_plan_and_nightly_are_builds_with_other_options(project: Path, goal: str, arguments: list[str]) -> None:
    assert make(project, goal, "MODEL=m.onnx").returncode == 0
    assert called(project) == arguments


def test_scripts_run_in_the_venv_when_path_has_no_python(project: Path) -> None:
    shutil.rmtree(project / ".venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(project / ".venv")], check=True, timeout=60)
    (project / "tools/lock.py").write_text("import sys; open('prefix', 'w').write(sys.prefix)")
    programs = project / "programs"
    programs.mkdir()
    for name in ("make", "sh", "true"):
        (programs / name).symlink_to(str(shutil.which(name)))
    assert make(project, "lock", PATH=str(programs)).returncode == 0
    assert Path((project / "prefix").read_text()) == project / ".venv"


@pytest.mark.parametrize("goal", ["engines", "plan"])
def test_without_a_model_the_answer_is_a_line_to_paste(project: Path, goal: str) -> None:
    done = make(project, goal)
    assert done.returncode == 2
    assert f"which model? Say: make {goal} MODEL=examples/lane.onnx" in done.stderr
    assert not (project / "called.json").exists()


def test_the_exit_code_of_the_command_is_named(project: Path) -> None:
    program = project / ".venv/bin/enginefarm"
    program.write_text(f"#!{sys.executable}\nraise SystemExit(3)\n")
    done = make(project, "engines", "MODEL=m.onnx")
    assert done.returncode == 2
    assert "Error 3" in done.stderr


def test_make_alone_lists_every_goal(project: Path) -> None:
    done = make(project)
    goals = next(line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith(".PHONY:")).split()[1:]
    listed = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")]
    assert sorted(listed) == sorted(goals)
    assert all(len(line.split()) > 1 for line in done.stdout.splitlines() if line.startswith("  "))


def test_a_missing_python_is_said(project: Path) -> None:
    done = subprocess.run(["make", "PYTHON=no-such-python", "engines"], cwd=project, capture_output=True, text=True, timeout=60)
    assert 'no "no-such-python" here; install Python 3.10 or newer' in done.stderr
    assert "Error 4" in done.stderr
