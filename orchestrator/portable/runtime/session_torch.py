"""TorchScript: the last resort, named by the model's owner. Inputs go in and outputs come out in the manifest's order."""

import importlib
import io
from typing import Any, Dict, List

from ..worker.errors import StepError, kind_of_exception, printable
from .sessions import Job, Session


def open_engine(job: Job, data: bytes) -> Session:
    """The module on the GPU when PyTorch has one, else on the CPU."""
    torch: Any = importlib.import_module("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        module = torch.jit.load(io.BytesIO(data), map_location=device)
    except RuntimeError as error:
        raise _failure(error, "load-failed") from error
    module.eval()
    return TorchSession(torch, module, device, job)


class TorchSession(Session):
    def __init__(self, torch: Any, module: Any, device: str, job: Job) -> None:
        self._torch = torch
        self._module = module
        self._inputs = [spec.name for spec in job.inputs]
        self._outputs = [spec.name for spec in job.outputs]
        self._on = device
        self.device = torch.cuda.get_device_name() if device == "cuda" else "CPU"
        self.version = str(torch.__version__)

    def run(self, inputs: Dict[str, Any], outputs: Dict[str, Any]) -> Dict[str, Any]:
        del outputs
        torch = self._torch
        try:
            with torch.no_grad():
                given = [torch.as_tensor(inputs[name]).to(self._on) for name in self._inputs]
                found = self._flat(self._module(*given))
        except RuntimeError as error:
            raise _failure(error, "run-failed") from error
        if len(found) != len(self._outputs):
            text = "TorchScript gives {} outputs, the model has {}".format(len(found), len(self._outputs))
            raise StepError("run-failed", text)
        return {name: found[index].cpu().numpy() for index, name in enumerate(self._outputs)}

    def close(self) -> None:
        self._module = None

    def _flat(self, value: Any) -> List[Any]:
        """The tensors of a module's answer: one, several, or by name."""
        if isinstance(value, self._torch.Tensor):
            return [value]
        if isinstance(value, dict):
            missing = [name for name in self._outputs if name not in value]
            if missing:
                raise StepError("run-failed", "TorchScript gives no output {}".format(missing[0]))
            return [value[name] for name in self._outputs]
        return list(value)


def _failure(error: BaseException, kind: str) -> StepError:
    text = printable(str(error))
    first = next((line for line in reversed(text.splitlines()) if line.strip()), text)
    return StepError(kind_of_exception(error) or kind, "TorchScript: {}".format(first.strip()), log=text.splitlines())
