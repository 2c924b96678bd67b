"""Outputs against their reference: pure functions from tensor files to figures.

A tensor is ``{"name", "dtype", "shape", "file"}``: ``file`` holds raw little-endian C-order bytes, ``dtype`` is a numpy name or one of
ml_dtypes (``bfloat16``, ``float8_e4m3fn``, ...). Files are mapped and read in chunks of :data:`CHUNK` elements, so that memory does not
grow with a tensor. Floats of any width are compared in float64; integers and booleans (class ids, masks) exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.artifacts.manifest import OutputFigures
from orchestrator.matrix.schema import Tolerance

CHUNK = 1 << 20  # elements
Tensor = Mapping[str, Any]
Array = np.ndarray[Any, np.dtype[Any]]
_LARGEST = float(np.finfo(np.float64).max)


@dataclass
class _Sums:
    """What is gathered over the chunks of one output."""

    mismatched: int = 0
    unlike: int = 0  # of these: NaN or infinity where the other has something else
    finite: int = 0
    max_abs: float = 0.0
    max_rel: float = 0.0
    dot: float = 0.0
    out: float = 0.0
    ref: float = 0.0

    def cosine(self) -> float | None:
        if not self.finite:
            return None
        if self.out == 0.0 or self.ref == 0.0:
            return 1.0 if self.out == self.ref else 0.0
        value = self.dot / (math.sqrt(self.out) * math.sqrt(self.ref))
        return max(-1.0, min(1.0, value)) if math.isfinite(value) else None


def _dtype(name: str) -> np.dtype[Any] | None:
    """The dtype of raw little-endian bytes; None for what has no fixed-size elements."""
    try:
        dtype = np.dtype(name)
    except TypeError:
        import ml_dtypes

        scalar = getattr(ml_dtypes, name, None)
        if not (isinstance(scalar, type) and issubclass(scalar, np.generic)):
            return None
        dtype = np.dtype(scalar)
    if dtype.isbuiltin == 2:  # registered by ml_dtypes
        return dtype
    return dtype.newbyteorder("<") if dtype.isbuiltin == 1 and dtype.kind in "biufc" else None


def _group(dtype: np.dtype[Any]) -> str:
    """Dtypes of one group are compared; different widths are fine (TensorRT 8 gives int32 for int64)."""
    if dtype.kind in "iu" or dtype.name in ("int4", "uint4", "int2", "uint2"):
        return "integer"
    return {"b": "boolean", "c": "complex"}.get(dtype.kind, "float")


def _flat(tensor: Tensor, dtype: np.dtype[Any], count: int) -> Array:
    """The elements as one mapped row."""
    if count == 0:
        return np.empty(0, dtype)
    return np.memmap(tensor["file"], dtype=dtype, mode="r", shape=(count,))


def _exact(reference: Array, output: Array, sums: _Sums) -> None:
    differ = reference != output
    count = int(np.count_nonzero(differ))
    sums.finite += reference.size
    if count:
        sums.mismatched += count
        distance = np.abs(reference[differ].astype(np.float64) - output[differ].astype(np.float64))
        sums.max_abs = max(sums.max_abs, 1.0, float(distance.max()))  # neighbours above 2^53 are equal in float64


def _close(reference: Array, output: Array, tolerance: Tolerance, sums: _Sums) -> None:
    both = np.isfinite(reference) & np.isfinite(output)
    same = (reference == output) | (np.isnan(reference) & np.isnan(output))
    unlike = int(np.count_nonzero(~both & ~same))
    ref, out = reference[both], output[both]
    with np.errstate(over="ignore", invalid="ignore"):
        distance = np.abs(out - ref)
        size = np.abs(ref)
        sums.mismatched += unlike + int(np.count_nonzero(distance > tolerance.atol + tolerance.rtol * size))
        sums.unlike += unlike
        if not ref.size:
            return
        sums.finite += ref.size
        sums.max_abs = min(_LARGEST, max(sums.max_abs, float(distance.max())))
        large = size > tolerance.atol  # a difference relative to almost nothing says nothing
        if large.any():
            sums.max_rel = min(_LARGEST, max(sums.max_rel, float((distance[large] / size[large]).max())))
        sums.dot += float(np.dot(out, ref))
        sums.out += float(np.dot(out, out))
        sums.ref += float(np.dot(ref, ref))


def _numbers(chunk: Array, group: str) -> Array:
    if group == "complex":
        pairs: Array = np.ascontiguousarray(chunk).view(np.float64 if chunk.dtype.itemsize == 16 else np.float32)
        return pairs.astype(np.float64)
    return chunk.astype(np.float64)


def _figures(name: str, reference: Tensor, output: Tensor, tolerance: Tolerance) -> OutputFigures:
    """One output of one sample."""

    def refuse(note: str) -> OutputFigures:
        return OutputFigures(name=name, ok=False, note=note)

    # shapes first: with data-dependent outputs (NonZero, TopK) a difference of values shows as another shape
    shape = tuple(reference["shape"])
    if tuple(output["shape"]) != shape:
        return refuse(f"shape {list(output['shape'])}, reference {list(shape)}")
    dtypes = [_dtype(tensor["dtype"]) for tensor in (reference, output)]
    if dtypes[0] is None or dtypes[1] is None:
        return refuse(f"dtype {reference['dtype'] if dtypes[0] is None else output['dtype']} cannot be compared")
    group = _group(dtypes[0])
    if _group(dtypes[1]) != group:
        return refuse(f"dtype {output['dtype']}, reference {reference['dtype']}")
    count = math.prod(shape)
    for who, tensor, dtype in (("reference", reference, dtypes[0]), ("output", output, dtypes[1])):
        size = Path(tensor["file"]).stat().st_size
        if size != count * dtype.itemsize:
            return refuse(f"the {who}'s file holds {size} bytes, {list(shape)} of {tensor['dtype']} are {count * dtype.itemsize}")
    sums = _Sums()
    ref, out = _flat(reference, dtypes[0], count), _flat(output, dtypes[1], count)
    for start in range(0, count, CHUNK):
        left, right = ref[start : start + CHUNK], out[start : start + CHUNK]
        if group in ("integer", "boolean"):
            _exact(left, right, sums)
        else:
            _close(_numbers(left, group), _numbers(right, group), tolerance, sums)
    return _summary(name, count, sums, tolerance, exact=group in ("integer", "boolean"))


def _summary(name: str, count: int, sums: _Sums, tolerance: Tolerance, *, exact: bool) -> OutputFigures:
    cosine = None if exact else sums.cosine()
    notes = []
    if sums.unlike:
        notes.append(f"NaN or infinity does not match at {sums.unlike} of {count} places")
    low = tolerance.cosine is not None and cosine is not None and cosine < tolerance.cosine
    if low:
        digits = next((digits for digits in (6, 9, 12) if f"{cosine:.{digits}g}" != f"{tolerance.cosine:.{digits}g}"), 17)
        notes.append(f"cosine similarity {cosine:.{digits}g} is below {tolerance.cosine:.{digits}g}")
    if count and not sums.finite and not sums.unlike:
        notes.append("no finite value in it")
    return OutputFigures(
        name=name,
        max_abs=sums.max_abs if sums.finite else None,
        max_rel=sums.max_rel if sums.finite and not exact else None,
        cosine=cosine,
        mismatched=sums.mismatched,
        elements=count,
        ok=sums.mismatched == 0 and not low,
        note="; ".join(notes),
    )


def _by_name(tensors: Iterable[Tensor]) -> dict[str, Tensor]:
    return {tensor["name"]: tensor for tensor in tensors}


def compare_sample(reference: Sequence[Tensor], outputs: Sequence[Tensor], tolerance: Tolerance) -> tuple[OutputFigures, ...]:
    """One sample's outputs against their reference, matched by name in the order of the reference."""
    wanted, given = _by_name(reference), _by_name(outputs)
    figures = []
    for name, tensor in wanted.items():
        if name in given:
            figures.append(_figures(name, tensor, given[name], tolerance))
        else:
            figures.append(OutputFigures(name=name, ok=False, note="the engine does not give this output"))
    figures += [OutputFigures(name=name, ok=False, note="the reference has no such output") for name in given if name not in wanted]
    return tuple(figures)


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _over_samples(figures: Sequence[tuple[str, OutputFigures]]) -> OutputFigures:
    each = [figure for _, figure in figures]
    many = len(each) > 1
    notes = [f"sample {sample}: {figure.note}" if many else figure.note for sample, figure in figures if figure.note]
    more = f" (and {len(notes) - 1} more samples)" if len(notes) > 1 else ""
    return OutputFigures(
        name=each[0].name,
        max_abs=_largest(figure.max_abs for figure in each),
        max_rel=_largest(figure.max_rel for figure in each),
        cosine=min((figure.cosine for figure in each if figure.cosine is not None), default=None),
        mismatched=sum(figure.mismatched for figure in each),
        elements=sum(figure.elements for figure in each),
        ok=all(figure.ok for figure in each),
        note=notes[0] + more if notes else "",
    )


Sample = tuple[str, Sequence[Tensor]]


def compare(reference: Sequence[Sample], outputs: Sequence[Sample], tolerance: Tolerance) -> tuple[OutputFigures, ...]:
    """Figures of every output over all samples; both arguments are ``(sample name, tensors)`` and matched by sample and output name.

    Raises ValueError when the samples are not the same ones, OSError when a file cannot be read.
    """
    wanted, given = dict(reference), dict(outputs)
    if wanted.keys() != given.keys() or len(wanted) != len(reference) or len(given) != len(outputs):
        raise ValueError(f"samples {sorted(given)} are not those of the reference, {sorted(wanted)}")
    gathered: dict[str, list[tuple[str, OutputFigures]]] = {}
    for sample, tensors in wanted.items():
        for figure in compare_sample(tensors, given[sample], tolerance):
            gathered.setdefault(figure.name, []).append((sample, figure))
    return tuple(_over_samples(figures) for figures in gathered.values())
