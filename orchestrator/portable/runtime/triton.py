"""Triton model repository out of a manifest: one model, a file for each compute capability.

Format: triton-inference-server/common protobuf/model_config.proto (``cc_model_filenames``: capability -> file in the version's folder;
``default_model_filename`` for other GPUs); batch dimension and scalars: model_configuration.md of the server's documentation.
"""

import os
from typing import Any, Dict, List, NamedTuple, Sequence

from ..facts.capability import is_jetson, key, known
from .errors import LoadError
from .exports import Exported, Left, copy_engine, new_folder, outgoing, write_text
from .manifest import Opened

_TYPES = {
    "bool": "BOOL", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32", "uint64": "UINT64", "int8": "INT8", "int16": "INT16",
    "int32": "INT32", "int64": "INT64", "float16": "FP16", "float32": "FP32", "float64": "FP64", "bfloat16": "BF16",
}  # fmt: skip
_VERSION_COMPATIBLE = "start Triton with --backend-config=tensorrt,version-compatible=true: {} carries a lean runtime"

Plan = NamedTuple(
    "Plan", [("backend", str), ("files", Dict[str, Dict[str, Any]]), ("by_capability", Dict[str, str]), ("default", str), ("kind", str)]
)
"""``files``: file name in the version's folder -> record; ``default``: file for GPUs that ``by_capability`` does not name, or empty."""


def export_triton(
    opened: Opened, repository: str, *, targets: Sequence[str] = (), allow_unvalidated: bool = False, backend: str = ""
) -> Exported:
    """Write ``<repository>/<model>/``: config.pbtxt and ``<version>/`` with the engines of one backend.

    ``backend``: tensorrt or onnxruntime; TensorRT's engines when there are any. Raises LoadError (nothing to export, two engines for one
    capability, a file that is not the one that was checked), FileExistsError and OSError.
    """
    left: List[Left] = []
    records = outgoing(opened, targets, allow_unvalidated, left)
    chosen = backend or ("tensorrt" if any(record["backend"] == "tensorrt" for record in records) else "onnxruntime")
    fitting = []
    for record in records:
        if record["backend"] == chosen:
            fitting.append(record)
        else:
            why = "Triton has no backend for TensorRT-RTX" if record["backend"] == "tensorrt-rtx" else "a Triton model has one backend"
            left.append(Left(record["target"], why))
    if not fitting:
        reasons = "; ".join("{}: {}".format(item.target, item.why) for item in left) or "the manifest holds no engine"
        raise LoadError("nothing to export to Triton", reasons, kind="engine")
    model = opened.content["model"]
    plan = _tensorrt(fitting) if chosen == "tensorrt" else _onnxruntime(fitting, left)
    folder = os.path.join(repository, model["name"])
    with new_folder(folder) as fresh:
        version = os.path.join(fresh, str(model["version"]))
        os.mkdir(version)
        for name, record in sorted(plan.files.items()):
            copy_engine(opened, record, os.path.join(version, name))
        write_text(os.path.join(fresh, "config.pbtxt"), config(model["name"], plan))
    notes = [_VERSION_COMPATIBLE.format(record["file"]) for record in plan.files.values() if record.get("version_compatible")]
    versions = sorted({str(record.get("backend_version")) for record in plan.files.values()})
    if chosen == "tensorrt":
        notes.append("Triton has to bring TensorRT {}".format(" and ".join(versions)))
    return Exported(folder, [record["target"] for record in plan.files.values()], left, notes)


def _tensorrt(records: List[Dict[str, Any]]) -> Plan:
    files: Dict[str, Dict[str, Any]] = {}
    by_capability: Dict[str, str] = {}
    owner: Dict[str, str] = {}
    for record in sorted(records, key=lambda record: record.get("hardware_compatibility", "none") != "none"):  # exact engines first
        name = "model_{}.plan".format(record["tag"])
        files[name] = record
        for capability in _capabilities(record):
            exact = capability in record["compute_capability"]
            if capability in by_capability and exact:
                text = "{} and {} are both for compute capability {}".format(owner[capability], record["target"], capability)
                raise LoadError(
                    "Triton takes one engine for a capability", text, "choose with --target {}".format(record["target"]), kind="engine"
                )
            by_capability.setdefault(capability, name)
            owner.setdefault(capability, record["target"])
    return Plan("tensorrt", files, by_capability, "", "KIND_GPU")


def _capabilities(record: Dict[str, Any]) -> List[str]:
    """Capabilities that the engine runs on, its own first."""
    named = list(record["compute_capability"])
    if record.get("hardware_compatibility") == "ampere_plus":
        named += [name for name in known() if key(name) >= (8, 0) and not is_jetson(name) and name not in named]
    return named


def _onnxruntime(records: List[Dict[str, Any]], left: List[Left]) -> Plan:
    """One ONNX file; for CUDA when there is one."""
    records = sorted(records, key=lambda record: record.get("provider") != "cuda")
    left += [Left(record["target"], "Triton takes one ONNX file; choose it with --target") for record in records[1:]]
    kind = "KIND_GPU" if records[0].get("provider") == "cuda" else "KIND_CPU"
    return Plan("onnxruntime", {"model.onnx": records[0]}, {}, "model.onnx", kind)


def config(name: str, plan: Plan) -> str:
    """The text of config.pbtxt."""
    records = list(plan.files.values())
    batch = _max_batch(records)
    lines = ["name: {}".format(_quoted(name)), "backend: {}".format(_quoted(plan.backend)), "max_batch_size: {}".format(batch)]
    for field in ("input", "output"):
        lines += [line for tensor in records[0].get(field + "s", []) for line in _tensor(field, tensor, batch > 0)]
    if plan.default:
        lines.append("default_model_filename: {}".format(_quoted(plan.default)))
    by_capability = sorted(plan.by_capability.items(), key=lambda item: key(item[0]))
    lines += ["cc_model_filenames {{ key: {} value: {} }}".format(_quoted(name), _quoted(file)) for name, file in by_capability]
    lines.append("instance_group {{ kind: {} }}".format(plan.kind))
    lines += [_origin(file, record) for file, record in sorted(plan.files.items())]
    return "\n".join(lines) + "\n"


def _origin(file: str, record: Dict[str, Any]) -> str:
    value = "{}; {}".format(record["target"], record["digest"])
    return "parameters {{ key: {} value {{ string_value: {} }} }}".format(_quoted("enginefarm/" + file), _quoted(value))


def _max_batch(records: List[Dict[str, Any]]) -> int:
    """The largest batch that all engines take, when every tensor's first dimension is dynamic and starts at one; else 0: no batching."""
    largest: List[int] = []
    for record in records:
        tensors = record.get("inputs", []) + record.get("outputs", [])
        if not tensors or not all(tensor["shape"] and tensor["shape"][0] == -1 for tensor in tensors):
            return 0
        for tensor in record["inputs"]:
            ranges = record.get("profiles", {}).get(tensor["name"])
            if not ranges or not ranges["min"] or ranges["min"][0] > 1:
                return 0
            largest.append(ranges["max"][0])
    return min(largest)


def _tensor(field: str, tensor: Dict[str, Any], batched: bool) -> List[str]:
    if tensor["dtype"] not in _TYPES:
        raise LoadError(
            "{} {} cannot be served".format(field, tensor["name"]), "Triton has no type for {}".format(tensor["dtype"]), kind="engine"
        )
    dims = tensor["shape"][1:] if batched else tensor["shape"]
    lines = [field + " {", "  name: {}".format(_quoted(tensor["name"])), "  data_type: TYPE_{}".format(_TYPES[tensor["dtype"]])]
    lines.append("  dims: [ {} ]".format(", ".join(str(dim) for dim in dims or [1])))
    if not dims:  # Triton has no scalars: one element, given on without a dimension
        lines.append("  reshape { shape: [ ] }")
    return [*lines, "}"]


def _quoted(text: str) -> str:
    """A string of protobuf's text format; everything but plain ASCII as octal bytes."""
    shown = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\' else "\\{:03o}".format(byte) for byte in bytearray(text.encode("utf-8"))
    )
    return '"{}"'.format(shown)
