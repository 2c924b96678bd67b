"""Real engines for the tests: started here as root from the machine's own dockerd, or the tests are skipped."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from orchestrator.runners.base import Cancel, Step
from orchestrator.runners.docker import DockerRunner
from orchestrator.runners.docker_engine import Address

ORT_IMAGE, RTX_IMAGE = "enginefarm-test/ort:1", "enginefarm-test/rtx:1"
TRICK_IMAGE = "enginefarm-test/trick:1"  # its onnxruntime runs the step's trick.py: what a hostile image or library could do
EMPTY_IMAGE = "enginefarm-test/empty:1"  # no python3


def _load(name: str) -> ModuleType:
    """A module beside this file (a package `docker` of tests would hide the real one)."""
    full = f"enginefarm_docker_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).parent / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[full] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[full]


@pytest.fixture(scope="session")
def engines() -> Iterator[Callable[..., Any]]:
    """``engines(name, ...)`` starts an engine; all of them end with the session."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None or shutil.which("unshare") is None:
        pytest.skip("needs root and dockerd")
    started = []

    def start(name: str, **options: Any) -> Any:
        engine = _load("engines").LocalEngine(name, **options)
        started.append(engine)
        return engine.start()

    yield start
    for engine in started:
        engine.stop()


@pytest.fixture(scope="session")
def file_systems(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The tar file of an image, made when first asked for."""
    folder = tmp_path_factory.mktemp("images")
    images = _load("images")
    packages = {ORT_IMAGE: images.ORT, RTX_IMAGE: images.RTX, TRICK_IMAGE: (), EMPTY_IMAGE: None}
    trick = {f"{images.HOME}/site-packages/onnxruntime/__init__.py": b"exec(open('trick.py').read())\n"}

    def make(name: str) -> Path:
        name = name.replace(":late", ":1")  # the same content under another name
        path = folder / (name.replace("/", "-").replace(":", "-") + ".tar")
        if not path.exists():
            images.write_image(path, packages[name], trick if name == TRICK_IMAGE else None)
        return path

    return make


@pytest.fixture(scope="session")
def put_image(file_systems: Callable[[str], Path]) -> Callable[..., None]:
    """``put_image(engine, name)`` imports a test image into an engine."""

    def put(engine: Any, name: str, **options: Any) -> None:
        client = engine.client()
        try:
            _load("images").import_image(client.api, file_systems(name), name, **options)
        finally:
            client.close()

    return put


@pytest.fixture(scope="session")
def engine(engines: Callable[..., Any], put_image: Callable[..., None]) -> Any:
    """The engine that most tests share, with the image of ONNX Runtime."""
    started = engines("one")
    for name in (ORT_IMAGE, TRICK_IMAGE, EMPTY_IMAGE):
        put_image(started, name)
    return started


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ca, server (for 127.0.0.1), client, and a stranger's CA with a client of its own."""
    folder = tmp_path_factory.mktemp("tls")
    _load("access").make_certificates(folder)
    return folder


@pytest.fixture(scope="session")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """An sshd of the tests' own: its port, and a folder whose ``bin`` before PATH has an ssh that knows the key and the host."""
    if shutil.which("sshd", path="/usr/sbin:/usr/bin") is None:
        pytest.skip("needs sshd")
    folder = tmp_path_factory.mktemp("ssh")
    port, server = _load("access").start_sshd(folder)
    yield port, folder
    server.terminate()
    server.wait()


@pytest.fixture
def make_runner() -> Iterator[Callable[..., DockerRunner]]:
    """``make_runner(engine or address, name=..., **options)``; connections are closed after the test."""
    made = []

    def make(where: Any, name: str = "lab", **options: Any) -> DockerRunner:
        address = where if isinstance(where, Address) else Address(where.url)
        made.append(DockerRunner(name, address, **options))
        return made[-1]

    yield make
    for runner in made:
        runner.close()


@pytest.fixture
def runner(engine: Any, make_runner: Callable[..., DockerRunner]) -> Iterator[DockerRunner]:
    """A runner on the shared engine; the test must leave no container behind."""
    yield make_runner(engine)
    assert engine.containers() == []


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x[2,8] @ w -> y[2,8]."""
    folder = tmp_path_factory.mktemp("model")
    weights = numpy_helper.from_array(np.arange(64, dtype=np.float32).reshape(8, 8) / 64, "w")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weights])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, folder / "model.onnx")
    return folder


@dataclass
class Steps:
    """Steps over the test model."""

    model: Path
    folder: Path

    def build(self, backend: str = "onnxruntime", image: str = ORT_IMAGE, shared: bool = True, **more: Any) -> Step:
        capability = [] if backend == "onnxruntime" else ["8.9"]
        options = {
            "provider": "cpu" if backend == "onnxruntime" else None,
            "compute_capability": capability,
            "precision": "fp32",
            "strongly_typed": backend != "onnxruntime",
            "tf32": True,
            "workspace": None,
            "optimization_level": None,
            "hardware_compatibility": "none",
            "version_compatible": False,
            "plugins": [],
            "profiles": [{"x": {"min": [2, 8], "opt": [2, 8], "max": [2, 8]}}],
        }
        engine = "engine.onnx" if backend == "onnxruntime" else "engine.plan"
        request = {"step": "build", "backend": backend, "model": "model/model.onnx", "engine": engine, "options": options}
        inputs = {f"model/{path.name}": path for path in self.model.iterdir()}
        values = {"timeout_seconds": 120.0, "memory_bytes": 2 << 30, "shared_inputs": {"model": "sha256:" + "ab" * 32} if shared else {}}
        return Step(request=request, inputs=inputs, image=image, **{**values, **more})

    def validate(self, engine: Path, image: str = ORT_IMAGE, soak: float = 0.0, **more: Any) -> Step:
        data = self.folder / "x.bin"
        data.write_bytes(np.ones((2, 8), np.float32).tobytes())
        tensor = {"name": "x", "dtype": "float32", "shape": [2, 8], "file": "samples/0/0.bin"}
        request = {"step": "validate", "backend": "onnxruntime", "provider": "cpu", "engine": engine.name, "plugins": []}
        request |= {"samples": [{"name": "ones", "inputs": [tensor]}], "warmup": 1, "runs": 3, "soak_seconds": soak}
        values = {"timeout_seconds": 120.0, "memory_bytes": 2 << 30}
        return Step(request=request, inputs={engine.name: engine, "samples/0/0.bin": data}, image=image, **{**values, **more})

    def trick(self, code: str, trick_image: str = TRICK_IMAGE, **more: Any) -> Step:
        """A step in TRICK_IMAGE (or its namesake) that runs ``code`` in the place of ONNX Runtime; its exceptions fail the step."""
        script = self.folder / "trick.py"
        script.write_text(code)
        step = self.build(image=trick_image, **more)
        return replace(step, inputs={**step.inputs, "trick.py": script})

    def endless(self, image: str = ORT_IMAGE, seconds: float = 600.0, **more: Any) -> Step:
        """A validate step that soaks for a long time."""
        return self.validate(self.model / "model.onnx", image, soak=seconds, **more)


@pytest.fixture
def steps(model: Path, tmp_path: Path) -> Steps:
    return Steps(model, tmp_path)


class Background:
    """A step in a thread of its own."""

    def __init__(self, runner: DockerRunner, step: Step, folder: Path) -> None:
        self.cancel = Cancel()
        self.events: list[Mapping[str, Any]] = []
        self.error: BaseException | None = None
        self.result: Any = None
        self._seen = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(runner, step, folder))
        self._thread.start()

    def _run(self, runner: DockerRunner, step: Step, folder: Path) -> None:
        try:
            self.result = runner.run(step, folder, self._event, self.cancel)
        except BaseException as error:  # noqa: BLE001
            self.error = error
        with self._seen:
            self._seen.notify_all()

    def _event(self, event: Mapping[str, Any]) -> None:
        with self._seen:
            self.events.append(event)
            self._seen.notify_all()

    def wait_for(self, text: str, seconds: float = 60) -> None:
        """Until an event holds ``text``."""
        with self._seen:
            assert self._seen.wait_for(lambda: any(text in str(event) for event in self.events) or self.error, seconds), self.events
        assert self.error is None, self.error

    def end(self, seconds: float = 60) -> Background:
        self._thread.join(seconds)
        assert not self._thread.is_alive()
        return self


@pytest.fixture
def background() -> Iterator[Callable[..., Background]]:
    """``background(runner, step, folder)`` starts a step; it is cancelled when the test leaves it running."""
    started: list[Background] = []

    def start(runner: DockerRunner, step: Step, folder: Path) -> Background:
        started.append(Background(runner, step, folder))
        return started[-1]

    yield start
    for job in started:
        job.cancel.set()
        job.end()
