"""Inputs to validate with: made up deterministically, or read from ``.npz`` files, as raw little-endian files.

A sample is ``{"name": str, "inputs": [tensor, ...], "expected": [tensor, ...] | None, "made_up": bool}``, a tensor
``{"name": str, "dtype": str, "shape": list[int], "file": Path}`` (see portable/worker/protocol.py). ``made_up`` inputs may mean nothing
to the model (an index beyond its table): that it cannot run them says little about an engine.
"""

from __future__ import annotations

import hashlib
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import SAMPLES_BAD, EnginefarmError, Where
from orchestrator.matrix.schema import Profile
from orchestrator.models.arrays import from_floats, write_chunks, write_raw
from orchestrator.models.model import Model, TensorInfo
from orchestrator.models.npz import read_npz
from orchestrator.models.text import shown

if TYPE_CHECKING:
    import numpy as np

Sample = dict[str, Any]

MAX_ELEMENTS = 1 << 28
"""Elements of a made-up tensor at most, 1 GiB of float32: for a larger one somebody has to give values."""

_INTEGERS = 2  # made-up integers are below this: an index of any table of two rows, a mask, an enum, a token of any vocabulary
_CHUNK = 1 << 20  # elements


def make_samples(model: Model, profiles: Mapping[str, Profile], dest: Path, *, seed: int = 0) -> list[Sample]:
    """Sample ``opt`` with values in [0, 1) at the usual shape and, where some profile's smallest shape is another one,
    ``min`` with normal values at the smallest. Integers are 0 and 1, bools even odds. The same arguments give the
    same bytes on every machine; memory does not grow with a tensor. Raises EnginefarmError (SAMPLES_BAD) for inputs that cannot be
    made up, or have more than :data:`MAX_ELEMENTS` elements.
    """
    samples: list[Sample] = []
    smaller = any(profile.min != profile.opt for profile in profiles.values())
    names = ("opt", "min") if smaller else ("opt",)
    shapes = {(name, info.name): _shape(info, profiles, name) for name in names for info in model.inputs}
    dest.mkdir(parents=True, exist_ok=True)
    for name in names:
        tensors = []
        for index, info in enumerate(model.inputs):
            shape = shapes[name, info.name]
            chunks = _values(info, math.prod(shape), f"{seed}/{name}/{info.name}", normal=name == "min")
            tensors.append(write_chunks(chunks, info.name, info.dtype, shape, dest / f"{name}-{index}.bin"))
        samples.append({"name": name, "inputs": tensors, "expected": None, "made_up": True})
    return samples


def load_samples(model: Model, files: Sequence[Path], dest: Path, profiles: Mapping[str, Profile]) -> list[Sample]:
    """One sample per ``.npz`` file: every input by its name, and all outputs by theirs or none.

    Raises EnginefarmError (SAMPLES_BAD): missing or unknown names, another dtype or rank, static dimensions, shapes
    outside the profile, pickled objects; all problems of a file at once.
    """
    samples = []
    dest.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(files):
        where = Where(file=str(path))
        arrays = _read(model, path, profiles, where)
        tensors: dict[str, list[dict[str, Any]]] = {}
        for part, infos in (("inputs", model.inputs), ("expected", model.outputs)):
            kept = [info for info in infos if info.name in arrays]
            tensors[part] = [
                write_raw(arrays[info.name], info.name, info.dtype, dest / f"{number}-{part}-{index}.bin")
                for index, info in enumerate(kept)
            ]
        expected = _only_outputs(model, tensors["expected"])
        samples.append({"name": path.stem, "inputs": tensors["inputs"], "expected": expected, "made_up": False})
    return _named_once(samples)


def _read(model: Model, path: Path, profiles: Mapping[str, Profile], where: Where) -> dict[str, np.ndarray]:
    try:
        return read_npz(path, model, profiles, where)
    except FileNotFoundError:
        raise EnginefarmError(SAMPLES_BAD, "there is no such file", where=where, fix="check samples: in the model's YAML") from None
    except (zipfile.BadZipFile, zlib.error, ValueError, RuntimeError, OSError, EOFError) as error:
        fix = "save the arrays with numpy.savez(FILE, input_name=array, ...)"
        raise EnginefarmError(SAMPLES_BAD, "this is not a readable .npz file", where=where, why=str(error)[:200], fix=fix) from None


def _only_outputs(model: Model, expected: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """None when all that is there are inputs handed through (a name that is both)."""
    inputs = {info.name for info in model.inputs}
    return expected if any(tensor["name"] not in inputs for tensor in expected) else None


def _named_once(samples: list[Sample]) -> list[Sample]:
    seen: dict[str, int] = {}
    for sample in samples:
        count = seen[sample["name"]] = seen.get(sample["name"], 0) + 1
        if count > 1:
            sample["name"] = f"{sample['name']}-{count}"
    return samples


def _shape(info: TensorInfo, profiles: Mapping[str, Profile], which: str) -> tuple[int, ...]:
    if info.name in profiles:
        profile = profiles[info.name]
        return _makeable(info, tuple(profile.opt if which == "opt" else profile.min))
    if info.shape is None or info.is_dynamic:
        what = f"input {shown(info.name)} is dynamic and has no profile: no sample can be made for it"
        raise EnginefarmError(SAMPLES_BAD, what, fix=f"give its shape with --shape {info.name}:...")
    return _makeable(info, tuple(dim for dim in info.shape if isinstance(dim, int)))


def _makeable(info: TensorInfo, shape: tuple[int, ...]) -> tuple[int, ...]:
    if math.prod(shape) > MAX_ELEMENTS:
        what = f"input {shown(info.name)} has {math.prod(shape):,} elements: no sample is made up beyond {MAX_ELEMENTS:,}"
        raise EnginefarmError(SAMPLES_BAD, what, fix="give inputs with samples: in the model's YAML, or a smaller shape with --shape")
    return shape


def _values(info: TensorInfo, count: int, key: str, *, normal: bool) -> Iterator[np.ndarray]:
    """``count`` values in chunks."""
    import numpy as np

    if info.dtype == "bool":
        return (values < 0.5 for values in _uniform(key, count))
    if info.dtype.startswith(("int", "uint")):
        limit = min(_INTEGERS, 2 ** (int(info.dtype.lstrip("uint")) - (not info.dtype.startswith("u"))))
        return (from_floats(np.floor(values * limit), info.dtype) for values in _uniform(key, count))
    if info.dtype.startswith(("float", "bfloat")):
        return (from_floats(values, info.dtype) for values in (_normal(key, count) if normal else _uniform(key, count)))
    what = f"input {shown(info.name)} is {info.dtype}: no sample can be made up for it"
    raise EnginefarmError(SAMPLES_BAD, what, fix="validate this model with its own runtime")


def _uniform(key: str, count: int) -> Iterator[np.ndarray]:
    """``count`` numbers in [0, 1). Raw bits of PCG64, whose stream numpy guarantees; its distributions may change."""
    import numpy as np

    generator = np.random.PCG64(int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "big"))
    for start in range(0, count, _CHUNK):
        bits: np.ndarray = generator.random_raw(min(_CHUNK, count - start))
        yield (bits >> np.uint64(11)) * 2.0**-53


def _normal(key: str, count: int) -> Iterator[np.ndarray]:
    import numpy as np

    # Box-Muller; rounded to float32 so that the last bits of log and cos of one libm or another do not show
    for first, second in zip(_uniform(f"{key}/r", count), _uniform(f"{key}/a", count), strict=True):
        yield np.round(np.sqrt(-2.0 * np.log(1.0 - first)) * np.cos(2.0 * np.pi * second), 4)
