"""``enginefarm targets`` on a target that forks into cells."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from orchestrator.cli import targets
from orchestrator.errors import TARGET_IMPOSSIBLE, EnginefarmError
from orchestrator.matrix.load import load_files, load_matrix

FILE = """\
name: rtx-turing
axes:
  precision: [fp32, fp16, bf16]
exclude:
  - {precision: fp32, why: does not fit into 8 GB}
"""
EXCLUDED = [
    "rtx-turing-bf16 is excluded: compute capability 7.5 (Turing) lacks bf16: it needs 8.0 or newer",
    "rtx-turing-fp32 is excluded: does not fit into 8 GB (targets/rtx-turing.yaml:5:5)",
]

Call = Callable[..., str]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.chdir(tmp_path)
    Path("targets").mkdir()
    Path("targets/rtx-turing.yaml").write_text(FILE)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(targets.app, list(arguments), catch_exceptions=True)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


def test_list_has_cells_and_says_why_others_are_excluded(call: Call) -> None:
    head, cell, *rest = call("list", "rtx-turing").splitlines()
    assert head.split()[0] == "TARGET"
    assert cell.split()[:2] == ["rtx-turing-fp16", "rtx-turing-fp16"]
    assert [line[: len(said)] for line, said in zip(rest, EXCLUDED, strict=True)] == EXCLUDED


def test_list_json_marks_cells_and_excluded_ones(call: Call) -> None:
    cpu, kept, *excluded = json.loads(call("list", "rtx-turing,cpu", "--json"))
    assert "cell_of" not in cpu
    assert (kept["name"], kept["precision"], kept["cell_of"], "excluded" in kept) == ("rtx-turing-fp16", "fp16", "rtx-turing", False)
    assert [cell["name"] for cell in excluded] == ["rtx-turing-bf16", "rtx-turing-fp32"]
    assert excluded[1]["excluded"] == {"why": "does not fit into 8 GB", "file": "targets/rtx-turing.yaml", "line": 5, "column": 5}


def test_show_of_a_target_that_forks_shows_its_cells(call: Call) -> None:
    shown = call("show", "rtx-turing")
    assert [cell["name"] for cell in yaml.safe_load_all(shown)] == ["rtx-turing-fp16"]
    assert shown.startswith('# one of 1 cells of rtx-turing\nname: "rtx-turing-fp16"')
    assert [line[2 : 2 + len(said)] for line, said in zip(shown.splitlines()[-2:], EXCLUDED, strict=True)] == EXCLUDED
    held = json.loads(call("show", "rtx-turing", "--json"))
    assert [cell["target"]["name"] for cell in held["cells"]] == ["rtx-turing-fp16"]
    assert held["cells"][0]["sources"]["precision"] == {"layer": "axis", "file": "targets/rtx-turing.yaml", "line": 3, "column": 21}
    assert [cell["name"] for cell in held["excluded"]] == ["rtx-turing-bf16", "rtx-turing-fp32"]


def test_show_of_a_cell_is_a_target_that_loads_again(call: Call) -> None:
    expected = load_matrix(Path.cwd()).targets["rtx-turing-fp16"].target
    Path("rtx-turing-fp16.yaml").write_text(call("show", "rtx-turing-fp16"))
    assert load_files([Path("rtx-turing-fp16.yaml")]).targets["rtx-turing-fp16"].target == expected


def test_show_of_an_excluded_cell_says_why(call: Call) -> None:
    with pytest.raises(EnginefarmError) as caught:
        call("show", "rtx-turing-fp32")
    assert (caught.value.kind, caught.value.why) == (TARGET_IMPOSSIBLE, "does not fit into 8 GB")


def test_check_counts_cells(call: Call) -> None:
    assert call("check") == f"{len(load_matrix().targets)} targets are fine, 2 excluded\n"
