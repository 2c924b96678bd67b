"""ONNX Runtime validate step: load the engine in this fresh process as a service would, run it, hand back raw outputs."""

import time
from typing import Any, Dict, List

from ..worker import machine
from ..worker.errors import StepError, quoted
from ..worker.events import Events
from ..worker.exercise import Session, exercise
from ..worker.files import inside
from ..worker.tensors import ITEM_BYTES, Tensor
from .ort_common import choose_device, explain, import_onnxruntime, open_session, provider_of


def validate(request: Dict[str, Any], folder: str, events: Events) -> Dict[str, Any]:
    """Answer a validate request. The session has default options: all optimisations, as a service gets it."""
    ort = import_onnxruntime()
    provider = provider_of(request)
    providers, device = choose_device(ort, provider, list(request.get("compute_capability") or []))
    events.phase("loading")
    settings = ort.SessionOptions()
    counts_nodes = hasattr(ort.InferenceSession, "get_provider_graph_assignment_info")
    if counts_nodes:
        settings.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    started = time.perf_counter()
    session = open_session(ort, inside(folder, request["engine"]), settings, providers, "load-failed")
    seconds = round(time.perf_counter() - started, 6)
    nodes = _nodes_by_provider(session) if counts_nodes else None
    if provider == "cuda" and nodes is not None and not nodes.get("CUDAExecutionProvider"):
        raise StepError("load-failed", "ONNX Runtime put no node of this engine on the GPU: {}".format(nodes))
    found = exercise(request, folder, OrtSession(session), events)
    name = "{name} (compute capability {compute_capability})".format(**device) if device else machine.cpu_model()
    return {
        "backend_version": ort.__version__,
        "device": name,
        "outputs": found["outputs"],
        "timings": {"load_seconds": seconds, "run_ms": found["run_ms"]},
        "soak": found["soak"],
        "details": {"provider": provider, "nodes": nodes, "device": device or None},
    }


def _nodes_by_provider(session: Any) -> Dict[str, int]:
    counts: Dict[str, int] = {}
    for part in session.get_provider_graph_assignment_info():
        counts[part.ep_name] = counts.get(part.ep_name, 0) + len(part.get_nodes())
    return counts


class OrtSession(Session):
    """Inputs as numpy arrays over the sample's bytes, outputs as they come."""

    def __init__(self, session: Any) -> None:
        import numpy as np

        self._numpy = np
        self._session = session
        self._names = [argument.name for argument in session.get_outputs()]
        self._inputs = [argument.name for argument in session.get_inputs()]
        self._feeds: Dict[str, Any] = {}
        self._found: List[Any] = []

    def prepare(self, inputs: List[Tensor]) -> None:
        given = {tensor.name: tensor for tensor in inputs}
        missing = [name for name in self._inputs if name not in given]
        if missing:
            raise StepError("bad-request", "the sample has no input {}".format(quoted(missing[0])))
        self._feeds = {name: self._array(given[name]) for name in self._inputs}

    def run(self) -> None:
        try:
            self._found = self._session.run(self._names, self._feeds)
        except Exception as error:  # its exceptions share no base class
            raise explain(error, "run-failed") from error

    def fetch(self) -> List[Tensor]:
        return [self._tensor(name, self._found[index]) for index, name in enumerate(self._names)]

    def _array(self, tensor: Tensor) -> Any:
        try:
            dtype = self._numpy.dtype(tensor.dtype).newbyteorder("<")
        except TypeError as error:
            text = "input {}: numpy has no {}".format(quoted(tensor.name), tensor.dtype)
            raise StepError("run-failed", text) from error
        return self._numpy.frombuffer(tensor.data, dtype).reshape(tensor.shape)

    def _tensor(self, name: str, value: Any) -> Tensor:
        if not isinstance(value, self._numpy.ndarray) or value.dtype.name not in ITEM_BYTES:
            kind = value.dtype.name if isinstance(value, self._numpy.ndarray) else type(value).__name__
            raise StepError("run-failed", "output {} is a {}, which cannot be carried".format(quoted(name), kind))
        return Tensor(name, value.dtype.name, tuple(value.shape), value.tobytes())
