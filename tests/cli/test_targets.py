from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from rich.cells import cell_len
from typer.testing import CliRunner

from orchestrator import resources
from orchestrator.cli import targets
from orchestrator.errors import EMPTY_SELECTION, GENERATED_STALE, TARGET_CONFLICT, TARGET_UNKNOWN, EnginefarmError, flatten
from orchestrator.matrix.load import load_files, load_matrix
from orchestrator.report.text import columns

Call = Callable[..., str]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run ``enginefarm targets ...`` in an empty folder; its standard output."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(targets.app, list(arguments), catch_exceptions=True)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


def test_list_has_a_line_for_each_target_and_fits_its_columns(call: Call) -> None:
    head, *lines = call("list").splitlines()
    assert [line.split()[0] for line in lines] == list(load_matrix().targets)
    column = head.index("CAPABILITY")
    assert {line[column - 1] for line in lines} == {" "}
    assert next(line for line in lines if line.startswith("rtx-ampere"))[column:].startswith("8.0, 8.6")


ROWS = [
    targets.HEAD,
    ("a10", "a10", "tensorrt", "10.11.0", "12.9", "8.6", "linux/amd64", "fp32", "A10, A40 with TensorRT 10.11"),
    ("lange", "lange", "tensorrt-rtx", "1.7", "-", "8.0, 8.6", "linux/amd64", "fp16", "車線認識のためのターゲット"),
]


@pytest.mark.parametrize(
    ("width", "heads", "ends"),
    [
        (200, targets.HEAD, ["TensorRT 10.11", "ターゲット"]),
        (98, targets.HEAD, ["A10, A40 with Ten…", "車線認識のための…"]),
        (90, targets.HEAD[:-1], ["fp32", "fp16"]),
        (75, ("TARGET", "BACKEND", "VERSION", "CUDA", "CAPABILITY", "PLATFORM", "PRECISION"), ["fp32", "fp16"]),
        (50, ("TARGET", "BACKEND", "VERSION", "CUDA", "CAPABILITY"), ["8.6", "8.0, 8.6"]),
        (5, ("TARGET", "BACKEND", "CAPABILITY"), ["8.6", "8.0, 8.6"]),
    ],
)
def test_a_list_fits_the_terminal_and_loses_the_least_important_first(width: int, heads: tuple[str, ...], ends: list[str]) -> None:
    head, *rows = targets.fit(ROWS, width)
    assert head == heads
    assert [row[-1][-len(end) :] for row, end in zip(rows, ends, strict=True)] == ends
    if width > 40:
        assert max(cell_len(line) for line in columns([head, *rows])) <= width


@pytest.mark.parametrize(("width", "said"), [(130, ""), (80, "too narrow for TAG, PRECISION, FOR: widen the terminal, or give --json\n")])
def test_on_a_terminal_no_line_of_the_list_is_wider_than_it(tmp_path: Path, width: int, said: str) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    command = [sys.executable, "-c", "from orchestrator.cli.entry import run; run()", "targets", "list"]
    # readline, which pytest imports, puts COLUMNS=80 behind the back of os.environ
    process = subprocess.Popen(command, cwd=tmp_path, env={**os.environ}, stdout=theirs, stderr=subprocess.PIPE, text=True)
    os.close(theirs)
    shown = b""
    # Linux ends the reading of a terminal that nobody holds any more with an error
    with contextlib.suppress(OSError):
        while chunk := os.read(ours, 65536):
            shown += chunk
    os.close(ours)
    assert process.communicate(timeout=60)[1] == said
    lines = shown.decode().splitlines()
    assert len(lines) == len(load_matrix().targets) + 1
    assert max(map(len, lines)) <= width


def test_list_takes_selectors(call: Call) -> None:
    assert [line.split()[0] for line in call("list", "label:jetson", "cpu").splitlines()[1:]] == [
        "cpu",
        "jetson-cu102",
        "orin-jp6",
        "xavier-jp44",
    ]


def test_list_json_holds_whole_targets(call: Call) -> None:
    (target,) = json.loads(call("list", "rtx-ampere", "--json"))
    assert target["compute_capability"] == ["8.0", "8.6"]
    assert target["limits"]["build_timeout"] == 7200


def test_list_sees_the_project_s_targets_from_below_its_config_file(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "enginefarm.yaml").write_text("# nothing\n")
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets" / "mine.yaml").write_text("name: mine\ntag: mine\nextends: ada-cu12\n")
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path / "models")
    assert "mine" in call("list")


@pytest.mark.parametrize("name", sorted(load_matrix().targets))
def test_shown_yaml_loads_again_as_the_same_target(call: Call, name: str) -> None:
    Path(f"{name}.yaml").write_text(call("show", name))
    assert load_files([Path(f"{name}.yaml")]).targets[name].target == load_matrix().targets[name].target


def test_show_says_on_each_line_where_the_value_came_from(call: Call) -> None:
    Path("targets").mkdir()
    Path("targets/mine.yaml").write_text("name: mine\ntag: mine\nextends: ada-cu12\nlimits: {memory: 4 GiB}\n")
    Path("lane.yaml").write_text("shapes: {x: 1x3}\nprecision: fp16\n")
    lines = call("show", "mine", "--model", "lane.onnx").splitlines()
    sources = {line.split(":")[0]: line.rpartition("  # ")[2] for line in lines if "  # " in line}
    assert sources["  memory"] == "project targets/mine.yaml:4:18"
    assert sources["precision"] == "model lane.yaml:2:12"
    assert sources['  "x"'] == "model lane.yaml:1:13"
    assert sources["tf32"] == "default"
    assert sources["cuda"].startswith("extends ada-cu12 ")
    assert all("  # " in line or line.endswith(":") for line in lines)


def test_show_json_has_values_and_sources(call: Call) -> None:
    shown = json.loads(call("show", "cpu", "--json"))
    assert shown["target"]["provider"] == "cpu"
    assert shown["sources"]["provider"]["layer"] == "built-in"
    assert shown["sources"]["provider"]["line"] >= 1
    assert shown["sources"]["precision"] == {"layer": "default"}


@pytest.mark.parametrize(("name", "kind"), [("amper", TARGET_UNKNOWN), ("rtx-*", EMPTY_SELECTION)])
def test_show_wants_one_target(call: Call, name: str, kind: object) -> None:
    with pytest.raises(EnginefarmError) as caught:
        call("show", name)
    assert caught.value.kind is kind


def test_check_counts_what_is_fine(call: Call) -> None:
    count = len(load_matrix().targets)
    assert call("check") == f"{count} targets are fine\n"
    Path("a.yaml").write_text("name: a\ntag: a\nextends: cpu\n")
    assert call("check", "a.yaml") == "1 target is fine\n"


def test_check_reports_every_problem_of_every_file_with_exit_2(call: Call) -> None:
    Path("a.yaml").write_text("name: a\ntag: cpu\nextends: cpu\n")
    Path("b.yaml").write_text("name: b\ntag: b\narch: 8_6\nextends: cp\n")
    with pytest.raises(EnginefarmError) as caught:
        call("check", "a.yaml", "b.yaml")
    assert caught.value.exit == 2
    found = {(problem.kind, problem.where.file) for problem in flatten(caught.value) if problem.where}
    assert (TARGET_CONFLICT, "a.yaml") in found
    assert (TARGET_UNKNOWN, "b.yaml") in found
    assert len(flatten(caught.value)) == 3


@pytest.mark.parametrize("text", ["", "# mine, some day\n"])
def test_an_empty_target_file_says_which_fields_it_needs(call: Call, text: str) -> None:
    Path("a10.yaml").write_text(text)
    with pytest.raises(EnginefarmError) as caught:
        call("check", "a10.yaml")
    assert (caught.value.what, str(caught.value.where)) == ("the file is empty", "a10.yaml:1:1")
    assert caught.value.fix == "write at least name: a10, tag: a10, and backend: or extends: (the target to start from)"
    Path("a10.yaml").write_text("name: a10\ntag: a10\nextends: cpu\n")
    assert call("check", "a10.yaml") == "1 target is fine\n"


def test_schema_prints_what_is_committed(call: Call) -> None:
    assert call("schema") == (resources.builtin_targets() / "schema.json").read_text(encoding="utf-8")
    assert "is current" in call("schema", "--check")


def test_a_stale_schema_is_exit_5(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "schema.json").write_text("{}\n")
    monkeypatch.setattr(resources, "builtin_targets", lambda: tmp_path)
    with pytest.raises(EnginefarmError) as caught:
        call("schema", "--check")
    assert (caught.value.kind, caught.value.exit) == (GENERATED_STALE, 5)


def test_shown_yaml_is_yaml_to_others_too(call: Call) -> None:
    assert yaml.safe_load(call("show", "jetson-cu102"))["cuda"] == "10.2"
