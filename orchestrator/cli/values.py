"""Values of options that need more than a type: sizes, shapes, choices with suggestions."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from orchestrator.errors import USAGE, EnginefarmError

PROGRESS = ("auto", "tty", "plain", "json")


def parse_size(option: str, text: str | None) -> int | None:
    """Bytes from ``"8 GiB"``, ``"500MB"`` or ``"1048576"``; raises EnginefarmError(USAGE)."""
    if text is None:
        return None
    from orchestrator.matrix.binder import read_bytes

    try:
        count = read_bytes(text)
    except ValueError:
        count = 0
    if count <= 0:
        raise EnginefarmError(USAGE, f"{option} {text!r} is not a size", fix=f'write a number and a unit: {option} "8 GiB"')
    return count


def check_choice(option: str, value: str | None, choices: Sequence[str]) -> None:
    """Raise EnginefarmError(USAGE) with the closest choice when ``value`` is none of ``choices``."""
    if value is None or value in choices:
        return
    close = difflib.get_close_matches(value.lower(), choices, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise EnginefarmError(USAGE, f"{option} {value!r} is not known", fix=f"{hint}choose from {', '.join(choices)}")


def parse_shapes(texts: Sequence[str]) -> dict[str, Any]:
    """Profiles by input name from ``--shape`` values; the same input twice is an error."""
    from orchestrator.matrix.load import parse_shape_option

    shapes: dict[str, Any] = {}
    for text in texts:
        name, profile = parse_shape_option(text)
        if name in shapes:
            raise EnginefarmError(USAGE, f"--shape names input {name!r} twice", fix="give one --shape per input: NAME:MIN:OPT:MAX")
        shapes[name] = profile
    return shapes
