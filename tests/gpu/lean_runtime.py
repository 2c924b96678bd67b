"""On a machine with an NVIDIA GPU: what the real TensorRT lean runtime says of files that are no plan of it, and how `explain` reads it.

    python tests/gpu/lean_runtime.py RTX_PLAN OUT.json

Needs the wheels tensorrt-lean-cu13-libs and -bindings in this interpreter. Each file is a real RTX plan or a plan header with one field
altered (docs/facts/plan_header.yaml). Exits 1 when the runtime takes one of them, or says something that is not explained.
"""

from __future__ import annotations

import json
import random
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from orchestrator.portable.facts.explain import explain_text  # noqa: E402  (found through ROOT)

VERSION = (11, 4, 0, 106)


def header(size: int, *, platform: int = 0, sections: int = 2) -> bytes:
    """The first 32 bytes of a plan of this runtime's own version."""
    return b"ftrt" + struct.pack("<IQQ4BI", 0, sections, size, *VERSION, platform)


def files(rtx: bytes) -> Mapping[str, bytes]:
    noise = random.Random(0).randbytes(4096)
    body = bytes(4096 - 32)
    return {
        "a TensorRT-RTX plan": rtx,
        "random bytes": noise,
        "an ONNX model": (ROOT / "examples/lane.onnx").read_bytes(),
        "a zip": b"PK\x03\x04" + noise,
        "another platform's plan": header(4096, platform=1) + body,
        "a cut plan": header(8192) + body,
        "a grown plan": header(1024) + body,
        "a damaged section table": header(4096) + noise[: 4096 - 32],
        "an empty section table": header(4096, sections=0) + body,
        "an empty file": b"",
        "less than a header": b"ftrt\0\0",
    }


def main(plan: Path, out: Path) -> int:
    import tensorrt_lean_bindings as trt

    lines: list[str] = []

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                lines.append(text)

    runtime = trt.Runtime(Logger())
    seen: dict[str, Any] = {"schema": "enginefarm.gpu-proof/1", "runtime": trt.__version__, "files": {}}
    for name, content in files(plan.read_bytes()).items():
        lines.clear()
        taken = runtime.deserialize_cuda_engine(content) is not None
        causes = explain_text("\n".join(lines))["causes"]
        seen["files"][name] = {
            "taken": taken,
            "said": list(lines),
            "explained": [{"kind": cause["kind"], "sentence": cause["sentence"]} for cause in causes],
            "ok": not taken and bool(causes),
        }
    seen["ok"] = all(entry["ok"] for entry in seen["files"].values())
    out.write_text(json.dumps(seen, indent=2) + "\n")
    sys.stdout.write(json.dumps(seen, indent=2) + "\n")
    return 0 if seen["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
