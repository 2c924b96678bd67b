"""ONNX Runtime: one session, which is safe to run from many threads."""

from typing import Any, Dict, cast

from ..backends.ort_common import choose_device, explain
from ..backends.ort_common import open_session as open_on_provider
from ..worker import machine
from .sessions import Job, Session


def open_engine(job: Job, data: bytes) -> Session:
    """A session from the model's bytes, on exactly the provider that was asked for."""
    import onnxruntime

    providers, device = choose_device(onnxruntime, job.provider or "cpu", job.capabilities)
    options = onnxruntime.SessionOptions()
    if job.threads is not None:
        options.intra_op_num_threads = job.threads
    session = open_on_provider(onnxruntime, cast("Any", data), options, providers, "load-failed")
    name = "{name} (compute capability {compute_capability})".format(**device) if device else machine.cpu_model()
    return OrtSession(session, name, str(onnxruntime.__version__))


class OrtSession(Session):
    def __init__(self, session: Any, device: str, version: str) -> None:
        self._session = session
        self._names = [argument.name for argument in session.get_outputs()]
        self.device = device
        self.version = version

    def run(self, inputs: Dict[str, Any], outputs: Dict[str, Any]) -> Dict[str, Any]:
        del outputs
        try:
            found = self._session.run(self._names, inputs)
        except Exception as error:  # its exceptions share no base class
            raise explain(error, "run-failed") from error
        return {name: found[index] for index, name in enumerate(self._names)}

    def close(self) -> None:
        self._session = None
