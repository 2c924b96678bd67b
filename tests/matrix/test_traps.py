"""What YAML makes of innocent lines: each is named at its place, with the line that should be written."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import CONFIG_FIELD, CONFIG_TRAP, CONFIG_VALUE, TARGET_CONFLICT, TARGET_IMPOSSIBLE, Where
from orchestrator.matrix.binder import yaml_reads
from orchestrator.matrix.yaml_reader import Scalar


@pytest.mark.parametrize(
    ("line", "read_as", "fix"),
    [
        ("tensorrt: 8.10", "the number 8.1", 'put it in quotes: tensorrt: "8.10"'),
        ("cuda: 12.10", "the number 12.1", 'put it in quotes: cuda: "12.10"'),
        ("cuda: 012", "the number 10", 'put it in quotes: cuda: "012"'),
        ("cuda: 12:30", "the number 750", 'put it in quotes: cuda: "12:30"'),
        ("cuda: 1_2", "the number 12", 'put it in quotes: cuda: "1_2"'),
        ("tag: no", "false", 'put it in quotes: tag: "no"'),
        ("tag: on", "true", 'put it in quotes: tag: "on"'),
        ("tag: off", "false", 'put it in quotes: tag: "off"'),
        ("tag: yes", "true", 'put it in quotes: tag: "yes"'),
        ("tag: true", "true", 'put it in quotes: tag: "true"'),
        ("gpu: 0x10", "the number 16", 'put it in quotes: gpu: "0x10"'),
        ("labels: [a, no]", "false", 'put it in quotes: labels: "no"'),
        ("compute_capability: 8_6", "the number 86", 'write compute_capability: "8.6"'),
        ("compute_capability: 8.60", "the number 8.6", 'write compute_capability: "8.6"'),
        ("compute_capability: 8.10", "the number 8.1", "did you mean 8.0, 8.6, 8.7 or 8.9?"),
        ("compute_capability: 12.10", "the number 12.1", 'write compute_capability: "12.1"'),
        ("compute_capability: 075", "the number 61", 'write compute_capability: "7.5"'),
        ("compute_capability: 0x86", "the number 134", 'write it like "8.6"'),
        ("compute_capability: [8.0, 12:0]", "the number 720", 'write compute_capability: "12.0"'),
        ("optimization_level: 03", "the number 3", "write plain decimal digits"),
        ("validation:\n  runs: 1_0", "the number 10", "write plain decimal digits"),
        ("validation:\n  runs: 1:30", "the number 90", "write plain decimal digits"),
        ("shapes:\n  x: 1:4:8", "the number 3848", 'put it in quotes: x: "1:4:8"'),
    ],
)
def test_trap_is_named_with_its_fix(project: Any, line: str, read_as: str, fix: str) -> None:
    project.good(line)
    problem = project.only_problem()
    assert problem.kind is CONFIG_TRAP
    assert read_as in problem.what
    assert problem.fix == fix
    text = line.splitlines()[-1]
    written = problem.what.split()[2]
    lines = (project.folder / "targets" / "mine.yaml").read_text().splitlines()
    assert (problem.where.file, problem.where.line) == ("targets/mine.yaml", lines.index(text) + 1)
    assert text[problem.where.column - 1 :].startswith(written)


def test_a_capability_that_no_gpu_has_is_said_so(project: Any) -> None:
    project.good("compute_capability: 8.10")
    assert project.only_problem().why == "no GPU has compute capability 8.10"
    project.good('compute_capability: "8.10"')
    assert 'no GPU has compute capability "8.10"; did you mean 8.0, 8.6, 8.7 or 8.9?' in project.only_problem().what


@pytest.mark.parametrize("name", ["no", "on", "yes", "off"])
def test_a_boolean_as_a_name_is_a_trap_in_the_file_of_that_name(project: Any, name: str) -> None:
    project.good(f"name: {name}", name=f"{name}.yaml")
    assert project.only_problem().kind is CONFIG_TRAP
    project.good(f'name: "{name}"', name=f"{name}.yaml")
    assert name in project.load().targets


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("cuda: 12.2", "cuda", "12.2"),
        ("tensorrt: 8.6", "tensorrt", "8.6"),
        ("tensorrt: 8.6.1", "tensorrt", "8.6.1"),
        ("compute_capability: 8.6", "compute_capability", ("8.6",)),
        ("compute_capability: 86", "compute_capability", ("8.6",)),
        ("compute_capability: sm_86", "compute_capability", ("8.6",)),
        ("compute_capability: SM86", "compute_capability", ("8.6",)),
        ("compute_capability: [sm_86]", "compute_capability", ("8.6",)),
        ("compute_capability: Ada", "compute_capability", ("8.9",)),
        ("workspace: 4 GiB", "workspace", 4 * 2**30),
        ("workspace: 512MiB", "workspace", 512 * 2**20),
        ("workspace: 2 GB", "workspace", 2 * 10**9),
        ("workspace: 1.5 GiB", "workspace", 3 * 2**29),
        ("workspace: 1048576", "workspace", 2**20),
        ("tag: 86", "tag", "86"),
        ("labels: fast", "labels", ("fast",)),
        ("labels: [80, a]", "labels", ("80", "a")),
        ("tf32: false", "tf32", False),
    ],
)
def test_what_is_unambiguous_is_taken(project: Any, line: str, field: str, value: object) -> None:
    project.good(line)
    assert getattr(project.load().targets["mine"].target, field) == value


@pytest.mark.parametrize(
    ("line", "kind", "said", "fix"),
    [
        ("compute_capability: Ampere", CONFIG_VALUE, "several compute capabilities", None),
        ("compute_capability: 8", CONFIG_VALUE, "lacks the minor number", None),
        ("compute_capability: 8.4", CONFIG_VALUE, "no GPU has compute capability", None),
        ("arch: sm_86", CONFIG_FIELD, '"arch" is not a field', "did you mean tag or compute_capability?"),
        ("presicion: fp16", CONFIG_FIELD, '"presicion" is not a field', "did you mean precision?"),
        ("fp16: true", CONFIG_FIELD, '"fp16" is not a field', "did you mean precision?"),
        ("limits:\n  memry: 1", CONFIG_FIELD, '"limits.memry" is not a field', "did you mean memory?"),
        ("zzz: 1", CONFIG_FIELD, '"zzz" is not a field', None),
        ("version: 8.6", CONFIG_FIELD, '"version" is not a field', "did you mean tensorrt or tensorrt_rtx?"),
        ("opt_level: 3", CONFIG_FIELD, '"opt_level" is not a field', "did you mean optimization_level?"),
        ("backend: tensorrt_rtx", CONFIG_VALUE, 'backend cannot be "tensorrt_rtx"', 'did you mean "tensorrt-rtx"?'),
        ("precision: FP16", CONFIG_VALUE, 'precision cannot be "FP16"', 'did you mean "fp16"?'),
        ("platform: windows", CONFIG_VALUE, 'platform cannot be "windows"', None),
        ("tf32: yes", CONFIG_VALUE, "tf32 is true or false", "write tf32: true"),
        ("tf32: 'false'", CONFIG_VALUE, "tf32 is true or false", "write tf32: false"),
        ("workspace: lots", CONFIG_VALUE, "workspace is a size", None),
        ("workspace: 4 XiB", CONFIG_VALUE, "workspace is a size", None),
        ("workspace: 0", CONFIG_VALUE, 'workspace cannot be "0"', None),
        ("optimization_level: 9", CONFIG_VALUE, 'optimization_level cannot be "9"', None),
        ("optimization_level: '3'", CONFIG_VALUE, "optimization_level is a whole number", "remove the quotes"),
        ("optimization_level: 3.0", CONFIG_VALUE, "optimization_level is a whole number", None),
        ("tolerance:\n  rtol: .inf", CONFIG_TRAP, "YAML reads .inf", None),
        ("tolerance:\n  rtol: 1e999", CONFIG_VALUE, "tolerance.rtol is a number", None),
        ("tolerance:\n  rtol: -1", CONFIG_VALUE, 'tolerance.rtol cannot be "-1.0"', None),
        ("tensorrt: v8.6", CONFIG_VALUE, 'tensorrt cannot be "v8.6"', 'write it like "8.6.1"'),
        ("jetpack: recent", CONFIG_VALUE, 'jetpack cannot be "recent"', 'write it like ">=4.6.1" or "6.1"'),
        ("cuda:", CONFIG_VALUE, "cuda says nothing", "give it a value, or write cuda: null to unset it"),
        ("tag: null", CONFIG_VALUE, "tag says nothing", "give it a value, or remove the line"),
        ("image: {a: b}", CONFIG_VALUE, "image needs a single value, not a mapping", None),
        ("image: [a]", CONFIG_VALUE, "image needs a single value, not a list", None),
        ("labels: {a: b}", CONFIG_VALUE, "labels needs a list, not a mapping", None),
        ("limits: 3", CONFIG_VALUE, "limits needs lines of the form name: value", None),
        ("shapes: 1x3", CONFIG_VALUE, "shapes needs lines of the form name: value", None),
        ("shapes:\n  x: 1x3:2x3", CONFIG_VALUE, "has 2 shapes", None),
        ("shapes:\n  x: {min: [1], opt: [1]}", CONFIG_VALUE, "max missing", None),
        ("shapes:\n  x: {min: [2], opt: [1], max: [3]}", CONFIG_VALUE, "dimension 0 has min 2, opt 1, max 3", None),
        ('description: "a\\u0007b"', CONFIG_VALUE, "description holds a control character", None),
        ("tag: -x", CONFIG_VALUE, 'tag cannot be "-x"', "write x"),
        ("tag: a/b", CONFIG_VALUE, 'tag cannot be "a/b"', "write a-b"),
        ("tag: " + "x" * 65, CONFIG_VALUE, "tag cannot be", None),
        ("tag: x.unvalidated", CONFIG_VALUE, 'tag cannot end in ".unvalidated"', "choose another tag"),
        ("labels: [a b]", CONFIG_VALUE, "labels cannot be", None),
    ],
)
def test_bad_value_is_named_at_its_line(project: Any, line: str, kind: object, said: str, fix: str | None) -> None:
    project.good(line)
    problem = project.only_problem()
    assert problem.kind is kind
    assert said in problem.what
    if fix is not None:
        assert problem.fix == fix
    lines = (project.folder / "targets" / "mine.yaml").read_text().splitlines()
    assert (problem.where.file, problem.where.line) == ("targets/mine.yaml", lines.index(line.splitlines()[-1]) + 1)
    assert problem.where.column >= 1


def test_all_problems_of_all_files_come_at_once(project: Any) -> None:
    project.good("tensorrt: 8.10", "presicion: fp16", "tag: no", "compute_capability: [8.0, 8.6]")
    project.write("name: other\n\ttag: x\n", "other.yaml")
    found = {(problem.kind, problem.where.file, problem.where.line) for problem in project.problems()}
    lines = (project.folder / "targets" / "mine.yaml").read_text().splitlines()

    def at(start: str) -> int:
        return next(number for number, line in enumerate(lines, 1) if line.startswith(start))

    assert {
        (CONFIG_TRAP, "targets/mine.yaml", at("tensorrt")),
        (CONFIG_FIELD, "targets/mine.yaml", at("presicion")),
        (CONFIG_TRAP, "targets/mine.yaml", at("tag")),
        (TARGET_CONFLICT, "targets/mine.yaml", at("compute")),
        (CONFIG_TRAP, "targets/other.yaml", 2),
    } <= found


def test_a_broken_field_does_not_drag_in_what_follows_from_it(project: Any) -> None:
    project.good("backend: tensorrtx", "precision: bf16", "compute_capability: 7_5")
    assert [problem.kind for problem in project.problems()] == [CONFIG_VALUE, CONFIG_TRAP]


def test_missing_fields_are_all_named(project: Any) -> None:
    project.write("description: nothing else\n")
    found = [(problem.what, str(problem.where)) for problem in project.problems()]
    assert found == [(f"{field} is missing", "targets/mine.yaml:1:1") for field in ("name", "tag", "backend")]


@pytest.mark.parametrize("said", ["Mine", "other"])
def test_the_file_must_be_called_like_the_target(project: Any, said: str) -> None:
    project.good(f"name: {said}")
    problem = project.only_problem()
    assert problem.what == f'the file is called mine.yaml, the target "{said}"'
    assert problem.fix == f"write name: mine, or rename the file to {said}.yaml"


def test_upper_case_is_refused_since_disks_may_not_tell_it_apart(project: Any) -> None:
    project.good("tag: SM86")
    problem = project.only_problem()
    assert (problem.kind, problem.fix) == (CONFIG_VALUE, "write sm86")
    assert '"SM86" and "sm86" would be one file on a case-insensitive disk' in (problem.why or "")


def test_tags_that_differ_only_in_case_are_the_same_file(project: Any) -> None:
    project.good("name: a", "tag: sm86", name="a.yaml")
    project.good("name: b", "tag: SM86", name="b.yaml")
    conflict = next(problem for problem in project.problems() if problem.kind is TARGET_CONFLICT)
    assert conflict.what == 'tag "SM86" is taken'
    assert "so says a at targets/a.yaml:" in (conflict.why or "")
    assert "same file on a case-insensitive disk" in (conflict.why or "")


def test_two_targets_with_one_tag_are_refused_also_against_a_builtin(project: Any) -> None:
    project.good("tag: ampere")
    problem = project.only_problem()
    assert (problem.kind, problem.where.target) == (TARGET_CONFLICT, "mine")
    assert "so says ampere-cu122" in (problem.why or "")


def test_files_that_differ_only_in_case_or_suffix_are_refused(project: Any) -> None:
    project.good()
    project.good(name="mine.yml")
    assert [problem.what for problem in project.problems() if "both there" in problem.what] == ["mine.yml and mine.yaml are both there"]
    (project.folder / "targets" / "mine.yml").unlink()
    project.good("name: MINE", name="MINE.yaml")
    told = next(problem for problem in project.problems() if "both there" in problem.what)
    assert told.what == "mine.yaml and MINE.yaml are both there"
    assert told.why == "they are the same file on a case-insensitive disk"


def test_the_jetpack_image_that_does_not_exist_names_the_right_one(project: Any) -> None:
    project.good(
        "image: nvcr.io/nvidia/tensorrt:21.06-py3-jetpack", "compute_capability: 7.2", "platform: linux/arm64", without="tensorrt cuda"
    )
    problems = [problem for problem in project.problems() if problem.kind is TARGET_IMPOSSIBLE]
    assert "does not exist" in problems[0].what
    assert "l4t-tensorrt:r8.0.1-runtime" in (problems[0].fix or "")


@pytest.mark.parametrize("text", ["0x" + "f" * 5000, "1" + ":59" * 3000, "9" * 5000, "0b" + "1" * 5000])
def test_a_number_too_long_to_convert_is_a_trap_like_any_other(text: str) -> None:
    assert yaml_reads(Scalar(text, True, Where())) == "something else"
