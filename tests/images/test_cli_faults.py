"""Each fault of a registry as a user sees it: the command's exit code, its code and its words; what is asked again, and what is not.

Once when a digest is looked up (``targets lock``), and once when an engine pulls what is locked (``images save``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.main import run
from orchestrator.images.faults import ATTEMPTS
from orchestrator.images.lock import Entry, Lock, lock_file, write_lock

from .conftest import Gate, RegistryServer, answer, free_port, hang_up

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("no_waiting")]
IMAGE = "nvcr.io/nvidia/tensorrt:23.09-py3"
REPOSITORY = "nvcr/nvidia/tensorrt"
ENV = {"TRT_VERSION": "8.6.1.6", "CUDA_VERSION": "12.2.1"}
SECRET = "hunter2-very-secret"


@dataclass
class Said:
    code: int
    text: str


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """The command as it is started, in this process, so that ``no_waiting`` holds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))

    def start(*words: str) -> Said:
        with pytest.raises(SystemExit) as ended:
            run(list(words))
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return Said(int(ended.value.code or 0), out + err)

    return start


def mirror(server: Gate | RegistryServer | str) -> str:
    return f"nvcr.io/={server if isinstance(server, str) else server.host}/nvcr/"


def body(code: str, message: str) -> bytes:
    return json.dumps({"errors": [{"code": code, "message": message}]}).encode()


REFUSALS = [
    # status, body, headers, code, exit, words, tried again
    (404, body("MANIFEST_UNKNOWN", "manifest unknown"), {}, "EF410", 2, "does not exist", False),
    (401, body("UNAUTHORIZED", "who are you"), {}, "EF412", 4, "docker login", False),
    (402, b"Payment Required", {}, "EF413", 4, "denies", False),
    (403, body("DENIED", "Access Denied"), {}, "EF413", 4, "denies", False),
    (429, body("TOOMANYREQUESTS", "slow down"), {}, "EF414", 4, "limits how often", True),
    (503, b"", {}, "EF418", 4, "try again", True),
]


@pytest.mark.parametrize(("status", "content", "headers", "code", "exit_code", "words", "again"), REFUSALS)
def test_what_a_registry_refuses_is_told_when_it_is_looked_up(
    call: Callable[..., Said], gate: Gate, status: int, content: bytes, headers: Any, code: str, exit_code: int, words: str, again: bool
) -> None:
    gate.faults = [answer(status, content, **headers)] * 99
    said = call("targets", "lock", "ampere-cu122", "--mirror", mirror(gate))
    assert (said.code, f"error[{code}]" in said.text) == (exit_code, True), said.text
    assert words in said.text
    assert "fix: " in said.text
    assert len(gate.seen) == (ATTEMPTS if again else 1)
    assert not lock_file(Path.cwd()).exists()


@pytest.fixture
def locked(call: Callable[..., Said], registry: RegistryServer, tmp_path: Path) -> Callable[..., Entry]:
    """``locked(...)`` puts an image into the registry and its digest into the lock; the engine has not got it."""

    def make(platform: str = "linux/amd64", digest: str | None = None, put: bool = True) -> Entry:
        files = {"own": os.urandom(60_000)}
        found = registry.put_image(REPOSITORY, "23.09-py3", platform=platform, env=ENV, files=files) if put else "sha256:" + "ab" * 32
        entry = Entry(IMAGE, "linux/amd64", digest or found, "sha256:" + "c" * 64, 1000, "2026-01-31T08:00:00Z")
        write_lock(lock_file(tmp_path), Lock({entry.key: entry}))
        return entry

    return make


@pytest.fixture
def save(call: Callable[..., Said], engine: Any, tmp_path: Path) -> Callable[..., Said]:
    """The engine pulls what is locked, through ``server``."""
    where = f"unix://{engine.api.get_adapter(engine.api.base_url).socket_path}"

    def run_it(server: Any) -> Said:
        before = {image.id for image in engine.images.list(all=True)}
        said = call("images", "save", "lab", "ampere-cu122", "--host", where, "--mirror", mirror(server))
        if said.code:
            assert not (tmp_path / "lab").exists()
            assert {image.id for image in engine.images.list(all=True)} == before
        return said

    return run_it


@pytest.mark.parametrize(("status", "content", "headers", "code", "exit_code", "words", "again"), REFUSALS)
def test_what_a_registry_refuses_is_told_when_an_engine_pulls(
    save: Callable[..., Said],
    locked: Callable[..., Entry],
    gate: Gate,
    status: int,
    content: bytes,
    headers: Any,
    code: str,
    exit_code: int,
    words: str,
    again: bool,
) -> None:
    entry = locked()
    gate.faults = [answer(status, content, **headers)] * 99
    said = save(gate)
    assert (said.code, f"error[{code}]" in said.text) == (exit_code, True), said.text
    assert words in said.text
    asked = [path for path in gate.asked if entry.digest in path]
    # an engine asks by HEAD and then by GET: twice at most for one try
    assert len(asked) >= ATTEMPTS if again else 1 <= len(asked) <= 2


def test_a_fault_that_passes_is_no_fault(save: Callable[..., Said], locked: Callable[..., Entry], gate: Gate) -> None:
    locked()
    gate.faults = [answer(503), hang_up, answer(429, body("TOOMANYREQUESTS", "slow down"))]
    said = save(gate)
    assert said.code == 0, said.text
    gate.faults, gate.seen[:] = [answer(503), hang_up], []
    lock_file(Path.cwd()).unlink()
    found = call_lock(gate)
    assert found.code == 0, found.text


def call_lock(gate: Gate) -> Said:
    with pytest.raises(SystemExit) as ended:
        run(["targets", "lock", "ampere-cu122", "--mirror", mirror(gate)])
    return Said(int(ended.value.code or 0), "")


def test_a_registry_that_is_gone_is_told(call: Callable[..., Said], save: Callable[..., Said], locked: Callable[..., Entry]) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    said = call("targets", "lock", "ampere-cu122", "--mirror", mirror(nowhere))
    assert (said.code, "error[EF415]" in said.text) == (4, True), said.text
    locked(put=False)
    said = save(nowhere)
    assert (said.code, "error[EF415]" in said.text) == (4, True), said.text


def test_a_digest_that_is_gone_is_told(save: Callable[..., Said], locked: Callable[..., Entry], gate: Gate) -> None:
    entry = locked(put=False)
    said = save(gate)
    assert (said.code, "error[EF410]" in said.text) == (2, True), said.text
    assert entry.digest in said.text
    assert "targets lock --upgrade" in said.text


def test_a_platform_that_is_not_there_is_told(
    call: Callable[..., Said], save: Callable[..., Said], locked: Callable[..., Entry], registry: RegistryServer, gate: Gate
) -> None:
    # a single manifest of another platform: an engine takes it without a word
    locked(platform="linux/arm64")
    said = save(gate)
    assert (said.code, "error[EF411]" in said.text, "linux/arm64" in said.text) == (2, True, True), said.text
    single = call("targets", "lock", "ampere-cu122", "--upgrade", "--mirror", mirror(gate))
    assert (single.code, "error[EF411]" in single.text, "published for linux/arm64" in single.text) == (2, True, True), single.text
    # a list that has none for this platform
    arm = registry.put_image(REPOSITORY, platform="linux/arm64", env=ENV)
    listed = registry.put_list(REPOSITORY, "23.09-py3", {"linux/arm64": arm})
    locked(digest=listed, put=False)
    said = save(gate)
    assert (said.code, "error[EF411]" in said.text, "its list of platforms" in said.text) == (2, True, True), said.text
    said = call("targets", "lock", "ampere-cu122", "--upgrade", "--mirror", mirror(gate))
    assert (said.code, "error[EF411]" in said.text, "published for linux/arm64" in said.text) == (2, True, True), said.text


@pytest.mark.parametrize("part", ["/manifests/", "/blobs/"])
def test_bytes_that_do_not_fit_their_digest_are_exit_6(
    call: Callable[..., Said], save: Callable[..., Said], locked: Callable[..., Entry], gate: Gate, part: str
) -> None:
    entry = locked()
    wanted = entry.digest if part == "/manifests/" else part
    large = 50_000 if part == "/blobs/" else 0
    gate.change = lambda path, data: data[:-1] + b"\n" + data[-1:] if wanted in path and len(data) > large else data
    said = save(gate)
    assert (said.code, "error[EF604]" in said.text) == (6, True), said.text
    assert "do not use this image" in said.text
    asked = [path for path in gate.asked if wanted in path]
    assert len(asked) <= 3  # a wrong answer is not asked for again by us


def test_a_mirror_must_have_the_digest_that_is_locked(
    save: Callable[..., Said], locked: Callable[..., Entry], registry: RegistryServer
) -> None:
    entry = locked()
    # the mirror's tag moved on, which does not matter; then it lost the image itself
    registry.put_image(REPOSITORY, "23.09-py3", env=ENV, files={"own": os.urandom(10)})
    said = save(registry)
    assert said.code == 0, said.text
    other = Entry(IMAGE, "linux/amd64", "sha256:" + "cd" * 32, entry.image_id, 1000, entry.locked_at)
    write_lock(lock_file(Path.cwd()), Lock({other.key: other}))
    (Path.cwd() / "lab").rename(Path.cwd() / "old")
    assert save(registry).code == 2


def test_a_full_disk_is_told(
    call: Callable[..., Said], locked: Callable[..., Entry], registry: RegistryServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    import subprocess

    from .conftest import start_engine, stop_engine

    folder = tmp_path_factory.mktemp("little")
    digest = registry.put_image(REPOSITORY, env=ENV, files={"own": os.urandom(60 << 20)})
    locked(digest=digest, put=False)
    (folder / "data").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "none", str(folder / "data")], check=True)
    try:
        client, process = start_engine(folder)
        try:
            said = call("images", "save", "lab", "ampere-cu122", "--host", f"unix://{folder}/sock", "--mirror", mirror(registry))
        finally:
            stop_engine(client, process)
    finally:
        subprocess.run(["umount", "--lazy", str(folder / "data")], check=True)
    assert (said.code, "error[EF400]" in said.text) == (4, True), said.text
    assert "enginefarm runners clean --images" in said.text


def test_upgrade_takes_a_glob_and_shows_versions(call: Callable[..., Said], registry: RegistryServer) -> None:
    turing = {"TRT_VERSION": "8.5.1.7", "CUDA_VERSION": "11.8.0"}
    registry.put_image(REPOSITORY, "23.09-py3", env=ENV)
    registry.put_image(REPOSITORY, "22.12-py3", env=turing)
    way = ("--mirror", mirror(registry))
    assert call("targets", "lock", "ampere-cu122", "turing-cu118", *way).code == 0
    before = lock_file(Path.cwd()).read_bytes()
    registry.put_image(REPOSITORY, "23.09-py3", env=ENV | {"TRT_VERSION": "8.6.1.9", "CUDA_VERSION": "12.2.2"})
    registry.put_image(REPOSITORY, "22.12-py3", env=turing | {"TRT_VERSION": "8.5.1.8"})
    assert call("targets", "lock", "ampere-cu122", "turing-cu118", *way).code == 0
    assert lock_file(Path.cwd()).read_bytes() == before  # what is locked stays locked
    said = call("targets", "lock", "--upgrade", "ampere*cu122", *way)
    assert said.code == 0, said.text
    assert "TensorRT 8.6.1.6 -> 8.6.1.9, CUDA 12.2.1 -> 12.2.2" in said.text
    assert "22.12" not in said.text
    stale = call("targets", "lock", "--check", "--upgrade", "turing-cu118", *way)
    assert (stale.code, "TensorRT 8.5.1.7 -> 8.5.1.8" in stale.text) == (5, True), stale.text


def test_a_contradiction_between_image_and_target_is_exit_2(call: Callable[..., Said], registry: RegistryServer) -> None:
    registry.put_image(REPOSITORY, "23.09-py3", env={"TRT_VERSION": "8.5.3.1", "CUDA_VERSION": "12.2.1"})
    said = call("targets", "lock", "ampere-cu122", "--mirror", mirror(registry))
    assert (said.code, "error[EF105]" in said.text, "holds TensorRT 8.5.3.1, not 8.6.1" in said.text) == (2, True, True), said.text


@pytest.mark.parametrize("words", [(), ("--debug",)])
def test_no_word_holds_a_secret(
    call: Callable[..., Said],
    locked: Callable[..., Entry],
    gate: Gate,
    engine: Any,
    tmp_path: Path,
    monkeypatch: Any,
    words: tuple[str, ...],
) -> None:
    import base64
    import sys
    import traceback

    # a registry that answers with what it was given, and a traceback of everything
    def echo(handler: Any) -> bool:
        given = handler.headers.get("Authorization", "none")
        plain = base64.b64decode(given.partition(" ")[2] or b"").decode()
        content = body("UNAUTHORIZED", f"you said {given} which is {plain}")
        return answer(401, content, WWW_Authenticate='Basic realm="lab"')(handler)

    helper = tmp_path / "docker-credential-lab"
    helper.write_text(f'#!/bin/sh\necho \'{{"Username": "builder", "Secret": "{SECRET}"}}\'\n')
    helper.chmod(0o755)
    (tmp_path / "config.json").write_text(json.dumps({"credHelpers": {gate.host: "lab"}}))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("NGC_API_KEY", "nvapi-" + SECRET)
    gate.faults, gate.only = [echo] * 99, "/v2/"
    shown: list[str] = []
    monkeypatch.setattr(traceback, "print_exception", lambda error: shown.append("".join(traceback.format_exception(error))))
    said = call(*words, "targets", "lock", "ampere-cu122", "--mirror", mirror(gate))
    assert (said.code, "error[EF412]" in said.text) == (4, True), said.text
    locked()
    where = f"unix://{engine.api.get_adapter(engine.api.base_url).socket_path}"
    gate.seen.clear()
    pulled = call(*words, "images", "save", "lab", "ampere-cu122", "--host", where, "--mirror", mirror(gate))
    assert (pulled.code, "error[EF412]" in pulled.text) == (4, True), pulled.text
    assert any(authorization.startswith("Basic ") for _, authorization in gate.seen)  # the login did reach the registry
    assert bool(shown) == bool(words)
    pair = base64.b64encode(f"builder:{SECRET}".encode()).decode()
    everything = said.text + pulled.text + "".join(shown)
    assert SECRET not in everything
    assert pair not in everything
    assert "nvapi" not in everything
    assert sys.stderr is not None
