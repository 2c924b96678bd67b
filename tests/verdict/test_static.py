from __future__ import annotations

import struct

import pytest

from orchestrator.errors import DISK, PLAN_HEADER_MISMATCH, EnginefarmError
from orchestrator.matrix.schema import Target
from orchestrator.verdict.static import check_plan

END = bytes.fromhex("998b8d8b")
MASK = {"7.5": 1, "8.0": 2, "8.6": 4, "8.9": 8, "12.0": 16}


def _rtx_plan(*capabilities, version=(1, 7, 1, 116)):
    """A plan laid out as TensorRT-RTX 1.7 does: header, two sections, end mark."""
    body = b"layers and weights" * 8
    sections = struct.pack("<4sIQQ4sIQQ", b"NGNE", 0, 112, len(body), b"THGW", 0, 112 + len(body), 0)
    size = 64 + len(sections) + len(body) + len(END)
    head = struct.pack("<4sIQQ4B4sI", b"vtrt", 0, 2, size, *version, b"vtrt", sum(MASK[capability] for capability in capabilities))
    return head.ljust(64, b"\0") + sections + body + END


def _tensorrt_plan(version=(8, 6, 1, 6)):
    return struct.pack("<4sIQQ4BI", b"ftrt", 0, 237, 0, *version, 0) + bytes(200)


def _target(**changes):
    fields = {"name": "t", "tag": "t", "backend": "tensorrt-rtx", "tensorrt_rtx": "1.7", "compute_capability": ("8.0", "8.6")}
    return Target(**(fields | changes))


@pytest.fixture
def found(tmp_path):
    def check(data, **changes):
        path = tmp_path / "engine.plan"
        path.write_bytes(data)
        problems = check_plan(path, _target(**changes))
        assert all(problem.kind is PLAN_HEADER_MISMATCH and problem.exit == 1 for problem in problems)
        assert all(problem.where.target == "t" and problem.where.file == str(path) for problem in problems)
        return [problem.what for problem in problems]

    return check


TENSORRT = {"backend": "tensorrt", "tensorrt_rtx": None, "compute_capability": ("8.0",)}


def test_an_engine_as_the_target_asks_has_no_problem(found):
    assert found(_rtx_plan("8.0", "8.6")) == []
    assert found(_tensorrt_plan(), **TENSORRT, tensorrt="8.6.1") == []


@pytest.mark.parametrize("wanted", ["1", "1.7", "1.7.1", "1.7.1.116", None])
def test_versions_are_compared_to_the_precision_given(found, wanted):
    assert found(_rtx_plan("8.0", "8.6"), tensorrt_rtx=wanted) == []


@pytest.mark.parametrize(("version", "wanted"), [((10, 11, 0, 33), "10.11.0"), ((10, 11, 0, 0), "10.11.0.0"), ((8, 6, 1, 6), "8.6.1")])
def test_a_runtime_that_reports_fewer_parts_matches(found, version, wanted):
    assert found(_tensorrt_plan(version), **TENSORRT, tensorrt=wanted) == []


def test_another_version_is_named(found):
    assert found(_rtx_plan("8.0", "8.6"), tensorrt_rtx="1.6") == ["built by tensorrt-rtx 1.7.1.116, the target names 1.6"]
    assert found(_tensorrt_plan((8, 5, 3, 1)), **TENSORRT, tensorrt="8.6") == ["built by tensorrt 8.5.3.1, the target names 8.6"]


def test_the_capabilities_have_to_be_those_of_the_target(found):
    assert found(_rtx_plan("8.6", "8.0")) == []
    assert found(_rtx_plan("8.6")) == ["built for compute capability 8.6, the target names 8.0, 8.6"]
    assert found(_rtx_plan("8.0", "8.6", "8.9")) == ["built for compute capability 8.0, 8.6, 8.9, the target names 8.0, 8.6"]
    assert found(_rtx_plan()) == ["built for compute capability none, the target names 8.0, 8.6"]


def test_all_problems_are_found_at_once(found):
    data = _rtx_plan("7.5", version=(1, 4, 0, 76))[:-1] + b"\0"
    assert found(data) == [
        "the plan's end mark is missing: its end was cut or overwritten",
        "built by tensorrt-rtx 1.4.0.76, the target names 1.7",
        "built for compute capability 7.5, the target names 8.0, 8.6",
    ]


def test_an_engine_of_another_backend_is_named(found):
    assert found(_tensorrt_plan()) == ["this is a TensorRT engine, the target's backend is tensorrt-rtx"]
    assert found(_rtx_plan("8.0"), **TENSORRT) == ["this is a TensorRT-RTX engine, the target's backend is tensorrt"]


def test_a_tensorrt_7_engine_fits_only_a_tensorrt_7_target(found):
    plan = struct.pack("<4sI", b"ftrt", 97) + bytes(200)
    assert found(plan, **TENSORRT, tensorrt="7.1.3") == []
    assert found(plan, **TENSORRT, tensorrt="8.6") == ["this is a TensorRT 7 (or older) engine, the target's backend is tensorrt"]


def test_a_cut_an_empty_and_a_foreign_file_are_named(found):
    plan = _rtx_plan("8.0", "8.6")
    assert found(plan[:-10]) == [f"the plan is cut: its header says {len(plan)} bytes, the file has {len(plan) - 10}"]
    assert found(b"") == ["the file is empty (0 bytes)"]
    assert found(b"<!DOCTYPE html><html>")[0].startswith("not an engine: this is a web page")


def test_an_onnxruntime_engine_is_an_onnx_file(found):
    onnx = {"backend": "onnxruntime", "tensorrt_rtx": None, "compute_capability": ()}
    assert found(b"\x08\x08\x12\x04test\x42\x02\x10\x11", **onnx) == []
    assert found(_rtx_plan("8.0"), **onnx) == ["no ONNX file: this is a TensorRT-RTX engine"]
    assert found(b"", **onnx) == ["no ONNX file: the file is empty (0 bytes)"]


def test_an_engine_that_cannot_be_read_is_a_disk_error(tmp_path):
    with pytest.raises(EnginefarmError) as caught:
        check_plan(tmp_path / "missing", _target())
    assert caught.value.kind is DISK
