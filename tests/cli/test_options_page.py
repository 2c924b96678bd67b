"""docs/options.md against the command line it is generated from, and what it says of variables against the command itself."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import typer

from orchestrator.cli.main import make_app
from orchestrator.cli.settings import SETTINGS

ROOT = Path(__file__).resolve().parents[2]
NO_VARIABLE = {"exit_code", "dry_run", "quiet", "verbose", "as_json"}  # what is said of one call only
BUILD = typer.main.get_command(make_app()).commands["build"]  # type: ignore[attr-defined]


@pytest.fixture
def page(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("tools/generate_options.py")


def test_the_page_is_current(page: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["generate_options.py", "--check"])
    assert page.main() == 0


def test_a_stale_page_is_reported_and_not_written(
    page: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "options.md"
    document.write_text("old")
    monkeypatch.setattr(page, "DOCUMENT", document)
    monkeypatch.setattr(page, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["generate_options.py", "--check"])
    assert page.main() == 5
    assert document.read_text() == "old"
    assert "stale: options.md" in capsys.readouterr().err


def test_every_option_that_holds_for_more_than_one_call_is_a_variable() -> None:
    assert {parameter.name for parameter in BUILD.params if not parameter.envvar} == NO_VARIABLE


def test_every_key_of_enginefarm_yaml_has_the_variable_of_its_option() -> None:
    variables = {parameter.name: parameter.envvar for parameter in BUILD.params}
    assert {setting.param: setting.env for setting in SETTINGS} == {setting.param: variables[setting.param] for setting in SETTINGS}


def test_the_page_has_a_row_for_each_option_with_its_variable_and_key(page: ModuleType) -> None:
    section = page.render().split("## enginefarm build")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.split(" | ")] for line in section.splitlines() if line.startswith("| `")]
    assert len(rows) == len(BUILD.params)
    keys = {setting.param: setting.key for setting in SETTINGS}
    for parameter, (option, variable, key, _, what) in zip(BUILD.params, rows, strict=True):
        assert all(f"`{name}`" in option for name in parameter.opts if name.startswith("-"))
        assert variable == (f"`{parameter.envvar}`" if parameter.envvar else "")
        assert key == (f"`{keys[parameter.name]}`" if parameter.name in keys else "")
        assert re.search(r"\w", what)


def parsed(*arguments: str) -> dict[str, object]:
    """The values that ``enginefarm build`` would get."""
    return dict(BUILD.make_context("build", list(arguments)).params)


def test_several_values_of_a_variable_are_split_as_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINEFARM_MODELS", "a b.onnx:c.onnx")
    monkeypatch.setenv("ENGINEFARM_TARGETS", "rtx-* cpu")
    monkeypatch.setenv("ENGINEFARM_JOBS", "")
    values = parsed()
    assert [str(path) for path in values["models"]] == ["a b.onnx", "c.onnx"]  # type: ignore[attr-defined]
    assert (list(values["target"]), values["jobs"]) == (["rtx-*", "cpu"], None)  # type: ignore[call-overload]


@pytest.mark.parametrize(("text", "value"), [("1", True), ("true", True), ("0", False), ("false", False), ("", False)])
def test_a_flag_is_set_and_unset_as_the_page_says(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv("ENGINEFARM_AVAILABLE", text)
    assert parsed("lane.onnx")["available"] is value
