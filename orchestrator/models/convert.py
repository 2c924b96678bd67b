"""The ONNX that a strongly typed backend gets: precision is in the graph there, not in a builder flag.

fp32 and an fp16 model pass through; fp16 of a float32 model is made in a child process; bf16, int8 and fp8 must be in
the model already. Inputs and outputs keep their types, so that callers see one signature on every target.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from orchestrator.errors import PRECISION_IMPOSSIBLE, EnginefarmError, Where
from orchestrator.models.child import CancelFlag, ChildFailed, run_child
from orchestrator.models.copies import read_only_copy
from orchestrator.models.decode import Decoder
from orchestrator.models.model import STAGED_NAME, Model
from orchestrator.models.operators import PLACEHOLDER_DIMS
from orchestrator.models.weights import half_warnings
from orchestrator.models.wire import Wire

MAX_BYTES = 2**31 - 1
"""Graph and weights together: protobuf holds no larger message, and the converters keep weights inside."""

_SECONDS = 900.0
_MEMORY = 24 << 30


def convert_precision(model: Model, staged: Path, dest: Path, precision: str, *, cancel: CancelFlag | None = None) -> tuple[str, ...]:
    """Writes ``dest/model.onnx`` (and external data) from the staged folder ``staged``; gives warnings.

    ``precision`` is fp32, fp16, bf16, int8 or fp8. Dimensions named ``?`` or ``-1`` lose that name in every case:
    TensorRT takes equal names for equal sizes. Raises EnginefarmError (PRECISION_IMPOSSIBLE) with what to do.
    """
    where = Where(file=str(model.path))
    half = precision == "fp16" and not _is_half(model)
    if precision not in ("fp32", "fp16"):
        require_carried(model, precision, where)
    if not half and not model.placeholder_dims:
        _copy_folder(model, staged, dest)
        return ()
    if model.size_bytes > MAX_BYTES and half:
        what = f"a model of {model.size_bytes:,} bytes cannot be converted to fp16: the limit is {MAX_BYTES:,}"
        raise EnginefarmError(PRECISION_IMPOSSIBLE, what, where=where, fix="export the model in float16, or use precision: fp32")
    request = {"source": str((staged / STAGED_NAME).resolve()), "dest": str((dest / STAGED_NAME).resolve()), "half": half}
    dest.mkdir(parents=True, exist_ok=True)
    if not half:
        _copy_external(model, staged, dest)
    try:
        answer = run_child("convert.rewrite", request, timeout_seconds=_SECONDS, memory_bytes=_MEMORY, cancel=cancel)
    except ChildFailed as error:
        what = f"the model could not be converted to {precision}" if half else "the model's dimension names could not be cleared"
        fix = "use precision: fp32 for this target, or export the model in float16"
        raise EnginefarmError(PRECISION_IMPOSSIBLE, what, where=where, why=error.message, fix=fix) from None
    return _range_warnings(staged, kept=frozenset(answer["kept"])) if half else ()


def fp16_warnings(staged: Path) -> tuple[str, ...]:
    """Constants of the staged model (a folder) that float16 cannot hold, for backends that convert by themselves."""
    return _range_warnings(staged)


def _is_half(model: Model) -> bool:
    return model.float_weights == {"float16"}


def require_carried(model: Model, precision: str, where: Where) -> None:
    """Raise PRECISION_IMPOSSIBLE unless the model carries ``precision`` (bf16, int8 or fp8): rounding weights does not make it right."""
    fp8 = any(name.startswith("float8") for name in model.weight_dtypes)
    carried = {"bf16": "bfloat16" in model.float_weights, "int8": model.has_qdq and not fp8, "fp8": model.has_qdq and fp8}
    if carried.get(precision):
        return
    needs = {
        "bf16": ("the model has no bfloat16 weights", "export it in bfloat16 (model.to(torch.bfloat16) before torch.onnx.export)"),
        "int8": (
            "the model has no int8 QuantizeLinear and DequantizeLinear nodes",
            "quantize it first: onnxruntime.quantization.quantize_static with QuantFormat.QDQ, QInt8 and symmetric activations and weights",
        ),
        "fp8": (
            "the model has no float8 QuantizeLinear and DequantizeLinear nodes",
            "quantize it first, for example with NVIDIA's modelopt (quantize_mode fp8)",
        ),
    }
    why, fix = needs.get(precision, (f"{precision} is not known", "use fp32 or fp16"))
    what = f"precision {precision} cannot be made from this model for a strongly typed backend"
    raise EnginefarmError(PRECISION_IMPOSSIBLE, what, where=where, why=why, fix=f"{fix}, or use precision: fp16")


def _range_warnings(staged: Path, kept: frozenset[str] = frozenset()) -> tuple[str, ...]:
    fd = os.open(staged / STAGED_NAME, os.O_RDONLY | os.O_CLOEXEC)
    try:
        decoded = Decoder(Wire(fd, os.fstat(fd).st_size)).decode()
        tensors = [tensor for tensor in decoded.tensors if tensor.name not in kept]
        return half_warnings(tensors, fd, lambda location: os.open(staged / location, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
    finally:
        os.close(fd)


def _copy_folder(model: Model, staged: Path, dest: Path) -> None:
    dest.mkdir(parents=True, exist_ok=True)
    read_only_copy(staged / STAGED_NAME, dest / STAGED_NAME)
    _copy_external(model, staged, dest)


def _copy_external(model: Model, staged: Path, dest: Path) -> None:
    for file in model.external:
        (dest / file.path).parent.mkdir(parents=True, exist_ok=True)
        read_only_copy(staged / file.path, dest / file.path)


def rewrite(request: dict[str, Any]) -> dict[str, Any]:
    """The child's part: load, clear placeholder names, convert when ``half``, write."""
    import onnx

    from orchestrator.models.half import to_half

    model = onnx.load(request["source"], load_external_data=request["half"])
    clear_placeholders(model.graph)
    kept: list[str] = []
    if request["half"]:
        model, kept = to_half(model)
    part = Path(request["dest"]).with_suffix(".part")
    part.write_bytes(model.SerializeToString())
    part.chmod(0o444)
    part.rename(request["dest"])
    return {"kept": kept}


def clear_placeholders(graph: Any) -> None:
    """Takes names such as ``?`` off the dimensions of inputs, outputs and inner values."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            name = dim.dim_param.strip()
            if dim.HasField("dim_param") and (name.lower() in PLACEHOLDER_DIMS or name.lstrip("-").isdigit()):
                dim.ClearField("dim_param")
