"""A loaded engine behind one face, whatever runs it."""

import importlib
from typing import Any, Dict, List, NamedTuple, Optional

from .inputs import Spec

MODULES = {
    "tensorrt": "session_trt",
    "tensorrt-rtx": "session_trt",
    "onnxruntime": "session_ort",
    "torchscript": "session_torch",
}

Job = NamedTuple(
    "Job",
    [
        ("backend", str),
        ("provider", Optional[str]),
        ("capabilities", List[str]),
        ("version_compatible", bool),
        ("plugins", List[str]),
        ("inputs", List[Spec]),
        ("outputs", List[Spec]),
        ("contexts", int),
        ("threads", Optional[int]),
    ],
)
"""What a session needs beside the engine's bytes. ``capabilities``: of the GPUs to choose from, empty for any; ``plugins``: paths that
were checked; ``contexts``: how many calls may run at once; ``threads``: of ONNX Runtime's CPU provider."""


class Session:
    """Attributes: ``device`` (name, for people), ``version`` (of the backend), ``pointers`` (takes device memory)."""

    device: Optional[str] = None
    version: Optional[str] = None
    pointers = False

    def run(self, inputs: Dict[str, Any], outputs: Dict[str, Any]) -> Dict[str, Any]:
        """Outputs by name; those in ``outputs`` (device memory) are filled and given back. Safe from any thread."""
        raise NotImplementedError

    def close(self) -> None:
        """Free what the session holds; not while a call runs."""


def open_session(job: Job, data: bytes) -> Session:
    """Deserialise ``data``; StepError, or whatever the backend raises, when it does not load."""
    module = importlib.import_module("{}.{}".format(__package__, MODULES[job.backend]))
    session: Session = module.open_engine(job, data)
    return session
