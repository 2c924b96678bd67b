from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from orchestrator import resources
from orchestrator.cli import targets
from orchestrator.errors import EMPTY_SELECTION, GENERATED_STALE, TARGET_CONFLICT, TARGET_UNKNOWN, EnginefarmError, flatten
from orchestrator.matrix.load import load_files, load_matrix

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
