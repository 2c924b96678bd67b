"""A loaded model: call it with arrays, ask it what it is, close it."""

import threading
import time
from typing import Any, Dict, List, Mapping, Optional

from ..worker.errors import StepError, quoted
from . import metrics
from .choice import Choice
from .errors import InputError, RunError
from .inputs import Device, Spec, checked, device_view
from .sessions import Session

_KINDS_OF_INPUT = ("bad-request",)


class Model:
    """Safe to call from many threads. A context manager: it is closed at the end.

    ``choice``: which engine and why (choice.py); ``inputs`` and ``outputs``: names, types and shapes; ``signer``: who signed the manifest.
    """

    def __init__(self, session: Session, choice: Choice, inputs: List[Spec], outputs: List[Spec], signer: Optional[str]) -> None:
        self.choice = choice
        self.inputs = inputs
        self.outputs = outputs
        self.signer = signer
        self._session: Optional[Session] = session
        self._idle = threading.Condition()
        self._running = 0
        self._labels: Dict[str, Any] = {"model": choice.model, "version": choice.version}

    @property
    def degraded(self) -> bool:
        """Whether a better engine should have been loaded; ``choice.reasons`` says why."""
        return self.choice.degraded

    def __call__(self, inputs: Mapping[str, Any], outputs: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
        """Outputs by name for inputs by name: numpy arrays, shapes within the engine's profile.

        TensorRT and TensorRT-RTX also take device memory (``__cuda_array_interface__``, or DeviceArray), and fill such memory given as
        ``outputs``; the call returns when it is filled. InputError for inputs that are not the model's, RunError when it does not run.
        """
        session = self._enter()
        started = time.perf_counter()
        failed = True
        try:
            given = checked(inputs, self.inputs, session.pointers)
            found = session.run(given, self._targets(outputs, session))
            failed = False
            return found
        except StepError as error:
            if error.kind in _KINDS_OF_INPUT:
                raise InputError(error.message) from error
            from .attempt import refusal_of

            raise RunError(refusal_of(error).why, error.kind) from error
        finally:
            self._leave()
            metrics.add("enginefarm_runs_total", 1, **self._labels)
            metrics.add("enginefarm_run_errors_total", int(failed), **self._labels)
            metrics.add("enginefarm_run_seconds_total", time.perf_counter() - started, **self._labels)

    def metrics_text(self) -> str:
        """Counts of this model in this process, in Prometheus' text format."""
        return metrics.text(self.choice.model, self.choice.version)

    def close(self) -> None:
        """Free the engine once running calls have ended; later calls raise RunError."""
        with self._idle:
            session, self._session = self._session, None
            while self._running:
                self._idle.wait()
        if session is not None:
            session.close()

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        chosen = self.choice.chosen
        state = ", degraded" if self.degraded else ""
        return "<{} v{}: {}{}>".format(self.choice.model, self.choice.version, chosen.target if chosen else "nothing", state)

    def _enter(self) -> Session:
        with self._idle:
            if self._session is None:
                raise RunError("the model is closed")
            self._running += 1
            return self._session

    def _leave(self) -> None:
        with self._idle:
            self._running -= 1
            self._idle.notify_all()

    def _targets(self, outputs: Optional[Mapping[str, Any]], session: Session) -> Dict[str, Device]:
        """The caller's memory for outputs."""
        if not outputs:
            return {}
        if not session.pointers:
            raise InputError("this engine gives numpy arrays: outputs= is for TensorRT")
        names = [spec.name for spec in self.outputs]
        found = {}
        for name, value in outputs.items():
            view = device_view(value)
            if name not in names:
                raise InputError("the model has no output {}; it has {}".format(quoted(str(name)), ", ".join(map(quoted, names))))
            if view is None:
                raise InputError("output {}: give device memory, not {}".format(quoted(name), type(value).__name__))
            found[name] = view
        return found
