"""On a machine with an NVIDIA GPU: the whole way of the ``ort-cuda`` target, and what must not pass there.

    python tests/gpu/ort_cuda.py OUT.json

Needs the project's dependencies and ``onnxruntime-gpu`` in this interpreter, and the CUDA libraries on LD_LIBRARY_PATH. Runs the command
as a user would, in a folder of its own, and writes what it saw; exits 1 when anything is not as it must be. Not part of `make test`.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("ENGINEFARM_")}
    env["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-m", "orchestrator", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=400)


def build(folder: Path, *words: str) -> dict[str, Any]:
    done = run(folder, "build", "lane.onnx", *words, "--json", "--progress", "plain")
    answer = json.loads(done.stdout) if done.stdout.startswith("{") else {"models": []}
    builds = {entry["target"]: entry for model in answer["models"] for entry in model["builds"]}
    return {"exit_code": done.returncode, "builds": builds, "stderr": done.stderr[-2000:]}


def record(folder: Path, target: str) -> dict[str, Any]:
    manifest = json.loads((folder / "artifacts/lane/v1/lane_v1.json").read_bytes())
    found: dict[str, Any] = next(entry for entry in manifest["engines"] if entry["target"] == target)
    return found


def good(folder: Path) -> dict[str, Any]:
    """The engine is built on the GPU and agrees with onnx.reference there."""
    answer = build(folder, "--target", "ort-cuda", "--target", "cpu")
    held = record(folder, "ort-cuda")
    return {
        "exit_code": answer["exit_code"],
        "status": held["verdict"]["status"],
        "reference": held["verdict"]["reference"],
        "device": held["verdict"]["device"],
        "median_ms": held["verdict"]["median_ms"],
        "outputs": held["verdict"]["outputs"],
        "file": held["file"],
        "gpus": held["built_on"]["gpus"],
        "driver": held["built_on"]["driver"],
        "backend_version": held["backend_version"],
        "stderr": answer["stderr"],
        "ok": answer["exit_code"] == 0
        and held["verdict"]["status"] == "passed"
        and held["verdict"]["reference"] in ("onnx.reference", "supplied")
        and held["file"] == "lane_v1_ort-cuda.onnx"
        and "compute capability" in held["verdict"]["device"],
    }


def cached(folder: Path) -> dict[str, Any]:
    """Nothing is built twice."""
    answer = build(folder, "--target", "ort-cuda")
    again = answer["builds"].get("ort-cuda", {})
    return {"exit_code": answer["exit_code"], "cached": again.get("cached"), "ok": again.get("cached") is True}


def wrong(folder: Path) -> dict[str, Any]:
    """An injected wrong output fails, and the engine is withdrawn: the builder is deterministic, so these are the very bytes."""
    image = np.zeros((1, 3, 160, 320), np.float32)
    np.savez(folder / "wrong.npz", image=image, lanes=np.full((1, 4, 160, 320), 7, np.float32))
    (folder / "lane.yaml").write_text((folder / "lane.yaml").read_text() + "\nsamples: [wrong.npz]\n")
    answer = build(folder, "--target", "ort-cuda", "--force")
    entry = answer["builds"].get("ort-cuda", {})
    left = sorted(path.name for path in (folder / "artifacts/lane/v1").glob("*ort-cuda*"))
    evidence = sorted(path.name for path in (folder / "artifacts/lane/v1/quarantine/ort-cuda").iterdir())
    return {
        "exit_code": answer["exit_code"],
        "status": entry.get("status"),
        "reason": entry.get("reason"),
        "engines_left": left,
        "quarantine": evidence,
        "ok": answer["exit_code"] == 1 and entry.get("status") == "failed" and not left and "engine.onnx" in evidence,
    }


def others(folder: Path) -> dict[str, Any]:
    """Every other GPU target is refused with the GPU that is here, before anything is built."""
    done = run(folder, "build", "lane.onnx", "--available", "--dry-run", "--json")
    lines = {line["target"]: line for line in json.loads(done.stdout)["builds"]}
    skipped = {name: line["why"] for name, line in lines.items() if line["action"] == "skip"}
    return {"exit_code": done.returncode, "skipped": skipped, "ok": done.returncode == 0 and "hopper-cu122" in skipped}


def main(out: Path) -> int:
    import onnxruntime

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name in ("lane.onnx", "lane.yaml"):
            shutil.copy(ROOT / "examples" / name, folder / name)
        seen: dict[str, Any] = {
            "schema": "enginefarm.gpu-proof/1",
            "python": platform.python_version(),
            "onnxruntime": onnxruntime.__version__,
            "providers": onnxruntime.get_available_providers(),
        }
        for check in (good, cached, others, wrong):
            try:
                seen[check.__name__] = check(folder)
            except Exception as error:  # noqa: BLE001, PERF203  (a broken check is a finding, not the end of the report)
                seen[check.__name__] = {"ok": False, "error": f"{type(error).__name__}: {error}"}
    seen["ok"] = all(part["ok"] for part in seen.values() if isinstance(part, dict))
    out.write_text(json.dumps(seen, indent=2) + "\n")
    sys.stdout.write(json.dumps(seen, indent=2) + "\n")
    return 0 if seen["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
