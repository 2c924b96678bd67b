"""ONNX Runtime model package out of a manifest: one component with a variant for each ONNX engine.

Format, schema version 1.0: microsoft/onnxruntime model_package/README.md and onnxruntime/core/session/model_package/README.md (pull request
27786 and its successors; read by ONNX Runtime 1.28 and newer). ONNX Runtime picks the variant whose execution provider the session names.
"""

import json
import os
from typing import Any, Dict, List, Sequence

from .errors import LoadError
from .exports import Exported, Left, copy_engine, new_folder, outgoing, write_text
from .manifest import Opened

_PROVIDERS = {"cpu": ("CPUExecutionProvider", "cpu"), "cuda": ("CUDAExecutionProvider", "gpu")}
MODEL_FILE = "model.onnx"


def export_ort_package(opened: Opened, folder: str, *, targets: Sequence[str] = (), allow_unvalidated: bool = False) -> Exported:
    """Write the package ``folder``. TensorRT plans are left out: ONNX Runtime reads them only inside an ONNX file of its own.

    Raises LoadError (no ONNX engine, a file that is not the one that was checked), FileExistsError and OSError.
    """
    left: List[Left] = []
    records = []
    for record in outgoing(opened, targets, allow_unvalidated, left):
        if record["backend"] == "onnxruntime":
            records.append(record)
        else:
            left.append(Left(record["target"], "a {} plan is no ONNX model".format(record["backend"])))
    if not records:
        reasons = "; ".join("{}: {}".format(item.target, item.why) for item in left) or "the manifest holds no engine"
        raise LoadError("nothing to put into a model package", reasons, kind="engine")
    model = opened.content["model"]
    component = "model"  # a fixed name: a model's own may hold what a folder of a portable package may not
    with new_folder(folder) as fresh:
        for record in records:
            variant = os.path.join(fresh, component, record["tag"])
            os.makedirs(variant)
            copy_engine(opened, record, os.path.join(variant, MODEL_FILE))
        write_text(os.path.join(fresh, component, "component.json"), _json(_component(model["name"], records)))
        write_text(os.path.join(fresh, "manifest.json"), _json(_manifest(opened.content, component)))
    notes = ["open it with a session whose first execution provider is the variant's"]
    return Exported(folder, [record["target"] for record in records], left, notes)


def _manifest(content: Dict[str, Any], component: str) -> Dict[str, Any]:
    model = content["model"]
    return {
        "schema_version": "1.0",
        "package_name": model["name"],
        "package_version": str(model["version"]),
        "layout": "portable",
        "components": {component: component},
        "additional_metadata": {
            "producer": "enginefarm {}".format(content.get("enginefarm", "")).strip(),
            "model_digest": model.get("digest"),
            "revision": content["revision"],
        },
    }


def _component(name: str, records: List[Dict[str, Any]]) -> Dict[str, Any]:
    return {"component_name": name, "variants": {record["tag"]: _variant(record) for record in records}}


def _variant(record: Dict[str, Any]) -> Dict[str, Any]:
    provider, device = _PROVIDERS[record.get("provider") or "cpu"]
    return {
        "variant_directory": record["tag"],
        "ep": provider,
        "device": device,
        "executor_info": {"ort": {"model_file": MODEL_FILE}},
        "additional_metadata": {
            "target": record["target"],
            "digest": record["digest"],
            "status": record["verdict"]["status"],
            "precision": record.get("precision"),
            "built_with": record.get("backend_version"),
        },
    }


def _json(value: Dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
