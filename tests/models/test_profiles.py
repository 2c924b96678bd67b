from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.errors import SHAPES_BAD, SHAPES_NEEDED, EnginefarmError, flatten
from orchestrator.matrix.schema import Profile
from orchestrator.matrix.shapes import parse_shape_option
from orchestrator.models.model import Model, TensorInfo
from orchestrator.models.profiles import resolve_profiles


def model(*inputs: tuple[str, Sequence[Any] | None]) -> Model:
    infos = tuple(TensorInfo(name, "float32", None if shape is None else tuple(shape)) for name, shape in inputs)
    return Model(
        path=Path("lane.onnx"),
        digest="sha256:0",
        size_bytes=1,
        ir_version=10,
        opsets={"": 17},
        producer="",
        inputs=infos,
        outputs=(),
        external=(),
        nodes=1,
        op_types={},
        weight_dtypes={},
        has_qdq=False,
        custom_ops=(),
        random_ops=(),
        data_dependent_ops=(),
        gpu_blockers=(),
        placeholder_dims=False,
        warnings=(),
        staged=None,
    )


def profile(low: Sequence[int], opt: Sequence[int] | None = None, high: Sequence[int] | None = None) -> Profile:
    return Profile(min=tuple(low), opt=tuple(opt or low), max=tuple(high or low))


def refused(described: Model, **shapes: Profile) -> list[EnginefarmError]:
    with pytest.raises(EnginefarmError) as caught:
        resolve_profiles(described, shapes, source="lane.yaml")
    return list(flatten(caught.value))


def test_static_inputs_need_nothing() -> None:
    assert resolve_profiles(model(("x", [1, 3, 8, 8])), {}, source="lane.yaml") == ({}, ())


def test_a_static_shape_may_be_given_again() -> None:
    assert resolve_profiles(model(("x", [1, 3])), {"x": profile([1, 3])}, source="s")[0] == {}


@pytest.mark.parametrize("batch", ["batch", None, "N"])
def test_a_leading_batch_has_a_default_that_is_printed(batch: str | None) -> None:
    profiles, notes = resolve_profiles(model(("x", [batch, 3, 224, 224])), {}, source="s")
    assert profiles == {"x": profile([1, 3, 224, 224], [1, 3, 224, 224], [8, 3, 224, 224])}
    sizes = "1x3x224x224:1x3x224x224:8x3x224x224"
    assert notes == (f"input 'x' has no profile: taken as {sizes} (its batch; set it with --shape x:{sizes})",)


def test_a_given_profile_is_taken_as_it_is() -> None:
    given = profile([2, 3, 8, 8], [4, 3, 8, 8], [6, 3, 8, 8])
    assert resolve_profiles(model(("x", ["n", 3, 8, 8])), {"x": given}, source="s") == ({"x": given}, ())


@pytest.mark.parametrize("shape", [["n", 3, "h", "w"], [1, 3, "h", 8], [3, None], ["n", None], [None, None, 3], None])
def test_other_dynamic_dims_have_no_default(shape: list[Any] | None) -> None:
    (error,) = refused(model(("x", shape)))
    assert error.kind == SHAPES_NEEDED
    assert "'x'" in error.what


def test_what_is_needed_can_be_pasted() -> None:
    described = model(("x", ["n", 3, "h", "w"]), ("my.mask:0", ["n", "h"]), ("fixed", [1, 5]))
    (error,) = refused(described)
    assert error.kind == SHAPES_NEEDED
    assert "'x' float32 [n, 3, h, w]" in str(error.why)
    assert "'fixed' float32 [1, 5]" in str(error.why)
    fix = str(error.fix)
    block = yaml.safe_load(fix[fix.index("shapes:") : fix.index("\nor on the command line")])
    pasted = {name: Profile(**sizes) for name, sizes in block["shapes"].items()}
    assert set(pasted) == {"x", "my.mask:0"}
    assert resolve_profiles(described, pasted, source="s")[0] == pasted
    options = dict(parse_shape_option(text) for text in re.findall(r"--shape (\S+)", fix))
    assert options == pasted


def test_the_example_keeps_what_was_given() -> None:
    given = profile([1, 10], [1, 20], [4, 30])
    (error,) = refused(model(("ids", ["b", "s"]), ("img", ["b", 3, "h", "w"])), ids=given)
    assert "ids: {min: [1, 10], opt: [1, 20], max: [4, 30]}" in str(error.fix)
    assert "img: {min: [1, 3, 32, 32], opt: [1, 3, 224, 224], max: [4, 3, 512, 512]}" in str(error.fix)


def test_named_dims_carry_over_to_other_inputs() -> None:
    given = profile([1, 10], [1, 20], [4, 30])
    profiles, notes = resolve_profiles(model(("ids", ["b", "s"]), ("mask", ["b", "s"]), ("pos", ["s", 7])), {"ids": given}, source="s")
    assert profiles == {"ids": given, "mask": given, "pos": profile([10, 7], [20, 7], [30, 7])}
    assert len(notes) == 2


def test_a_default_batch_follows_the_name_it_shares() -> None:
    profiles, _ = resolve_profiles(model(("x", ["b", "t"]), ("y", ["b", 4])), {"x": profile([2, 5], [3, 5], [6, 5])}, source="s")
    assert profiles["y"] == profile([2, 4], [3, 4], [6, 4])


def test_placeholders_are_not_tied() -> None:
    given = {"x": profile([1, 48, 192]), "y": profile([2, 7, 9])}
    assert resolve_profiles(model(("x", [None, None, None]), ("y", [None, None, None])), given, source="s") == (given, ())


BAD = [
    (("x", ["n", 3]), {"X": profile([1, 3])}, "no input 'X'"),
    (("x", ["n", 3]), {"x": profile([1, 3, 8])}, "3 dimensions, the input has 2"),
    (("x", ["n", 3]), {"x": profile([4, 3], [2, 3], [8, 3])}, "min 4, opt 2, max 8"),
    (("x", ["n", 3]), {"x": profile([1, 4])}, "dimension 1 is 3 in the model, the profile says 4"),
    (("x", ["n", 3]), {"x": profile([0, 3], [1, 3], [2, 3])}, "is 0 in the profile"),
    (("x", [1, 3]), {"x": profile([1, 3], [2, 3], [4, 3])}, "dimension 0 is 1 in the model, the profile says 1..4"),
    (("x", ["d", "d"]), {"x": profile([4, 5])}, "the model calls both 'd'"),
]


@pytest.mark.parametrize(("info", "shapes", "text"), BAD, ids=[case[2] for case in BAD])
def test_contradictions_are_found_offline(info: Any, shapes: dict[str, Profile], text: str) -> None:
    (error,) = refused(model(info), **shapes)
    assert error.kind == SHAPES_BAD
    assert text in error.what
    assert error.where is not None
    assert error.where.file == "lane.yaml"


def test_a_wrong_name_is_met_with_the_one_that_was_meant() -> None:
    (error,) = refused(model(("images", ["n", 3])), image=profile([1, 3]))
    assert error.fix == "did you mean 'images'?"


def test_names_tied_across_inputs_must_agree() -> None:
    (error,) = refused(model(("a", ["b", "s"]), ("c", ["b", "t"])), a=profile([1, 5]), c=profile([2, 5]))
    assert error.what == "dimension 0 of 'c' is 2, dimension 0 of 'a' is 1, and the model calls both 'b'"


def test_all_contradictions_come_at_once() -> None:
    described = model(("a", ["n", 3]), ("b", [1, "s", 4]))
    problems = refused(described, a=profile([1, 4]), b=profile([2, 5, 5]), c=profile([1]))
    assert len(problems) == 4
