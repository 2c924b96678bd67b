"""Steps in real containers: built, validated, stopped, limited."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator import errors
from orchestrator.errors import EnginefarmError
from orchestrator.runners.base import Cancel, Cancelled, Step
from orchestrator.runners.docker import DockerRunner

pytestmark = pytest.mark.engine


def run(runner: DockerRunner, step: Step, folder: Path, events: list[Any] | None = None) -> Any:
    return runner.run(step, folder, (events if events is not None else []).append, Cancel())


def test_an_engine_is_built_and_validated_in_containers(runner: DockerRunner, steps: Any, tmp_path: Path) -> None:
    events: list[Any] = []
    built = run(runner, steps.build(), tmp_path / "build", events)
    assert built.result["ok"]
    engine = built.folder / built.result["engine"]["file"]
    assert hashlib.sha256(engine.read_bytes()).hexdigest() == built.result["engine"]["sha256"]
    assert {"event": "phase", "phase": "optimising"} in events
    checked = run(runner, steps.validate(engine), tmp_path / "validate")
    assert checked.result["ok"], checked.result["error"]
    output = checked.result["outputs"][0]["outputs"][0]
    found = np.fromfile(checked.folder / output["file"], np.float32).reshape(2, 8)
    np.testing.assert_allclose(found, np.ones((2, 8), np.float32) @ (np.arange(64, dtype=np.float32).reshape(8, 8) / 64), rtol=1e-5)
    assert sorted(path.name for path in built.folder.iterdir()) == [engine.name, "result.json", "worker.log"]


@pytest.mark.rtx
def test_the_rtx_builder_works_in_a_locked_down_container(
    engine: Any, runner: DockerRunner, steps: Any, tmp_path: Path, put_image: Callable[..., None]
) -> None:
    put_image(engine, "enginefarm-test/rtx:1")
    built = run(runner, steps.build("tensorrt-rtx", "enginefarm-test/rtx:1"), tmp_path / "build")
    assert built.result["ok"], built.result["error"]
    assert (built.folder / "engine.plan").stat().st_size == built.result["engine"]["size_bytes"]
    assert built.result["details"]["compute_capability"] == ["8.9"]


def test_a_worker_that_answers_no_is_a_result(runner: DockerRunner, steps: Any, tmp_path: Path) -> None:
    answer = run(runner, steps.build("tensorrt-rtx"), tmp_path / "build")
    assert not answer.result["ok"]
    assert answer.result["error"]["kind"] == "backend-missing"


def test_a_shared_folder_is_sent_once(runner: DockerRunner, steps: Any, tmp_path: Path) -> None:
    step = steps.build(shared_inputs={"model": "sha256:" + "cd" * 32})
    first: list[Any] = []
    second: list[Any] = []
    run(runner, step, tmp_path / "1", first)
    run(runner, step, tmp_path / "2", second)
    assert any("sending 0.0 MB" in str(event) for event in first)
    assert not any("MB" in str(event) for event in second)


def test_a_cut_transfer_is_never_taken_for_whole(runner: DockerRunner, steps: Any, tmp_path: Path, background: Callable[..., Any]) -> None:
    big = tmp_path / "big.bin"
    with big.open("wb") as file:
        file.truncate(400 << 20)
    step = steps.build(shared_inputs={"model": "sha256:" + "ef" * 32})
    step.inputs["model/weights-2.bin"] = big
    job = background(runner, step, tmp_path / "cut")
    job.wait_for("sending 4")
    job.cancel.set()
    assert isinstance(job.end().error, Cancelled)
    events: list[Any] = []
    assert run(runner, step, tmp_path / "again", events).result["ok"]
    assert any("sending 4" in str(event) for event in events)


def test_cancel_ends_the_container_within_five_seconds(
    engine: Any, runner: DockerRunner, steps: Any, tmp_path: Path, background: Callable[..., Any]
) -> None:
    job = background(runner, steps.endless(), tmp_path / "step")
    job.wait_for("soak")
    assert len(engine.containers()) == 1
    job.cancel.set()
    started = time.monotonic()
    assert isinstance(job.end(5).error, Cancelled)
    assert engine.containers() == []
    assert time.monotonic() - started < 5


def test_a_step_past_its_time_is_ended(runner: DockerRunner, steps: Any, tmp_path: Path) -> None:
    with pytest.raises(EnginefarmError) as caught:
        run(runner, steps.endless(timeout_seconds=2.0), tmp_path / "step")
    assert caught.value.kind is errors.STEP_TIMEOUT
    assert caught.value.log == str(tmp_path / "step" / "worker.log")


def test_an_image_that_is_not_there_is_named(runner: DockerRunner, steps: Any, tmp_path: Path) -> None:
    with pytest.raises(EnginefarmError) as caught:
        run(runner, steps.build(image="enginefarm-test/absent:1"), tmp_path / "step")
    assert caught.value.kind is errors.IMAGE_OFFLINE
    assert "enginefarm-test/absent:1" in caught.value.what


def test_a_step_for_another_platform_is_refused(runner: DockerRunner, steps: Any, tmp_path: Path) -> None:
    with pytest.raises(EnginefarmError) as caught:
        run(runner, steps.build(platform="linux/arm64"), tmp_path / "step")
    assert caught.value.kind is errors.IMAGE_PLATFORM
