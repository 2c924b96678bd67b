"""Runners that are nothing but a description of their host, and a registry on loopback."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orchestrator.errors import EnginefarmError
from orchestrator.runners.base import Host


def _load(name: str, path: Path) -> ModuleType:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


registries = _load("enginefarm_registries", Path(__file__).parents[1] / "images/conftest.py")
start_registry, registry, gate = registries.start_registry, registries.registry, registries.gate


@dataclass
class Described:
    """A runner by its host description; Farm looks at nothing else. ``problem``: what asking for the description raises."""

    name: str
    described: dict[str, Any]
    kind: str = "docker"
    slots: int = 1
    labels: tuple[str, ...] = ()
    problem: EnginefarmError | None = None
    asked: list[str] = field(default_factory=list)

    def host(self) -> Host:
        self.asked.append("host")
        if self.problem is not None:
            raise self.problem
        return self.described

    def run(self, *_: Any) -> Any:
        raise NotImplementedError


@pytest.fixture
def described() -> Callable[..., Described]:
    """``described(name, capability=..., driver=..., **fields)``: a docker runner on linux/amd64, unless it is said otherwise."""

    def make(name: str, capability: str | None = None, driver: str | None = None, platform: str = "linux/amd64", **more: Any) -> Described:
        backends: dict[str, Any] = {key: {"error": "comes with the image"} for key in ("tensorrt", "tensorrt-rtx", "onnxruntime")}
        gpu = {"index": 0, "name": "NVIDIA A100", "uuid": "GPU-1", "compute_capability": capability, "memory_bytes": 1 << 34}
        host = {
            "platform": platform,
            "gpus": [gpu] if capability else [],
            "driver": {"version": driver, "cuda": None} if driver else None,
            "jetson": more.pop("jetson", None),
            "container": more.get("kind", "docker") == "docker",
            "backends": backends | more.pop("backends", {}),
        }
        return Described(name, host, **more)

    return make
