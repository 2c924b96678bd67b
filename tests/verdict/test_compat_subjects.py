"""Engines and hosts out of what people name."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import EMPTY_SELECTION, USAGE, EnginefarmError, flatten
from orchestrator.verdict.compat import (
    EngineSubject,
    HostSubject,
    grid,
    judge_pair,
)
from orchestrator.verdict.compat_subjects import engines_from, host_of_target, hosts_from, read_host

from .compat_release import HOST, TARGETS, onnx_bytes, record, rtx_bytes, write_release


def no_runners() -> list[Any]:
    return []


def no_local() -> Any:
    raise AssertionError("this machine was asked")


# --- engines ---


def test_engines_of_a_manifest_carry_record_and_header(tmp_path: Path) -> None:
    failed = record("broken", None, b"", "failed")
    path = write_release(tmp_path, (failed, b""))

    found = {engine.name: engine for engine in engines_from([path], ())}

    assert list(found) == ["lane_v3_cpu.onnx", "lane_v3_rtx-ada.unvalidated.engine"]
    rtx = found["lane_v3_rtx-ada.unvalidated.engine"]
    assert (rtx.facts["backend_version"], rtx.facts["compute_capability"]) == ("1.7.1.116", ["8.9"])
    assert rtx.file == tmp_path / "lane_v3_rtx-ada.unvalidated.engine"


def test_an_engine_file_finds_its_manifest_and_a_folder_its_engines(tmp_path: Path) -> None:
    write_release(tmp_path)

    by_file = engines_from([tmp_path / "lane_v3_cpu.onnx"], ())
    by_folder = engines_from([tmp_path], ())

    assert by_file[0].record is not None
    assert by_file[0].facts["backend"] == "onnxruntime"
    assert [engine.name for engine in by_folder] == ["lane_v3_cpu.onnx", "lane_v3_rtx-ada.unvalidated.engine"]
    assert all(engine.record is not None for engine in by_folder)


MISNAMED = {
    "a.plan": "",
    "noextension": "",
    "weights.bin": "",
    "lane_v3_cpu.onnx": "is a TensorRT-RTX engine with the name of an ONNX model",
}


@pytest.mark.parametrize("name", MISNAMED)
def test_an_engine_is_what_its_header_says_whatever_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(rtx_bytes())

    by_file, by_folder = engines_from([tmp_path / name], ()), engines_from([tmp_path], ())

    for engine in (*by_file, *by_folder):
        assert (engine.name, engine.facts["backend"], engine.facts["compute_capability"]) == (name, "tensorrt-rtx", ["8.9"])
        assert MISNAMED[name] in "".join(note["text"] for note in engine.notes)
        assert bool(engine.notes) is bool(MISNAMED[name])


def test_a_model_with_the_name_of_an_engine_is_judged_as_what_it_is_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "x.engine").write_bytes(onnx_bytes())
    (tmp_path / "host.json").write_text("{}")
    host = HOST | {"backends": {"onnxruntime": {"version": "1.23.0", "providers": ["cpu"]}}}

    (engine,) = engines_from([tmp_path], ())
    found = judge_pair(engine, HostSubject("h", "file", (host,)))

    assert (found["verdict"], found["reason"]) == ("loads-with-warning", "this is an ONNX model with the name of an engine")
    assert found["rules"][-1]["rule"] == "name"


def test_a_name_that_contradicts_the_manifest_is_a_warning_and_never_hides_a_refusal(tmp_path: Path) -> None:
    write_release(tmp_path)
    (tmp_path / "lane_v3_rtx-ada.unvalidated.engine").rename(tmp_path / "lane_v3_rtx-turing.engine")

    (engine,) = engines_from([tmp_path / "lane_v3_rtx-turing.engine"], ())
    found = judge_pair(engine, HostSubject("h", "file", (HOST,)))

    assert "the name says tag rtx-turing and checked; lane_v3.json says tag rtx-ada and unvalidated" in engine.notes[0]["text"]
    assert found["verdict"] == "does-not-load"
    assert found["rules"][-1]["rule"] == "name"


def test_a_cut_plan_is_damaged_and_not_misnamed(tmp_path: Path) -> None:
    (tmp_path / "a.engine").write_bytes(rtx_bytes()[:-9])

    (engine,) = engines_from([tmp_path / "a.engine"], ())
    assert engine.notes == ()
    assert "cut" in engine.facts["problems"][0]["text"]


def test_files_that_a_manifest_no_longer_describes_do_not_load(tmp_path: Path) -> None:
    path = write_release(tmp_path)
    one, two = tmp_path / "lane_v3_cpu.onnx", tmp_path / "lane_v3_rtx-ada.unvalidated.engine"
    one_bytes, two_bytes = one.read_bytes(), two.read_bytes()

    def reasons() -> list[str]:
        found = grid(engines_from([path], ()), [HostSubject("h", "file", (HOST,))]).pairs
        return [pair.found["reason"] for pair in found if pair.verdict == "does-not-load"]

    one.write_bytes(two_bytes)
    two.write_bytes(one_bytes)
    assert all("the one that was checked has" in reason for reason in reasons())
    assert "it is lane_v3_rtx-ada.unvalidated.engine under this name" in reasons()[0]
    one.write_bytes(b"")
    two.write_bytes(two_bytes.replace(b"layers", b"LAYERS"))
    assert reasons()[0] == "the file is empty (0 bytes)"
    assert "its digest is" in reasons()[1]


def test_a_pipe_is_no_engine_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.engine")
    os.mkfifo(tmp_path / "host.json")

    with pytest.raises(EnginefarmError, match="no regular file"):
        engines_from([tmp_path / "a.engine"], ())
    with pytest.raises(EnginefarmError, match="no engine in"):
        engines_from([tmp_path], ())
    with pytest.raises(EnginefarmError, match="cannot be used"):
        read_host(tmp_path / "host.json")


def test_a_manifest_without_its_files_is_judged_by_what_it_says(tmp_path: Path) -> None:
    path = write_release(tmp_path)
    (tmp_path / "lane_v3_cpu.onnx").unlink()

    cpu = engines_from([path], ())[0]

    assert cpu.file is None
    assert cpu.facts["backend"] == "onnxruntime"


def test_a_changed_engine_is_refused_before_it_is_judged(tmp_path: Path) -> None:
    write_release(tmp_path)
    (tmp_path / "lane_v3_cpu.onnx").write_bytes(b"other")

    with pytest.raises(EnginefarmError) as caught:
        engines_from([tmp_path / "lane_v3_cpu.onnx"], ())
    assert caught.value.kind.code == "EF601"


def test_every_path_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")

    with pytest.raises(EnginefarmError) as caught:
        engines_from([tmp_path / "x.json", tmp_path / "gone.engine"], ())
    assert [problem.kind.code for problem in flatten(caught.value)] == ["EF602", "EF400"]
    with pytest.raises(EnginefarmError) as empty:
        engines_from([_empty(tmp_path)], ())
    assert empty.value.kind is EMPTY_SELECTION


def _empty(folder: Path) -> Path:
    (folder / "empty").mkdir()
    return folder / "empty"


def test_matrix_means_the_engine_of_every_target() -> None:
    found = {engine.name: engine for engine in engines_from([Path("matrix")], TARGETS.values())}

    assert found.keys() == TARGETS.keys()
    assert found["ampere-cu122"].facts["backend_version"] == "8.6.1.6"  # the image's, written out


# --- hosts ---


def test_a_target_describes_a_host_and_invents_nothing() -> None:
    found = host_of_target(TARGETS["ampere-cu122"]).descriptions[0]

    assert found["driver"] == {"version": None, "minimum": "525.60.13"}
    assert found["gpus"] == [{"index": 0, "name": None, "compute_capability": "8.0", "memory_bytes": None}]
    assert found["backends"]["tensorrt"] == {"version": "8.6.1.6", "cuda": "12.2"}


def test_every_target_loads_its_own_engine_or_says_what_is_not_known() -> None:
    engines = {engine.name: engine for engine in engines_from([Path("matrix")], TARGETS.values())}
    for name, target in TARGETS.items():
        found = judge_pair(engines[name], host_of_target(target))
        assert found["verdict"] != "does-not-load", (name, found["reason"])


def test_a_host_that_may_have_one_of_several_gpus_is_unknown_where_they_differ() -> None:
    engine = EngineSubject(
        "rtx", {"backend": "tensorrt-rtx", "backend_version": "1.7.1.116", "compute_capability": ["8.6"], "platform": "linux/amd64"}
    )

    found = judge_pair(engine, host_of_target(TARGETS["rtx-ampere"]))

    assert found["verdict"] == "unknown"
    assert "8.0: does-not-load" in found["reason"]
    assert found["rules"][0]["text"] == found["reason"]


def test_hosts_are_named_by_target_file_runner_and_all(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.write_text(json.dumps(HOST))

    class Here:
        name = "here"

        def host(self) -> dict[str, Any]:
            return HOST

    runners: Any = lambda: [Here()]  # noqa: E731
    local: Any = Here
    found = hosts_from([f"ampere-cu122,{path}", "here", "this"], TARGETS, runners, local)

    assert [(host.name, host.kind) for host in found] == [
        ("ampere-cu122", "target"),
        (str(path), "file"),
        ("here", "runner"),
        ("this", "runner"),
    ]
    everything = hosts_from(["all"], TARGETS, runners, no_local)
    assert [host.name for host in everything] == ["here", *TARGETS]


def test_a_misspelt_host_gets_the_closest_names() -> None:
    with pytest.raises(EnginefarmError) as caught:
        hosts_from(["amper-cu122", "thsi"], TARGETS, no_runners, no_local)

    first, second = flatten(caught.value)
    assert first.kind is USAGE
    assert "did you mean ampere-cu122" in str(first.fix)
    assert "this" in str(second.fix)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "enginefarm.manifest/1"}', "not json", '{"a":' * 100_000])
def test_a_file_that_is_no_host_description_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "host.json"
    path.write_text(text)

    with pytest.raises(EnginefarmError) as caught:
        read_host(path)
    assert "enginefarm doctor --save" in str(caught.value.fix)
