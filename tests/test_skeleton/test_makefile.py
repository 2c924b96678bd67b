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


SETS_UP = "def main(groups):\n    open('set-up', 'w').write(' '.join(groups))\n    return 0\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose enginefarm and python write down how they were called."""
    folder = tmp_path / "the project"
    (folder / "tools").mkdir(parents=True)
    for name in ("Makefile", "tools/from_make.py", "tools/start.py"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "tools/bootstrap.py").write_text(SETS_UP)
    (folder / "rtx-file").touch()  # a glob that a shell expanded would become this
    bin_folder = folder / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    (bin_folder / "python").symlink_to(sys.executable)
    recorder = bin_folder / "enginefarm"
    recorder.write_text(f"#!{sys.executable}\nimport json, sys\njson.dump(sys.argv[1:], open('called.json', 'w'))\n")
    recorder.chmod(0o755)
    return folder


def make(project: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    # `true` in place of Python: what it would do first has tests of its own
    return start(project, "PYTHON=true", *arguments, **env)


def start(project: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = ["make", *arguments]
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


# what is said before anything is installed


def python(version: str) -> str:
    """An interpreter of pyenv; skips the test when it has none of this version."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = sorted(versions.glob(f"{version}.*/bin/python"))
    if not found:
        pytest.skip(f"no Python {version} under {versions}")
    return str(found[0])


def refused(project: Path, *arguments: str, code: int = 2, **env: str) -> str:
    """What make says; nothing may have been set up."""
    done = start(project, *arguments, **env)
    assert f"Error {code}" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (project / "set-up").exists()
    assert not (project / "called.json").exists()
    return done.stderr.splitlines()[0]


def test_a_good_call_sets_up_and_builds(project: Path) -> None:
    (project / "lane.onnx").touch()
    assert start(project, "engines", "MODEL=lane.onnx", f"PYTHON={sys.executable}").returncode == 0
    assert (project / "set-up").read_text() == "run rtx"
    assert called(project) == ["build", "--available", "--", "lane.onnx"]


@pytest.mark.parametrize("goal", ["engines", "plan"])
@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("", "which model? Say: make {goal} MODEL=examples/lane.onnx"),
        ("models/lan.onnx", "there is no models/lan.onnx; did you mean models/lane.onnx?"),
        ("models/x.onnx", "there is no models/x.onnx; models in that folder: lane.onnx, sign.onnx"),
        ("lane.onnx", "there is no lane.onnx; no .onnx file is in that folder; one to try: MODEL=examples/lane.onnx"),
        ("gone/lane.onnx", "there is no gone/lane.onnx; gone: No such file or directory"),
        ("a\x1b[2J.onnx", "there is no a\\x1b[2J.onnx; no .onnx file is in that folder; one to try: MODEL=examples/lane.onnx"),
        ("x" * 300, "there is no " + "x" * 300 + "; no .onnx file is in that folder; one to try: MODEL=examples/lane.onnx"),
    ],
)
def test_a_model_that_is_not_there_is_said_before_anything_is_installed(project: Path, goal: str, model: str, said: str) -> None:
    (project / "models").mkdir()
    for name in ("lane.onnx", "sign.onnx"):
        (project / "models" / name).touch()
    assert refused(project, goal, f"MODEL={model}") == "enginefarm: " + said.format(goal=goal)


def test_the_nightly_of_a_fresh_clone_says_where_there_are_models(project: Path) -> None:
    said = "enginefarm: there is no folder models; say where the models are: make nightly MODELS=examples"
    assert refused(project, "nightly") == said
    (project / "examples").mkdir()
    assert start(project, "nightly", "MODELS=examples").returncode == 0
    assert called(project) == ["build", "--available", "--force", "--", "examples"]


def test_an_open_quote_in_args_is_said_before_anything_is_installed(project: Path) -> None:
    assert "ARGS cannot be split into words" in refused(project, "test", "ARGS='")


@pytest.mark.interpreters
@pytest.mark.parametrize("version", ["3.6", "3.7", "3.8", "3.9"])
def test_an_old_python_that_was_asked_for_is_not_replaced(project: Path, version: str) -> None:
    old = python(version)
    said = f"enginefarm: Python 3.10 or newer is needed, and PYTHON={old} is {version}."
    assert refused(project, "engines", "MODEL=lane.onnx", f"PYTHON={old}", code=4) == said
    assert refused(project, "engines", "MODEL=lane.onnx", PYTHON=old, code=4) == said


@pytest.mark.interpreters
@pytest.mark.parametrize("version", ["3.6", "3.9"])
def test_an_old_python_that_was_not_asked_for_may_look_for_a_newer_one(project: Path, version: str, tmp_path: Path) -> None:
    (project / "lane.onnx").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python3").symlink_to(python(version))
    done = start(project, "engines", "MODEL=lane.onnx", PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert done.returncode == 0, done.stderr
    assert (project / "set-up").read_text() == "run rtx"


def test_python_2_says_that_it_is_too_old(project: Path) -> None:
    said = refused(project, "engines", "MODEL=lane.onnx", f"PYTHON={python('2.7')}", code=4)
    assert said.startswith("enginefarm: Python 3.10 or newer is needed, and PYTHON=")
    assert said.endswith(" is 2.7.")
