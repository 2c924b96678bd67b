"""ONNX Runtime build step: the model, optimised at the reproducible level and saved as one ONNX file with all weights inside.

ORT_ENABLE_BASIC gives the same bytes in every process and keeps pure ONNX operators; higher levels choose layouts by
CPU (docs/facts/onnxruntime.yaml). The session runs on the target's own provider, because casts
and copies that a provider needs are saved with the graph.
"""

import os
import time
from typing import Any, Dict

from ..worker.errors import StepError, kind_of_exception
from ..worker.events import Events
from ..worker.files import describe, inside, sync_file
from .ort_common import choose_device, import_onnxruntime, open_session, provider_of, signature
from .ort_inline import pieces_of, self_contained

ONE_FILE_LIMIT = (1 << 31) - (1 << 20)  # a protobuf message ends at 2 GiB; the graph itself needs some of it


def build(request: Dict[str, Any], folder: str, events: Events) -> Dict[str, Any]:
    """Answer a build request of protocol.py; StepError for every way it can fail."""
    options = request["options"]
    provider = provider_of(options)
    model = inside(folder, request["model"])
    _refuse_large(os.path.dirname(model))
    ort = import_onnxruntime()
    providers, device = choose_device(ort, provider, list(options.get("compute_capability") or []))
    events.phase("optimising")
    path = inside(folder, request["engine"])
    temporary, inlined = path + ".tmp", path + ".model.tmp"
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    settings.optimized_model_filepath = temporary
    started = time.time()
    try:
        session = open_session(ort, self_contained(model, inlined), settings, providers, "parse-failed")
        seconds = time.time() - started
        events.phase("writing")
        if pieces_of(temporary):
            raise StepError("build-failed", "ONNX Runtime {} left weights outside the file that it saved".format(ort.__version__))
        sync_file(temporary)
        os.rename(temporary, path)
    except OSError as error:
        raise StepError(kind_of_exception(error) or "build-failed", "the optimised model was not written: {}".format(error)) from error
    finally:
        for leftover in (temporary, inlined):
            if os.path.exists(leftover):
                os.unlink(leftover)
    size, digest = describe(path)
    return {
        "engine": {"file": request["engine"], "size_bytes": size, "sha256": digest},
        "backend_version": ort.__version__,
        "io": signature(session),
        "build_seconds": round(seconds, 3),
        "details": {"provider": provider, "optimization": "ORT_ENABLE_BASIC", "device": device or None},
    }


def _refuse_large(folder: str) -> None:
    """One file holds at most 2 GiB; a model above that keeps its weights outside, which this engine form has no place for."""
    sizes = [os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(folder) for name in names]
    if sum(sizes) > ONE_FILE_LIMIT:
        text = "the model has {:.1f} GiB; an ONNX Runtime engine is one ONNX file, which ends at 2 GiB"
        fix = "leave this target out (--target), or export the model in float16"
        raise StepError("build-failed", text.format(sum(sizes) / float(1 << 30)), {"fix": fix})
