from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import errors
from orchestrator.cli.problems import Reporter, render
from orchestrator.errors import EnginefarmError, Problems, Where


def _command(*words: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "orchestrator", *words], cwd=cwd, capture_output=True, text=True, check=False, env=env)


def test_a_problem_says_what_where_why_and_what_to_do() -> None:
    error = EnginefarmError(
        errors.CONFIG_FIELD,
        'unknown field "tensort"',
        where=Where(file="targets/a.yaml", line=3, column=1),
        why="fields are fixed",
        fix='did you mean "tensorrt"?\nsee docs/targets.md',
    )
    assert render(error) == [
        'error[EF102]: unknown field "tensort"',
        "  --> targets/a.yaml:3:1",
        "  why: fields are fixed",
        '  fix: did you mean "tensorrt"?',
        "       see docs/targets.md",
    ]


def test_all_problems_are_shown_and_the_lowest_exit_code_wins(capsys: pytest.CaptureFixture[str]) -> None:
    both = Problems([EnginefarmError(errors.DISK, "disk full"), EnginefarmError(errors.CONFIG_VALUE, "bad value")])

    def fail() -> None:
        raise both

    assert Reporter().guard(fail) == 2
    text = capsys.readouterr().err
    assert "error[EF400]: disk full" in text
    assert "error[EF103]: bad value" in text
    assert text.endswith("2 problems\n")


def test_an_unexpected_exception_is_exit_70_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise RuntimeError("surprise")

    assert Reporter().guard(fail) == 70
    text = capsys.readouterr().err
    assert "internal bug: RuntimeError: surprise" in text
    assert "Traceback" not in text


def test_a_misspelt_command_and_option_get_suggestions(tmp_path: Path) -> None:
    wrong = _command("biuld", "x.onnx", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "did you mean build" in wrong.stderr
    option = _command("build", "x.onnx", "--availabel", cwd=tmp_path)
    assert option.returncode == 2
    assert "--available" in option.stderr
    assert "Traceback" not in wrong.stderr + option.stderr


def test_a_misspelt_choice_gets_a_suggestion(tmp_path: Path) -> None:
    answer = _command("build", "x.onnx", "--progress", "jsno", cwd=tmp_path)
    assert answer.returncode == 2
    assert "did you mean json" in answer.stderr


def test_errors_are_json_lines_when_progress_is_json(tmp_path: Path) -> None:
    answer = _command("build", "missing.onnx", "--progress", "json", cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stdout == ""
    last = json.loads(answer.stderr.splitlines()[-1])
    assert last["event"] == "error"
    assert last["code"] == "EF200"


def test_version_is_answered_without_heavy_imports(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['enginefarm', '--version']\n"
        "from orchestrator.cli.entry import run; run()\n"
        "heavy = {'typer', 'click', 'pydantic', 'yaml', 'onnx', 'numpy', 'onnxruntime', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("enginefarm ")


def test_help_imports_no_library_of_a_command(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from orchestrator.cli.main import run\n"
        "try: run(['--help'])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'pydantic', 'yaml', 'onnx', 'numpy', 'onnxruntime', 'jinja2', 'filelock'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    answer = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert "build" in answer.stdout


def test_errors_are_json_lines_when_the_environment_or_the_settings_say_so(tmp_path: Path) -> None:
    by_variable = _command("build", "missing.onnx", cwd=tmp_path, env={**os.environ, "ENGINEFARM_PROGRESS": "json"})
    (tmp_path / "enginefarm.yaml").write_text("progress: json\n")
    by_file = _command("build", "missing.onnx", cwd=tmp_path)
    for answer in (by_variable, by_file):
        assert json.loads(answer.stderr.splitlines()[-1])["code"] == "EF200"
    assert _command("build", "missing.onnx", "--progress", "plain", cwd=tmp_path).stderr.startswith("error[EF200]")


def test_a_refused_request_answers_json_with_its_problems(tmp_path: Path) -> None:
    answer = _command("build", "missing.onnx", "--json", cwd=tmp_path)
    value = json.loads(answer.stdout)
    assert (answer.returncode, value["exit_code"]) == (2, 2)
    assert [problem["code"] for problem in value["problems"]] == ["EF200"]
    assert answer.stderr.startswith("error[EF200]")


@pytest.mark.parametrize("words", [["--output="], ["--output", ""], ["-o", ""]])
def test_an_empty_output_is_refused(words: list[str], tmp_path: Path) -> None:
    answer = _command("build", "missing.onnx", *words, cwd=tmp_path)
    assert answer.returncode == 2
    assert "--output is empty" in answer.stderr


def test_the_broken_pipe_of_another_is_an_error_with_words(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        # as typer does
        try:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        except OSError:
            sys.exit(1)

    assert Reporter().guard(fail) == 4
    assert "Broken pipe" in capsys.readouterr().err
