"""ONNX element types: numpy-like names, sizes, and which of them TensorRT takes as an engine's input or output."""

from __future__ import annotations

# onnx.proto TensorProto.DataType -> (name, bits per element); 0 bits: no fixed size
_TYPES: dict[int, tuple[str, int]] = {
    1: ("float32", 32),
    2: ("uint8", 8),
    3: ("int8", 8),
    4: ("uint16", 16),
    5: ("int16", 16),
    6: ("int32", 32),
    7: ("int64", 64),
    8: ("string", 0),
    9: ("bool", 8),
    10: ("float16", 16),
    11: ("float64", 64),
    12: ("uint32", 32),
    13: ("uint64", 64),
    14: ("complex64", 64),
    15: ("complex128", 128),
    16: ("bfloat16", 16),
    17: ("float8_e4m3fn", 8),
    18: ("float8_e4m3fnuz", 8),
    19: ("float8_e5m2", 8),
    20: ("float8_e5m2fnuz", 8),
    21: ("uint4", 4),
    22: ("int4", 4),
    23: ("float4_e2m1fn", 4),
    24: ("float8_e8m0fnu", 8),
    25: ("uint2", 2),
    26: ("int2", 2),
    27: ("float6_e2m3fn", 6),
    28: ("float6_e3m2fn", 6),
}
_BITS = dict(_TYPES.values())

# docs/facts/rtx.yaml: what the ONNX parser converts; float64 is computed as float32
_GPU_IO = frozenset({"float32", "float16", "bfloat16", "float64", "int8", "uint8", "int32", "int64", "bool", "float8_e4m3fn"})
_GPU_ONLY_INTO_DEQUANTIZE = frozenset({"int4", "uint4", "float4_e2m1fn"})


def dtype_name(code: int) -> str | None:
    """Name of an ONNX element type, None for one that this program does not know."""
    known = _TYPES.get(code)
    return known[0] if known else None


def element_bits(dtype: str) -> int:
    """Bits that one element takes in raw data; 0 for strings."""
    return _BITS[dtype]


def raw_bytes(dtype: str, elements: int) -> int:
    """Bytes of ``elements`` values in raw data: types under 8 bits are packed, the last byte filled up."""
    return (elements * element_bits(dtype) + 7) // 8


def gpu_io_blocker(dtype: str) -> str | None:
    """Why TensorRT cannot have an input or output of this type; None when it can."""
    if dtype in _GPU_IO:
        return None
    if dtype in _GPU_ONLY_INTO_DEQUANTIZE:
        return f"TensorRT takes {dtype} only into DequantizeLinear, not as an input or output"
    return f"TensorRT has no {dtype} inputs or outputs"
