"""Loads that kill or hang their process, with and without isolation; what does it is doubles/onnxruntime.py, in processes of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

LOAD = """
import json, logging, sys, threading
logging.basicConfig(level=logging.ERROR, format="%(levelname)s %(message)s")
from enginefarm_runtime import LoadError, load
try:
    model = load(sys.argv[1], **json.loads(sys.argv[2]))
    said = dict(model.choice.as_dict(), threads=[thread.name for thread in threading.enumerate()])
except LoadError as error:
    said = dict(error.choice.as_dict(), error=str(error))
print(json.dumps(said), flush=True)
"""


@pytest.fixture
def attempt(run_code: Any) -> Callable[..., dict[str, Any]]:
    def run(manifest: object, **options: Any) -> dict[str, Any]:
        done = run_code(LOAD, manifest, json.dumps(options), double=True)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return {**answer, "stderr": done.stderr}

    return run


def test_without_isolation_a_crashing_load_takes_the_process_with_it(folder: Any, run_code: Any) -> None:
    folder.add("bad", b"abort")
    folder.add("good", b"fine")

    done = run_code(LOAD, folder.write(), "{}", double=True)

    assert done.returncode == -6
    assert done.stdout == ""


@pytest.mark.parametrize(("crash", "signal"), [(b"abort", "6 (SIGABRT)"), (b"segfault", "11 (SIGSEGV)")])
def test_with_isolation_a_crash_is_reported_and_the_next_engine_is_loaded(folder: Any, attempt: Any, crash: bytes, signal: str) -> None:
    folder.add("bad", crash)
    folder.add("good", b"fine")

    said = attempt(folder.write(), isolate=True)

    assert said["chosen"]["target"] == "good"
    assert said["degraded"] is True
    (refused,) = said["refused"]
    assert (refused["target"], refused["stage"], refused["kind"]) == ("bad", "load", "crash")
    assert f"a trial in a child process was killed by signal {signal}" in refused["why"]
    assert "ERROR lane v3: engine bad" in said["stderr"]


def test_with_isolation_a_hang_is_killed_and_the_next_engine_is_loaded(folder: Any, attempt: Any) -> None:
    folder.add("bad", b"hang")
    folder.add("good", b"fine")

    said = attempt(folder.write(), isolate=True, timeout=2)

    assert said["chosen"]["target"] == "good"
    (refused,) = said["refused"]
    assert refused["kind"] == "timeout"
    assert "hung and was killed" in refused["why"]
    assert said["threads"] == ["MainThread"]


def test_without_isolation_a_hang_is_left_behind_and_said(folder: Any, attempt: Any) -> None:
    folder.add("bad", b"hang")
    folder.add("good", b"fine")

    said = attempt(folder.write(), timeout=0.5)

    assert said["chosen"]["target"] == "good"
    assert "its thread still hangs in this process" in said["refused"][0]["why"]
    assert "restart the process, with isolate=True" in said["refused"][0]["fix"]
    assert said["threads"] == ["MainThread", "enginefarm-load"]


def test_a_refused_load_is_explained_once_and_the_same_in_both_ways(folder: Any, attempt: Any) -> None:
    folder.add("bad", b"refuse")
    manifest = folder.write()

    said = [attempt(manifest, isolate=isolate) for isolate in (False, True)]

    assert "no engine of lane v3 runs here" in said[0]["error"]
    (refused,) = said[0]["refused"]
    assert (refused["stage"], refused["kind"]) == ("load", "model-file-bad")
    assert "Protobuf parsing failed" in refused["why"]
    assert refused["why"].count(refused["code"]) == 1
    assert said[1]["refused"] == said[0]["refused"]


def test_a_trial_checks_the_digest_itself(folder: Any, attempt: Any) -> None:
    engine = folder.add("bad", b"fine")
    manifest = folder.write()
    engine.write_bytes(b"evil")

    said = attempt(manifest, isolate=True)

    assert said["refused"][0]["stage"] == "file"
    assert "its digest is" in said["refused"][0]["why"]


def test_a_missing_backend_is_said_the_same_in_both_ways(folder: Any, run_code: Any, tmp_path: Any) -> None:
    folder.add("one", b"fine")
    manifest = folder.write()
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{LOAD}"

    said = [json.loads(run_code(code, manifest, json.dumps({"isolate": isolate})).stdout) for isolate in (False, True)]

    assert said[0]["refused"] == said[1]["refused"]
    assert said[0]["refused"][0]["stage"] == "backend"
    assert "libcudart.so.12: cannot open shared object file" in said[0]["refused"][0]["why"]
