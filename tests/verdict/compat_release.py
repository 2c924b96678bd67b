"""A small release (an ONNX Runtime engine, a TensorRT-RTX plan by its header, TensorRT records, their manifest) and hosts for it."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

from onnx import TensorProto, helper

from orchestrator.artifacts.manifest import EngineRecord, Manifest, ModelRecord, TensorRecord, Verdict
from orchestrator.matrix.load import load_matrix
from orchestrator.matrix.schema import Target

X = TensorRecord(name="x", dtype="float32", shape=(-1, 3))
Y = TensorRecord(name="y", dtype="float32", shape=(-1, 3))
TARGETS: dict[str, Target] = {name: effective.target for name, effective in load_matrix(None).targets.items()}
HOST: dict[str, Any] = {
    "schema": "enginefarm.host/1",
    "platform": "linux/amd64",
    "gpus": [{"name": "NVIDIA A100-SXM4-80GB", "compute_capability": "8.0", "memory_bytes": 80 << 30}],
    "driver": {"version": "535.104.05", "cuda": "12.2"},
    "jetson": None,
    "container": False,
    "backends": {
        "tensorrt": {"version": "8.6.1.6", "cuda": "12.2"},
        "tensorrt-rtx": {"error": "not installed"},
        "onnxruntime": {"error": "not installed"},
    },
}


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def onnx_bytes(op: str = "Relu", domain: str = "") -> bytes:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], domain=domain)], "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    data: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return data


def rtx_bytes(mask: int = 8, body: bytes = b"layers " * 60) -> bytes:
    sections = struct.pack("<4sIQQ4sIQQ", b"NGNE", 0, 112, len(body), b"THGW", 0, 112 + len(body), 0)
    head = struct.pack("<4sIQQ4B4sI", b"vtrt", 0, 2, 64 + len(sections) + len(body) + 4, 1, 7, 1, 116, b"vtrt", mask)
    return head.ljust(64, b"\0") + sections + body + bytes.fromhex("998b8d8b")


def record(target: str, file: str | None, data: bytes, status: str = "passed", **changes: Any) -> EngineRecord:
    fields: dict[str, Any] = {
        "tag": target,
        "backend": "tensorrt",
        "platform": "linux/amd64",
        "precision": "fp32",
        "inputs": (X,),
        "outputs": (Y,),
    }
    fields["profiles"] = {"x": {"min": (1, 3), "opt": (2, 3), "max": (4, 3)}}
    fields |= {"file": file, "digest": digest(data), "size_bytes": len(data)} if file else {}
    reference = "onnx.reference" if status == "passed" else None
    return EngineRecord(target=target, verdict=Verdict(status=status, reason="said", reference=reference), **(fields | changes))  # type: ignore[arg-type]


CPU = {"backend": "onnxruntime", "provider": "cpu", "platform": "any", "backend_version": "1.20.0"}
RTX = {"backend": "tensorrt-rtx", "backend_version": "1.7.1.116", "compute_capability": ("8.9",), "cuda": "13.0"}
AMPERE = {"backend_version": "8.6.1.6", "compute_capability": ("8.0",), "cuda": "12.2"}


def write_release(folder: Path, *more: tuple[EngineRecord, bytes]) -> Path:
    """The manifest's path; more engines than the CPU and the RTX one on request."""
    cpu, rtx = onnx_bytes(), rtx_bytes()
    engines = [
        (record("cpu", "lane_v3_cpu.onnx", cpu, **CPU), cpu),
        (record("rtx-ada", "lane_v3_rtx-ada.unvalidated.engine", rtx, "unvalidated", **RTX), rtx),
        *more,
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for described, data in engines:
        if described.file:
            (folder / described.file).write_bytes(data)
    model = ModelRecord(name="lane", version=3, digest=digest(cpu), source="lane.onnx", inputs=(X,), outputs=(Y,))
    facts: dict[str, Any] = {"revision": 1, "run": "r", "created_at": "2026-01-01T00:00:00Z", "enginefarm": "0.1.0"}
    manifest = Manifest(model=model, engines=tuple(described for described, _ in engines), **facts)
    path = folder / "lane_v3.json"
    path.write_bytes(manifest.as_json())
    return path
