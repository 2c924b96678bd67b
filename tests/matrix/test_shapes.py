from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import SHAPES_BAD, EnginefarmError
from orchestrator.matrix.schema import Profile
from orchestrator.matrix.shapes import format_profile, parse_shape_option, read_profile

DIMS = st.lists(st.integers(0, 2**31 - 1), max_size=8).map(tuple)


@pytest.mark.parametrize(
    ("text", "name", "low", "usual", "high"),
    [
        ("x:1x3x224x224", "x", (1, 3, 224, 224), (1, 3, 224, 224), (1, 3, 224, 224)),
        ("x:1x3:4x3:8x3", "x", (1, 3), (4, 3), (8, 3)),
        ("serving:0:1x3", "serving:0", (1, 3), (1, 3), (1, 3)),
        ("serving:0:1x3:4x3:8x3", "serving:0", (1, 3), (4, 3), (8, 3)),
        ("tokens:8", "tokens", (8,), (8,), (8,)),
        ("tokens:1:4:8", "tokens", (1,), (4,), (8,)),
        ("scale:scalar", "scale", (), (), ()),
        ("a b/c:1X3", "a b/c", (1, 3), (1, 3), (1, 3)),
    ],
)
def test_option_is_split_from_the_right(text: str, name: str, low: object, usual: object, high: object) -> None:
    assert parse_shape_option(text) == (name, Profile(min=low, opt=usual, max=high))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1x3x224x224", "is not INPUT:SHAPE"),
        ("x:", "is not INPUT:SHAPE"),
        (":1x3", "is not INPUT:SHAPE"),
        ("x:1x-1", "is not INPUT:SHAPE"),
        ("x:Nx3", "is not INPUT:SHAPE"),
        ("x=1x3", "is not INPUT:SHAPE"),
        ("x:1x3:4x3", "gives two shapes"),
        ("x:4x3:2x3:8x3", "dimension 0 has min 4, opt 2, max 8"),
        ("x:1x3:1x3x2:1x3", "min has 2 dimensions, opt 3, max 2"),
        ("x:1x1x1x1x1x1x1x1x1", "9 dimensions are more than TensorRT's 8"),
        ("x:4294967296", "has a dimension above 2147483647"),
    ],
)
def test_bad_options_say_what_is_wrong_and_show_the_form(text: str, said: str) -> None:
    with pytest.raises(EnginefarmError) as caught:
        parse_shape_option(text)
    assert caught.value.kind is SHAPES_BAD
    assert said in caught.value.what
    assert "--shape INPUT:1x3x224x224" in (caught.value.fix or "")


@given(DIMS, DIMS, DIMS)
def test_format_and_read_are_inverse(low: tuple[int, ...], usual: tuple[int, ...], high: tuple[int, ...]) -> None:
    profile = Profile(min=low, opt=usual, max=high)
    assert read_profile(format_profile(profile)) == profile


@given(st.text(min_size=1).filter(lambda name: not name.endswith(tuple("0123456789"))), DIMS)
def test_any_input_name_survives_the_option(name: str, dims: tuple[int, ...]) -> None:
    profile = Profile(min=dims, opt=dims, max=dims)
    assert parse_shape_option(f"{name}:{format_profile(profile)}") == (name, profile)
