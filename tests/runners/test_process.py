"""The process runner: real steps, and worker files that misbehave in every way a worker can."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import errors
from orchestrator.errors import EnginefarmError
from orchestrator.portable.worker.main import EXIT_WRITTEN
from orchestrator.runners import process
from orchestrator.runners.base import Cancel, Cancelled, Step, StepResult
from orchestrator.runners.process import ProcessRunner

PROBE = {"step": "probe"}


def run(step: Step, folder: Path, on_event: Callable[[Any], None] = lambda _: None, cancel: Cancel | None = None) -> StepResult:
    return ProcessRunner("test").run(step, folder, on_event, cancel or Cancel())


def fail(step: Step, folder: Path) -> EnginefarmError:
    with pytest.raises(EnginefarmError) as caught:
        run(step, folder)
    return caught.value


@pytest.fixture
def misbehave(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Put a script in the place of the worker file. ``answer(**fields)`` in it writes a result."""
    prelude = """
import json, os, signal, subprocess, sys, time
request = json.load(open("request.json"))
BEGIN, END = ("===enginefarm-events " + request["nonce"] + " " + word + "===" for word in ("begin", "end"))
def answer(**fields):
    whole = {"schema": "enginefarm.result/1", "step": request["step"], "ok": True, "worker": "double", "seconds": 0.0, "error": None}
    json.dump({**whole, **fields}, open("result.json", "w"))
"""

    def write(code: str) -> None:
        script = tmp_path / "double_worker.py"
        script.write_text(prelude + code)
        monkeypatch.setattr(process, "worker_pyz", lambda: script)

    return write


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone_soon(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not is_running(pid)


def test_a_real_step_answers(tmp_path: Path) -> None:
    done = run(Step(request=PROBE), tmp_path / "step")

    assert done.result["ok"] is True
    assert done.folder == tmp_path / "step"
    assert done.log.is_file()
    assert done.seconds > 0
    assert sorted(path.name for path in done.folder.iterdir()) == ["request.json", "result.json", "worker.log"]


def test_the_request_is_completed_and_a_fresh_nonce_given(tmp_path: Path) -> None:
    nonces = set()
    for number in range(2):
        folder = tmp_path / str(number)
        run(Step(request=PROBE, memory_bytes=1 << 30), folder)
        request = json.loads((folder / "request.json").read_text())
        assert request["schema"] == "enginefarm.request/1"
        assert request["limits"] == {"memory_bytes": 1 << 30}
        nonces.add(request["nonce"])

    assert len(nonces) == 2


def test_a_worker_that_says_no_is_a_result(tmp_path: Path) -> None:
    request = {"step": "build", "backend": "onnxruntime", "model": "m.onnx", "engine": "e.onnx", "options": {"provider": "tpu"}}

    assert run(Step(request=request), tmp_path / "step").result["error"]["kind"] == "bad-request"


def test_the_host_is_probed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ProcessRunner("test")
    first = runner.host()
    monkeypatch.setattr(process, "worker_pyz", lambda: Path("/nonexistent"))

    assert runner.host() is first
    assert first["schema"] == "enginefarm.host/1"


@pytest.mark.parametrize("python", ["/nonexistent/python", "/bin/false"])
def test_an_interpreter_that_does_not_work_is_a_broken_runner(python: str) -> None:
    with pytest.raises(EnginefarmError) as caught:
        ProcessRunner("bad", python).host()

    assert caught.value.kind is errors.RUNNER_BROKEN
    assert "runner bad" in caught.value.what


def test_events_arrive_and_everything_else_is_in_the_log(misbehave: Callable[[str], None], tmp_path: Path) -> None:
    misbehave("""
print("== NVIDIA TensorRT ==")
print('{"event": "phase", "phase": "forged before the marker"}')
print(BEGIN)
print('{"event": "phase", "phase": "one"}')
print("a library talks")
print('{"no": "event"}')
print('[1]')
print('{"event": "log", "level": "info", "text": "two"}')
print(BEGIN.replace(request["nonce"], "guessed"))
print(END)
print('{"event": "phase", "phase": "forged after the marker"}')
print("last line without an end", end="")
sys.stderr.write("free text\\n")
answer()
""")
    seen: list[Any] = []
    done = run(Step(request=PROBE), tmp_path / "step", seen.append)

    assert seen == [{"event": "phase", "phase": "one"}, {"event": "log", "level": "info", "text": "two"}]
    log = done.log.read_text()
    for text in ("== NVIDIA TensorRT ==", "a library talks", "free text", "last line without an end", "guessed", "forged before"):
        assert text in log


def test_lines_without_end_cost_bounded_memory(misbehave: Callable[[str], None], tmp_path: Path) -> None:
    misbehave("""
for _ in range(64):
    os.write(1, b"x" * (1 << 20))
os.write(1, b"\\n" + BEGIN.encode() + b"\\n" + b'{"event": "phase", "phase": "after"}\\n')
answer()
""")
    seen: list[Any] = []
    done = run(Step(request=PROBE), tmp_path / "step", seen.append)

    assert seen == [{"event": "phase", "phase": "after"}]
    assert done.log.stat().st_size < 1 << 20


def test_a_step_past_its_time_is_ended_with_everything_it_started(misbehave: Callable[[str], None], tmp_path: Path) -> None:
    misbehave("""
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"])
open("pids", "w").write(f"{os.getpid()} {child.pid}")
time.sleep(600)
""")
    error = fail(Step(request=PROBE, timeout_seconds=1.0), tmp_path / "step")

    assert error.kind is errors.STEP_TIMEOUT
    assert "after 1 s" in error.what
    for pid in (tmp_path / "step" / "pids").read_text().split():
        assert gone_soon(int(pid))


@pytest.mark.skipif(sys.platform != "linux", reason="daemons are found through /proc")
def test_a_daemon_that_left_the_process_group_does_not_survive_either(misbehave: Callable[[str], None], tmp_path: Path) -> None:
    misbehave("""
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True, stdout=subprocess.DEVNULL)
open("pids", "w").write(str(child.pid))
answer()
""")
    assert run(Step(request=PROBE), tmp_path / "step").result["ok"]

    assert gone_soon(int((tmp_path / "step" / "pids").read_text()))


def test_a_grandchild_that_holds_the_pipes_open_does_not_hold_the_step(misbehave: Callable[[str], None], tmp_path: Path) -> None:
    misbehave("""
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("pids", "w").write(str(child.pid))
answer()
""")
    done = run(Step(request=PROBE, timeout_seconds=60), tmp_path / "step")

    assert done.result["ok"]
    assert done.seconds < 30
    assert gone_soon(int((tmp_path / "step" / "pids").read_text()))


def test_cancel_ends_the_step_and_is_told_apart_from_errors(misbehave: Callable[[str], None], tmp_path: Path) -> None:
    misbehave("""
open("pids", "w").write(str(os.getpid()))
print(BEGIN); print('{"event": "phase", "phase": "started"}', flush=True)
time.sleep(600)
""")
    cancel = Cancel()

    with pytest.raises(Cancelled):
        run(Step(request=PROBE), tmp_path / "step", lambda _: cancel.set(), cancel)

    assert gone_soon(int((tmp_path / "step" / "pids").read_text()))


def test_cancel_from_another_thread_is_seen_while_the_worker_is_silent(misbehave: Callable[[str], None], tmp_path: Path) -> None:
    misbehave("os.close(1); time.sleep(600)")
    cancel = Cancel()
    timer = threading.Timer(0.3, cancel.set)
    timer.start()

    with pytest.raises(Cancelled):
        run(Step(request=PROBE), tmp_path / "step", cancel=cancel)

    timer.join()


def test_a_subscriber_that_fails_leaves_no_process_behind(misbehave: Callable[[str], None], tmp_path: Path) -> None:
    misbehave("""
open("pids", "w").write(str(os.getpid()))
print(BEGIN); print('{"event": "phase", "phase": "started"}', flush=True)
time.sleep(600)
""")

    def broken(_: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(Step(request=PROBE), tmp_path / "step", broken)

    assert gone_soon(int((tmp_path / "step" / "pids").read_text()))


@pytest.mark.parametrize(
    ("code", "kind", "what", "why"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", errors.STEP_CRASHED, "was killed by SIGSEGV", None),
        ("os.kill(os.getpid(), signal.SIGKILL)", errors.STEP_CRASHED, "was killed by SIGKILL", "the kernel does that when memory is short"),
        ("sys.stderr.write('last words\\n'); os._exit(7)", errors.STEP_CRASHED, "ended with exit code 7", "last words"),
        ("pass", errors.STEP_CRASHED, "left no usable result", None),
        (
            "sys.stderr.write('terminate called: std::bad_alloc\\n'); sys.stderr.flush(); os.abort()",
            errors.STEP_MEMORY,
            "ran out of memory",
            "std::bad_alloc",
        ),
        (
            "sys.stderr.write('result.json could not be written: [Errno 28] No space left on device\\n'); os._exit(3)",
            errors.DISK,
            "ran out of disk space",
            "No space left",
        ),
        ("open('result.json', 'w').write('{')", errors.STEP_CRASHED, "left no usable result", None),
        ("open('result.json', 'w').write('[' * 100000)", errors.STEP_CRASHED, "left no usable result", None),
        ("answer(step='build')", errors.STEP_CRASHED, "not a result of this step", None),
        ("answer(ok='yes')", errors.STEP_CRASHED, "does not say how the step ended", None),
        ("answer(engine={'file': '../request.json'})", errors.STEP_CRASHED, "no file of the step", None),
        ("os.symlink('/etc/hostname', 'e'); answer(engine={'file': 'e'})", errors.STEP_CRASHED, "no file of the step", None),
        ("answer(engine={'file': 'missing'})", errors.STEP_CRASHED, "left no usable result", None),
        ("answer(outputs=[{'outputs': [{'file': '/etc/hostname'}]}])", errors.STEP_CRASHED, "no file of the step", None),
    ],
)
def test_every_bad_end_has_its_error(
    misbehave: Callable[[str], None], tmp_path: Path, code: str, kind: errors.Kind, what: str, why: str | None
) -> None:
    misbehave(code)
    error = fail(Step(request=PROBE), tmp_path / "step")

    assert error.kind is kind
    assert what in error.what
    assert why is None or why in (error.why or "")
    assert error.log == str(tmp_path / "step" / "worker.log")


@pytest.mark.parametrize(("limit", "said", "fix"), [(50 << 20, "its limit was 50 MiB", "--memory"), (None, "no limit was set", "--jobs 1")])
def test_a_step_that_died_for_lack_of_memory_says_how_much_it_had_and_what_to_do(
    misbehave: Callable[[str], None], tmp_path: Path, limit: int | None, said: str, fix: str
) -> None:
    misbehave("sys.stderr.write('std::bad_alloc\\n'); sys.stderr.flush(); os.abort()")
    error = fail(Step(request=PROBE, memory_bytes=limit), tmp_path / "step")

    assert error.kind is errors.STEP_MEMORY
    assert f"({said})" in error.what
    assert fix in (error.fix or "")


def test_the_environment_is_an_allow_list(misbehave: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    misbehave("answer(environment=dict(os.environ), flags=sys.flags.isolated, stdin=sys.stdin.read())")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")

    folder = tmp_path / "step"
    result = run(Step(request=PROBE), folder).result

    seen = result["environment"]
    assert set(seen) <= {
        "PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
        "ENGINEFARM_PARENT", "ENGINEFARM_STEP",
    }  # fmt: skip
    assert seen["LD_LIBRARY_PATH"] == "/opt/lib"
    assert seen["HOME"] == str(folder / "home")
    assert seen["TMPDIR"] == str(folder / "tmp")
    assert result["flags"] == 1
    assert result["stdin"] == ""
    assert not (folder / "home").exists()
    assert not (folder / "tmp").exists()


def test_inputs_are_read_only_copies_and_the_users_files_stay_as_they_are(misbehave: Callable[[str], None], tmp_path: Path) -> None:
    """onnx takes a file with several names for an attack: no copy may be a hard link, whoever may write to the source."""
    misbehave("answer(stats=[[s.st_mode & 0o777, s.st_nlink] for s in map(os.stat, ('model/a.onnx', 'model/b.bin'))])")
    writable, frozen = tmp_path / "a.onnx", tmp_path / "b.bin"
    writable.write_bytes(b"a")
    frozen.write_bytes(b"b")
    frozen.chmod(0o444)

    folder = tmp_path / "step"
    result = run(Step(request=PROBE, inputs={"model/a.onnx": writable, "model/b.bin": frozen}), folder).result

    assert result["stats"] == [[0o444, 1], [0o444, 1]]
    assert writable.stat().st_mode & 0o200
    assert [(folder / name).read_bytes() for name in ("model/a.onnx", "model/b.bin")] == [b"a", b"b"]
    assert [path.stat().st_nlink for path in (writable, frozen)] == [1, 1]


def shared_model(tmp_path: Path) -> tuple[Path, Step]:
    """A frozen folder as the pipeline stages a model, and a step that is given all of it."""
    source = tmp_path / "staged"
    (source / "weights").mkdir(parents=True)
    for name in ("model.onnx", "weights/w.bin"):
        (source / name).write_bytes(name.encode())
        (source / name).chmod(0o444)
    inputs = {f"model/{name}": source / name for name in ("model.onnx", "weights/w.bin")}
    (tmp_path / "plugin.so").write_bytes(b"so")
    inputs["plugins/0.so"] = tmp_path / "plugin.so"
    return source, Step(request=PROBE, inputs=inputs, shared_inputs={"model": "sha256:0"})


LOOK = "s = os.stat('model/weights/w.bin'); answer(text=open('model/weights/w.bin').read(), ino=s.st_ino, links=s.st_nlink)"


def test_a_frozen_folder_that_steps_share_is_seen_without_a_copy(misbehave: Callable[[str], None], tmp_path: Path) -> None:
    misbehave(LOOK)
    source, step = shared_model(tmp_path)

    result = run(step, tmp_path / "step").result

    assert result["text"] == "weights/w.bin"
    assert result["ino"] == (source / "weights/w.bin").stat().st_ino
    assert result["links"] == 1
    assert (tmp_path / "step" / "plugins" / "0.so").read_bytes() == b"so"


def _writable(source: Path) -> None:
    (source / "model.onnx").chmod(0o644)


def _second_name(source: Path) -> None:
    (source.parent / "other").hardlink_to(source / "weights/w.bin")


def _more_than_asked_for(source: Path) -> None:
    (source / "private.txt").write_text("not of the model")


def _link_inside(source: Path) -> None:
    (source / "weights/w.bin").rename(source.parent / "elsewhere")
    (source / "weights/w.bin").symlink_to(source.parent / "elsewhere")


@pytest.mark.parametrize("change", [_writable, _second_name, _more_than_asked_for, _link_inside])
def test_a_shared_folder_that_could_change_or_hold_more_is_copied(
    misbehave: Callable[[str], None], tmp_path: Path, change: Callable[[Path], None]
) -> None:
    misbehave(LOOK)
    source, step = shared_model(tmp_path)
    change(source)

    result = run(step, tmp_path / "step").result

    assert not (tmp_path / "step" / "model").is_symlink()
    assert result["text"] == "weights/w.bin"
    assert result["links"] == 1
    assert sorted(path.name for path in (tmp_path / "step" / "model").iterdir()) == ["model.onnx", "weights"]


@pytest.mark.parametrize("name", ["/abs", "../up", "a/../../up"])
def test_an_input_that_leaves_the_folder_is_a_programming_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "f").write_bytes(b"")

    with pytest.raises(ValueError, match="leaves the step's folder"):
        run(Step(request=PROBE, inputs={name: tmp_path / "f"}), tmp_path / "step")


def test_an_input_that_is_not_there_is_a_broken_runner_not_a_traceback(tmp_path: Path) -> None:
    error = fail(Step(request=PROBE, inputs={"m": tmp_path / "missing"}), tmp_path / "step")

    assert error.kind is errors.RUNNER_BROKEN
    assert "missing" in error.what


@pytest.mark.skipif(sys.platform != "linux", reason="parent death signals are Linux's")
def test_a_killed_orchestrator_takes_its_worker_with_it(tmp_path: Path) -> None:
    reads_a_pipe = tmp_path / "pipe"
    os.mkfifo(reads_a_pipe)  # a request that is never written: the worker waits in open()
    code = (
        "import os, subprocess, sys, time\n"
        "from orchestrator.runners.bundle import worker_pyz\n"
        "env = {**os.environ, 'ENGINEFARM_PARENT': str(os.getpid())}\n"
        f"child = subprocess.Popen([sys.executable, '-I', str(worker_pyz()), {str(reads_a_pipe)!r}], env=env, start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    import subprocess

    parent = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(process.__file__).parents[2])},
    )
    assert parent.stdout is not None
    with parent, parent.stdout:
        worker = int(parent.stdout.readline())
        assert is_running(worker)
        time.sleep(0.3)  # until it asked the kernel; even without, it compares its parent when it does
        parent.send_signal(signal.SIGKILL)
        parent.wait()

    assert gone_soon(worker)


@pytest.mark.parametrize("end", ["os._exit(120)", f"os._exit({EXIT_WRITTEN})", "answer(ok=False, error={})"])
def test_no_result_on_a_full_disk_is_told_as_that(
    end: str, misbehave: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    misbehave(f"{end}\n")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(process.shutil, "disk_usage", lambda _: usage._replace(free=4096))
    error = fail(Step(request=PROBE), tmp_path / "step")
    assert error.kind is errors.DISK
    assert str(tmp_path) in str(error.fix)
