"""Reads one ``.npz`` of samples: names, dtypes and shapes are checked from the headers before any array is loaded."""

from __future__ import annotations

import difflib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from orchestrator.errors import SAMPLES_BAD, EnginefarmError, Where, raise_all
from orchestrator.matrix.schema import Profile
from orchestrator.models.arrays import numpy_dtype
from orchestrator.models.model import Dim, Model, TensorInfo
from orchestrator.models.text import listed, shown

if TYPE_CHECKING:
    import numpy as np


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def read_npz(path: Path, model: Model, profiles: Mapping[str, Profile], where: Where) -> dict[str, np.ndarray]:
    """The arrays of inputs and expected outputs by name.

    Raises EnginefarmError (SAMPLES_BAD, all problems at once); OSError, ValueError and BadZipFile for what is no npz.
    """
    import numpy as np

    infos = {info.name: info for info in (*model.outputs, *model.inputs)}
    with zipfile.ZipFile(path) as archive:
        headers = {_array_name(name): _header(archive, name) for name in archive.namelist()}
    problems = _name_problems(headers, model) + _shape_problems(headers, infos, model, profiles)
    raise_all(EnginefarmError(SAMPLES_BAD, what, where=where, fix=fix) for what, fix in problems)
    with np.load(path, allow_pickle=False) as arrays:
        return {name: _as(arrays[name], infos[name].dtype) for name in headers}


def _array_name(member: str) -> str:
    return member.removesuffix(".npy")


def _header(archive: zipfile.ZipFile, member: str) -> _Header:
    from numpy.lib import format as npy

    with archive.open(member) as file:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        shape, _, dtype = read(file) if read else _newest_header(file)
    return _Header(shape, dtype)


def _newest_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Version 3.0 is version 2.0 with UTF-8 in field names, which no tensor has."""
    from numpy.lib import format as npy

    return npy.read_array_header_2_0(file)


def _name_problems(headers: Mapping[str, _Header], model: Model) -> list[tuple[str, str | None]]:
    inputs, outputs = [info.name for info in model.inputs], [info.name for info in model.outputs]
    problems: list[tuple[str, str | None]] = []
    for name in headers:
        if name not in inputs and name not in outputs:
            close = difflib.get_close_matches(name, [*inputs, *outputs], 1, 0.65)
            fix = f"did you mean {shown(close[0])}?" if close else f"inputs: {listed(inputs)}; outputs: {listed(outputs)}"
            problems.append((f"the model has no input or output {shown(name)}", fix))
    missing = [name for name in inputs if name not in headers]
    if missing:
        problems.append((f"input {listed(missing)} is missing", "save every input under its own name"))
    expected = [name for name in outputs if name in headers and name not in inputs]
    lacking = [name for name in outputs if name not in headers]
    if expected and lacking:
        problems.append((f"expected output {listed(lacking)} is missing", "give all outputs of the model, or none"))
    return problems


def _shape_problems(
    headers: Mapping[str, _Header], infos: Mapping[str, TensorInfo], model: Model, profiles: Mapping[str, Profile]
) -> list[tuple[str, str | None]]:
    inputs = {info.name for info in model.inputs}
    problems: list[tuple[str, str | None]] = []
    named: dict[str, tuple[str, int]] = {}
    for name, header in headers.items():
        info = infos.get(name)
        if info is None:
            continue
        word = f"{'input' if name in inputs else 'output'} {shown(name)}"
        problems += [(f"{word} {text}", fix) for text, fix in _mismatches(header, info, profiles.get(name) if name in inputs else None)]
        for axis, (dim, size) in enumerate(zip(info.shape or (), header.shape, strict=False)):
            if name in inputs and isinstance(dim, str):
                other, expected = named.setdefault(dim, (f"dimension {axis} of {shown(name)}", size))
                if size != expected:
                    text = f"dimension {axis} of {shown(name)} is {size}, {other} is {expected}, and the model calls both {shown(dim)}"
                    problems.append((text, None))
    return problems


def _mismatches(header: _Header, info: TensorInfo, profile: Profile | None) -> list[tuple[str, str | None]]:
    problems: list[tuple[str, str | None]] = []
    if header.dtype.hasobject:
        return [("holds Python objects (pickle), which are never loaded", f"save it as {info.dtype}")]
    if not _same_dtype(header.dtype, info.dtype):
        problems.append((f"is {header.dtype.name} in the file and {info.dtype} in the model", f'save it with array.astype("{info.dtype}")'))
    if info.shape is None:
        return problems
    if len(header.shape) != len(info.shape):
        return [*problems, (f"has {len(header.shape)} dimensions in the file and {len(info.shape)} in the model", None)]
    wrong = [axis for axis, dim in enumerate(info.shape) if isinstance(dim, int) and header.shape[axis] != dim]
    if wrong:
        problems.append((f"has the shape {list(header.shape)}, the model wants {_shape_text(info.shape)}", None))
    elif profile is not None:
        sizes = zip(header.shape, profile.min, profile.max, strict=False)
        if any(not low <= size <= high for size, low, high in sizes):
            text = f"has the shape {list(header.shape)}, outside its profile {list(profile.min)} to {list(profile.max)}"
            problems.append((text, "widen the profile, or leave this sample out"))
    return problems


def _same_dtype(found: np.dtype[Any], wanted: str) -> bool:
    """numpy saves the dtypes of ml_dtypes as plain bytes (``V2``): taken when their size fits."""
    if found.name == wanted or found.newbyteorder("=").name == wanted:
        return True
    return found.kind == "V" and found.names is None and not wanted.startswith("str") and found.itemsize == numpy_dtype(wanted).itemsize


def _as(array: np.ndarray, dtype: str) -> np.ndarray:
    wanted = numpy_dtype(dtype)
    return array.view(wanted) if array.dtype.kind == "V" else array.astype(wanted, copy=False)


def _shape_text(shape: tuple[Dim, ...]) -> str:
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in shape) + "]"
