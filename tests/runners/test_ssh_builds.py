"""Whole builds through ssh runners: the command as a user has it, over servers of the tests' own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from orchestrator.portable.remote.lease import lease_path
from orchestrator.runners import ssh_link

pytestmark = pytest.mark.ssh
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DEVICE_UUID = "GPU-test-of-a-device-that-is-none"


@dataclass
class Project:
    """A folder with a model and a runners.yaml."""

    folder: Path
    there: Any
    runners: dict[str, dict[str, Any]] = field(default_factory=dict)
    _runs: list[subprocess.Popen[str]] = field(default_factory=list)

    def runner(self, name: str, server: Any, **more: Any) -> None:
        to = server.to()
        entry = {"type": "process", "ssh": str(to), "python": to.python, "workdir": str(self.there.folder)}
        self.runners[name] = {**entry, "identity": str(to.identity), "known_hosts": str(to.known_hosts), **more}

    def start(self, model: str, *targets: str) -> subprocess.Popen[str]:
        (self.folder / "runners.yaml").write_text(json.dumps({"runners": self.runners}))
        chosen = [word for target in targets for word in ("--target", target)]
        words = ["build", model, *chosen, "--force", "--json", "--progress", "json", "--runners", "runners.yaml"]
        self._runs.append(
            subprocess.Popen(
                [sys.executable, "-m", "orchestrator", *words],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(EXAMPLES.parent)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return self._runs[-1]

    def build(self, model: str, *targets: str) -> Done:
        return finish(self.start(model, *targets), [])

    def record(self, name: str) -> dict[str, Any]:
        (found,) = json.loads((self.folder / f"artifacts/{name}/v1/{name}_v1.json").read_text())["engines"]
        return dict(found)

    def stop(self) -> None:
        for process in self._runs:
            process.kill()
            process.communicate()


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    said: str

    @property
    def started(self) -> list[tuple[str, str]]:
        """(step, runner) as they began."""
        events = [json.loads(line) for line in self.said.splitlines() if line.startswith("{")]
        return [(event["step"], event["runner"]) for event in events if event["event"] == "step-started"]


def wait_for(process: subprocess.Popen[str], text: str) -> list[str]:
    """What the command said until a line holds ``text``."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError("".join(lines))


def finish(process: subprocess.Popen[str], lines: list[str]) -> Done:
    out, said = process.communicate(timeout=240)
    assert "Traceback" not in said, said
    return Done(process.returncode, out, "".join(lines) + said)


@pytest.fixture
def project(tmp_path: Path, there: Any) -> Iterator[Project]:
    for name in ("lane.onnx", "lane.yaml"):
        shutil.copy(EXAMPLES / name, tmp_path / name)
    made = Project(tmp_path, there)
    yield made
    made.stop()
    there.wait_until_clean()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Bytes that this process sent to hosts since the last call."""
    links: list[ssh_link.Link] = []

    class Counted(ssh_link.Link):
        def __init__(self, *arguments: Any) -> None:
            links.append(self)
            super().__init__(*arguments)

    monkeypatch.setattr("orchestrator.runners.ssh.Link", Counted)

    def take() -> int:
        found = sum(link.sent_bytes for link in links)
        links.clear()
        return found

    return take


def test_a_build_goes_its_whole_way_and_the_second_sends_nothing(
    project: Project, server: Any, counted: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from typer.testing import CliRunner

    from orchestrator.cli.main import make_app

    project.runner("lab", server)
    monkeypatch.chdir(project.folder)
    (project.folder / "runners.yaml").write_text(json.dumps({"runners": project.runners}))
    words = ["build", "lane.onnx", "--target", "cpu", "--force", "--runners", "runners.yaml"]

    first = CliRunner().invoke(make_app(), words)
    assert first.exit_code == 0, first.output
    assert counted() > (project.folder / "lane.onnx").stat().st_size
    record = project.record("lane")
    assert record["verdict"]["status"] == "passed"
    assert (project.folder / "artifacts/lane/v1" / record["file"]).stat().st_size == record["size_bytes"]

    second = CliRunner().invoke(make_app(), words)
    assert second.exit_code == 0, second.output
    assert counted() < 100_000  # two connections and the questions; nothing of the model, the worker, the samples, the engine


@pytest.mark.rtx
def test_a_compiler_runs_there(project: Project, server: Any) -> None:
    project.runner("lab", server)
    done = project.build("lane.onnx", "rtx-ada")

    assert done.code == 3, done.said  # nothing here can run it: unvalidated
    record = project.record("lane")
    assert record["verdict"]["status"] == "unvalidated"
    assert (project.folder / "artifacts/lane/v1" / record["file"]).stat().st_size == record["size_bytes"]


def test_a_host_that_is_down_costs_its_steps_only(project: Project, server: Any) -> None:
    project.runner("down", server, ssh="nobody@127.0.0.1:1")
    project.runner("lab", server)
    done = project.build("lane.onnx", "cpu")

    assert done.code == 0, done.said
    assert ("build", "lab") in done.started


def test_only_a_host_that_is_down_says_what_is_wrong_with_it(project: Project, server: Any) -> None:
    project.runner("down", server, ssh="nobody@127.0.0.1:1")
    done = project.build("lane.onnx", "cpu")

    assert done.code == 3
    assert "nobody@127.0.0.1:1 does not answer" in done.out + done.said


# --- devices with a double of TensorRT in their Python, whose builder takes as long as a test wants ---


@pytest.fixture(scope="session")
def make_device(load_script: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """``make_device(python)``: an interpreter made of that one, which says it is a Jetson's with TensorRT 8.2."""

    def make(python: str) -> str:
        return str(load_script("tests/runners/ssh_device.py").make(tmp_path_factory.mktemp("device"), python))

    return make


@pytest.fixture(scope="session")
def device(make_device: Callable[[str], str]) -> str:
    return make_device(sys.executable)


def add_device(project: Project, name: str, server: Any, python: str) -> None:
    overrides = {
        "gpus": [{"name": "Xavier", "compute_capability": "7.2", "memory": "16 GiB", "uuid": DEVICE_UUID}],
        "jetson": {"l4t": "32.7.1", "jetpack": "4.6.1"},
    }
    project.runner(name, server, python=python, overrides=overrides)


@pytest.fixture(autouse=True, scope="module")
def lease_file() -> Iterator[None]:
    yield
    Path(lease_path(DEVICE_UUID)).unlink(missing_ok=True)


def save_net(folder: Path, seconds: float = 0.0) -> None:
    """y = relu(x); the double's builder takes ``seconds`` over it."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3, 8, 8]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "net", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    model.doc_string = f"double: sleep {seconds};"
    onnx.save(model, folder / "net.onnx")


def test_a_power_loss_in_a_build_ends_right_elsewhere(
    project: Project, server: Any, make_server: Callable[[], Any], device: str, there: Any
) -> None:
    save_net(project.folder, seconds=5.0)
    add_device(project, "first", server, device)
    add_device(project, "second", make_server(), device)
    process = project.start("net.onnx", "jetson-cu102")
    said = wait_for(process, '"building"')
    server.cut()
    done = finish(process, said)

    assert [runner for step, runner in done.started if step == "build"] == ["first", "second"]
    assert "the connection of runner first" in done.said
    assert done.code == 0, done.said
    record = project.record("net")
    assert record["verdict"]["status"] == "passed"
    found = {path.name for path in (project.folder / "artifacts/net/v1").iterdir() if not path.name.startswith(".")}
    assert found == {record["file"], "net_v1.json"}


def test_a_power_loss_on_the_only_host_is_tried_once_more_there(project: Project, server: Any, device: str) -> None:
    save_net(project.folder, seconds=3.0)
    add_device(project, "only", server, device)
    process = project.start("net.onnx", "jetson-cu102")
    said = wait_for(process, '"building"')
    server.cut()
    done = finish(process, said)

    assert done.code == 0, done.said
    assert [step for step, _ in done.started if step == "build"] == ["build", "build"]


def test_ctrl_c_leaves_nothing_on_the_other_side(project: Project, server: Any, there: Any, device: str) -> None:
    save_net(project.folder, seconds=600.0)
    add_device(project, "xavier", server, device)
    process = project.start("net.onnx", "jetson-cu102")
    said = wait_for(process, '"building"')
    assert there.workers()
    process.send_signal(signal.SIGINT)
    done = finish(process, said)

    assert done.code == 130, done.said
    assert there.is_clean()
    assert not list((project.folder / "artifacts").rglob("*.engine"))


def test_a_second_job_on_one_device_waits_for_the_first_to_end(
    tmp_path: Path, project: Project, server: Any, there: Any, device: str
) -> None:
    other = Project(tmp_path / "other", there)
    other.folder.mkdir()
    for each, seconds in ((project, 600.0), (other, 0.0)):
        save_net(each.folder, seconds)
        add_device(each, "xavier", server, device)
    first = project.start("net.onnx", "jetson-cu102")
    wait_for(first, '"building"')
    second = other.start("net.onnx", "jetson-cu102")
    waited = wait_for(second, "waiting for Xavier")
    first.send_signal(signal.SIGINT)
    done = finish(second, waited)

    assert f"held by process {first.pid} on " in waited[-1]
    assert done.code == 0, done.said
    assert other.record("net")["verdict"]["status"] == "passed"


# --- a Jetson without Docker, as far as that can be shown without one ---


@pytest.fixture(scope="session")
def device36(make_device: Callable[[str], str]) -> str:
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [os.environ.get("ENGINEFARM_PYTHON36"), shutil.which("python3.6"), *map(str, sorted(kept.glob("3.6.*/bin/python3")))]
    for python in filter(None, candidates):
        if subprocess.run([python, "-I", "-c", "import venv"], capture_output=True, check=False).returncode == 0:
            return make_device(python)
    pytest.skip("needs Python 3.6 (ENGINEFARM_PYTHON36)")


@pytest.mark.interpreters
def test_a_jetson_without_docker_goes_its_whole_way(project: Project, server: Any, there: Any, device36: str) -> None:
    save_net(project.folder)
    add_device(project, "xavier", server, device36)
    done = project.build("net.onnx", "jetson-cu102")

    assert done.code == 0, done.said
    record = project.record("net")
    assert record["verdict"]["status"] == "passed"
    assert record["verdict"]["reference"] == "onnx.reference"
    assert record["built_on"]["platform"] == "linux/arm64"
    assert record["built_on"]["python"].startswith("3.6.")
    assert record["built_on"]["jetson"]["jetpack"] == "4.6.1"
    assert record["built_on"]["declared"] == ["gpus", "jetson"]
    assert record["backend_version"] == "8.2.1.8"
    assert [step for step, runner in done.started if runner == "xavier"] == ["build", "validate"]
    assert there.is_clean()
