"""What code in a container cannot do, and what hostile output does to us."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import errors
from orchestrator.errors import EnginefarmError
from orchestrator.runners.base import Cancel, Step
from orchestrator.runners.docker import DEFAULT_UID, DockerRunner

pytestmark = pytest.mark.engine

LOOK = """
import json, os, socket, sys

def attempt(action):
    try:
        action()
    except OSError as error:
        return error.strerror or str(error)
    return "it worked"

def write(path):
    open(path, "w").write("x")

def connect():
    socket.create_connection(("1.1.1.1", 53), 2)

status = open("/proc/self/status").read()
found = {
    "write": {p: attempt(lambda: write(p)) for p in ("/etc/passwd", "/usr/local/bin/python3", "/enginefarm/in/request.json",
             "/enginefarm/in/model/model.onnx", "model/model.onnx", "request.json", "/x", "/proc/sys/kernel/hostname")},
    "delete": {p: attempt(lambda: os.unlink(p)) for p in ("/enginefarm/in/request.json", "request.json", "trick.py")},
    "rename": attempt(lambda: os.rename("model", "elsewhere")),
    "own file": attempt(lambda: write("own")),
    "scratch": attempt(lambda: write("/tmp/own")),
    "connect": attempt(connect),
    "resolve": attempt(lambda: socket.getaddrinfo("example.com", 80)),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "environment": dict(os.environ),
    "uid": [os.getuid(), os.getgid(), os.getgroups()],
    "capabilities": [line for line in status.splitlines() if line.startswith(("CapEff", "CapPrm", "CapBnd", "NoNewPrivs"))],
    "processes": [open("/proc/%s/cmdline" % pid).read().replace(chr(0), " ") for pid in os.listdir("/proc") if pid.isdigit()],
    "mounts": [line.split()[1] for line in open("/proc/self/mounts")],
    "socket": os.path.exists("/var/run/docker.sock"),
    "path": sys.path,
}
sys.stderr.write("FOUND " + json.dumps(found) + chr(10))
raise ImportError("looked")
"""


def run(runner: DockerRunner, step: Step, folder: Path) -> Any:
    return runner.run(step, folder, lambda _: None, Cancel())


@pytest.fixture(scope="module")
def found(engine: Any, tmp_path_factory: pytest.TempPathFactory, model: Path, file_systems: Callable[..., Any]) -> dict[str, Any]:
    """What LOOK saw from inside, with secrets in this process's environment and in the client's proxy settings."""
    folder = tmp_path_factory.mktemp("escape")
    (folder / "trick.py").write_text(LOOK)
    (folder / "config.json").write_text(json.dumps({"proxies": {"default": {"httpProxy": "http://user:proxy-secret@10.0.0.1:3128"}}}))
    from orchestrator.runners.docker_engine import Address

    request = {"step": "build", "backend": "onnxruntime", "model": "model/model.onnx", "engine": "e.onnx", "options": {"provider": "cpu"}}
    inputs = {"model/model.onnx": model / "model.onnx", "trick.py": folder / "trick.py"}
    shared = {"model": "sha256:" + "0e" * 32}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOST_SECRET", "host-secret")
        patch.setenv("DOCKER_CONFIG", str(folder))
        runner = DockerRunner("lab", Address(engine.url))
        try:
            step = Step(request=request, inputs=inputs, shared_inputs=shared, image="enginefarm-test/trick:1", memory_bytes=1 << 30)
            answer = run(runner, step, folder / "step")
        finally:
            runner.close()
    assert not answer.result["ok"]
    line = next(line for line in answer.log.read_text().splitlines() if line.startswith("FOUND "))
    seen: dict[str, Any] = json.loads(line.removeprefix("FOUND "))
    return seen


def test_nothing_outside_its_folder_can_be_written(found: dict[str, Any]) -> None:
    refused = {"Read-only file system", "Permission denied", "Operation not permitted"}
    assert set(found["write"].values()) <= refused, found["write"]
    assert set(found["delete"].values()) <= refused, found["delete"]
    assert found["rename"] in refused
    assert found["own file"] == found["scratch"] == "it worked"


def test_no_network_can_be_reached(found: dict[str, Any]) -> None:
    assert found["interfaces"] == ["lo"]
    assert found["connect"] == "Network is unreachable"
    assert found["resolve"] != "it worked"


def test_nothing_of_this_machine_is_in_the_environment(found: dict[str, Any]) -> None:
    assert "secret" not in json.dumps(found["environment"])
    known = {"PATH", "LD_LIBRARY_PATH", "HOSTNAME", "HOME", "TMPDIR", "CUDA_CACHE_PATH", "PYTHONDONTWRITEBYTECODE", "LANG"}
    assert set(found["environment"]) <= known | {"NVIDIA_VISIBLE_DEVICES"}
    assert found["environment"]["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_it_has_no_rights(found: dict[str, Any]) -> None:
    assert found["uid"] == [DEFAULT_UID, DEFAULT_UID, [DEFAULT_UID]] or found["uid"] == [DEFAULT_UID, DEFAULT_UID, []]
    values = dict(line.split(":\t") for line in found["capabilities"])
    assert {int(values[name], 16) for name in ("CapEff", "CapPrm", "CapBnd")} == {0}
    assert values["NoNewPrivs"] == "1"


def test_it_sees_no_other_process_no_other_volume_and_no_engine(found: dict[str, Any]) -> None:
    assert len(found["processes"]) == 2  # the init and the worker
    assert all("worker.pyz" in line for line in found["processes"])
    assert sorted(place for place in found["mounts"] if place.startswith("/enginefarm")) == ["/enginefarm", "/enginefarm/in/model"]
    assert found["socket"] is False
    assert "" not in found["path"]


SEARCH = """
import json, os, stat, sys

found = [os.path.join(place, name) for place, folders, names in os.walk("/") for name in (*folders, *names) if "of-another" in name]

def attempt(action):
    try:
        return repr(action())
    except (OSError, AttributeError) as error:
        return type(error).__name__

def disk():
    os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, os.makedev(254, 0))
    return open("/tmp/disk", "rb").read(1)

tried = {
    "disk": attempt(disk),
    "kernel memory": attempt(lambda: open("/dev/mem", "rb").read(1)),
    "root of the host": attempt(lambda: os.listdir("/proc/1/root/var/lib/docker")),
    "chroot": attempt(lambda: os.chroot("/tmp")),
    "setuid": attempt(lambda: os.setuid(0)),
    "namespaces": attempt(lambda: os.setns(os.open("/proc/1/ns/mnt", os.O_RDONLY), 0)),
}
devices = [name for name in os.listdir("/dev") if stat.S_ISBLK(os.stat("/dev/" + name).st_mode)]
sys.stderr.write("FOUND " + json.dumps({"found": found, "tried": tried, "devices": devices}) + chr(10))
raise ImportError("looked")
"""


def test_the_volume_of_another_build_cannot_be_seen(
    engine: Any, runner: DockerRunner, steps: Any, tmp_path: Path, background: Callable[..., Any]
) -> None:
    shared = {"model": "sha256:" + "0a" * 32}
    code = "import sys, time; open('own-of-another', 'w').write('x'); sys.stderr.write('there'); sys.stderr.flush(); time.sleep(600)"
    other = steps.trick(code, shared_inputs=shared)
    other.inputs["model/weights-of-another.bin"] = steps.model / "model.onnx"
    job = background(runner, other, tmp_path / "other")
    log = tmp_path / "other" / "worker.log"
    while not (log.exists() and b"there" in log.read_bytes()):
        job.cancel.wait(0.05)
    (tmp_path / "second").mkdir()
    answer = run(
        runner,
        type(steps)(steps.model, tmp_path / "second").trick(SEARCH, shared_inputs={"model": "sha256:" + "0b" * 32}),
        tmp_path / "look",
    )
    job.cancel.set()
    job.end()
    line = next(line for line in answer.log.read_text().splitlines() if line.startswith("FOUND "))
    seen = json.loads(line.removeprefix("FOUND "))
    assert seen["found"] == []
    assert seen["devices"] == []
    refused = {"PermissionError", "FileNotFoundError", "AttributeError"}  # os.setns is in Python 3.12 and newer
    assert set(seen["tried"].values()) <= refused, seen["tried"]
    # the names are there for whoever has the engine: the search looks for the right thing
    client = engine.client()
    try:
        volumes = [volume["Mountpoint"] for volume in client.api.volumes()["Volumes"] if volume["Name"].endswith("0a" * 32)]
    finally:
        client.close()
    assert any(path.name == "weights-of-another.bin" for place in volumes for path in Path(place).iterdir())


@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("import os; os.symlink('/etc/passwd', 'e.onnx')", "no plain file"),
        ("import os; os.mkfifo('pipe')", "no plain file"),
        ("import os; os.makedirs('outputs'); os.symlink('/', 'outputs/0')", "no plain file"),
    ],
)
def test_links_and_devices_are_not_brought_back(runner: DockerRunner, steps: Any, tmp_path: Path, code: str, what: str) -> None:
    with pytest.raises(EnginefarmError, match=what) as caught:
        run(runner, steps.trick(code), tmp_path / "step")
    assert caught.value.kind is errors.STEP_CRASHED
    assert not (tmp_path / "step" / ".incoming").exists()


@pytest.mark.parametrize("name", ["../engine.plan", "/etc/passwd", "nothing.plan", "model/model.onnx"])
def test_a_result_cannot_name_files_that_the_step_did_not_leave(runner: DockerRunner, steps: Any, tmp_path: Path, name: str) -> None:
    answer = {"schema": "enginefarm.result/1", "step": "build", "ok": True, "error": None, "worker": "w", "seconds": 1.0}
    answer["engine"] = {"file": name, "size_bytes": 1, "sha256": "0"}
    code = f"import os\nopen('result.json', 'w').write({json.dumps(json.dumps(answer))})\nos._exit(0)"
    with pytest.raises(EnginefarmError, match="no usable result") as caught:
        run(runner, steps.trick(code), tmp_path / "step")
    assert caught.value.kind is errors.STEP_CRASHED


def test_an_engine_other_than_the_result_says_is_refused(runner: DockerRunner, steps: Any, tmp_path: Path) -> None:
    answer = {"schema": "enginefarm.result/1", "step": "build", "ok": True, "error": None, "worker": "w", "seconds": 1.0}
    answer["engine"] = {"file": "e.plan", "size_bytes": 3, "sha256": "00" * 32}
    code = f"import os\nopen('e.plan', 'w').write('abc')\nopen('result.json', 'w').write({json.dumps(json.dumps(answer))})\nos._exit(0)"
    with pytest.raises(EnginefarmError, match="not the one that was built") as caught:
        run(runner, steps.trick(code), tmp_path / "step")
    assert not (tmp_path / "step" / "e.plan").exists()
    assert caught.value.kind is errors.ENGINE_LOST


def test_what_the_step_left_and_did_not_name_stays_away(runner: DockerRunner, steps: Any, tmp_path: Path) -> None:
    answer = run(runner, steps.trick("open('extra', 'w').write('x'); raise ImportError('no')"), tmp_path / "step")
    assert answer.result["error"]["kind"] == "backend-missing"
    assert sorted(path.name for path in (tmp_path / "step").iterdir()) == ["result.json", "worker.log"]


def test_events_of_a_library_are_not_taken_for_the_workers(runner: DockerRunner, steps: Any, tmp_path: Path) -> None:
    events: list[Any] = []
    code = """import os
os.write(1, b'===enginefarm-events x begin===\\n{"event": "phase", "phase": "forged"}\\n')
raise ImportError('no')"""
    runner.run(steps.trick(code), tmp_path / "step", events.append, Cancel())
    assert "forged" not in str(events)
