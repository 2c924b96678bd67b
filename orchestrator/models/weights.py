"""Values of a model's floating-point constants, streamed: NaN, and what half precision cannot hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.models.dtypes import dtype_name, raw_bytes
from orchestrator.models.proto import Tensor
from orchestrator.models.text import listed, shown

if TYPE_CHECKING:
    import numpy as np

_CHUNK = 4 << 20
_FP16_MAX = 65504.0
_FP16_TINY = 2.0**-24  # smallest positive number of IEEE half precision
_FEW = 16
Opener = Callable[[str], int]
_FLOATS = ("float32", "float64", "float16", "bfloat16")


@dataclass
class Survey:
    """Extremes of one tensor. ``tiny`` counts non-zero values that half precision cannot hold, ``nonzero`` all of them."""

    name: str
    elements: int
    nan: bool = False
    lowest: float = 0.0
    highest: float = 0.0
    tiny: int = 0
    nonzero: int = 0


def survey(tensors: Iterable[Tensor], graph_fd: int, open_external: Opener, *, half: bool) -> Iterator[Survey]:
    """Looks at every floating-point tensor that is stored as bytes; ``open_external`` gives a descriptor
    for an external data location. ``half`` also counts what half precision cannot hold. Memory stays flat whatever the size.
    """
    for tensor in tensors:
        dtype = dtype_name(tensor.code)
        if dtype not in _FLOATS:
            continue
        found = Survey(tensor.name, tensor.elements)
        for values in _values(tensor, dtype, graph_fd, open_external):
            _look(values, found, half)
        yield found


def nan_warnings(tensors: Iterable[Tensor], graph_fd: int, open_external: Opener) -> tuple[str, ...]:
    """One sentence that names the initializers with NaN, or nothing."""
    names = [found.name for found in survey(tensors, graph_fd, open_external, half=False) if found.nan]
    return (f"NaN in initializer {listed(names)}: outputs will be NaN wherever it is used",) if names else ()


def half_warnings(tensors: Iterable[Tensor], graph_fd: int, open_external: Opener) -> tuple[str, ...]:
    """What goes wrong when the constants become float16: one sentence per tensor, at most ten."""
    warnings: list[str] = []
    for found in survey(tensors, graph_fd, open_external, half=True):
        extreme = max(found.highest, -found.lowest)
        if extreme > _FP16_MAX:
            value = found.highest if found.highest >= -found.lowest else found.lowest
            becomes = "it stays infinite, and sums with it turn inf or NaN" if extreme == float("inf") else "it is clamped"
            warnings.append(f"constant {shown(found.name)} holds {value:g}, beyond float16 (65504): {becomes}")
        if found.tiny and (found.elements <= _FEW or 2 * found.tiny >= found.nonzero):
            part = f"{found.tiny:,} of {found.nonzero:,} non-zero values"
            warnings.append(f"constant {shown(found.name)}: {part} are below float16's smallest number (6e-08)")
    return tuple(warnings[:10]) + ((f"and {len(warnings) - 10} more constants like these",) if len(warnings) > 10 else ())


def _look(values: np.ndarray, found: Survey, half: bool) -> None:
    import numpy as np

    low, high = float(values.min()), float(values.max())
    if low != low or high != high:
        found.nan = True
        values = values[~np.isnan(values)]
        low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 0.0)
    found.lowest, found.highest = min(found.lowest, low), max(found.highest, high)
    if half:
        size = np.abs(values)
        found.nonzero += int(np.count_nonzero(size))
        found.tiny += int(np.count_nonzero((size > 0) & (size < _FP16_TINY)))


def _values(tensor: Tensor, dtype: str, graph_fd: int, open_external: Opener) -> Iterator[np.ndarray]:
    import numpy as np

    width = {"float16": "<f2", "bfloat16": "<u2", "float32": "<f4", "float64": "<f8"}[dtype]
    for chunk in _chunks(tensor, dtype, graph_fd, open_external):
        values = np.frombuffer(chunk, dtype=width, count=len(chunk) // int(width[-1]))
        if dtype == "bfloat16":
            values = (values.astype("<u4") << 16).view("<f4")
        if values.size:
            yield values


def _chunks(tensor: Tensor, dtype: str, graph_fd: int, open_external: Opener) -> Iterator[bytes]:
    if tensor.external is None:
        spans = [tensor.raw] if tensor.raw is not None else list(tensor.floats)
        for start, end in spans:
            yield from _read(graph_fd, start, end)
        return
    entries = dict(tensor.external)
    start = int(entries.get("offset") or 0)
    fd = open_external(entries["location"])
    try:
        yield from _read(fd, start, start + raw_bytes(dtype, tensor.elements))
    finally:
        os.close(fd)


def _read(fd: int, start: int, end: int) -> Iterator[bytes]:
    for position in range(start, end, _CHUNK):
        data = os.pread(fd, min(_CHUNK, end - position), position)
        yield data
