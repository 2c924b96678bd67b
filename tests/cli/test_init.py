from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from orchestrator.cli.init import init_command, write_all
from orchestrator.cli.settings import SETTINGS, load_settings
from orchestrator.errors import DISK, FILE_EXISTS, TARGET_UNKNOWN, EnginefarmError, flatten
from orchestrator.matrix.load import load_matrix

Call = Callable[..., str]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(init_command)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, list(arguments))
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_it_writes_config_and_makefile_and_says_so(call: Call, tmp_path: Path) -> None:
    out = call()
    assert files(tmp_path) == {"enginefarm.yaml", "enginefarm.mk"}
    assert out.splitlines() == ["wrote enginefarm.yaml", "wrote enginefarm.mk", "add this line to your Makefile: include enginefarm.mk"]


def test_what_it_writes_loads_again_and_changes_nothing(call: Call, tmp_path: Path) -> None:
    call("new/project", "--target", "rtx-*", "-t", "label:cpu")
    folder = tmp_path / "new" / "project"
    settings = load_settings(folder)
    assert settings.values == {"targets": ["cpu", "rtx-ada", "rtx-ampere", "rtx-blackwell", "rtx-turing"]}
    matrix, builtin = load_matrix(folder), load_matrix()
    assert {name: effective.target for name, effective in matrix.targets.items()} == {
        name: effective.target for name, effective in builtin.targets.items()
    }
    assert matrix.targets["rtx-ada"].sources["backend"].layer == "project"
    assert matrix.targets["ada-cu12"].sources["backend"].layer == "built-in"
    assert "targets/schema.json" in files(folder)


def test_every_key_stands_there_with_its_variable_and_loads_when_uncommented(call: Call, tmp_path: Path) -> None:
    call()
    text = (tmp_path / "enginefarm.yaml").read_text()
    for setting in SETTINGS:
        assert f"# {setting.key}: " in text
        assert f"({setting.env})" in text
    keys = tuple(f"# {setting.key}: " for setting in SETTINGS)
    live = "\n".join(line[2:] if line.startswith(keys) else line for line in text.splitlines())
    (tmp_path / "enginefarm.yaml").write_text(live)
    assert set(load_settings(tmp_path).values) == {setting.key for setting in SETTINGS}


def test_it_refuses_to_overwrite_and_names_every_file(call: Call, tmp_path: Path) -> None:
    (tmp_path / "targets").mkdir()
    for name in ("enginefarm.mk", "targets/cpu.yaml"):
        (tmp_path / name).write_text("mine\n")
    with pytest.raises(EnginefarmError) as caught:
        call("-t", "cpu")
    assert [(problem.kind, str(problem.where)) for problem in flatten(caught.value)] == [
        (FILE_EXISTS, "enginefarm.mk"),
        (FILE_EXISTS, "targets/cpu.yaml"),
    ]
    assert files(tmp_path) == {"enginefarm.mk", "targets/cpu.yaml"}
    assert (tmp_path / "enginefarm.mk").read_text() == "mine\n"


def test_force_overwrites(call: Call, tmp_path: Path) -> None:
    (tmp_path / "enginefarm.mk").write_text("mine\n")
    call("--force")
    assert "engines:" in (tmp_path / "enginefarm.mk").read_text()


def test_an_unknown_target_writes_nothing(call: Call, tmp_path: Path) -> None:
    with pytest.raises(EnginefarmError) as caught:
        call("-t", "nope")
    assert caught.value.kind is TARGET_UNKNOWN
    assert files(tmp_path) == set()


def test_a_failing_write_takes_everything_back(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "full").write_bytes(b"")
    with pytest.raises(EnginefarmError) as caught:
        write_all(tmp_path, {"a": b"new", "new/b": b"new", "z": b"a folder is in the way"})
    assert caught.value.kind is DISK
    assert files(tmp_path) == {"a", "z/full"}
    assert (tmp_path / "a").read_bytes() == b"old"
    assert not (tmp_path / "new").exists()


def test_a_file_where_a_folder_is_needed_is_said(tmp_path: Path) -> None:
    (tmp_path / "targets").write_text("")
    with pytest.raises(EnginefarmError) as caught:
        write_all(tmp_path, {"a": b"x", "targets/b": b"x"})
    assert caught.value.kind is DISK
    assert files(tmp_path) == {"targets"}


def called_by_make(folder: Path, *arguments: str) -> str:
    """How the Makefile fragment calls the command, arguments apart."""
    if shutil.which("make") is None:
        pytest.fail("make is needed: apt-get install make")
    (folder / "Makefile").write_text("include enginefarm.mk\n")
    command = ["make", "--no-print-directory", "engines", "ENGINEFARM=printf '%s|'", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()[-1]


def test_the_makefile_builds_what_can_be_built_here_as_that_of_the_project_does(call: Call, tmp_path: Path) -> None:
    call()
    arguments = ["MODEL=lane.onnx", "TARGETS=cpu rtx-*", "JOBS=2", "MODEL_VERSION=3", "ARGS=-v"]
    options = "--target|cpu|--target|rtx-*|--jobs|2|--model-version|3|-v"
    assert called_by_make(tmp_path, *arguments) == f"build|--available|{options}|--|lane.onnx|"


def test_the_makefile_takes_any_file_name_and_none(call: Call, tmp_path: Path) -> None:
    call()
    assert called_by_make(tmp_path, "MODEL=it's a `lane`.onnx") == "build|--available|--|it's a `lane`.onnx|"
    assert called_by_make(tmp_path) == "build|--available|"


@pytest.mark.parametrize("variable", ["MODEL", "TARGETS", "JOBS", "MODEL_VERSION", "ARGS"])
@pytest.mark.parametrize("value", ["x; touch pwned", "$(touch pwned).onnx", "$(shell touch pwned)", "`touch pwned`", '"; touch pwned; "'])
def test_the_makefile_executes_nothing_of_a_value(call: Call, tmp_path: Path, variable: str, value: str) -> None:
    call()
    out = called_by_make(tmp_path, f"{variable}={value}")
    assert not (tmp_path / "pwned").exists()
    assert "touch" in out
    assert variable != "MODEL" or out == f"build|--available|--|{value}|"


def test_the_makefile_takes_values_of_the_makefile_and_words_in_quotes(call: Call, tmp_path: Path) -> None:
    call()
    (tmp_path / "enginefarm.mk").write_text((tmp_path / "enginefarm.mk").read_text() + "NAME = lane\nMODEL = $(NAME).onnx\n")
    assert called_by_make(tmp_path, "ARGS=--memory '8 GiB' *") == "build|--available|--memory|8 GiB|*|--|lane.onnx|"
