"""Checks of tensors that a model file carries: dimensions, the amount of data, and small constant values."""

from __future__ import annotations

from orchestrator.models.dtypes import dtype_name, raw_bytes
from orchestrator.models.proto import Tensor
from orchestrator.models.text import shown
from orchestrator.models.wire import Wire

MAX_ELEMENTS = 2**31 - 1
"""Elements of one tensor: TensorRT's own limit, and far above what any input of a real model holds."""

_MAX_WEIGHT_ELEMENTS = 2**40  # a terabyte of int8: no file that can be read here has more

# typed list of TensorProto -> bytes of one packed element, 0 for varints
_LISTS = {4: 4, 5: 0, 7: 0, 10: 8, 11: 0}
_VALUES_PER_ELEMENT = {"complex64": 2, "complex128": 2}
_ELEMENTS_PER_VALUE = {"int4": 2, "uint4": 2, "float4_e2m1fn": 2, "int2": 4, "uint2": 4}


def tensor_problem(tensor: Tensor) -> str | None:
    """What is wrong with the tensor's own description, None when nothing is."""
    if tensor == Tensor():
        return None  # some converters leave an empty tensor in every attribute
    name = f"tensor {shown(tensor.name)}"
    dtype = dtype_name(tensor.code)
    if dtype is None:
        return f"{name} has the unknown data type {tensor.code}"
    if any(dim < 0 for dim in tensor.dims):
        return f"{name} has a negative dimension: {list(tensor.dims)}"
    elements = tensor.elements
    if elements > _MAX_WEIGHT_ELEMENTS:
        return f"{name} claims {elements:,} elements: {list(tensor.dims)[:8]}"
    if tensor.external is not None and dtype == "string":
        return f"{name} keeps strings in an external file"
    return None


def data_problem(tensor: Tensor) -> str | None:
    """Whether a well described tensor holds as much data inside the file as it says; None when it does."""
    if tensor == Tensor() or tensor.external is not None:
        return None
    name, elements, dtype = f"tensor {shown(tensor.name)}", tensor.elements, dtype_name(tensor.code) or ""
    if dtype == "string":
        held = tensor.typed.get(6, (0, 0))[0]
        return None if held == elements else f"{name} holds {held:,} of {elements:,} strings"
    if tensor.raw is not None:
        size, need = tensor.raw[1] - tensor.raw[0], raw_bytes(dtype, elements)
        if size == need:
            return None
        return (
            f"{name} has {size:,} of {need:,} bytes of data" if size < need else f"{name} has {size:,} bytes of data where {need:,} belong"
        )
    need = -(-elements * _VALUES_PER_ELEMENT.get(dtype, 1) // _ELEMENTS_PER_VALUE.get(dtype, 1))
    least = most = 0
    for number, width in _LISTS.items():
        single, packed = tensor.typed.get(number, (0, 0))
        # a packed number takes 1 to 10 bytes: only bounds are known without reading them
        least += single + (packed // width if width else -(-packed // 10))
        most += single + (packed // width if width else packed)
    if least <= need <= most:
        return None
    return f"{name} has data for {most:,} of {need:,} values" if most < need else f"{name} has more than its {need:,} values of data"


def small_values(tensor: Tensor, wire: Wire) -> tuple[int, ...] | None:
    """The values of an integer tensor of at most 64 elements inside the file, else None."""
    dtype = dtype_name(tensor.code)
    if dtype not in ("int64", "int32") or tensor.external is not None or tensor.elements > 64:
        return None
    if tensor.raw is None:
        return tensor.numbers if len(tensor.numbers) == tensor.elements else None
    width = 8 if dtype == "int64" else 4
    data = wire.read(*tensor.raw) if tensor.raw[1] - tensor.raw[0] == width * tensor.elements else b""
    return tuple(int.from_bytes(data[i : i + width], "little", signed=True) for i in range(0, len(data), width))
