"""The loader on a machine with a GPU that TensorRT-RTX does not support (H100, H200): run by hand there, prints JSON, exit 1 on a surprise.

    python tests/gpu/loader_h200.py MANIFEST

MANIFEST: of examples/lane.onnx, with the RTX engines and the cpu engine (enginefarm build examples/lane.onnx --available). Needs numpy
and onnxruntime-gpu, with every ``lib`` folder of the nvidia packages on LD_LIBRARY_PATH; tensorrt-rtx may be there.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from orchestrator.portable.runtime.api import LoadError, load, select

FOUND: dict[str, Any] = {}
SURPRISES: list[str] = []


def expect(what: str, holds: bool) -> None:
    if not holds:
        SURPRISES.append(what)


def falls_back_to_cuda(manifest: str) -> Any:
    """RTX engines are refused for the GPU's capability, ONNX Runtime's CUDA provider takes over; gives the outputs."""
    with load(manifest, allow_unvalidated=True) as model:
        FOUND["choice"] = model.choice.as_dict()
        chosen = model.choice.chosen
        expect("the CUDA provider is chosen", chosen is not None and chosen.provider == "cuda")
        expect("it is degraded", model.degraded)
        refused = [item for item in model.choice.refused if item.backend == "tensorrt-rtx"]
        expect("RTX engines are refused by the rules", bool(refused) and all(item.stage == "rules" for item in refused))
        expect("the reason names the capability", all("9.0" in item.why for item in refused))
        images = np.random.default_rng(0).random((4, 3, 160, 320), np.float32)
        found = model({"image": images})["lanes"]
        wrong: list[int] = []

        def work(number: int) -> None:
            one, right = images[number % 4 : number % 4 + 1], found[number % 4 : number % 4 + 1]
            wrong.extend(number for _ in range(10) if not np.allclose(model({"image": one})["lanes"], right, atol=1e-3))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expect("32 threads agree", not wrong)
        FOUND["metrics"] = model.metrics_text()
    return images, found


def agrees_with_the_cpu(manifest: str, images: Any, found: Any) -> None:
    """Without leave for unchecked runs the CPU, where the file passed, is taken; both give the same."""
    with load(manifest) as model:
        chosen = model.choice.chosen
        FOUND["without leave"] = model.choice.as_dict()
        if chosen is not None and chosen.provider == "cpu":
            difference = float(np.abs(model({"image": images})["lanes"] - found).max())
            FOUND["largest difference from the CPU"] = difference
            expect("CUDA and CPU agree", difference < 1e-3)


def the_real_runtime_refuses(manifest: str, isolate: bool) -> None:
    """The rules set aside, the real TensorRT-RTX (when it is there) gets the plans and says why not."""
    room = "orchestrator.portable.runtime"
    try:
        with mock.patch(f"{room}.decide.check_machine"), mock.patch(f"{room}.api.check_backend"):
            load(manifest, allow_unvalidated=True, require="tensorrt-rtx", isolate=isolate)
        expect("no RTX engine loads", False)
    except LoadError as error:
        FOUND[f"real runtime, isolate={isolate}"] = [item.why for item in error.choice.refused]


def main() -> int:
    logging.basicConfig(level=logging.WARNING)
    manifest = sys.argv[1]
    images, found = falls_back_to_cuda(manifest)
    agrees_with_the_cpu(manifest, images, found)
    with load(manifest, allow_unvalidated=True, isolate=True, timeout=120) as model:
        expect("isolation chooses the same", model.choice.chosen is not None and model.choice.chosen.provider == "cuda")
    chosen = select(manifest, allow_unvalidated=True).chosen
    expect("select says the same", chosen is not None and chosen.provider == "cuda")
    try:
        load(manifest, require="tensorrt")
        expect("require forbids falling back", False)
    except LoadError as error:
        FOUND["require=tensorrt"] = str(error)
    for isolate in (True, False):
        the_real_runtime_refuses(manifest, isolate)
    FOUND["surprises"] = SURPRISES
    sys.stdout.write(json.dumps(FOUND, indent=1) + "\n")
    return int(bool(SURPRISES))


if __name__ == "__main__":
    sys.exit(main())
