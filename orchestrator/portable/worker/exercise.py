"""What every validate step does once an engine is loaded: run all samples, time, soak."""

import hashlib
import os
import time
from typing import Any, Dict, List

from .errors import StepError
from .events import Events
from .files import chunks_of
from .tensors import Tensor, read_tensor, write_tensor


class Session:
    """A loaded engine. ``run`` is what is timed: inputs are in place before it, outputs are fetched after it."""

    def prepare(self, inputs: List[Tensor]) -> None:
        raise NotImplementedError

    def run(self) -> None:
        raise NotImplementedError

    def fetch(self) -> List[Tensor]:
        raise NotImplementedError


def exercise(request: Dict[str, Any], folder: str, session: Session, events: Events) -> Dict[str, Any]:
    """Gives ``outputs``, ``run_ms`` (milliseconds, first sample) and ``soak`` of a validate result.

    The first sample is the one that is timed and soaked. ``soak.stable`` means: the last soak run gave bit for bit
    what the first run gave.
    """
    samples = request.get("samples") or []
    if not samples:
        raise StepError("bad-request", "a validate step needs at least one sample")
    events.phase("running samples")
    outputs = []
    for number, sample in reversed(list(enumerate(samples))):  # the first sample last: it stays in place for timing
        session.prepare([read_tensor(folder, tensor) for tensor in sample["inputs"]])
        session.run()
        outputs.append({"sample": sample["name"], "outputs": _keep(folder, number, session.fetch())})
    first = _digest(session.fetch())
    events.phase("timing")
    for _ in range(int(request.get("warmup", 0))):
        session.run()
    run_ms = [_timed(session) for _ in range(int(request.get("runs", 1)))]
    soak = _soak(session, float(request.get("soak_seconds", 0.0)), first, events)
    return {"outputs": outputs[::-1], "run_ms": run_ms, "soak": soak}


def _keep(folder: str, number: int, tensors: List[Tensor]) -> List[Dict[str, Any]]:
    os.makedirs(os.path.join(folder, "outputs", str(number)), exist_ok=True)
    return [write_tensor(folder, "outputs/{}/{}.bin".format(number, index), tensor) for index, tensor in enumerate(tensors)]


def _timed(session: Session) -> float:
    started = time.perf_counter()
    session.run()
    return round((time.perf_counter() - started) * 1e3, 6)


def _soak(session: Session, seconds: float, first: str, events: Events) -> Any:
    if seconds <= 0:
        return None
    events.phase("soaking")
    started = time.perf_counter()
    runs = 0
    while time.perf_counter() - started < seconds:
        session.run()
        runs += 1
    elapsed = round(time.perf_counter() - started, 3)
    return {"seconds": elapsed, "runs": runs, "stable": _digest(session.fetch()) == first}


def _digest(tensors: List[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update("{} {} {}".format(tensor.name, tensor.dtype, tensor.shape).encode("utf-8"))
        for chunk in chunks_of(tensor.data):
            digest.update(chunk)
    return digest.hexdigest()
