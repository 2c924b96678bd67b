"""The ssh runner when something breaks: no way in, no Python, a full disk, a line that breaks or falls silent, a GPU that is taken."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import errors
from orchestrator.errors import EnginefarmError, Exit
from orchestrator.portable.remote.lease import lease_path
from orchestrator.runners import ssh_link
from orchestrator.runners.base import Cancel, Cancelled, Step
from orchestrator.runners.ssh import SshRunner

pytestmark = pytest.mark.ssh
AT_WORK = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "600"], start_new_session=True)
phase("at work")
time.sleep(600)
"""


def refusal(runner: SshRunner) -> EnginefarmError:
    with pytest.raises(EnginefarmError) as caught:
        runner.host()
    assert caught.value.exit is Exit.INFRASTRUCTURE
    assert caught.value.fix
    return caught.value


def run(runner: SshRunner, step: Step, folder: Path) -> Any:
    return runner.run(step, folder, lambda _: None, Cancel())


# --- no way in ---


def test_a_host_key_that_is_not_known_is_refused_and_not_noted(make_runner: Any, tmp_path: Path) -> None:
    (tmp_path / "known").touch()
    error = refusal(make_runner(known_hosts=tmp_path / "known"))

    assert error.kind is errors.SSH_HOST_KEY
    assert "is not known here" in error.what
    assert (tmp_path / "known").read_text() == ""


def test_a_host_key_that_changed_is_said_so(make_runner: Any, server: Any) -> None:
    server.known("other")
    try:
        error = refusal(make_runner())
    finally:
        server.known("host")

    assert error.kind is errors.SSH_HOST_KEY
    assert "is not the one in known_hosts" in error.what
    assert f"ssh-keygen -R '[127.0.0.1]:{server.port}'" in (error.fix or "")


def test_a_key_that_is_not_let_in(make_runner: Any, server: Any) -> None:
    error = refusal(make_runner(identity=server.folder / "other"))

    assert error.kind is errors.SSH_LOGIN
    assert "Permission denied" in (error.why or "")


def test_a_port_where_nobody_listens(make_runner: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        error = refusal(make_runner(port=free.getsockname()[1]))

    assert error.kind is errors.SSH_UNREACHABLE
    assert "Connection refused" in (error.why or "")


def test_a_host_that_does_not_answer_is_not_asked_again_for_every_target(make_runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = make_runner(identity=Path("/nowhere"))
    first = refusal(runner)
    monkeypatch.setattr(ssh_link, "command_of", None)

    assert refusal(runner).what == first.what


def test_a_server_that_has_no_place_is_asked_again(make_runner: Any, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        ports = [busy.getsockname()[1], server.port]
        real = ssh_link.command_of

        def command(to: Any) -> list[str]:
            words = real(to)
            words[words.index("-p") + 1] = str(ports.pop(0) if len(ports) > 1 else ports[0])
            return words

        monkeypatch.setattr(ssh_link, "command_of", command)
        monkeypatch.setattr("orchestrator.runners.ssh._TRY_AGAIN_SECONDS", 0.01)
        process = subprocess.Popen(
            [sys.executable, "-c", "import socket; socket.socket(fileno=0).accept()[0].close()"], stdin=busy.fileno()
        )
        known = server.folder / "known"
        text = known.read_text()
        known.write_text(text + text.replace(str(server.port), str(ports[0])))
        try:
            assert make_runner().host()["schema"] == "enginefarm.host/1"
        finally:
            known.write_text(text)
            process.wait()
    assert len(ports) == 1


# --- no Python, no folder, no space ---


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_no_python_there(make_runner: Any) -> None:
    error = refusal(make_runner(python="/nowhere/python3"))

    assert error.kind is errors.SSH_PYTHON
    assert "has no /nowhere/python3" in error.what


def test_a_python_that_is_too_old(make_runner: Any, tmp_path: Path) -> None:
    old = script(tmp_path / "python2", f"exec {sys.executable} -c 'import sys; sys.version_info = (2, 7, 18); exec(sys.argv[1])' \"$3\"")
    error = refusal(make_runner(python=old))

    assert error.kind is errors.SSH_PYTHON
    assert error.what.endswith("is too old")
    assert "this is 2.7" in (error.why or "")


def test_a_program_that_is_no_python(make_runner: Any) -> None:
    error = refusal(make_runner(python="/bin/false"))

    assert error.kind is errors.SSH_PYTHON
    assert "exit code 1" in error.what


def test_what_a_login_prints_does_not_matter(make_runner: Any, tmp_path: Path) -> None:
    chatty = script(tmp_path / "python", f'echo Welcome; echo enginefarm-remote/; echo warning >&2; exec {sys.executable} "$@"')

    assert make_runner(python=chatty).host()["schema"] == "enginefarm.host/1"


def test_a_folder_that_cannot_be_had(make_runner: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = refusal(make_runner(workdir=str(tmp_path / "file" / "below")))

    assert error.kind is errors.RUNNER_BROKEN
    assert "cannot use its folder" in error.what
    assert "workdir" in (error.fix or "")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_is_seen_before_anything_is_sent(make_runner: Any, small_disk: Path, play: Any, tmp_path: Path) -> None:
    runner = make_runner(workdir=str(small_disk))
    (tmp_path / "large").write_bytes(bytes(5 << 20))
    with pytest.raises(EnginefarmError) as caught:
        run(runner, play("answer()", inputs={"large": tmp_path / "large"}), tmp_path / "step")
    runner.close()

    assert caught.value.kind is errors.DISK
    assert "enginefarm runners clean lab --volumes" in (caught.value.fix or "")
    assert runner.sent_bytes < 1 << 20
    assert run(runner, play("answer()"), tmp_path / "again").result["ok"]


@pytest.mark.parametrize("end", ["raise OSError('No space left on device')", "answer(ok=False, error={'kind': 'x', 'message': 'eh'})"])
def test_a_disk_that_a_step_fills_is_named(make_runner: Any, small_disk: Path, play: Any, tmp_path: Path, end: str) -> None:
    code = f"""
open("result.json", "wb").write(bytes(1000))
try:
    with open("fill", "wb", 0) as file:
        while True: file.write(bytes(4096))
except OSError:
    pass
{end}
"""
    with pytest.raises(EnginefarmError) as caught:
        run(make_runner(workdir=str(small_disk)), play(code), tmp_path / "step")

    assert caught.value.kind is errors.DISK
    assert "runner lab" in caught.value.what


# --- ends from outside ---


def test_a_cancelled_step_is_gone_on_the_other_side_too(runner: SshRunner, play: Any, start: Any, there: Any, tmp_path: Path) -> None:
    job = start(runner, play(AT_WORK), tmp_path / "step")
    job.wait_for("at work")
    assert len(there.workers()) == 2
    job.cancel.set()

    assert isinstance(job.end().error, Cancelled)
    assert there.is_clean()  # at once: closing the line waits for the other side


def test_power_loss_of_the_server_ends_the_step_on_both_sides(
    server: Any, runner: SshRunner, play: Any, start: Any, there: Any, tmp_path: Path
) -> None:
    job = start(runner, play(AT_WORK), tmp_path / "step")
    job.wait_for("at work")
    workers = there.workers()
    server.cut()
    error = job.end().error

    assert isinstance(error, EnginefarmError)
    assert error.kind is errors.SSH_LOST
    assert {path.name for path in (tmp_path / "step").iterdir()} == {"worker.log"}
    there.wait_until_clean()
    assert workers
    assert run(runner, play("answer()"), tmp_path / "again").result["ok"]


def test_what_a_killed_remote_end_left_goes_with_the_next_step(
    server: Any, runner: SshRunner, play: Any, start: Any, there: Any, tmp_path: Path
) -> None:
    job = start(runner, play(AT_WORK), tmp_path / "step")
    job.wait_for("at work")
    parents = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in there.workers()}
    (remote,) = parents & set(server.remote_ends()) - set(there.workers())
    os.kill(remote, signal.SIGKILL)
    error = job.end().error

    assert isinstance(error, EnginefarmError)
    assert error.kind is errors.SSH_LOST
    assert len(there.steps()) == 1
    assert run(runner, play("answer()"), tmp_path / "again").result["ok"]
    assert there.is_clean()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three seconds of silence are the end, on both sides."""
    text = ssh_link.bootstrap().split(b"\n", 1)[1].replace(b"SILENCE_SECONDS = 15.0", b"SILENCE_SECONDS = 3.0")
    text = text.replace(b"PULSE_SECONDS = 2.0", b"PULSE_SECONDS = 0.5")
    monkeypatch.setattr(ssh_link, "bootstrap", lambda: b"%d\n%s" % (len(text), text))
    monkeypatch.setattr(ssh_link, "SILENCE_SECONDS", 3.0)
    monkeypatch.setattr(ssh_link, "PULSE_SECONDS", 0.5)


@pytest.mark.usefixtures("impatient")
def test_a_line_that_falls_silent_is_lost_on_both_sides(
    server: Any, runner: SshRunner, play: Any, start: Any, there: Any, tmp_path: Path
) -> None:
    job = start(runner, play(AT_WORK), tmp_path / "step")
    job.wait_for("at work")
    frozen = server.sessions()
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        error = job.end().error
        there.wait_until_clean()
    finally:
        for pid in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    assert isinstance(error, EnginefarmError)
    assert error.kind is errors.SSH_LOST
    assert "no sign of life" in (error.why or "")


@pytest.mark.usefixtures("impatient")
def test_a_long_silent_step_is_no_silent_line(runner: SshRunner, play: Any, tmp_path: Path) -> None:
    assert run(runner, play("time.sleep(5); answer()"), tmp_path / "step").result["ok"]


def test_a_line_that_broke_between_steps_costs_nothing(server: Any, runner: SshRunner, play: Any, tmp_path: Path) -> None:
    run(runner, play("answer()"), tmp_path / "0")
    (line,) = runner._idle
    server.cut()

    assert run(runner, play("answer()"), tmp_path / "1").result["ok"]
    assert runner._idle != [line]


def test_steps_share_one_line_one_after_another(runner: SshRunner, play: Any, tmp_path: Path) -> None:
    run(runner, play("answer()"), tmp_path / "0")
    (line,) = runner._idle
    run(runner, play("answer()"), tmp_path / "1")

    assert runner._idle == [line]


def test_a_client_that_is_killed_leaves_nothing(server: Any, there: Any, tmp_path: Path) -> None:
    (tmp_path / "worker").write_text("import time; time.sleep(600)")
    code = f"""
import sys
from pathlib import Path
from orchestrator.runners import ssh_step
from orchestrator.runners.base import Cancel, Step
from orchestrator.runners.ssh import SshRunner
from orchestrator.runners.ssh_errors import Destination
ssh_step.worker_pyz = lambda: Path({str(tmp_path / "worker")!r})
to = Destination("127.0.0.1", None, {server.port}, identity=Path({str(server.folder / "user")!r}), python=sys.executable,
                 known_hosts=Path({str(server.folder / "known")!r}), workdir={str(there.folder)!r})
SshRunner("lab", to).run(Step(request={{"step": "probe"}}), Path({str(tmp_path / "step")!r}), print, Cancel())
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    there.wait_for_worker()
    process.kill()
    process.wait()
    there.wait_until_clean()


# --- one build per GPU ---


@pytest.fixture
def gpu() -> Iterator[str]:
    name = f"GPU-test-{secrets.token_hex(8)}"
    yield name
    Path(lease_path(name)).unlink(missing_ok=True)


def test_a_second_job_waits_for_the_gpu_and_then_has_it(
    make_runner: Any, play: Callable[..., Step], start: Any, gpu: str, tmp_path: Path
) -> None:
    first, second = make_runner("one", gpu=gpu), make_runner("two", gpu=gpu)
    for runner in (first, second):
        runner.host()
    step = play('phase("at work")\nwhile not os.path.exists("../../../go"): time.sleep(0.02)\nanswer()', compute_capability=("7.2",))
    jobs = [start(first, step, tmp_path / "0")]
    jobs[0].wait_for("at work")
    jobs.append(start(second, step, tmp_path / "1"))
    said = json.loads(jobs[1].wait_for("waiting"))

    assert said["phase"] == "waiting for Xavier: held by another step of this run"
    assert list(first.holders()) == [gpu]
    (tmp_path / "there" / "go").touch()
    assert [job.end().error for job in jobs] == [None, None]
    assert "at work" in json.dumps(jobs[1].events)
    assert first.holders() == {}


def test_who_holds_the_gpu_is_said_and_a_cancelled_wait_ends(make_runner: Any, play: Any, start: Any, gpu: str, tmp_path: Path) -> None:
    runner = make_runner(gpu=gpu)
    runner.host()
    with Path(lease_path(gpu)).open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write("process 4711 on build-3")
        other.flush()
        job = start(runner, play("answer()", compute_capability=("7.2",)), tmp_path / "step")
        job.wait_for("held by process 4711 on build-3")
        assert runner.holders() == {gpu: "process 4711 on build-3"}
        job.cancel.set()
        assert isinstance(job.end().error, Cancelled)


def test_a_lease_goes_with_its_connection(
    server: Any, make_runner: Any, play: Callable[..., Step], start: Any, gpu: str, there: Any, tmp_path: Path
) -> None:
    first, second = make_runner("one", gpu=gpu), make_runner("two", gpu=gpu)
    for runner in (first, second):
        runner.host()
    job = start(first, play(AT_WORK, compute_capability=("7.2",)), tmp_path / "0")
    job.wait_for("at work")
    server.cut()
    job.end()

    assert run(second, play("answer(seen=dict(os.environ))", compute_capability=("7.2",)), tmp_path / "1").result["ok"]


def test_a_step_for_another_gpu_is_refused(make_runner: Any, play: Any, gpu: str, tmp_path: Path) -> None:
    runner = make_runner(gpu=gpu)
    runner.host()
    with pytest.raises(EnginefarmError, match=r"no GPU of compute capability 8\.7"):
        run(runner, play("answer()", compute_capability=("8.7",)), tmp_path / "step")
