from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator import resources
from orchestrator.errors import TARGET_CONFLICT, TARGET_IMPOSSIBLE, TARGET_UNKNOWN
from orchestrator.matrix.load import load_files, load_matrix
from orchestrator.matrix.schema import Target


def test_without_a_project_there_are_the_builtin_targets() -> None:
    matrix = load_matrix()
    assert set(matrix.targets) == {path.stem for path in resources.builtin_targets().glob("*.yaml")}
    assert {str(effective.sources["name"].layer) for effective in matrix.targets.values()} == {"built-in"}


def test_a_project_without_targets_changes_nothing(tmp_path: Path) -> None:
    assert load_matrix(tmp_path).targets.keys() == load_matrix().targets.keys()


def test_the_builtin_folder_is_not_a_second_layer() -> None:
    matrix = load_matrix(resources.builtin_targets().parent)
    assert {effective.sources["backend"].layer for effective in matrix.targets.values()} == {"built-in"}


def test_a_builtin_is_overridden_field_by_field(project: Any) -> None:
    project.write("name: ampere-cu122\nprecision: fp16\nlimits:\n  memory: 8 GiB\nvalidation: {runs: 50}\n", "ampere-cu122.yaml")
    effective = project.load().targets["ampere-cu122"]
    builtin = load_matrix().targets["ampere-cu122"].target
    assert effective.target == builtin.model_copy(
        update={
            "precision": "fp16",
            "limits": builtin.limits.model_copy(update={"memory": 8 * 2**30}),
            "validation": builtin.validation.model_copy(update={"runs": 50}),
        }
    )
    assert str(effective.sources["precision"]) == "project targets/ampere-cu122.yaml:2:12"
    assert str(effective.sources["limits.memory"]) == "project targets/ampere-cu122.yaml:4:11"
    assert effective.sources["image"].layer == "built-in"
    assert str(effective.sources["tf32"]) == "default"


def test_every_field_has_a_source() -> None:
    for effective in load_matrix().targets.values():
        assert set(Target.model_fields) <= set(effective.sources)


def test_null_unsets_a_field_and_the_parts_of_one(project: Any) -> None:
    project.write("name: base\ntag: base\nextends: ada-cu12\ntolerance: {rtol: 0.5}\nimage: null\n", "base.yaml")
    project.write("name: none\ntag: none\nextends: base\ntolerance: null\n", "none.yaml")
    project.write("name: on1\ntag: on1\nextends: none\ntolerance: {atol: 0.25}\n", "on1.yaml")
    targets = project.load().targets
    assert targets["base"].target.image is None
    assert targets["none"].target.tolerance is None
    tolerance = targets["on1"].target.tolerance
    assert tolerance is not None
    assert (tolerance.rtol, tolerance.atol) == (1e-3, 0.25)


def test_extends_takes_all_but_what_names_the_target(project: Any) -> None:
    project.write("name: a10\ntag: a10\nextends: ampere86-cu12\ngpu: NVIDIA A10\n", "a10.yaml")
    effective = project.load().targets["a10"]
    base = load_matrix().targets["ampere86-cu12"].target
    assert effective.target == base.model_copy(
        update={"name": "a10", "tag": "a10", "description": "", "extends": "ampere86-cu12", "gpu": "NVIDIA A10"}
    )
    source = effective.sources["image"]
    assert source.layer == "extends ampere86-cu12"
    assert str(source.where).split(":")[0].endswith("targets/ampere86-cu12.yaml")
    assert effective.sources["gpu"].layer == "project"


def test_extends_sees_the_project_s_changes_to_its_base(project: Any) -> None:
    project.write("name: ada-cu12\nprecision: fp16\n", "ada-cu12.yaml")
    project.write("name: mine\ntag: mine\nextends: ada-cu12\n", "mine.yaml")
    assert project.load().targets["mine"].target.precision == "fp16"


def test_extends_chains_in_any_order_of_files(project: Any) -> None:
    project.write("name: a\ntag: a1\nextends: b\n", "a.yaml")
    project.write("name: b\ntag: b1\nextends: c\nprecision: fp16\n", "b.yaml")
    project.write("name: c\ntag: c1\nextends: ada-cu12\ntf32: false\n", "c.yaml")
    target = project.load().targets["a"].target
    assert (target.precision, target.tf32, target.compute_capability) == ("fp16", False, ("8.9",))


def test_a_tag_is_not_passed_on(project: Any) -> None:
    project.write("name: mine\nextends: ada-cu12\n", "mine.yaml")
    problem = project.only_problem()
    assert problem.what == "tag is missing"
    assert "tag: mine" in (problem.fix or "")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a": "a"}, "targets extend each other: a extends a"),
        ({"a": "b", "b": "a"}, "targets extend each other: a extends b extends a"),
        ({"a": "b", "b": "c", "c": "b"}, "targets extend each other: b extends c extends b"),
    ],
)
def test_loops_are_named_once(project: Any, files: dict[str, str], said: str) -> None:
    for name, base in files.items():
        project.write(f"name: {name}\ntag: {name}{name}\nextends: {base}\n", f"{name}.yaml")
    told = [problem for problem in project.problems() if problem.kind is TARGET_CONFLICT]
    assert [problem.what for problem in told] == [said]


def test_an_unknown_base_gets_suggestions(project: Any) -> None:
    project.write("name: mine\ntag: mine\nextends: ampere-cu12\n", "mine.yaml")
    problem = project.only_problem()
    assert (problem.kind, str(problem.where)) == (TARGET_UNKNOWN, "targets/mine.yaml:3:10")
    assert "ampere-cu122" in (problem.fix or "")


def test_a_builtin_cannot_be_overridden_and_extend_something_else(project: Any) -> None:
    project.write("name: ada-cu12\nextends: hopper-cu122\n", "ada-cu12.yaml")
    assert project.only_problem().kind is TARGET_CONFLICT


def test_a_base_that_cannot_be_read_hides_what_it_may_hold(project: Any) -> None:
    project.write("name: mine\ntag: mine\nextends: off\n", "mine.yaml")
    assert project.only_problem().what == "YAML reads off as false"


def test_an_unreadable_base_is_told_once(project: Any) -> None:
    project.write("name: [\n", "base.yaml")
    project.write("name: mine\ntag: mine\nextends: base\n", "mine.yaml")
    assert project.only_problem().where.file == "targets/base.yaml"


def test_what_is_wrong_in_the_base_is_told_at_the_base(project: Any) -> None:
    project.write("name: mine\ntag: mine\nextends: ada-cu12\nprecision: bf16\ncompute_capability: 7.5\n", "mine.yaml")
    problem = project.only_problem()
    assert (problem.kind, str(problem.where)) == (TARGET_IMPOSSIBLE, "targets/mine.yaml:4:12 (target mine)")


def test_paths_are_relative_to_the_file_that_names_them(project: Any) -> None:
    path = project.good("samples: [data/a.npz, /abs/b.npz]", "plugins: lib/p.so")
    target = project.load().targets["mine"].target
    assert target.samples == (str(path.parent / "data/a.npz"), "/abs/b.npz")
    assert target.plugins == (str(path.parent / "lib/p.so"),)


def test_other_files_in_the_folder_are_left_alone(project: Any) -> None:
    project.write("not yaml: [", "targets.lock")
    project.write("{}", "schema.json")
    project.write("x: [", ".hidden.yaml")
    (project.folder / "targets" / "README.md").write_text("- x")
    assert project.problems() == []


def test_chosen_files_lie_over_the_builtin_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("name: mine\ntag: mine\nextends: ada-cu12\n")
    assert load_files([Path("mine.yaml")]).targets["mine"].target.tensorrt == "10.11.0"


def test_three_hundred_targets_load_in_natural_order(project: Any) -> None:
    for number in range(300):
        project.write(f"name: t{number}\ntag: t{number}\nextends: ada-cu12\n", f"t{number}.yaml")
    names = [name for name in project.load().targets if name.startswith("t") and name[1].isdigit()]
    assert names == [f"t{number}" for number in range(300)]
