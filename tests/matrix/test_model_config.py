from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.artifacts.names import check_model_name
from orchestrator.errors import (
    CONFIG_FIELD,
    CONFIG_SYNTAX,
    CONFIG_TRAP,
    CONFIG_VALUE,
    NAME_INVALID,
    TARGET_IMPOSSIBLE,
    EnginefarmError,
    flatten,
)
from orchestrator.matrix.load import LoadedModelConfig, apply_model, find_model_config, load_matrix, load_model_config
from orchestrator.matrix.model_name import normal, objection
from orchestrator.matrix.schema import ModelConfig, Profile, Tolerance

Write = Callable[[str], LoadedModelConfig]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    monkeypatch.chdir(tmp_path)

    def make(text: str) -> LoadedModelConfig:
        Path("lane.yaml").write_text(text)
        return load_model_config(Path("lane.yaml"))

    return make


def flat(shape: tuple[int, ...]) -> Profile:
    return Profile(min=shape, opt=shape, max=shape)


def test_every_field_is_read(write: Write) -> None:
    config = write(
        """\
name: lane
targets: ["rtx-*", cpu]
shapes:
  image: 1x3x288x512:4x3x288x512:8x3x288x512
  scale: [1, 2]
  mask: {min: [1], opt: [2], max: [4]}
precision: fp16
samples: [samples/*.npz]
tolerance: {rtol: 1e-2, cosine: 0.99}
fallback: lane.pt
"""
    )
    assert config.config.name == "lane"
    assert config.config.targets == ("rtx-*", "cpu")
    assert config.config.shapes["image"] == Profile(min=(1, 3, 288, 512), opt=(4, 3, 288, 512), max=(8, 3, 288, 512))
    assert config.config.shapes["scale"] == flat((1, 2))
    assert config.config.shapes["mask"] == Profile(min=(1,), opt=(2,), max=(4,))
    assert config.config.tolerance == Tolerance(rtol=1e-2, cosine=0.99)
    assert str(config.positions["precision"]) == "lane.yaml:7:12"
    assert config.resolve("lane.pt") == Path("lane.pt")


@pytest.mark.parametrize("name", ["lane.yaml", "lane.yml"])
def test_it_is_found_beside_the_model(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precision: fp16\n")
    found = find_model_config(tmp_path / "lane.onnx")
    assert found is not None
    assert found.config.precision == "fp16"


def test_no_file_means_no_config_and_two_are_an_error(tmp_path: Path) -> None:
    assert find_model_config(tmp_path / "lane.onnx") is None
    (tmp_path / "lane.yaml").write_text("name: a\n")
    (tmp_path / "lane.yml").write_text("name: b\n")
    with pytest.raises(EnginefarmError, match="are both there"):
        find_model_config(tmp_path / "lane.onnx")


def test_a_dangling_link_is_not_taken_for_no_config(tmp_path: Path) -> None:
    (tmp_path / "lane.yaml").symlink_to("gone.yaml")
    with pytest.raises(EnginefarmError, match="does not exist"):
        find_model_config(tmp_path / "lane.onnx")


@pytest.mark.parametrize(
    ("text", "kind", "said", "place"),
    [
        ("- a\n", CONFIG_SYNTAX, "the file holds a list", "lane.yaml:1:1"),
        ("fallback: [a.pt]\n", CONFIG_VALUE, "fallback needs a single value, not a list", "lane.yaml:1:11"),
        ("# x\nname: a/b\n", NAME_INVALID, "model name 'a/b' cannot be used", "lane.yaml:2:7"),
        ("name: ''\n", NAME_INVALID, "model name '' cannot be used", "lane.yaml:1:7"),
        (f"name: {'x' * 200}\n", NAME_INVALID, "cannot be used", "lane.yaml:1:7"),
        ("name: no\n", CONFIG_TRAP, "YAML reads no as false", "lane.yaml:1:7"),
        ("targets: [*cpu]\n", CONFIG_TRAP, "*cpu is a YAML alias", "lane.yaml:1:11"),
        ("targets: [a: b]\n", CONFIG_VALUE, "targets needs a single value, not a mapping", "lane.yaml:1:11"),
        ("presision: fp16\n", CONFIG_FIELD, '"presision" is not a field', "lane.yaml:1:1"),
        ("image: x\n", CONFIG_FIELD, '"image" is a field of targets, not of a model', "lane.yaml:1:1"),
        ("precision: half\n", CONFIG_VALUE, 'precision cannot be "half"', "lane.yaml:1:12"),
        ("shapes:\n  x: 4:2:1\n", CONFIG_TRAP, "YAML reads 4:2:1 as the number 14521", "lane.yaml:2:6"),
        ("shapes:\n  x: 4x1:2x1:1x1\n", CONFIG_VALUE, "dimension 0 has min 4, opt 2, max 1", "lane.yaml:2:6"),
        ("shapes:\n  x: {min: [1], opt: [1], max: [1], step: 1}\n", CONFIG_FIELD, '"shapes.x.step" is not a field', "lane.yaml:2:37"),
        ("shapes:\n  x: [1, -3]\n", CONFIG_VALUE, "-3", "lane.yaml:2:6"),
        ("tolerance: {rtol: -1}\n", CONFIG_VALUE, "tolerance.rtol", "lane.yaml:1:19"),
    ],
)
def test_problems_are_at_their_place(write: Write, text: str, kind: object, said: str, place: str) -> None:
    with pytest.raises(EnginefarmError) as caught:
        write(text)
    assert caught.value.kind is kind
    assert said in caught.value.what
    assert str(caught.value.where) == place


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n# nothing yet\n"])
def test_a_file_of_comments_sets_nothing(write: Write, text: str) -> None:
    config = write(text)
    assert (config.config, config.values, config.positions) == (ModelConfig(), {}, {})
    base = load_matrix().targets["cpu"]
    assert apply_model(base, config, {}) == base


@pytest.mark.parametrize(
    ("name", "why", "fix"),
    [
        ('"a/b"', "it contains '/': a slash separates folders", 'write name: "a_b"'),
        ('"-x"', "a leading dash reads as an option", 'write name: "x"'),
        ("con", "Windows reserves it for a device", 'write name: "model_con"'),
        ('"C:\\\\models\\\\Straße.onnx"', "it is a Windows path, not a name", 'write name: "Straße"'),
    ],
)
def test_a_bad_name_gets_a_good_one_to_write(write: Write, name: str, why: str, fix: str) -> None:
    with pytest.raises(EnginefarmError) as caught:
        write(f"name: {name}\n")
    assert (caught.value.why, caught.value.fix) == (why, fix)
    config = write(fix.removeprefix("write "))
    assert config.config.name is not None


def test_a_bad_name_comes_with_the_other_problems_of_the_file(write: Write) -> None:
    with pytest.raises(EnginefarmError) as caught:
        write("name: a:b\nprecision: half\n")
    assert {(problem.kind, str(problem.where)) for problem in flatten(caught.value)} == {
        (NAME_INVALID, "lane.yaml:1:7"),
        (CONFIG_VALUE, "lane.yaml:2:12"),
    }


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=120))
def test_the_rule_for_names_is_that_of_the_command_line(name: str) -> None:
    try:
        check_model_name(name)
        taken = True
    except EnginefarmError:
        taken = False
    assert (objection(normal(name)) is None) is taken


def test_layers_lie_over_the_target_in_order(write: Write) -> None:
    config = write("shapes: {a: 1x1, b: 2x2}\nprecision: fp16\ntolerance: {rtol: 0.5}\nsamples: [s.npz]\n")
    base = load_matrix().targets["rtx-ada"]
    effective = apply_model(base, config, {"shapes": {"b": flat((3, 3))}, "precision": None})
    target = effective.target
    assert target.shapes == {"a": flat((1, 1)), "b": flat((3, 3))}
    assert (target.precision, target.samples) == ("fp16", ("s.npz",))
    assert target.tolerance == Tolerance(rtol=0.5)
    assert str(effective.sources["precision"]) == "model lane.yaml:2:12"
    assert str(effective.sources["shapes.a"]) == "model lane.yaml:1:13"
    assert str(effective.sources["shapes.b"]) == "command line --shape"
    assert effective.sources["backend"].layer == "built-in"
    assert base.target.precision == "fp32"


def test_the_command_line_wins_over_the_model(write: Write) -> None:
    effective = apply_model(load_matrix().targets["rtx-ada"], write("precision: fp16\n"), {"precision": "fp32"})
    assert effective.target.precision == "fp32"
    assert str(effective.sources["precision"]) == "command line --precision"


def test_nothing_given_changes_nothing() -> None:
    base = load_matrix().targets["cpu"]
    assert apply_model(base, None, {"shapes": {}, "precision": None}) == base


@pytest.mark.parametrize(
    ("text", "cli", "layer"),
    [
        ("precision: bf16\n", {}, "set by model lane.yaml:1:12"),
        ("name: lane\n", {"precision": "bf16"}, "set by command line --precision"),
    ],
)
def test_a_precision_that_the_hardware_lacks_names_layer_and_place(write: Write, text: str, cli: dict[str, str], layer: str) -> None:
    with pytest.raises(EnginefarmError) as caught:
        apply_model(load_matrix().targets["turing-cu118"], write(text), cli)
    assert caught.value.kind is TARGET_IMPOSSIBLE
    assert layer in caught.value.what
    assert caught.value.where is not None
    assert caught.value.where.target == "turing-cu118"


def test_a_bad_command_line_value_is_named_by_its_option() -> None:
    with pytest.raises(EnginefarmError) as caught:
        apply_model(load_matrix().targets["cpu"], None, {"precision": "half"})
    assert (caught.value.kind, str(caught.value.where)) == (CONFIG_VALUE, "--precision")
