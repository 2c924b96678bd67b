"""Arrays of every dtype that a model can have, to raw little-endian files and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import SAMPLES_BAD, EnginefarmError

if TYPE_CHECKING:
    import numpy as np


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of that name; those that numpy lacks come from ml_dtypes. Raises EnginefarmError (SAMPLES_BAD)."""
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import ml_dtypes

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found
    except (ImportError, AttributeError):
        what = f"tensors of {name} cannot be read or written here"
        raise EnginefarmError(SAMPLES_BAD, what, fix="pip install ml_dtypes") from None


def from_floats(values: np.ndarray, dtype: str) -> np.ndarray:
    """``values`` in another dtype."""
    return values.astype(numpy_dtype(dtype))


def write_raw(array: np.ndarray, name: str, dtype: str, path: Path) -> dict[str, Any]:
    """Writes C-order little-endian bytes; gives the tensor's description."""
    import numpy as np

    data = np.ascontiguousarray(array).reshape(array.shape)
    if data.dtype.byteorder == ">":
        data = data.astype(data.dtype.newbyteorder("<"))
    path.write_bytes(data.tobytes())
    return {"name": name, "dtype": dtype, "shape": list(array.shape), "file": path}


def write_chunks(chunks: Iterable[np.ndarray], name: str, dtype: str, shape: Sequence[int], path: Path) -> dict[str, Any]:
    """Like :func:`write_raw` for the elements of a tensor in C order, as they come: memory holds one chunk."""
    with path.open("wb") as file:
        for chunk in chunks:
            little = chunk.astype(chunk.dtype.newbyteorder("<")) if chunk.dtype.byteorder == ">" else chunk
            file.write(little.tobytes())
    return {"name": name, "dtype": dtype, "shape": list(shape), "file": path}


def read_raw(tensor: Mapping[str, Any]) -> np.ndarray:
    """The array behind a tensor's description."""
    import numpy as np

    values: np.ndarray = np.fromfile(tensor["file"], dtype=numpy_dtype(tensor["dtype"])).reshape(tensor["shape"])
    return values
