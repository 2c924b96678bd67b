"""Tensors as the protocol carries them: raw little-endian C-order bytes beside a description."""

import os
from typing import Any, Dict, NamedTuple, Tuple

from .errors import StepError, quoted
from .files import chunks_of, inside, write_whole

Tensor = NamedTuple("Tensor", [("name", str), ("dtype", str), ("shape", Tuple[int, ...]), ("data", Any)])
"""``dtype`` is a numpy name (or that of ml_dtypes: bfloat16, float8_e4m3fn); ``data`` any C-contiguous buffer."""

ITEM_BYTES = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "complex64": 8, "complex128": 16,
}  # fmt: skip


def byte_count(dtype: str, shape: Tuple[int, ...]) -> int:
    """Bytes of a tensor; StepError run-failed for a type without whole bytes."""
    if dtype not in ITEM_BYTES:
        raise StepError("run-failed", "tensors of type {} cannot be carried".format(dtype))
    count = ITEM_BYTES[dtype]
    for dim in shape:
        count *= dim
    return count


def read_tensor(folder: str, described: Dict[str, Any]) -> Tensor:
    """Read one tensor of a request; StepError bad-request when file and description disagree."""
    name, dtype, shape = described["name"], described["dtype"], tuple(described["shape"])
    path = inside(folder, described["file"])
    expected = byte_count(dtype, shape)
    try:
        found = os.path.getsize(path)
        if found != expected:
            raise StepError("bad-request", "tensor {}: {} bytes where {} belong".format(quoted(name), found, expected))
        with open(path, "rb") as file:
            return Tensor(name, dtype, shape, file.read())
    except OSError as error:
        raise StepError("bad-request", "tensor {} cannot be read: {}".format(quoted(name), error)) from error


def write_tensor(folder: str, file: str, tensor: Tensor) -> Dict[str, Any]:
    """Write ``tensor`` to ``file`` in ``folder``; gives its description."""
    write_whole(inside(folder, file), chunks_of(tensor.data))
    return {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape), "file": file}
