"""The process runner: what a step is given and what comes back, with the real worker and with ones that misbehave."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import errors
from orchestrator.errors import EnginefarmError
from orchestrator.runners import process
from orchestrator.runners.base import Step
from orchestrator.runners.process import ProcessRunner

from .local_step import PROBE, fail, run


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
