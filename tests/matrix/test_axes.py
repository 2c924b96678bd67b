"""Axes: the cells that a target forks into, what they hold, and which of them are left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import EMPTY_SELECTION, TARGET_IMPOSSIBLE, TARGET_UNKNOWN, EnginefarmError, Where
from orchestrator.matrix.load import apply_model, find_model_config, load_matrix
from orchestrator.matrix.schema import Profile
from orchestrator.matrix.select import Matrix
from orchestrator.matrix.shapes import parse_shape_option
from orchestrator.pipeline.keys import build_inputs

PRECISION = "axes: {precision: [fp32, fp16]}"
SHAPES = "axes:\n  shapes:\n    small: {image: 1x3x224x224}\n    large: {image: 4x3x640x640}"
BOTH = "axes:\n  shapes: {small: {image: 1x3x8x8}, large: {image: 4x3x9x9}}\n  precision: [fp32, fp16]"
ALL = ["mine-fp16-large", "mine-fp16-small", "mine-fp32-large", "mine-fp32-small"]


def names(matrix: Matrix, *selectors: str, **given: Any) -> list[str]:
    return [effective.target.name for effective in matrix.select(selectors, given)]


def error_of(call: Callable[[], object]) -> EnginefarmError:
    with pytest.raises(EnginefarmError) as caught:
        call()
    return caught.value


def test_a_target_forks_into_one_cell_for_each_combination_and_is_none_itself(project: Any) -> None:
    project.good(BOTH)
    matrix = project.load()
    assert set(matrix.targets) - set(load_matrix().targets) == set(ALL)
    cells = [matrix.targets[name] for name in ALL]
    assert [cell.target.tag for cell in cells] == ALL
    assert [cell.target.precision for cell in cells] == ["fp16", "fp16", "fp32", "fp32"]
    assert [cell.target.shapes["image"].max for cell in cells] == [(4, 3, 9, 9), (1, 3, 8, 8)] * 2
    assert {cell.cell_of for cell in cells} == {"mine"}
    assert (matrix.forks, matrix.without) == ({"mine": ALL}, {})


def test_the_order_of_lines_changes_no_name(project: Any) -> None:
    project.good("axes: {precision: [fp16, fp32], shapes: {large: {image: 4x3x9x9}, small: {image: 1x3x8x8}}}")
    turned = project.load().targets
    project.good(BOTH)
    assert {name: cell.target for name, cell in turned.items()} == {name: cell.target for name, cell in project.load().targets.items()}


def test_axis_values_say_their_own_place_and_other_values_keep_theirs(project: Any) -> None:
    project.good("precision: bf16", "shapes: {image: 1x3x5x5, mask: 1x1}", SHAPES.replace("axes:", "axes:\n  precision: [fp32, fp16]"))
    cell = project.load().targets["mine-fp16-large"]
    assert str(cell.sources["precision"]) == "axis targets/mine.yaml:12:21"
    assert str(cell.sources["shapes.image"]) == "axis targets/mine.yaml:15:20"
    assert str(cell.sources["shapes.mask"]) == "project targets/mine.yaml:10:32"
    assert str(cell.sources["tag"]) == "project targets/mine.yaml:2:6"
    assert cell.target.shapes["mask"].opt == (1, 1)


def test_a_cell_is_built_from_the_same_inputs_as_a_target_that_says_its_values(project: Any) -> None:
    project.good(BOTH)
    project.good("name: plain", "tag: plain", "precision: fp16", "shapes: {image: 4x3x9x9}", name="plain.yaml")
    targets = project.load().targets
    cell, said, other = (targets[name].target for name in ("mine-fp16-large", "plain", "mine-fp32-large"))
    inputs = [
        build_inputs(target, profiles=target.shapes, backend_version="8.6.1", converter=None, plugins={}, image=None, worker="w")
        for target in (cell, said, other)
    ]
    assert inputs[0] == inputs[1]
    assert inputs[0] != inputs[2]
    assert cell.model_dump(exclude={"name", "tag"}) == said.model_dump(exclude={"name", "tag"})


def test_a_project_may_fork_a_builtin_target_and_take_the_axes_away_again(project: Any) -> None:
    project.write(f"name: ada-cu12\n{PRECISION}\n", "ada-cu12.yaml")
    assert names(project.load(), "ada-cu12") == ["ada-cu12-fp16", "ada-cu12-fp32"]
    project.write("name: ada-cu12\naxes: null\nexclude: null\n", "ada-cu12.yaml")
    assert names(project.load(), "ada-cu12") == ["ada-cu12"]


def test_extends_does_not_pass_axes_on(project: Any) -> None:
    project.good("precision: fp16", "axes: {precision: [fp32, fp16]}", "exclude: [{precision: fp32, why: slow}]")
    project.write("name: more\ntag: more\nextends: mine\n", "more.yaml")
    matrix = project.load()
    assert (matrix.targets["more"].target.precision, matrix.targets["more"].cell_of) == ("fp16", None)
    assert names(matrix, "mine*") == ["mine-fp16"]


def test_a_cell_cannot_be_extended(project: Any) -> None:
    project.good(PRECISION)
    project.write("name: more\ntag: more\nextends: mine-fp16\n", "more.yaml")
    problem = project.only_problem()
    assert (problem.kind, problem.fix) == (TARGET_UNKNOWN, "did you mean mine?")


# selection


@pytest.mark.parametrize(
    ("selectors", "expected"),
    [
        (["mine"], ALL),
        (["min?"], ALL),
        (["mine*"], ALL),
        (["label:team"], ALL),
        (["mine-fp16-large"], ["mine-fp16-large"]),
        (["mine-*-small"], ["mine-fp16-small", "mine-fp32-small"]),
        (["mine,cpu", "mine-fp16-large"], ["cpu", *ALL]),
    ],
)
def test_selectors_mean_cells(project: Any, selectors: list[str], expected: list[str]) -> None:
    project.good(BOTH, "labels: team")
    assert names(project.load(), *selectors) == expected


@pytest.mark.parametrize(
    ("selector", "fix"), [("mine-fp16-lrge", "mine-fp16-large"), ("mne", "did you mean mine"), ("mine-fp8", "did you mean mine?")]
)
def test_misspelt_cells_get_suggestions(project: Any, selector: str, fix: str) -> None:
    project.good(BOTH)
    problem = error_of(lambda: project.load().select([selector]))
    assert problem.kind is TARGET_UNKNOWN
    assert fix in (problem.fix or "")


# excluded cells


def test_excluded_cells_say_why_and_where(project: Any) -> None:
    project.good(
        BOTH,
        "exclude:\n- {precision: fp32, shapes: large, why: does not fit into 8 GB}\n- {precision: fp16, why: no}".replace("no}", '"no"}'),
    )
    matrix = project.load()
    assert names(matrix, "mine") == ["mine-fp32-small"]
    assert [(cell.name, cell.why, str(cell.where)) for cell in matrix.excluded()] == [
        ("mine-fp16-large", "no", "targets/mine.yaml:14:3"),
        ("mine-fp16-small", "no", "targets/mine.yaml:14:3"),
        ("mine-fp32-large", "does not fit into 8 GB", "targets/mine.yaml:13:3"),
    ]
    assert {cell.effective.target.precision for cell in matrix.excluded(["mine-fp16*", "cpu"])} == {"fp16"}


def test_a_cell_that_cannot_exist_is_excluded_and_the_target_is_fine(project: Any) -> None:
    project.write("name: rtx-turing\naxes: {precision: [fp16, bf16]}\n", "rtx-turing.yaml")
    matrix = project.load()
    (cell,) = matrix.excluded(["rtx-*"])
    assert cell.name == "rtx-turing-bf16"
    assert "lacks bf16" in cell.why
    assert cell.where == Where("targets/rtx-turing.yaml", 2, 26)
    assert names(matrix, "rtx-turing") == ["rtx-turing-fp16"]


def test_the_reason_given_in_the_file_goes_before_the_rule(project: Any) -> None:
    project.write("name: rtx-turing\naxes: {precision: [fp16, bf16]}\nexclude: [{precision: bf16, why: not today}]\n", "rtx-turing.yaml")
    assert [cell.why for cell in project.load().excluded()] == ["not today"]


@pytest.mark.parametrize("selector", ["mine-fp32", "mine-fp3*", "{mine-fp32,qq}"])
def test_to_ask_for_excluded_cells_alone_is_an_error_that_says_why(project: Any, selector: str) -> None:
    project.good(PRECISION, "exclude: [{precision: fp32, why: too slow}]", "labels: x")
    problem = error_of(lambda: project.load().select([selector]))
    assert (problem.kind, problem.what, problem.why) == (TARGET_IMPOSSIBLE, "mine-fp32 is excluded", "too slow")
    assert str(problem.where) == "targets/mine.yaml:10:11"


def test_excluded_cells_beside_others_are_skipped(project: Any) -> None:
    project.good(PRECISION, "exclude: [{precision: fp32, why: too slow}]")
    assert names(project.load(), "mine-fp32,cpu") == ["cpu"]
    assert [cell.name for cell in project.load().excluded(["mine-fp32,cpu"])] == ["mine-fp32"]
    assert project.load().excluded(["cpu"]) == ()


# the model and the command line


def test_the_command_line_picks_cells_and_leaves_other_targets_alone(project: Any) -> None:
    project.good(BOTH)
    assert names(project.load(), "mine,cpu", precision="fp16") == ["cpu", "mine-fp16-large", "mine-fp16-small"]
    name, profile = parse_shape_option("image:4x3x9x9")
    assert names(project.load(), "mine", precision="fp16", shapes={name: profile}) == ["mine-fp16-large"]
    assert len(names(project.load(), "mine", precision=None, shapes={})) == 4


def test_a_shape_that_no_axis_speaks_of_picks_nothing(project: Any) -> None:
    project.good(BOTH)
    mask = Profile(min=(1,), opt=(1,), max=(1,))
    assert names(project.load(), "mine", shapes={"mask": mask}) == ALL
    cell = apply_model(project.load().targets[ALL[0]], None, {"shapes": {"mask": mask}})
    assert cell.target.shapes["mask"] == mask


@pytest.mark.parametrize(
    ("selector", "precision", "why"),
    [
        ("mine", "int8", "there is mine-fp16; mine-int8 is excluded: no data"),
        ("mine-fp16", "fp32", "there is mine-fp16"),
        ("mine,cpu", "bf16", "there is mine-fp16"),
    ],
)
def test_a_precision_that_no_cell_has_is_said(project: Any, selector: str, precision: str, why: str) -> None:
    project.good("axes: {precision: [fp16, int8]}", "exclude: [{precision: int8, why: no data}]")
    problem = error_of(lambda: project.load().select([selector], {"precision": precision}))
    assert (problem.kind, problem.why) == (EMPTY_SELECTION, why)
    assert problem.what == f"no selected cell of mine has precision {precision}"


def test_excluded_cells_are_picked_like_others(project: Any) -> None:
    project.good(BOTH, "exclude: [{shapes: large, why: big}]")
    assert [cell.name for cell in project.load().excluded(["mine"], {"precision": "fp16"})] == ["mine-fp16-large"]


def test_a_model_s_yaml_changes_no_axis_value(project: Any, tmp_path: Path) -> None:
    project.good("axes: {precision: [fp32, fp16]}")
    (tmp_path / "lane.yaml").write_text("precision: bf16\nshapes: {image: 1x3x7x7}\ntolerance: {rtol: 0.5}\n")
    config = find_model_config(tmp_path / "lane.onnx")
    cells = [apply_model(row, config, {}) for row in project.load().select(["mine"])]
    assert [cell.target.precision for cell in cells] == ["fp16", "fp32"]
    assert {cell.target.shapes["image"].opt for cell in cells} == {(1, 3, 7, 7)}
    assert {cell.target.tolerance.rtol for cell in cells if cell.target.tolerance} == {0.5}
    assert {cell.cell_of for cell in cells} == {"mine"}


def test_a_set_of_shapes_goes_before_the_model_s_input_by_input(project: Any, tmp_path: Path) -> None:
    project.good(SHAPES)
    (tmp_path / "lane.yaml").write_text("shapes: {image: 1x3x7x7, mask: 1x7}\n")
    cell = apply_model(project.load().targets["mine-small"], find_model_config(tmp_path / "lane.onnx"), {"precision": "fp16"})
    assert {name: profile.opt for name, profile in cell.target.shapes.items()} == {"image": (1, 3, 224, 224), "mask": (1, 7)}
    assert (cell.sources["shapes.image"].layer, cell.sources["shapes.mask"].layer) == ("axis", "model")
    assert cell.target.precision == "fp16"
