"""The tolerance of a target that names none. Light: planning needs it, and no array."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.matrix.schema import Tolerance

# What a correct engine differs from an fp32 reference by. Unit roundoffs: TF32 and fp16 2^-11 = 4.9e-4, bf16 2^-8 = 3.9e-3, fp8 e4m3
# 2^-4 = 6.3e-2 (half a unit in the last place for 10, 10, 7 and 3 fraction bits); int8 steps are 1/256 of a tensor's range. Errors add up
# over layers, so limits are some units wide, and cosine similarity catches an output that is wrong as a whole. Starting points, not laws: a
# model's own `tolerance:` replaces them.
_TOLERANCES = {
    "fp32": Tolerance(rtol=1e-3, atol=1e-4),
    # fp32 products in TF32, as Ampere and newer do by default; examples/lane.onnx differs by 7.8e-4 on an H200 (tests/gpu/results)
    "tf32": Tolerance(rtol=5e-3, atol=2e-3, cosine=0.9999),
    "fp16": Tolerance(rtol=1e-2, atol=1e-2, cosine=0.999),
    "bf16": Tolerance(rtol=5e-2, atol=5e-2, cosine=0.995),
    "int8": Tolerance(rtol=0.1, atol=0.1, cosine=0.99),
    "fp8": Tolerance(rtol=0.15, atol=0.15, cosine=0.98),
}


def default_tolerance(precision: str, *, tf32: bool = False) -> Tolerance:
    """The tolerance of a target that names none; ``precision`` as in a target (fp32, fp16, bf16, int8, fp8).

    ``tf32``: fp32 products may run in TF32, which has fp16's 10 fraction bits.
    """
    return _TOLERANCES["tf32" if tf32 and precision == "fp32" else precision]


def effective_precision(precision: str, *, weight_dtypes: Mapping[str, int], has_qdq: bool) -> str:
    """The precision whose tolerance fits: the coarser of the target's and of what the model itself computes in.

    ``weight_dtypes`` counts constant tensors per dtype, ``has_qdq`` says whether the model quantizes (both as in models/model.py).
    A model exported in half precision still has some float32 constants (the scales of Resize must be): what most of its float tensors
    are counts.
    """
    found = [precision]
    full = weight_dtypes.get("float32", 0) + weight_dtypes.get("float64", 0)
    half = {"fp16": weight_dtypes.get("float16", 0), "bf16": weight_dtypes.get("bfloat16", 0)}
    if sum(half.values()) > full:
        found += [name for name, count in half.items() if count]
    if has_qdq:
        found.append("fp8" if any(dtype.startswith(("float8", "float4")) for dtype in weight_dtypes) else "int8")
    return max(found, key=lambda name: _TOLERANCES[name].rtol)
