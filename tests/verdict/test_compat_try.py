"""Engines that are really loaded: on this machine's own runner, and on one whose worker dies."""

from __future__ import annotations

import shutil
import venv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator import errors
from orchestrator.errors import EnginefarmError
from orchestrator.runners.base import Cancel, Step
from orchestrator.runners.process import ProcessRunner
from orchestrator.verdict.compat import EngineSubject
from orchestrator.verdict.compat_subjects import engines_from
from orchestrator.verdict.compat_try import try_engine

from .compat_release import CPU, onnx_bytes, record, write_release


def engine(folder: Path, name: str = "lane_v3_cpu.onnx", *more: Any) -> EngineSubject:
    return next(found for found in engines_from([write_release(folder, *more)], ()) if found.name == name)


@pytest.fixture
def attempt(tmp_path: Path) -> Any:
    def run(subject: EngineSubject, runner: Any, verdict: str = "loads", **options: Any) -> Any:
        return try_engine(subject, runner, verdict, Cancel(), logs=tmp_path / "logs", soak_seconds=0.05, **options)

    return run


def test_a_cpu_engine_really_loads_runs_and_soaks(attempt: Any, tmp_path: Path) -> None:
    trial = attempt(engine(tmp_path), ProcessRunner("here"))

    assert (trial.outcome, trial.agrees) == ("loads", True)
    assert trial.median_ms is not None
    assert trial.seconds is not None


def test_an_engine_that_the_runtime_refuses_is_refused_with_its_words(attempt: Any, tmp_path: Path) -> None:
    data = onnx_bytes("Nonsense", "com.example")
    bad = record("bad", "lane_v3_bad.onnx", data, **CPU)

    trial = attempt(engine(tmp_path, "lane_v3_bad.onnx", (bad, data)), ProcessRunner("here"), "unknown")

    assert (trial.outcome, trial.agrees) == ("refused", None)
    assert "Nonsense" in trial.text
    assert trial.cause["kind"]
    assert "Nonsense" in Path(trial.log).read_text()


@pytest.mark.rtx
def test_an_rtx_engine_is_refused_on_a_machine_without_a_gpu(attempt: Any, tmp_path: Path) -> None:
    runner = ProcessRunner("here")
    if runner.host()["gpus"]:
        pytest.skip("this machine has a GPU")

    trial = attempt(engine(tmp_path, "lane_v3_rtx-ada.unvalidated.engine"), runner, "does-not-load")

    assert (trial.outcome, trial.agrees) == ("refused", True)
    assert "NVIDIA" in trial.text


def test_a_slower_run_than_the_manifest_says_is_told(attempt: Any, tmp_path: Path) -> None:
    found = engine(tmp_path)
    assert found.record is not None
    fast = found.record.model_copy(update={"verdict": found.record.verdict.model_copy(update={"median_ms": 1e-9})})

    trial = attempt(EngineSubject(found.name, found.facts, found.file, fast), ProcessRunner("here"))

    assert (trial.outcome, trial.agrees) == ("loads slower", True)


class Dying:
    """A runner whose worker dies after some phases, and has said ``said`` before."""

    name = "dying/runner"

    def __init__(self, kind: errors.Kind, *phases: str, said: str = "") -> None:
        self.kind = kind
        self.phases = phases
        self.said = said

    def run(self, step: Step, folder: Path, on_event: Any, cancel: Cancel) -> Any:
        folder.mkdir()
        (folder / "worker.log").write_text(self.said)
        for phase in self.phases:
            on_event({"event": "phase", "phase": phase})
        raise EnginefarmError(self.kind, "the validate step's process was killed by SIGSEGV")


@pytest.mark.parametrize(
    ("phases", "outcome"),
    [(("loading",), "crashes at load"), (("loading", "running samples", "soaking"), "crashes under load"), ((), "crashes at load")],
)
def test_a_worker_that_dies_is_a_crash_where_it_died(attempt: Any, tmp_path: Path, phases: tuple[str, ...], outcome: str) -> None:
    trial = attempt(engine(tmp_path), Dying(errors.STEP_CRASHED, *phases))

    assert (trial.outcome, trial.agrees) == (outcome, False)
    assert "killed by SIGSEGV" in trial.text


def test_what_the_process_said_is_kept_and_explained(attempt: Any, tmp_path: Path) -> None:
    said = (
        "[E] 1: [stdArchiveReader.cpp::StdArchiveReader::40] Error Code 1: Serialization (Serialization assertion stdVersionRead == "
        "serializationVersion failed.Version tag does not match. Note: Current Version: 213, Serialized Engine Version: 232)\n"
    )

    trial = attempt(engine(tmp_path), Dying(errors.STEP_CRASHED, "loading", said=said))

    assert trial.cause["kind"] == "plan-version-mismatch"
    assert (trial.cause["figures"]["current_tag"], trial.cause["figures"]["serialized_tag"]) == (213, 232)
    log = Path(trial.log)
    assert log == tmp_path / "logs" / "lane_v3_cpu.onnx_on_dying_runner.log"
    assert log.read_text().startswith(said)
    assert "killed by SIGSEGV" in log.read_text()


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory) -> ProcessRunner:
    """A real runner whose interpreter finds a double of onnxruntime, and numpy where this one has it."""
    folder = tmp_path_factory.mktemp("doubled")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    shutil.copy(Path(__file__).parents[1] / "portable" / "runtime" / "doubles" / "onnxruntime.py", packages)
    (packages / "more.pth").write_text(f"{Path(np.__file__).parents[1]}\n")
    return ProcessRunner("doubled", python=folder / "bin" / "python")


@pytest.mark.parametrize(
    ("data", "outcome", "text"),
    [
        (b"segfault", "crashes at load", "SIGSEGV"),
        (b"abort", "crashes at load", "SIGABRT"),
        (b"hang", "crashes at load", "ended after 3 s"),
        (b"refuse", "refused", "Protobuf parsing failed"),
    ],
)
def test_a_load_that_kills_or_hangs_its_real_process(
    attempt: Any, doubled: ProcessRunner, tmp_path: Path, data: bytes, outcome: str, text: str
) -> None:
    bad = record("bad", "lane_v3_bad.onnx", data, **CPU)

    trial = attempt(engine(tmp_path, "lane_v3_bad.onnx", (bad, data)), doubled, timeout_seconds=3 if data == b"hang" else 60)

    assert (trial.outcome, trial.agrees) == (outcome, False)
    assert text in trial.text
    assert Path(trial.log).is_file()


def test_a_broken_runner_says_nothing_about_the_engine(attempt: Any, tmp_path: Path) -> None:
    with pytest.raises(EnginefarmError):
        attempt(engine(tmp_path), Dying(errors.RUNNER_BROKEN))


def test_a_file_that_changed_is_never_loaded(attempt: Any, tmp_path: Path) -> None:
    found = engine(tmp_path)
    assert found.file is not None
    found.file.write_bytes(onnx_bytes("Tanh"))

    trial = attempt(found, Dying(errors.STEP_CRASHED, "loading"))

    assert trial.outcome == "not tried"
    assert "changed" in trial.text


@pytest.mark.parametrize(
    ("changes", "part"),
    [({"profiles": {}}, "dynamic"), ({"inputs": ({"name": "x", "dtype": "string", "shape": (1,)},), "profiles": {}}, "string")],
)
def test_what_cannot_be_tried_says_why(attempt: Any, tmp_path: Path, changes: dict[str, Any], part: str) -> None:
    data = onnx_bytes()
    odd = record("odd", "lane_v3_odd.onnx", data, **(CPU | changes))

    trial = attempt(engine(tmp_path, "lane_v3_odd.onnx", (odd, data)), Dying(errors.STEP_CRASHED))

    assert trial.outcome == "not tried"
    assert part in trial.text


def test_without_a_manifest_nothing_is_tried(attempt: Any, tmp_path: Path) -> None:
    (tmp_path / "a.onnx").write_bytes(onnx_bytes())

    trial = attempt(engines_from([tmp_path / "a.onnx"], ())[0], Dying(errors.STEP_CRASHED))

    assert (trial.outcome, trial.agrees) == ("not tried", None)
