"""The worker's entry, run as it is shipped: one file, in a process of its own."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.portable.worker import main
from orchestrator.portable.worker.errors import StepError, binary_size
from orchestrator.portable.worker.protocol import ERROR_KINDS, HOST_SCHEMA, RESULT_SCHEMA
from orchestrator.runners.bundle import worker_version, write_pyz


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("worker") / "worker.pyz"
    write_pyz(path)
    return path


def run(pyz: Path, folder: Path, argument: str, python: str = sys.executable, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, "-I", pyz, argument], cwd=folder, capture_output=True, text=True, timeout=60, check=False, **options)


def answer(pyz: Path, folder: Path, request: Any) -> dict[str, Any]:
    (folder / "request.json").write_text(json.dumps(request))
    done = run(pyz, folder, "request.json")
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def test_the_probe_step_answers_with_a_host_description(pyz: Path, tmp_path: Path) -> None:
    result = answer(pyz, tmp_path, {"schema": "enginefarm.request/1", "step": "probe", "nonce": "n"})

    assert result["schema"] == RESULT_SCHEMA
    assert result["ok"] is True
    assert result["step"] == "probe"
    assert result["worker"] == worker_version()
    assert result["host"]["schema"] == HOST_SCHEMA


def test_probe_on_the_command_line_prints_json_alone(pyz: Path, tmp_path: Path) -> None:
    done = run(pyz, tmp_path, "probe")

    assert json.loads(done.stdout)["schema"] == HOST_SCHEMA
    assert done.returncode == 0


@pytest.mark.interpreters
def test_the_worker_runs_on_other_pythons(pyz: Path, tmp_path: Path, other_python: str) -> None:
    done = run(pyz, tmp_path, "probe", other_python)

    assert done.returncode == 0, done.stderr
    host = json.loads(done.stdout)
    said = subprocess.run([other_python, "--version"], capture_output=True, text=True, check=True).stdout
    assert f"Python {host['python']}" == said.strip()
    assert set(host["backends"]) == {"tensorrt", "tensorrt-rtx", "onnxruntime"}


@pytest.mark.interpreters
def test_a_step_that_fails_on_other_pythons_still_leaves_a_result(pyz: Path, tmp_path: Path, other_python: str) -> None:
    request = {"schema": "enginefarm.request/1", "nonce": "n", "step": "build", "backend": "tensorrt-rtx", "model": "m", "engine": "e"}
    options = {"compute_capability": ["8.6"], "plugins": ["p.so"]}
    (tmp_path / "request.json").write_text(json.dumps({**request, "options": options}))

    run(pyz, tmp_path, "request.json", other_python)

    assert json.loads((tmp_path / "result.json").read_text())["error"]["kind"] in ("backend-missing", "bad-request")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"schema": "enginefarm.request/9"}, "is not a request of enginefarm.request/1"),
        ({"nonce": ""}, "no nonce"),
        ({"nonce": 5}, "no nonce"),
        ({"step": "train"}, "no step 'train'"),
        ({"backend": "tensorx"}, "of backend 'tensorx'"),
        ({"model": "/etc/passwd"}, "does not stay in the step's folder"),
        ({"engine": "a/../../b"}, "does not stay in the step's folder"),
        ({"engine": ""}, "does not stay in the step's folder"),
    ],
)
def test_requests_outside_the_protocol_are_bad_requests(pyz: Path, tmp_path: Path, change: dict[str, Any], text: str) -> None:
    good = {"schema": "enginefarm.request/1", "nonce": "n", "step": "build", "backend": "onnxruntime", "model": "m", "engine": "e"}

    error = answer(pyz, tmp_path, {**good, **change})["error"]

    assert error["kind"] == "bad-request"
    assert text in error["message"]


@pytest.mark.parametrize("request_text", [[], "text", 7, None, {"schema": "enginefarm.request/1", "nonce": "n", "step": ["build"]}])
def test_any_json_gets_a_result_that_says_no(pyz: Path, tmp_path: Path, request_text: Any) -> None:
    result = answer(pyz, tmp_path, request_text)

    assert result["ok"] is False
    assert result["error"]["kind"] in ERROR_KINDS


def test_a_request_that_is_no_json_gets_a_result_too(pyz: Path, tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text("{")

    assert run(pyz, tmp_path, "request.json").returncode == 0
    assert json.loads((tmp_path / "result.json").read_text())["error"]["kind"] == "bad-request"


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["--help"]])
def test_wrong_usage_is_exit_2_with_the_usage(pyz: Path, arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, "-I", pyz, *arguments], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == main.EXIT_USAGE
    assert "usage: python3 worker.pyz" in done.stderr


def test_a_result_that_cannot_be_written_is_exit_3(pyz: Path, tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text(json.dumps({"schema": "enginefarm.request/1", "step": "probe", "nonce": "n"}))

    def tiny_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))

    done = run(pyz, tmp_path, "request.json", preexec_fn=tiny_files)

    assert done.returncode == main.EXIT_NO_RESULT
    assert "result.json could not be written" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["request.json"]


def test_an_unexpected_exception_is_a_crash_with_its_traceback() -> None:
    try:
        raise AttributeError("no\x1bsuch")
    except AttributeError as error:
        described = main._describe(error)

    assert described["kind"] == "crashed"
    assert described["message"] == r"AttributeError: no\x1bsuch"
    assert any("raise AttributeError" in line for line in described["log"])


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "out-of-memory"),
        (RuntimeError("std::bad_alloc"), "out-of-memory"),
        (OSError(28, "No space left on device"), "disk-full"),
        (OSError(122, "Disk quota exceeded"), "disk-full"),
        (FileNotFoundError(2, "No such file"), "crashed"),
        (StepError("load-failed", "x"), "load-failed"),
    ],
)
def test_exceptions_have_kinds(error: Exception, kind: str) -> None:
    assert main._describe(error)["kind"] == kind


@pytest.mark.parametrize(
    ("error", "limit", "message", "fix"),
    [
        (MemoryError(), 50 << 20, "the step ran out of memory (its limit was 50 MiB)", 'give it more: --memory "8 GiB"'),
        (
            StepError("out-of-memory", "the builder failed"),
            3 << 29,
            "the builder failed (its limit was 1.5 GiB)",
            "limits: {memory: 8 GiB}",
        ),
        (MemoryError(), None, "the step ran out of memory", "--jobs 1"),
        (StepError("out-of-memory", "CUDA_ERROR_OUT_OF_MEMORY"), None, "CUDA_ERROR_OUT_OF_MEMORY", "free the GPU's memory"),
    ],
)
def test_running_out_of_memory_comes_with_the_limit_and_what_to_do(error: Exception, limit: int | None, message: str, fix: str) -> None:
    described = main._describe(error, limit)

    assert described["message"] == message
    assert fix in described["details"]["fix"]


@pytest.mark.parametrize(
    ("count", "text"), [(1000, "1000 bytes"), (1024, "1 KiB"), (52428800, "50 MiB"), (10 << 30, "10 GiB"), (1610612736, "1.5 GiB")]
)
def test_limits_are_shown_as_they_are_written(count: int, text: str) -> None:
    assert binary_size(count) == text


def test_every_kind_in_the_sources_is_one_of_the_protocol() -> None:
    import re

    folder = Path(main.__file__).parent.parent
    text = "".join(path.read_text() for room in ("worker", "backends") for path in (folder / room).glob("*.py"))
    used = set(re.findall(r'(?:StepError|failure|kind=|return) ?\(?"([a-z]+-[a-z-]+|crashed)"', text))

    assert {"bad-request", "build-failed", "no-device"} <= used
    assert used <= set(ERROR_KINDS)


def test_a_memory_limit_beyond_a_c_long_limits_nothing(pyz: Path, tmp_path: Path) -> None:
    limits = {"memory_bytes": 99999999 << 40}
    assert answer(pyz, tmp_path, {"schema": "enginefarm.request/1", "step": "probe", "nonce": "n", "limits": limits})["ok"] is True
