"""Optimization profiles of a model's dynamic inputs: given ones checked offline, the one default, and what to paste.

Only one thing is guessed: an input whose first dimension alone is dynamic has a batch, and a batch is 1 to 8. Equal
names of dimensions (``batch``, ``height``) mean equal sizes, as TensorRT takes them; placeholders such as ``?`` do not.
"""

from __future__ import annotations

import difflib
import json
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence

from orchestrator.errors import SHAPES_BAD, SHAPES_NEEDED, EnginefarmError, Where, raise_all
from orchestrator.matrix.schema import Profile
from orchestrator.matrix.shapes import format_profile, profile_problem
from orchestrator.models.model import Dim, Model, TensorInfo
from orchestrator.models.text import shown

BATCH = (1, 1, 8)
"""min, opt and max of a batch that nobody gave."""

_IMAGE_SIDE = (32, 224, 512)
_LENGTH = (1, 128, 512)
"""What a suggested profile says for a dimension that only the user knows."""

_Range = tuple[int, int, int]


def resolve_profiles(
    model: Model, shapes: Mapping[str, Profile], *, source: str, places: Mapping[str, Where] | None = None
) -> tuple[dict[str, Profile], tuple[str, ...]]:
    """The profile of every dynamic input, and notes to print about what was not given but taken.

    ``shapes`` are the given profiles by input name, ``places`` where they are written; ``source`` is the file to name for others. Static
    inputs get no profile. Raises EnginefarmError: SHAPES_BAD (all contradictions at once), SHAPES_NEEDED (with a block to paste).
    """
    at = defaultdict(lambda: Where(file=source), places or {})
    raise_all(_problems(model, shapes, at))
    dynamic = [info for info in model.inputs if info.is_dynamic]
    given = {info.name: shapes[info.name] for info in dynamic if info.name in shapes}
    ties = _ties(dynamic, given)
    profiles: dict[str, Profile] = {}
    notes: list[str] = []
    for info in dynamic:
        if info.name in given:
            profiles[info.name] = given[info.name]
            continue
        found = _default(info, ties)
        if found is None:
            raise _needed(model, dynamic, given, ties, source)
        profiles[info.name] = found
        text = f"input {shown(info.name)} has no profile: taken as {format_profile(found)}"
        why = "its batch" if _is_batch(info, ties) else "its dimensions are named in the given shapes"
        notes.append(f"{text} ({why}; set it with --shape {_option(info.name, found)})")
    raise_all(_tie_problems(dynamic, profiles, at))
    return profiles, tuple(notes)


def _problems(model: Model, shapes: Mapping[str, Profile], at: Mapping[str, Where]) -> list[EnginefarmError]:
    inputs = {info.name: info for info in model.inputs}
    problems: list[EnginefarmError] = []
    for name, profile in shapes.items():
        info = inputs.get(name)
        if info is None:
            close = difflib.get_close_matches(name, inputs, 1, 0.65)
            fix = f"did you mean {shown(close[0])}?" if close else f"inputs of the model: {', '.join(map(shown, inputs)) or 'none'}"
            problems.append(EnginefarmError(SHAPES_BAD, f"the model has no input {shown(name)}", where=at[name], fix=fix))
            continue
        fix = f"the model declares {_shape(info.shape)}"
        wrong = [f"input {shown(name)}: {text}" for text in _input_problems(info, profile)]
        problems += [EnginefarmError(SHAPES_BAD, what, where=at[name], fix=fix) for what in wrong]
    return problems or _tie_problems(model.inputs, shapes, at)


def _input_problems(info: TensorInfo, profile: Profile) -> list[str]:
    ranks = {len(profile.min), len(profile.opt), len(profile.max)}
    if info.shape is not None and ranks != {len(info.shape)}:
        given = " and ".join(str(rank) for rank in sorted(ranks))
        return [f"the profile has {given} dimensions, the input has {len(info.shape)}"]
    wrong = profile_problem(profile)
    if wrong:
        return [f"{wrong}: every dimension needs min <= opt <= max"]
    texts = []
    for axis, dims in enumerate(_ranges(profile)):
        declared = info.shape[axis] if info.shape is not None else None
        if isinstance(declared, int) and dims != (declared,) * 3:
            texts.append(f"dimension {axis} is {declared} in the model, the profile says {_range_text(dims)}")
        elif min(dims) < 1 and declared != 0:
            texts.append(f"dimension {axis} is {min(dims)} in the profile: a size is at least 1")
    return texts


def _tie_problems(infos: Sequence[TensorInfo], profiles: Mapping[str, Profile], at: Mapping[str, Where]) -> list[EnginefarmError]:
    first: dict[str, tuple[str, _Range]] = {}
    problems = []
    for info in infos:
        if info.name not in profiles:
            continue
        for axis, (dim, dims) in enumerate(zip(info.shape or (), _ranges(profiles[info.name]), strict=False)):
            if not isinstance(dim, str):
                continue
            place = f"dimension {axis} of {shown(info.name)}"
            other, expected = first.setdefault(dim, (place, dims))
            if dims != expected:
                what = f"{place} is {_range_text(dims)}, {other} is {_range_text(expected)}, and the model calls both {shown(dim)}"
                problems.append(EnginefarmError(SHAPES_BAD, what, where=at[info.name], fix="give both the same min, opt and max"))
    return problems


def _ranges(profile: Profile) -> list[_Range]:
    return list(zip(profile.min, profile.opt, profile.max, strict=True))


def _ties(infos: Sequence[TensorInfo], given: Mapping[str, Profile]) -> dict[str, _Range]:
    """Sizes of named dimensions, as the given profiles have them."""
    ties: dict[str, _Range] = {}
    for info in infos:
        if info.name in given:
            ties |= {dim: dims for dim, dims in zip(info.shape or (), _ranges(given[info.name]), strict=False) if isinstance(dim, str)}
    return ties


def _is_batch(info: TensorInfo, ties: Mapping[str, _Range]) -> bool:
    """Only the first dimension is open, and nothing given says what it is."""
    if not info.shape or isinstance(info.shape[0], int):
        return False
    return info.shape[0] not in ties and all(isinstance(dim, int) for dim in info.shape[1:])


def _default(info: TensorInfo, ties: Mapping[str, _Range]) -> Profile | None:
    if info.shape is None or not info.is_tensor:
        return None
    if _is_batch(info, ties):
        return _profile([BATCH, *(_fixed(dim) for dim in info.shape[1:])])
    ranges = [ties.get(dim) if isinstance(dim, str) else _fixed(dim) for dim in info.shape]
    return None if None in ranges else _profile([dims for dims in ranges if dims is not None])


def _fixed(dim: Dim) -> _Range | None:
    return (dim, dim, dim) if isinstance(dim, int) else None


def _profile(ranges: Sequence[_Range | None]) -> Profile:
    sizes = [dims for dims in ranges if dims is not None]
    return Profile(min=tuple(d[0] for d in sizes), opt=tuple(d[1] for d in sizes), max=tuple(d[2] for d in sizes))


def _needed(
    model: Model, dynamic: Sequence[TensorInfo], given: Mapping[str, Profile], ties: Mapping[str, _Range], source: str
) -> EnginefarmError:
    """Every dynamic input with a profile to paste; sizes that only the user can know are marked as examples."""
    lines = [f"input {shown(info.name)} {info.dtype} {_shape(info.shape)}" for info in model.inputs]
    guesses = dict(ties)
    suggested: dict[str, Profile] = {}
    for info in dynamic:
        suggested[info.name] = given.get(info.name) or _example(info, guesses)
    block = ["shapes:"]
    for name, profile in suggested.items():
        block.append(f"  {_yaml_key(name)}: {{min: {list(profile.min)}, opt: {list(profile.opt)}, max: {list(profile.max)}}}")
    options = " ".join(f"--shape {_option(name, profile)}" for name, profile in suggested.items())
    missing = [info.name for info in dynamic if info.name not in given]
    fix = "put your own sizes into the model's YAML (these are examples):\n" + "\n".join(block) + f"\nor on the command line:\n{options}"
    return EnginefarmError(
        SHAPES_NEEDED,
        f"the model has dynamic inputs without shapes: {', '.join(map(shown, missing))}",
        where=Where(file=source),
        why="; ".join(lines),
        fix=fix,
    )


def _example(info: TensorInfo, guesses: dict[str, _Range]) -> Profile:
    """Sizes to start from; named sizes get the same guess wherever they stand (``guesses`` grows)."""
    shape: Sequence[Dim] = (None, 3, None, None) if info.shape is None else info.shape
    ranges: list[_Range] = []
    for axis, dim in enumerate(shape):
        likely = BATCH if axis == 0 else _IMAGE_SIDE if len(shape) == 4 else _LENGTH
        ranges.append(_fixed(dim) or (likely if dim is None else guesses.setdefault(str(dim), likely)))
    return _profile(ranges)


def _shape(shape: Sequence[Dim] | None) -> str:
    if shape is None:
        return "of unknown rank"
    return "[" + ", ".join("?" if dim is None else str(dim)[:40] for dim in shape) + "]"


def _range_text(dims: _Range) -> str:
    return str(dims[0]) if len(set(dims)) == 1 else f"{dims[0]}..{dims[2]} (usually {dims[1]})"


def _option(name: str, profile: Profile) -> str:
    return shlex.quote(f"{name}:{format_profile(profile)}")


def _yaml_key(name: str) -> str:
    plain = name.isidentifier() and name.isascii() and name.lower() not in ("y", "n", "yes", "no", "on", "off", "true", "false", "null")
    return name if plain else json.dumps(name, ensure_ascii=False)
