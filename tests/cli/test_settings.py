from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from orchestrator.cli.build import build_command
from orchestrator.cli.settings import SETTINGS, find_settings, load_settings, settings_text
from orchestrator.errors import CONFIG_FIELD, CONFIG_TRAP, CONFIG_VALUE, EnginefarmError, flatten

# options of one run: they make no sense as a default of a project
PER_RUN = {"model_version", "name", "force", "last_failed"}


@pytest.fixture
def command() -> Any:
    app = typer.Typer()
    app.command("build")(build_command)
    app.command("other")(lambda: None)
    return typer.main.get_command(app).commands["build"]  # type: ignore[attr-defined]


def write(folder: Path, text: str) -> Path:
    path = folder / "enginefarm.yaml"
    path.write_text(text)
    return path


def test_every_setting_is_an_option_of_build_with_the_same_variable(command: Any) -> None:
    parameters = {parameter.name: parameter for parameter in command.params}
    for setting in SETTINGS:
        assert setting.param in parameters
        assert parameters[setting.param].envvar == setting.env
    with_variable = {name for name, parameter in parameters.items() if parameter.envvar}
    assert with_variable - PER_RUN == {setting.param for setting in SETTINGS}


def test_command_line_goes_before_environment_before_file_before_default(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "jobs: 3\ntargets: [cpu, 'rtx-*']\navailable: true\nmemory: 2 GiB\nmodels: [m]\nexitfirst: true\n")

    def params(*arguments: str) -> dict[str, Any]:
        context = command.make_context("build", list(arguments), default_map=load_settings(tmp_path).default_map["build"])
        return dict(context.params)

    from_file = params()
    assert (from_file["jobs"], from_file["available"], from_file["exit_first"]) == (3, True, True)
    assert list(from_file["target"]) == ["cpu", "rtx-*"]
    assert [str(path) for path in from_file["models"]] == ["m"]
    assert from_file["memory"] == str(2 * 2**30)
    assert from_file["progress"] == "auto"
    monkeypatch.setenv("ENGINEFARM_JOBS", "5")
    monkeypatch.setenv("ENGINEFARM_TARGETS", "ada-cu12 cpu")
    assert params()["jobs"] == 5
    assert list(params()["target"]) == ["ada-cu12", "cpu"]
    given = params("--jobs", "7", "-t", "volta-cu118", "other.onnx")
    assert given["jobs"] == 7
    assert list(given["target"]) == ["volta-cu118"]
    assert [str(path) for path in given["models"]] == ["other.onnx"]


def test_it_is_found_in_the_nearest_folder_up_to_the_git_root(tmp_path: Path) -> None:
    outer, inner = tmp_path / "repo", tmp_path / "repo" / "a" / "b"
    inner.mkdir(parents=True)
    write(tmp_path, "jobs: 1\n")
    (outer / ".git").mkdir()
    assert find_settings(inner) is None
    path = write(outer, "jobs: 2\n")
    assert find_settings(inner) == path
    assert load_settings(inner).project == outer
    assert load_settings(inner).values == {"jobs": 2}
    nearer = write(outer / "a", "jobs: 3\n")
    assert find_settings(inner) == nearer


def test_outside_of_git_only_the_folder_itself_counts(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    path = write(tmp_path, "jobs: 1\n")
    assert find_settings(tmp_path) == path
    assert find_settings(tmp_path / "a") is None
    assert load_settings(tmp_path / "a").project == tmp_path / "a"


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "a").mkdir()
    write(tmp_path, "output: out\nmodels: [models, /abs.onnx]\nrunners: r.yaml\npython: venv/bin/python\n")
    monkeypatch.chdir(tmp_path / "a")
    values = load_settings(Path.cwd()).values
    assert values == {
        "output": str(tmp_path / "out"),
        "models": [str(tmp_path / "models"), "/abs.onnx"],
        "runners": str(tmp_path / "r.yaml"),
        "python": str(tmp_path / "venv/bin/python"),
    }
    write(tmp_path, "python: python3.11\n")
    assert load_settings(Path.cwd()).values == {"python": "python3.11"}


@pytest.mark.parametrize("text", ["", "# only comments\n", "---\n# only comments\n", settings_text()])
def test_a_file_that_sets_nothing_is_fine(tmp_path: Path, text: str) -> None:
    write(tmp_path, text)
    assert load_settings(tmp_path).default_map == {"build": {}, "plan": {}}


def test_all_problems_come_at_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path,
        "job: 3\njobs: 0\navailable: yes\nartifacts: x\ntargets: [no]\nprogress: fancy\nbuild_timeout: -1\nmemory: lots\n",
    )
    with pytest.raises(EnginefarmError) as caught:
        load_settings(tmp_path)
    found = {(problem.kind, str(problem.where)): problem.fix for problem in flatten(caught.value)}
    assert set(found) == {
        (CONFIG_FIELD, "enginefarm.yaml:1:1"),
        (CONFIG_VALUE, "enginefarm.yaml:2:7"),
        (CONFIG_VALUE, "enginefarm.yaml:3:12"),
        (CONFIG_FIELD, "enginefarm.yaml:4:1"),
        (CONFIG_TRAP, "enginefarm.yaml:5:11"),
        (CONFIG_VALUE, "enginefarm.yaml:6:11"),
        (CONFIG_VALUE, "enginefarm.yaml:7:16"),
        (CONFIG_VALUE, "enginefarm.yaml:8:9"),
    }
    assert found[CONFIG_FIELD, "enginefarm.yaml:1:1"] == "did you mean jobs?"
    assert found[CONFIG_FIELD, "enginefarm.yaml:4:1"] == "did you mean output?"


def test_nothing_heavy_is_imported_when_there_is_no_file(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from orchestrator.cli.settings import load_settings; load_settings(Path.cwd());"
    code += "print([m for m in ('yaml', 'pydantic', 'numpy', 'onnx') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
