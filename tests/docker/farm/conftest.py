"""A farm as a user has it: a project folder, a runners.yaml over real engines, and a registry that mirrors nvcr.io."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

TESTS = Path(__file__).parents[2]
PATIENCE_SECONDS = 120.0


def _load(name: str, path: Path) -> ModuleType:
    """A module of the tests by its file: folders of tests are no packages (one named docker would hide the real one)."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


_load("enginefarm_docker_images", TESTS / "docker/images.py")
images = _load("enginefarm_farm_images", Path(__file__).with_name("images.py"))
registries = _load("enginefarm_registries", TESTS / "images/conftest.py")
start_registry = registries.start_registry


@pytest.fixture(scope="session")
def pusher(start_registry: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The registry with all images but that of TensorRT-RTX, and the means to push more."""
    pusher = images.Pusher(start_registry(), images.Layers(tmp_path_factory.mktemp("layers")))
    pusher.push_ort()
    for name in images.DOUBLES:
        pusher.push_double(name, "linux/arm64" if "l4t" in name else "linux/amd64")
    return pusher


@pytest.fixture(scope="session")
def mirror(pusher: Any) -> str:
    return f"nvcr.io/={pusher.server.host}/"


@dataclass
class Run:
    """A command under way. ``events``: what it said so far with ``--progress json``."""

    process: subprocess.Popen[str]
    log: Path
    out: str = ""

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def wait_for(self, condition: Callable[[list[dict[str, Any]]], bool]) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while not condition(self.events):
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.1)

    def building(self, target: str) -> None:
        """Until the builder of ``target`` is at work in its container."""
        self.wait_for(lambda events: any(is_phase(event, "building") and event["target"] == target for event in events))

    def end(self) -> Run:
        self.out, _ = self.process.communicate(timeout=PATIENCE_SECONDS)
        assert "Traceback" not in self.log.read_text(), self.log.read_text()
        return self

    @property
    def code(self) -> int:
        return int(self.process.returncode)

    @property
    def builds(self) -> dict[str, dict[str, Any]]:
        return {build["target"]: build for model in json.loads(self.out)["models"] for build in model["builds"]}

    @property
    def said(self) -> str:
        return self.log.read_text()

    def runners(self, target: str, step: str = "build") -> list[str]:
        """The runners that began a step of ``target``, in order."""
        started = [event for event in self.events if event["event"] == "step-started"]
        return [event["runner"] for event in started if event["target"] == target and event["step"] == step]


def is_phase(event: dict[str, Any], phase: str) -> bool:
    return bool(event["event"] == "step-phase" and event["phase"] == phase)


@dataclass
class Lane:
    """A project: ``net.onnx``, targets of its own, ``runners.yaml``."""

    folder: Path
    mirror: str
    runners: dict[str, dict[str, Any]] = field(default_factory=dict)
    _count: int = 0

    def runner(self, name: str, engine: Any, /, *, has: str | None = None, **more: Any) -> Lane:
        """A docker runner on ``engine``; ``has``: the compute capability of the GPU that it declares."""
        entry: dict[str, Any] = {"type": "docker", "engine": engine.url, **more}
        if has is not None:
            names = {"8.0": "NVIDIA A100", "7.5": "Tesla T4", "7.2": "Xavier", "8.9": "NVIDIA L4"}
            declared = {"gpus": [{"name": names[has], "compute_capability": has, "memory": "16 GiB"}]}
            declared |= {"driver": "535.104.05"} if has != "7.2" else {}
            entry["overrides"] = declared | more.get("overrides", {})
        self.runners[name] = entry
        return self

    def target(self, name: str, **fields: Any) -> Lane:
        (self.folder / "targets").mkdir(exist_ok=True)
        (self.folder / f"targets/{name}.yaml").write_text(yaml.safe_dump({"name": name, "tag": name, **fields}))
        return self

    def start(self, *words: str, mirror: bool = True, env: dict[str, str] | None = None) -> Run:
        (self.folder / "runners.yaml").write_text(yaml.safe_dump({"runners": self.runners}))
        self._count += 1
        log = self.folder / f"said-{self._count}"
        mirrored = {"ENGINEFARM_MIRROR": self.mirror} if mirror else {}
        with log.open("wb") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator", *words],
                cwd=self.folder,
                env={**os.environ, "ENGINEFARM_RUNNERS": "runners.yaml", **mirrored, **(env or {})},
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        return Run(process, log)

    def run(self, *words: str, **options: Any) -> Run:
        return self.start(*words, **options).end()

    def start_build(self, *words: str, targets: tuple[str, ...], model: str = "net.onnx", **options: Any) -> Run:
        chosen = [word for target in targets for word in ("--target", target)]
        return self.start("build", model, *chosen, "--json", "--progress", "json", *words, **options)

    def build(self, *words: str, targets: tuple[str, ...], **options: Any) -> Run:
        return self.start_build(*words, targets=targets, **options).end()

    def record(self, target: str, name: str = "net") -> dict[str, Any]:
        content = json.loads((self.folder / f"artifacts/{name}/v1/{name}_v1.json").read_bytes())
        (found,) = [record for record in content["engines"] if record["target"] == target]
        return dict(found)

    def whole(self, target: str) -> None:
        """The engine of ``target`` is all there, and nothing half-written lies in the project."""
        record = self.record(target)
        engine = self.folder / "artifacts/net/v1" / record["file"]
        assert engine.stat().st_size == record["size_bytes"]
        assert "sha256:" + hashlib.sha256(engine.read_bytes()).hexdigest() in (record["digest"], "sha256:" + record["digest"])
        assert not [name for name in self.files() if Path(name).name.startswith((".", "tmp")) and not name.endswith(".lock")]
        assert not [path for path in self.folder.rglob("*") if path.name in (".incoming", "work")]

    def files(self) -> set[str]:
        """All files under artifacts, without the locks that stay."""
        place = self.folder / "artifacts"
        return {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()} if place.exists() else set()


@pytest.fixture
def lane(tmp_path: Path, mirror: str) -> Lane:
    save_net(tmp_path / "net.onnx")
    return Lane(tmp_path, mirror)


@pytest.fixture(scope="session")
def save_model() -> Callable[..., Path]:
    return save_net


def save_net(path: Path, seconds: float = 0.0, asks: str = "") -> Path:
    """relu(conv(x)); the double's builder takes ``seconds`` over it, and does what ``asks`` says (double/tensorrt.py)."""
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32) * 0.1
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4), helper.make_node("Relu", ["c"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size, 8, 8]) for name, size in (("x", 3), ("y", 4))]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    if seconds or asks:
        model.doc_string = f"double: sleep {seconds}; {asks}"
    onnx.save(model, path)
    return path


@pytest.fixture(scope="session")
def farm_engines(engines: Callable[..., Any]) -> Callable[[str], Any]:
    """Engines by name, each started when first asked for, and again after a test cut its power."""
    started: dict[str, Any] = {}

    def engine(name: str) -> Any:
        if name not in started:
            started[name] = engines(name)
        elif started[name]._process is None:
            started[name].start()
        return started[name]

    return engine


# ---- a registry as a service in a container: pytest-docker's fixtures, for docker-compose 1.29 ----


@pytest.fixture(scope="session")
def docker_compose_command(farm_engines: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    if shutil.which("docker-compose") is None:
        pytest.skip("needs docker-compose")
    engine = farm_engines("service")
    content = images.registry_files()
    path = tmp_path_factory.mktemp("registry") / "registry.tar"
    sys.modules["enginefarm_docker_images"].write_image(path, None, content)
    client = engine.client()
    client.api.import_image_from_file(str(path), repository="enginefarm-test/registry", tag="1")
    client.close()
    return f"ENGINEFARM_TEST_PORT={registries.free_port()} docker-compose --host {engine.url}"


@pytest.fixture(scope="session")
def docker_setup() -> list[str]:
    return ["up -d"]  # version 1 answers pytest-docker's own `up --wait` with its help, and 0


@pytest.fixture(scope="session")
def docker_cleanup() -> list[str]:
    return ["down -v -t 1"]


@pytest.fixture(scope="session")
def docker_compose_file() -> str:
    return str(Path(__file__).with_name("compose.yml"))


@pytest.fixture(scope="session")
def team_registry(docker_services: Any, docker_compose_command: str) -> str:
    """HOST:PORT of the registry in a container."""
    port = int(docker_compose_command.partition("=")[2].partition(" ")[0])
    docker_services.wait_until_responsive(lambda: registries.answers(port), timeout=30, pause=0.1)
    return f"127.0.0.1:{port}"
