"""The ssh runner over a real server: what a step is given, what comes back, what stays."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from orchestrator import errors
from orchestrator.errors import EnginefarmError
from orchestrator.runners.base import Cancel, Step
from orchestrator.runners.ssh import SshRunner

pytestmark = pytest.mark.ssh
TREE = "sha256:" + "5e" * 32
SMALL = 64 << 10  # bytes that a step costs whose files are there: the questions and, on a new link, the remote end itself


def run(runner: SshRunner, step: Step, folder: Path) -> Any:
    return runner.run(step, folder, lambda _: None, Cancel())


def fail(runner: SshRunner, step: Step, folder: Path) -> EnginefarmError:
    with pytest.raises(EnginefarmError) as caught:
        run(runner, step, folder)
    return caught.value


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = x @ w with a w of 4 MB beside it."""
    folder = tmp_path_factory.mktemp("model")
    weights = numpy_helper.from_array(np.random.default_rng(0).random((1024, 1024), np.float32), "w")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 1024]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weights])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(proto, folder / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    return folder


@pytest.fixture
def build(model: Path) -> Step:
    options = {"provider": "cpu", "compute_capability": [], "precision": "fp32", "strongly_typed": False, "tf32": True, "workspace": None}
    options |= {"optimization_level": None, "hardware_compatibility": "none", "version_compatible": False, "plugins": [], "profiles": []}
    request = {"step": "build", "backend": "onnxruntime", "model": "model/model.onnx", "engine": "engine.onnx", "options": options}
    inputs = {f"model/{path.name}": path for path in model.iterdir()}
    return Step(request=request, inputs=inputs, shared_inputs={"model": TREE}, timeout_seconds=120.0)


def test_the_host_describes_itself(runner: SshRunner, there: Any) -> None:
    host = runner.host()

    assert host["schema"] == "enginefarm.host/1"
    assert host["python_executable"] == sys.executable
    assert host["remote"]["address"] == str(runner.to)
    assert host["remote"]["workdir"] == str(there.folder)
    assert host["remote"]["free_disk_bytes"] > 0
    assert runner.host() is host


@pytest.mark.interpreters
def test_other_pythons_are_the_remote_end(make_runner: Callable[..., SshRunner], other_python: str, play: Any, tmp_path: Path) -> None:
    runner = make_runner(python=other_python)
    host = runner.host()
    code = 'phase("at work"); open("engine.onnx", "w").write("e"); answer(executable=sys.executable)'
    done = run(runner, play(code), tmp_path / "step")

    assert (host["python_executable"], done.result["executable"]) == (other_python, other_python)
    assert runner.clean(inputs=True)["bytes"] > 0


def test_a_build_comes_back_whole_and_leaves_only_what_is_kept(runner: SshRunner, build: Step, there: Any, tmp_path: Path) -> None:
    events: list[Any] = []
    done = runner.run(build, tmp_path / "step", events.append, Cancel())

    assert done.result["ok"], done.result
    assert sorted(path.name for path in done.folder.iterdir()) == ["engine.onnx", "result.json", "worker.log"]
    assert (done.folder / "engine.onnx").stat().st_size == done.result["engine"]["size_bytes"]
    phases = [event["phase"] for event in events if event["event"] == "phase"]
    assert phases[0] == "sending"
    assert phases[-1] == "bringing back"
    assert there.is_clean()
    # the model, the worker, and the engine for its validation
    assert {TREE.removeprefix("sha256:"), done.result["engine"]["sha256"]} < there.kept()
    assert len(there.kept()) == 3


def test_what_is_there_is_not_sent_again(make_runner: Callable[..., SshRunner], build: Step, tmp_path: Path) -> None:
    first = make_runner()
    built = run(first, build, tmp_path / "0")
    first.close()
    assert first.sent_bytes > 4 << 20

    again = make_runner("another run")
    run(again, build, tmp_path / "1")
    engine = Step(request={"step": "build", "backend": "none"}, inputs={"engine.onnx": built.folder / "engine.onnx"})
    run(again, engine, tmp_path / "2")
    again.close()
    assert again.sent_bytes < SMALL


def test_a_kept_folder_that_was_damaged_is_sent_again(runner: SshRunner, build: Step, there: Any, tmp_path: Path) -> None:
    run(runner, build, tmp_path / "0")
    weights = there.folder / "trees" / TREE.removeprefix("sha256:") / "weights.bin"
    whole = weights.read_bytes()
    weights.chmod(0o644)
    weights.write_bytes(whole[:100])

    assert run(runner, build, tmp_path / "1").result["ok"]
    assert weights.read_bytes() == whole


def test_inputs_lie_in_the_step_and_are_read_only(runner: SshRunner, play: Any, tmp_path: Path) -> None:
    (tmp_path / "given").write_text("mine")
    code = """
modes = {name: oct(os.stat(name).st_mode & 0o777) for name in ("plugins/0.so", "model/a")}
assert open("model/a").read() == open("plugins/0.so").read() == "mine"
answer(seen=modes)
"""
    inputs = {"plugins/0.so": tmp_path / "given", "model/a": tmp_path / "given"}
    done = run(runner, play(code, inputs=inputs, shared_inputs={"model": "sha256:" + "00" * 32}), tmp_path / "step")

    assert set(done.result["seen"].values()) == {"0o444"}


def test_the_step_sees_a_clean_environment(runner: SshRunner, play: Any, tmp_path: Path) -> None:
    code = "answer(seen=dict(os.environ), cwd=os.getcwd(), session=os.getsid(0) == os.getpid(), args=sys.flags.isolated)"
    seen = run(runner, play(code), tmp_path / "step").result

    own = {"HOME", "TMPDIR", "LANG", "CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "ENGINEFARM_PARENT", "ENGINEFARM_STEP"}
    assert set(seen["seen"]) - {"LC_CTYPE", "LC_ALL", "LD_LIBRARY_PATH"} == own | {"PATH"}
    assert seen["seen"]["HOME"] == seen["cwd"] + "/home"
    assert seen["seen"]["CUDA_VISIBLE_DEVICES"] == ""
    assert seen["session"]
    assert seen["args"] == 1


def test_events_arrive_and_everything_else_is_in_the_log(runner: SshRunner, play: Any, tmp_path: Path) -> None:
    events: list[Any] = []
    code = 'print("banner"); phase("one"); print("to stderr", file=sys.stderr, flush=True); answer()'
    done = runner.run(play(code), tmp_path / "step", events.append, Cancel())

    assert {"event": "phase", "phase": "one"} in events
    assert sorted(done.log.read_text().split("\n")) == ["", "banner", "to stderr"]


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("sys.exit(7)", errors.STEP_CRASHED, "exit code 7"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", errors.STEP_CRASHED, "SIGSEGV"),
        ("print('std::bad_alloc', file=sys.stderr); os.abort()", errors.STEP_MEMORY, "out of memory"),
        ("pass", errors.STEP_CRASHED, "no usable result"),
        ("answer(step='validate')", errors.STEP_CRASHED, "not a result of this step"),
        ("answer(engine={'file': '../../../x', 'size_bytes': 1, 'sha256': ''})", errors.STEP_CRASHED, "no file of the step"),
        ("os.symlink('/etc/passwd', 'e'); answer(engine={'file': 'e', 'size_bytes': 1, 'sha256': ''})", errors.STEP_CRASHED, "usable"),
        ("os.symlink('/etc', 'd'); answer(engine={'file': 'd/passwd', 'size_bytes': 1, 'sha256': ''})", errors.STEP_CRASHED, "usable"),
        ("os.mkfifo('e'); answer(engine={'file': 'e', 'size_bytes': 1, 'sha256': ''})", errors.STEP_CRASHED, "usable"),
        ("open('e', 'w'); answer(engine={'file': 'e', 'size_bytes': 1, 'sha256': ''})", errors.SSH_LOST, "not the one that was built"),
        ("os.symlink('/etc/passwd', 'result.json')", errors.STEP_CRASHED, "no usable result"),
        ("open('result.json', 'w').truncate(65 << 20)", errors.SSH_LOST, "bring the results back"),
    ],
)
def test_a_worker_that_misbehaves(runner: SshRunner, play: Any, there: Any, tmp_path: Path, code: str, kind: Any, words: str) -> None:
    error = fail(runner, play(code), tmp_path / "step")

    assert error.kind is kind
    assert words in error.what
    assert there.is_clean()
    assert not {path.name for path in (tmp_path / "step").iterdir()} - {"worker.log"}


def test_a_time_limit_ends_the_worker_and_what_left_its_group(runner: SshRunner, play: Any, there: Any, tmp_path: Path) -> None:
    code = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "600"], start_new_session=True)
os.mkdir("closed"); open("closed/file", "w"); os.chmod("closed", 0)
time.sleep(600)
"""
    error = fail(runner, play(code, timeout_seconds=1.0), tmp_path / "step")

    assert error.kind is errors.STEP_TIMEOUT
    assert there.is_clean()


def test_files_of_any_size_take_the_same_memory(server: Any, runner: SshRunner, play: Any, tmp_path: Path) -> None:
    size = 192 << 20
    with (tmp_path / "large").open("wb") as file:
        file.truncate(size)
    code = """
import hashlib
os.link("large", "engine.plan")
answer(engine={"file": "engine.plan", "size_bytes": os.path.getsize("large"), "sha256": %r})
"""
    import hashlib

    digest = hashlib.sha256()
    for _ in range(size >> 20):
        digest.update(bytes(1 << 20))
    run(runner, play("answer()"), tmp_path / "first")
    (remote,) = [pid for pid in server.remote_ends() if "sshd" not in Path(f"/proc/{pid}/cmdline").read_text()]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, _peak(remote)
    run(runner, play(code % digest.hexdigest(), inputs={"large": tmp_path / "large"}), tmp_path / "step")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, _peak(remote)

    assert (tmp_path / "step" / "engine.plan").stat().st_size == size
    assert [then - now < 48 << 10 for now, then in zip(before, after, strict=True)] == [True, True], (before, after)


def _peak(pid: int) -> int:
    """KiB of memory that a process had at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def test_two_steps_at_once_share_what_is_sent(make_runner: Any, build: Step, start: Any, there: Any, tmp_path: Path) -> None:
    runner = make_runner(slots=2)
    jobs = [start(runner, build, tmp_path / str(number)) for number in range(2)]

    assert [job.end().error for job in jobs] == [None, None]
    assert all(job.result.result["ok"] for job in jobs)
    assert len(list((there.folder / "trees").glob("*[!k]"))) == 1


def test_clean_removes_what_no_step_uses_and_keeps_the_last_used(
    runner: SshRunner, make_runner: Any, build: Step, play: Any, start: Any, there: Any, tmp_path: Path
) -> None:
    run(runner, build, tmp_path / "0")
    tree = there.folder / "trees" / TREE.removeprefix("sha256:")
    for path in [*(there.folder / "blobs").iterdir(), tree]:
        os.utime(path, (1, 1))
    (tmp_path / "new").write_bytes(bytes(1000))
    run(runner, play("answer()", inputs={"new": tmp_path / "new"}), tmp_path / "1")
    dead = there.folder / "sessions" / "step-dead"
    dead.mkdir()
    (dead.parent / "step-dead.lock").touch()
    (there.folder / "strange").write_text("not ours")
    step = play('phase("at work"); time.sleep(600)', inputs=build.inputs, shared_inputs=build.shared_inputs)
    job = start(make_runner("busy"), step, tmp_path / "2")
    job.wait_for("at work")

    assert runner.clean()["inputs"] == []
    assert not dead.exists()
    done = runner.clean(inputs=True, keep_bytes=100_000)

    assert tree.exists()  # a step uses it
    assert (there.folder / "strange").exists()
    assert len(there.kept()) == 4  # the tree, two small scripts, the thousand bytes
    assert done["bytes"] > 4 << 20
    job.cancel.set()
    job.end()
    assert runner.clean(inputs=True)["steps"] == []
    assert there.kept() == set()


def test_the_command_lists_and_cleans(server: Any, runner: SshRunner, build: Step, there: Any, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from orchestrator.cli.main import make_app

    run(runner, build, tmp_path / "step")
    entry = {"type": "process", "ssh": str(runner.to), "python": sys.executable, "workdir": str(there.folder)}
    entry |= {"identity": str(server.folder / "user"), "known_hosts": str(server.folder / "known")}
    (tmp_path / "runners.yaml").write_text(json.dumps({"runners": {"lab": entry}}))
    where = ["--runners", str(tmp_path / "runners.yaml")]

    listed = CliRunner().invoke(make_app(), ["runners", *where])
    assert listed.exit_code == 0, listed.output
    assert f"over ssh      {runner.to}, " in listed.output
    cleaned = CliRunner().invoke(make_app(), ["runners", "clean", "--volumes", "--json", *where])
    (row,) = json.loads(cleaned.stdout)["runners"]
    assert row["removed"]["steps"] == []
    assert f"trees/{TREE.removeprefix('sha256:')}" in row["removed"]["inputs"]
    assert there.kept() == set()
