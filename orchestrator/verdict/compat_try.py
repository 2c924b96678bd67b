"""Really load an engine on a runner, run it and soak it, in a process of its own: what the rules predict is held against what happens."""

from __future__ import annotations

import re
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator import errors
from orchestrator.artifacts.files import disk_errors, sha256_file
from orchestrator.artifacts.manifest import EngineRecord
from orchestrator.errors import EnginefarmError
from orchestrator.models.dtypes import element_bits, raw_bytes
from orchestrator.portable.facts.explain import explain
from orchestrator.runners.base import Cancel, Runner, Step
from orchestrator.verdict.compat import RUNS, EngineSubject, Trial, agreement

SLOWER = 1.5  # times the median that the manifest says: below that it is noise
_RUNNING = ("running samples", "timing", "soaking")
_MOST_INPUT_BYTES = 1 << 30


class _Found(NamedTuple):
    """How a trial ended; ``log`` are lines that the result quotes."""

    outcome: str
    text: str
    median_ms: float | None = None
    seconds: float | None = None
    log: Sequence[str] = ()


def try_engine(
    engine: EngineSubject,
    runner: Runner,
    verdict: str,
    cancel: Cancel,
    *,
    logs: Path,
    soak_seconds: float = 2.0,
    timeout_seconds: float = 300.0,
) -> Trial:
    """Load, run and soak ``engine`` on ``runner`` with zeros as inputs; ``verdict`` is what the rules said.

    What the process said is kept in the folder ``logs`` when the engine did not run, and explained. Raises Cancelled, and EnginefarmError
    when the runner itself does not work: those say nothing about the engine.
    """
    reason = _cannot(engine)
    if reason is not None:
        return Trial("not tried", reason)
    with tempfile.TemporaryDirectory(prefix="enginefarm-try-") as place:
        folder = Path(place)
        found = _run(engine, runner, folder, cancel, soak_seconds, timeout_seconds)
        trial = Trial(found.outcome, found.text, agreement(verdict, found.outcome), found.median_ms, found.seconds)
        if found.outcome in RUNS:
            return trial
        kept = logs / f"{_file_name(engine.name)}_on_{_file_name(runner.name)}.log"
        with disk_errors(f"keep the log {kept}"):
            _keep(folder / "step" / "worker.log", found.log, kept)
            cause = _cause(kept)
            with kept.open("a", encoding="utf-8", errors="replace") as file:  # our own sentence needs no explanation
                file.write(f"{found.outcome}: {found.text}\n")
    return replace(trial, cause=cause, log=str(kept))


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)


def _keep(log: Path, lines: Sequence[str], kept: Path) -> None:
    """The process's own words, and after them what its result quotes."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with kept.open("wb") as file:
        if log.is_file():
            with log.open("rb") as said:
                shutil.copyfileobj(said, file)
        file.write("".join(f"{line}\n" for line in ("", *lines)).encode(errors="replace"))


def _cause(log: Path) -> dict[str, Any] | None:
    """The best cause that the failure catalogue finds in a log."""
    with log.open("rb") as stream:
        causes = explain(stream)["causes"]
    return {name: causes[0][name] for name in ("code", "kind", "figures", "sentence", "fix")} if causes else None


def _cannot(engine: EngineSubject) -> str | None:
    if engine.file is None:
        return "the file is not here"
    if engine.record is None:
        return "no manifest says what its inputs are"
    missing = [name for name, path in engine.plugins.items() if not path.is_file()]
    if missing:
        return f"its plugins are not here: {', '.join(missing)}"
    if sha256_file(engine.file) != engine.record.digest:
        return "the file changed after it was checked: a plan is code, so it is not loaded"
    for tensor in engine.record.inputs:
        shape = _shape(engine.record, tensor.name, tensor.shape)
        if any(dim < 0 for dim in shape):
            return f"input {tensor.name} is dynamic and has no profile"
        if element_bits(tensor.dtype) == 0:
            return f"input {tensor.name} is {tensor.dtype}"
        if raw_bytes(tensor.dtype, _count(shape)) > _MOST_INPUT_BYTES:
            return f"input {tensor.name} is larger than {_MOST_INPUT_BYTES >> 20} MiB"
    return None


def _shape(record: EngineRecord, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    return record.profiles[name]["opt"] if name in record.profiles else shape


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for dim in shape:
        count *= dim
    return count


def _zeros(record: EngineRecord, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Path]]:
    """Input tensors of one sample, and their files by the name that the step knows them by. Zero is a value of every type, and an index
    into every table."""
    tensors, files = [], {}
    for index, tensor in enumerate(record.inputs):
        shape = _shape(record, tensor.name, tensor.shape)
        name = f"samples/0/{index}.bin"
        file = folder / f"{index}.bin"
        file.write_bytes(bytes(raw_bytes(tensor.dtype, _count(shape))))
        tensors.append({"name": tensor.name, "dtype": tensor.dtype, "shape": list(shape), "file": name})
        files[name] = file
    return tensors, files


def _run(engine: EngineSubject, runner: Runner, folder: Path, cancel: Cancel, soak: float, timeout: float) -> _Found:
    assert engine.file is not None  # noqa: S101  (_cannot answered before)
    assert engine.record is not None  # noqa: S101
    record = engine.record
    tensors, inputs = _zeros(record, folder)
    name = f"engine{engine.file.suffix}"
    plugins = {f"plugins/{number}.so": path for number, path in enumerate(engine.plugins.values())}
    request: dict[str, Any] = {"step": "validate", "backend": record.backend, "provider": record.provider, "engine": name}
    # no capability is asked for: whatever GPU is there is given the engine, and the runtime itself refuses it
    request |= {"plugins": list(plugins), "compute_capability": [], "samples": [{"name": "zeros", "inputs": tensors}]}
    request |= {"warmup": 3, "runs": 10, "soak_seconds": soak}
    step = Step(
        request=request,
        inputs={**inputs, **plugins, name: engine.file},
        timeout_seconds=timeout,
        image=_image(record),
        platform=record.platform,
        compute_capability=record.compute_capability if record.backend != "onnxruntime" or record.provider == "cuda" else (),
    )
    phases: list[str] = []
    try:
        answer = runner.run(step, folder / "step", lambda event: phases.append(str(event.get("phase", ""))), cancel)
    except EnginefarmError as error:
        return _died(error, phases)
    return _ended(answer.result, phases, record)


def _image(record: EngineRecord) -> str | None:
    """``repository@sha256:...`` of the image that built it, for runners that start containers."""
    if record.image is None or record.image_digest is None:
        return record.image
    repository = record.image.split("@")[0]
    head, _, tail = repository.rpartition("/")
    return f"{head}/{tail.split(':')[0]}@{record.image_digest}" if head else f"{tail.split(':')[0]}@{record.image_digest}"


def _died(error: EnginefarmError, phases: list[str]) -> _Found:
    """The worker left no result. What says something about the engine is an outcome, the rest is the runner's own trouble."""
    if error.kind not in (errors.STEP_CRASHED, errors.STEP_TIMEOUT, errors.STEP_MEMORY):
        raise error
    under_load = any(phase in _RUNNING for phase in phases)
    text = error.what + (f": {error.why.splitlines()[-1]}" if error.why else "")
    return _Found("crashes under load" if under_load else "crashes at load", text, log=[error.what])


def _ended(result: Mapping[str, Any], phases: list[str], record: EngineRecord) -> _Found:
    if result["ok"]:
        return _loaded(result, record)
    error = result["error"]
    if any(phase in _RUNNING for phase in phases):
        outcome = "crashes under load"
    else:
        outcome = "crashes at load" if error["kind"] == "crashed" else "refused"
    return _Found(outcome, str(error["message"]), log=[str(line) for line in error.get("log") or ()])


def _loaded(result: Mapping[str, Any], record: EngineRecord) -> _Found:
    times = result["timings"]["run_ms"]
    median = round(statistics.median(times), 4) if times else None
    seconds = result["timings"].get("load_seconds")
    soak = result.get("soak") or {}
    if soak and not soak["stable"]:
        return _Found("crashes under load", "its outputs change under load", median, seconds)
    before = record.verdict.median_ms
    where = f"on {result['device']}, {median} ms a run"
    if before and median and median > before * SLOWER:
        return _Found("loads slower", f"{where}, {median / before:.1f} times the {before} ms of the manifest", median, seconds)
    return _Found("loads", where, median, seconds)
