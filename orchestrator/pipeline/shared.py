"""Work that several targets of one model share: conversion, samples, reference outputs. Each is done once per run, when first asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from orchestrator.artifacts.manifest import ReferenceKind
from orchestrator.errors import EnginefarmError, flatten, raise_all
from orchestrator.farm.local import Farm
from orchestrator.matrix.schema import Profile, Target
from orchestrator.models.convert import convert_precision, fp16_warnings
from orchestrator.models.reference import reference_outputs
from orchestrator.models.samples import load_samples, make_samples
from orchestrator.pipeline import identity
from orchestrator.pipeline.cached import Cached
from orchestrator.pipeline.keys import converter_version, digest_of, version_of
from orchestrator.pipeline.options import BuildOptions
from orchestrator.pipeline.prepare import PreparedBuild, PreparedModel, rewritten_to, strongly_typed
from orchestrator.runners.base import Cancel, Cancelled, Runner, Step

T = TypeVar("T")

Tensors = Sequence[Mapping[str, Any]]


class Once:
    """Computes each key once, in the thread that asks first; others wait for it and see its result or its exception."""

    def __init__(self) -> None:
        self._futures: dict[Any, Future[Any]] = {}
        self._lock = threading.Lock()

    def get(self, key: Any, make: Callable[[], T]) -> T:
        with self._lock:
            future = self._futures.get(key)
            mine = future is None
            if future is None:
                future = self._futures[key] = Future()
        if mine:
            try:
                future.set_result(make())
            except BaseException as error:  # noqa: BLE001  (handed to every waiter, then raised here too)
                future.set_exception(error)
        return cast("T", future.result())


@dataclass(frozen=True)
class Samples:
    """``items`` as models/samples.py makes them; ``identity`` as pipeline/identity.py."""

    items: tuple[dict[str, Any], ...]
    identity: str

    @property
    def supplied(self) -> bool:
        """Whether every sample brings its expected outputs."""
        return bool(self.items) and all(item["expected"] for item in self.items)


@dataclass(frozen=True)
class References:
    """Expected outputs per sample (None for a sample without), and what they are from; ``outputs`` is None when no sample has any,
    ``reason`` then says why."""

    kind: ReferenceKind | None
    outputs: tuple[Tensors | None, ...] | None
    reason: str = ""


class SharedWork:
    """Shared work of one model; files lie under ``folder``."""

    def __init__(self, model: PreparedModel, folder: Path, options: BuildOptions, farm: Farm, cancel: Cancel, cached: Cached) -> None:
        self.model = model
        self.cached = cached
        self._folder = folder
        self._options = options
        self._farm = farm
        self._cancel = cancel
        self._once = Once()

    def model_folder(self, target: Target) -> tuple[Path, tuple[str, ...]]:
        """The folder with the ONNX that the backend gets (rewritten where it must be), and warnings."""
        precision = self._rewritten_to(target)
        if precision is None:
            weak_half = target.precision == "fp16" and not strongly_typed(target)
            staged = self.model.staged()
            return staged, self._once.get("fp16 warnings", lambda: fp16_warnings(staged)) if weak_half else ()

        def convert() -> tuple[Path, tuple[str, ...]]:
            folder = self._folder / f"model-{precision}"
            folder.mkdir(parents=True)
            try:
                return folder, convert_precision(self.model.model, self.model.staged(), folder, precision, cancel=self._cancel)
            except EnginefarmError:
                if self._cancel.is_set():
                    raise Cancelled from None
                raise

        return self._once.get(("model", precision), convert)

    def converter(self, target: Target) -> str | None:
        """What rewrites the ONNX for ``target``; None when it gets the model as given."""
        return converter_version() if self._rewritten_to(target) else None

    def _rewritten_to(self, target: Target) -> str | None:
        return rewritten_to(self.model.model, target)

    def model_identity(self, target: Target) -> str:
        """Digest over the files of ``model_folder``: the model, and how it was rewritten."""
        rewritten = self._rewritten_to(target)
        return digest_of([self.model.model.digest, rewritten, self.converter(target)])

    def samples_identity(self, target: Target, profiles: Mapping[str, Profile]) -> str:
        """Digest over what the samples are made from, known before any is made; raises EnginefarmError(SAMPLES_BAD)."""
        return identity.samples(self.cached.store.memo, self.model.model, target.samples, profiles)

    def samples(self, target: Target, profiles: Mapping[str, Profile]) -> Samples:
        key = self.samples_identity(target, profiles)

        def make() -> Samples:
            folder = self._folder / f"samples-{key[7:19]}"
            folder.mkdir(parents=True)
            if target.samples:
                items = load_samples(self.model.model, identity.expand(target.samples), folder, profiles)
            else:
                items = make_samples(self.model.model, profiles, folder)
            return Samples(tuple(items), key)

        return self._once.get(("samples", key), make)

    def references(self, samples: Samples, target: Target) -> References:
        """Supplied outputs, else onnx.reference within its budget, else ONNX Runtime on the CPU (which is the same runtime for ``cpu``)."""
        if self.model.model.random_ops:
            return References(
                None, None, f"the model draws random numbers ({self.model.model.random_ops[0]}): its outputs cannot be compared"
            )
        supplied = tuple(item["expected"] for item in samples.items)
        if samples.supplied:
            return References("supplied", supplied)
        found = self._computed(samples, target)
        if not any(supplied):
            return found
        computed = found.outputs or (None,) * len(supplied)
        count = sum(outputs is not None for outputs in supplied)
        rest = f"the others from {found.kind}" if found.outputs else f"the others are not compared: {found.reason}"
        mixed = tuple(given or made for given, made in zip(supplied, computed, strict=True))
        return References("supplied", mixed, f"outputs of {count} of {len(supplied)} samples are supplied, {rest}")

    def _computed(self, samples: Samples, target: Target) -> References:
        """Outputs from onnx.reference within its budget, else from ONNX Runtime on the CPU."""

        budget = target.validation.reference_budget
        reference = self._once.get(("reference", samples.identity, budget), lambda: self._stored("onnx.reference", samples, target))
        if reference.outputs is not None:
            return reference
        runtime = self._once.get(("runtime", samples.identity), lambda: self._stored("onnxruntime-cpu", samples, target))
        if runtime.outputs is None:
            return References(None, None, f"{reference.reason}; {runtime.reason}")
        same = target.backend == "onnxruntime" and target.provider != "cuda"
        return References("same-runtime" if same else "onnxruntime-cpu", runtime.outputs, reference.reason)

    def _stored(self, kind: ReferenceKind, samples: Samples, target: Target) -> References:
        """Outputs of one kind, from the store when it has them. That there are none is not kept: the next machine may be faster."""
        key = identity.reference(kind, self._library(kind), self.model.model.digest, samples.identity)
        found = self.cached.reference(key)
        outputs = self.cached.fetch_outputs(found["outputs"]) if found else None
        if outputs is not None:
            return References(kind, outputs)
        make = self._onnx_reference if kind == "onnx.reference" else self._runtime_reference
        made = make(samples, target)
        if made.outputs is not None:
            self.cached.keep_outputs("reference", key, {"what": f"{self.model.name}: {kind}"}, made.outputs)
        return made

    def _library(self, kind: ReferenceKind) -> str:
        """The version of what computes a reference of ``kind``."""
        if kind == "onnx.reference":
            return version_of("onnx")
        able = self._able()
        return str(able[0].host()["backends"]["onnxruntime"]["version"]) if able else "none"

    def _able(self) -> list[Runner]:
        """Runners that can compute a reference with ONNX Runtime."""
        runners = [runner for runner in self._farm.runners if runner.kind == "process"]
        return [runner for runner in runners if "version" in runner.host()["backends"]["onnxruntime"]]

    def _onnx_reference(self, samples: Samples, target: Target) -> References:
        folder = self._folder / f"reference-{samples.identity[7:19]}"
        folder.mkdir(parents=True)
        found = reference_outputs(
            self.model.staged() / "model.onnx",
            samples.items,
            folder,
            budget_seconds=target.validation.reference_budget,
            memory_bytes=self._options.memory,
            cancel=self._cancel,
        )
        if found.outputs is None:
            return References(None, None, found.reason or "onnx.reference gave no outputs")
        return References("onnx.reference", tuple(found.outputs))

    def _runtime_reference(self, samples: Samples, target: Target) -> References:
        """ONNX Runtime CPU on the model as given."""
        able = self._able()
        if not able:
            return References(None, None, "no runner has ONNX Runtime")
        folder = self._folder / f"runtime-{samples.identity[7:19]}"
        folder.mkdir(parents=True)
        engine = {f"model/{name}": path for name, path in staged_files(self.model.staged()).items()}
        request, inputs = validate_request("onnxruntime", "cpu", "model/model.onnx", samples, warmup=0, runs=1, soak=0.0)
        step = Step(
            request=request,
            inputs={**engine, **inputs},
            timeout_seconds=target.limits.validate_timeout,
            shared_inputs={"model": digest_of([self.model.model.digest, None, None])},
        )
        try:
            answer = able[0].run(step, folder, _ignore, self._cancel)
        except Cancelled:
            raise
        except EnginefarmError as error:
            return References(None, None, f"ONNX Runtime: {error.what}")
        if not answer.result["ok"]:
            return References(None, None, f"ONNX Runtime: {answer.result['error']['message']}")
        return References("onnxruntime-cpu", step_outputs(answer.result, answer.folder))


def _ignore(_event: object) -> None:
    """A reference run is no step of a build: its phases are nobody's progress."""


def check_samples(builds: Iterable[tuple[SharedWork, PreparedBuild]]) -> None:
    """Read the samples of all. Raises EnginefarmError for every one that cannot be used."""
    problems: dict[object, EnginefarmError] = {}
    for shared, build in builds:
        try:
            shared.samples(build.effective.target, build.profiles)
        except EnginefarmError as error:  # noqa: PERF203  (all problems at once)
            problems |= {(problem.what, str(problem.where)): problem for problem in flatten(error)}
    raise_all(problems.values())


def staged_files(folder: Path) -> dict[str, Path]:
    """Path inside the folder -> file, for every file of a staged model."""
    return {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}


def validate_request(
    backend: str,
    provider: str | None,
    engine: str,
    samples: Samples,
    *,
    warmup: int,
    runs: int,
    soak: float,
    plugins: Sequence[str] = (),
    compute_capability: Sequence[str] = (),
) -> tuple[dict[str, Any], dict[str, Path]]:
    """A validate request (portable/worker/protocol.py) and the sample files it needs."""
    inputs: dict[str, Path] = {}
    described = []
    for number, item in enumerate(samples.items):
        tensors = []
        for position, tensor in enumerate(item["inputs"]):
            name = f"samples/{number}/{position}.bin"
            inputs[name] = Path(tensor["file"])
            tensors.append({"name": tensor["name"], "dtype": tensor["dtype"], "shape": list(tensor["shape"]), "file": name})
        described.append({"name": item["name"], "inputs": tensors})
    request: dict[str, Any] = {"step": "validate", "backend": backend, "provider": provider, "engine": engine, "plugins": list(plugins)}
    request["compute_capability"] = list(compute_capability)
    return {**request, "samples": described, "warmup": warmup, "runs": runs, "soak_seconds": soak}, inputs


def step_outputs(result: Mapping[str, Any], folder: Path) -> tuple[Tensors, ...]:
    """The outputs of a validate result, in the order of the samples, with ``file`` as a path on this machine."""
    return tuple([{**tensor, "file": folder / tensor["file"]} for tensor in sample["outputs"]] for sample in result["outputs"])
