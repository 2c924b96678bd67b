"""Optimization profiles as text: ``1x3x224x224``, or ``MIN:OPT:MAX`` of these."""

from __future__ import annotations

import re

from orchestrator.errors import SHAPES_BAD, EnginefarmError, Where
from orchestrator.matrix.schema import Profile

MAX_RANK = 8
"""TensorRT takes tensors of at most 8 dimensions (Dims::MAX_DIMS in NvInfer.h)."""

_DIMS = r"[0-9]{1,10}(?:[xX][0-9]{1,10})*|scalar"
_PROFILE = re.compile(rf"^(?:{_DIMS})(?::(?:{_DIMS}):(?:{_DIMS}))?$")
_OPTION = re.compile(rf"^(?P<name>.+?):(?P<profile>(?:{_DIMS})(?::(?:{_DIMS}):(?:{_DIMS}))?)$", re.DOTALL)
_SHAPE_AT_END = re.compile(r":[0-9]+(?:[xX][0-9]+)+$")
_FORM = "write --shape INPUT:1x3x224x224, or --shape INPUT:MIN:OPT:MAX, for example --shape x:1x3x224x224:4x3x224x224:8x3x224x224"


def read_profile(text: str) -> Profile:
    """``"1x3x8x8"`` (min = opt = max) or ``"1x3x8x8:2x3x8x8:4x3x8x8"``; ``"scalar"`` is rank 0. Raises ValueError saying what is wrong."""
    if not _PROFILE.match(text):
        parts = text.count(":") + 1
        if parts not in (1, 3):
            raise ValueError(f'"{text}" has {parts} shapes; give one, or three as MIN:OPT:MAX')
        raise ValueError(f'"{text}" is not a shape')
    shapes = [() if part == "scalar" else tuple(int(dim) for dim in re.split("[xX]", part)) for part in text.split(":")]
    if any(dim > 2**31 - 1 for shape in shapes for dim in shape):
        raise ValueError(f'"{text}" has a dimension above 2147483647')
    low, usual, high = shapes if len(shapes) == 3 else shapes * 3
    return Profile(min=low, opt=usual, max=high)


def profile_problem(profile: Profile) -> str | None:
    """What contradicts itself inside one profile, or None."""
    ranks = {len(profile.min), len(profile.opt), len(profile.max)}
    if len(ranks) > 1:
        return f"min has {len(profile.min)} dimensions, opt {len(profile.opt)}, max {len(profile.max)}"
    if ranks.pop() > MAX_RANK:
        return f"{len(profile.min)} dimensions are more than TensorRT's {MAX_RANK}"
    for axis, (low, usual, high) in enumerate(zip(profile.min, profile.opt, profile.max, strict=True)):
        if not low <= usual <= high:
            return f"dimension {axis} has min {low}, opt {usual}, max {high}"
    return None


def format_profile(profile: Profile) -> str:
    """The inverse of :func:`read_profile`."""
    texts = ["x".join(str(dim) for dim in shape) or "scalar" for shape in (profile.min, profile.opt, profile.max)]
    return texts[0] if len(set(texts)) == 1 else ":".join(texts)


def parse_shape_option(text: str) -> tuple[str, Profile]:
    """``--shape``: input name and profile, split from the right, since input names may hold colons (``serving:0``).

    A text that ends in three shapes is MIN:OPT:MAX. Raises EnginefarmError (SHAPES_BAD) showing the right form.
    """
    where = Where(file="--shape")
    match = _OPTION.match(text)
    if not match:
        raise EnginefarmError(SHAPES_BAD, f'"{text}" is not INPUT:SHAPE', where=where, fix=_FORM)
    try:
        if _SHAPE_AT_END.search(match["name"]):
            raise ValueError(f'"{text}" gives two shapes; give one, or three as MIN:OPT:MAX')
        profile = read_profile(match["profile"])
    except ValueError as error:
        raise EnginefarmError(SHAPES_BAD, str(error), where=where, fix=_FORM) from error
    wrong = profile_problem(profile)
    if wrong:
        raise EnginefarmError(SHAPES_BAD, f"{text}: {wrong}", where=where, why="every dimension needs min <= opt <= max", fix=_FORM)
    return match["name"], profile
