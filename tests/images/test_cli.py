"""``enginefarm images``, against a real engine and a real registry."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator import errors
from orchestrator.cli import images
from orchestrator.errors import EnginefarmError
from orchestrator.images.lock import Lock, lock_file, write_lock
from orchestrator.images.registry import Registry
from orchestrator.images.update import lock
from orchestrator.matrix.load import load_matrix

from .conftest import RegistryServer, mirrored, nobody

IMAGE = "nvcr.io/nvidia/tensorrt:23.09-py3"
Call = Callable[..., tuple[str, EnginefarmError | None]]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))

    def run(*arguments: str) -> tuple[str, EnginefarmError | None]:
        result = CliRunner().invoke(images.app, list(arguments))
        if isinstance(result.exception, EnginefarmError):
            return result.stdout, result.exception
        assert result.exit_code == 0, result.output
        return result.stdout, None

    return run


@pytest.fixture
def locked(call: Call, registry: RegistryServer, tmp_path: Path) -> str:
    """The project has ampere-cu122's image locked; its digest."""
    env = {"TRT_VERSION": "8.6.1.6", "CUDA_VERSION": "12.2.1"}
    digest = registry.put_image("nvcr/nvidia/tensorrt", "23.09-py3", env=env, files={"own": os.urandom(16)})
    chosen = load_matrix(tmp_path).select(["ampere-cu122"])
    write_lock(lock_file(tmp_path), lock(chosen, Lock(), Registry(mirrored(registry), nobody())))
    return digest


def host_of(engine: Any) -> str:
    path = engine.api.get_adapter(engine.api.base_url).socket_path
    return f"unix://{path}"


@pytest.mark.engine
def test_render_takes_the_locked_digest(call: Call, locked: str, tmp_path: Path) -> None:
    text, problem = call("render", "packages", "--base", IMAGE, "--package", "numpy==1.26.4", "--label", "team=lane")
    assert problem is None
    assert f"ARG BASE=nvcr.io/nvidia/tensorrt@{locked}\n" in text
    assert 'team="lane"' in text
    assert call("render", "packages", "--base", IMAGE, "--package", "numpy==1.26.4", "-o", "out")[1] is None
    assert (tmp_path / "out" / "requirements.txt").read_text() == "numpy==1.26.4\n"


@pytest.mark.engine
def test_an_image_that_is_not_locked_is_no_base(call: Call, locked: str) -> None:
    for arguments in (("--base", "nvcr.io/nvidia/tensorrt:22.12-py3"), ("--base", IMAGE, "--platform", "linux/arm64")):
        _, problem = call("render", "packages", *arguments, "--package", "a==1")
        assert problem is not None
        assert (problem.kind, problem.exit) == (errors.IMAGE_NOT_LOCKED, 5)
    _, problem = call("render", "packages", "--base", f"nvcr.io/nvidia/tensorrt@{locked}", "--package", "a==1")
    assert problem is None


@pytest.mark.engine
def test_build_pulls_the_base_through_the_mirror(call: Call, locked: str, engine: Any, registry: RegistryServer, tmp_path: Path) -> None:
    (tmp_path / "libmine.so").write_bytes(b"\x7fELF")
    common = ("--base", IMAGE, "--plugin", "libmine.so", "--host", host_of(engine), "--mirror", f"nvcr.io/={registry.host}/nvcr/")
    text, problem = call("build", "plugins", "--tag", "team.example/trt:plugins", *common)
    assert problem is None
    assert text.startswith("built team.example/trt:plugins (sha256:")
    assert engine.images.get("team.example/trt:plugins").attrs["Config"]["User"] == "1000:1000"
    _, problem = call("build", "plugins", "--tag", "Team/x", *common)
    assert problem is not None
    assert problem.kind is errors.IMAGE_REFERENCE


@pytest.mark.engine
def test_save_and_load(call: Call, locked: str, engine: Any, registry: RegistryServer) -> None:
    where = ("--host", host_of(engine))
    text, problem = call("save", "lab", "ampere-cu122", *where, "--mirror", f"nvcr.io/={registry.host}/nvcr/")
    assert problem is None
    assert text.startswith("1 image in lab")
    name = f"{registry.host}/nvcr/nvidia/tensorrt@{locked}"
    engine.images.remove(engine.images.get(name).id, force=True)
    _, problem = call("save", "again", "ampere-cu122", *where, "--offline")
    assert problem is not None
    assert problem.kind is errors.IMAGE_OFFLINE
    assert not Path("again").exists()
    assert call("load", "lab", *where) == ("1 image loaded\n", None)
    assert call("save", "again", "ampere-cu122", *where, "--offline")[1] is None


@pytest.mark.engine
def test_save_names_what_is_not_locked(call: Call, locked: str) -> None:
    _, problem = call("save", "lab", "turing-cu118", "--host", "unix:///nonexistent")
    assert problem is not None
    assert (problem.kind, problem.exit) == (errors.IMAGE_NOT_LOCKED, 5)
    _, problem = call("save", "lab", "cpu", "--host", "unix:///nonexistent")
    assert problem is not None
    assert problem.kind is errors.EMPTY_SELECTION
    _, problem = call("save", "lab", "ampere-cu122", "--host", "unix:///nonexistent")
    assert problem is not None
    assert problem.exit == 4
