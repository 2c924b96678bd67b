"""Which module answers which step of which backend.

Named by text and imported when asked for, so that a step loads (and its key is over) only the modules it needs.
"""

from typing import Dict, Tuple

STEPS: Dict[Tuple[str, str], Tuple[str, str]] = {
    ("build", "tensorrt"): ("backends.trt", "build"),
    ("build", "tensorrt-rtx"): ("backends.rtx", "build"),
    ("build", "onnxruntime"): ("backends.ort", "build"),
    ("validate", "tensorrt"): ("backends.trt_run", "validate_tensorrt"),
    ("validate", "tensorrt-rtx"): ("backends.trt_run", "validate_rtx"),
    ("validate", "onnxruntime"): ("backends.ort_run", "validate"),
    ("probe", ""): ("worker.probe", "probe"),
}
