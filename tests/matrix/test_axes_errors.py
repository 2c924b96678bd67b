"""What is wrong with axes and exclusions is said at its line, once."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import (
    CONFIG_FIELD,
    CONFIG_TRAP,
    CONFIG_VALUE,
    TARGET_CONFLICT,
    TARGET_IMPOSSIBLE,
    Kind,
)

AXES = "axes: {precision: [fp32, fp16], shapes: {small: {x: 1x3}, large: {x: 4x3}}}"


@pytest.mark.parametrize(
    ("lines", "kind", "where", "what", "fix"),
    [
        ("axes: {precison: [fp16]}", CONFIG_FIELD, "9:8", '"axes.precison" is not a field', "did you mean precision?"),
        ("axes: {profile: {s: {x: 1x3}}}", CONFIG_FIELD, "9:8", '"axes.profile" is not a field', "did you mean shapes?"),
        ("axes: {tf32: [true]}", CONFIG_FIELD, "9:8", '"axes.tf32" is not a field', "known here: precision, shapes"),
        ("axes: {}", CONFIG_VALUE, "9:7", "axes is empty", "write axes: {precision"),
        ("axes: [fp16]", CONFIG_VALUE, "9:7", "axes needs lines of the form name: value, not a list", ""),
        ("axes: {precision: []}", CONFIG_VALUE, "9:19", "axes.precision is empty", "remove the line"),
        ("axes: {precision: [fp16, fp12]}", CONFIG_VALUE, "9:26", 'axes.precision cannot be "fp12"', 'did you mean "fp'),
        ("axes: {precision: [fp16, fp32, fp16]}", CONFIG_VALUE, "9:32", "fp16 is given twice", "name each precision once"),
        ("axes: {shapes: {}}", CONFIG_VALUE, "9:16", "axes.shapes is empty", "remove the line"),
        ("axes: {shapes: {small: {}}}", CONFIG_VALUE, "9:24", "axes.shapes.small names no input", "small: {INPUT: 1x3x224x224}"),
        ("axes: {shapes: {small: 1x3}}", CONFIG_VALUE, "9:24", "axes.shapes.small names no input", "small: {INPUT: 1x3x224x224}"),
        ("axes: {shapes: [small]}", CONFIG_VALUE, "9:16", "axes.shapes needs lines of the form name: value, not a list", ""),
        ("axes: {shapes: {Big: {x: 1x3}}}", CONFIG_VALUE, "9:17", 'axes.shapes cannot have the name "Big"', "write big"),
        ("axes: {shapes: {on: {x: 1x3}}}", CONFIG_TRAP, "9:17", "YAML reads on as true", 'put it in quotes: shapes: "on"'),
        ("axes: {shapes: {s: {x: 1x3:2x3}}}", CONFIG_VALUE, "9:24", 'axes.shapes.s.x: "1x3:2x3" has 2 shapes', "MIN:OPT:MAX"),
        ("axes: {shapes: {s: {x: 1x3}, t: {x: 1x3}}}", TARGET_CONFLICT, "9:30", "mine-s and mine-t are the same engine", "remove one"),
        (f"axes: {{shapes: {{{'s' * 64}: {{x: 1x3}}}}}}", CONFIG_VALUE, "9:7", 'the name "mine-sss', "use shorter names"),
        (AXES + "\nexclude: []", CONFIG_VALUE, "10:10", "exclude is empty", "why: does not fit"),
        (AXES + "\nexclude: {precision: fp16, why: w}", CONFIG_VALUE, "10:10", "exclude needs a list", "write - {"),
        (AXES + "\nexclude: [fp16]", CONFIG_VALUE, "10:11", "exclude needs lines of the form name: value, not a single value", ""),
        (AXES + "\nexclude: [{precision: fp16}]", CONFIG_VALUE, "10:11", "why is missing", "why: does not fit"),
        (AXES + "\nexclude: [{why: w}]", CONFIG_VALUE, "10:11", "the entry names no axis", "precision: fp32"),
        (AXES + "\nexclude: [{profile: small, why: w}]", CONFIG_FIELD, "10:12", '"exclude.profile" is not a field', "did you mean shapes?"),
        (AXES + "\nexclude: [{precision: bf16, why: w}]", CONFIG_VALUE, "10:23", 'axes.precision has no "bf16"', ""),
        (AXES + "\nexclude: [{shapes: smal, why: w}]", CONFIG_VALUE, "10:20", 'axes.shapes has no "smal"', "did you mean small?"),
        (
            AXES + "\nexclude: [{precision: fp16, why: w}, {precision: fp16, shapes: small, why: w}]",
            CONFIG_VALUE,
            "10:38",
            "the entry excludes nothing",
            "remove it",
        ),
        (
            "axes: {precision: [fp32]}\nexclude: [{shapes: small, why: w}]",
            CONFIG_VALUE,
            "10:20",
            "shapes is not an axis of mine",
            "its axes: precision",
        ),
        ("exclude: [{precision: fp16, why: w}]", CONFIG_VALUE, "9:10", "there is nothing to exclude from", "add axes, or remove exclude"),
    ],
)
def test_each_mistake_is_said_once_at_its_place(project: Any, lines: str, kind: Kind, where: str, what: str, fix: str) -> None:
    project.good(lines)
    problem = project.only_problem()
    assert problem.kind is kind
    assert str(problem.where).removesuffix(" (target mine)") == f"targets/mine.yaml:{where}"
    assert problem.what.startswith(what)
    assert fix in (problem.fix or "")


def test_too_many_cells_are_refused(project: Any) -> None:
    sets = ", ".join(f"s{number}: {{x: 1x{number}}}" for number in range(1, 130))
    project.good(f"axes: {{precision: [fp32, fp16], shapes: {{{sets}}}}}")
    assert project.only_problem().what == "the axes make 258 cells"


def test_shapes_that_become_equal_with_those_of_the_target_are_one_engine(project: Any) -> None:
    project.good("shapes: {y: 1x9}", "axes: {shapes: {a: {x: 1x3}, b: {x: 1x3, y: 1x9}}}")
    assert (project.only_problem().kind, project.only_problem().what) == (TARGET_CONFLICT, "mine-a and mine-b are the same engine")


def test_all_cells_excluded_is_an_error_with_each_reason(project: Any) -> None:
    project.good("axes: {precision: [fp32, fp16]}", "exclude: [{precision: fp32, why: slow}, {precision: fp16, why: wrong}]")
    problem = project.only_problem()
    assert (problem.kind, problem.what) == (TARGET_IMPOSSIBLE, "every cell of mine is excluded")
    assert problem.why == "mine-fp32: slow; mine-fp16: wrong"
    assert str(problem.where) == "targets/mine.yaml:10:11 (target mine)"


def test_impossible_for_different_reasons_in_every_cell_is_an_error(project: Any) -> None:
    project.write("name: rtx-turing\naxes: {precision: [fp8, bf16]}\n", "rtx-turing.yaml")
    problem = project.only_problem()
    assert problem.what == "every cell of rtx-turing is excluded"
    assert "rtx-turing-fp8: " in (problem.why or "")


def test_what_every_cell_has_is_an_error_of_the_file_told_once(project: Any) -> None:
    project.good("compute_capability: 12.0", 'cuda: "99"', "axes: {precision: [fp32, fp16]}", without="image cuda")
    problem = project.only_problem()
    assert (problem.kind, str(problem.where)) == (TARGET_IMPOSSIBLE, "targets/mine.yaml:6:21 (target mine)")


def test_a_contradiction_is_never_an_exclusion(project: Any) -> None:
    project.good("provider: cpu", "axes: {precision: [fp32, fp16]}")
    assert [problem.kind for problem in project.problems()] == [TARGET_CONFLICT]


def test_broken_axes_hide_no_other_problem_and_make_no_new_one(project: Any) -> None:
    project.good("tensorrt: 8.10", "precision: bf16", "compute_capability: 7.5", "axes: {precision: [fp12]}", without="image cuda")
    assert sorted(problem.kind.code for problem in project.problems()) == sorted([CONFIG_TRAP.code, CONFIG_VALUE.code])


def test_a_missing_tag_is_told_once(project: Any) -> None:
    project.good(AXES, without="tag")
    assert project.only_problem().what == "tag is missing"


def test_a_tag_that_becomes_a_reserved_one_is_refused(project: Any) -> None:
    project.good("axes: {shapes: {a.engine: {x: 1x3}}}")
    assert project.only_problem().what == 'tag cannot end in ".engine"'


# names and tags


def test_a_cell_cannot_be_called_like_another_target(project: Any) -> None:
    project.good("axes: {precision: [fp32, fp16]}")
    project.good("name: mine-fp16", "tag: other", name="mine-fp16.yaml")
    problem = project.only_problem()
    assert (problem.kind, problem.what) == (TARGET_CONFLICT, '"mine-fp16" is the name of two targets')
    assert problem.why == "a cell of mine and the target mine-fp16"
    assert str(problem.where) == "targets/mine.yaml:9:26 (target mine)"


def test_a_cell_cannot_be_called_like_a_target_that_forks(project: Any) -> None:
    project.good("axes: {precision: [fp32, fp16]}")
    project.good("name: mine-fp16", "tag: other", "axes: {shapes: {a: {x: 1x3}}}", name="mine-fp16.yaml")
    assert project.only_problem().what == '"mine-fp16" is the name of two targets'


def test_cells_of_two_targets_cannot_have_one_name(project: Any) -> None:
    project.good("axes: {shapes: {a-b: {x: 1x3}}}")
    project.good("name: mine-a", "tag: other", "axes: {shapes: {b: {x: 1x3}}}", name="mine-a.yaml")
    assert project.only_problem().why == "a cell of mine and a cell of mine-a"


def test_an_excluded_cell_keeps_its_name(project: Any) -> None:
    project.good("axes: {precision: [fp32, fp16]}", "exclude: [{precision: fp16, why: slow}]")
    project.good("name: mine-fp16", "tag: other", name="mine-fp16.yaml")
    assert project.only_problem().what == '"mine-fp16" is the name of two targets'


def test_a_cell_s_tag_cannot_be_another_target_s(project: Any) -> None:
    project.good("axes: {precision: [fp32, fp16]}")
    project.good("name: other", "tag: mine-fp16", name="other.yaml")
    problem = project.only_problem()
    assert (problem.kind, problem.what) == (TARGET_CONFLICT, 'tag "mine-fp16" is taken')
    assert problem.why == "so says mine-fp16 at targets/mine.yaml:2:6"


def test_the_tag_of_a_target_that_forks_is_free_for_another(project: Any) -> None:
    project.good("axes: {precision: [fp32, fp16]}")
    project.good("name: other", "tag: mine", name="other.yaml")
    assert project.problems() == []
