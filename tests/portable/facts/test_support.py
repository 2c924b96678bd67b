from __future__ import annotations

import itertools

import pytest

from orchestrator.portable.facts import support
from orchestrator.portable.facts.data import load


@pytest.mark.parametrize(
    ("version", "lowest", "highest"),
    [
        ("7.0.0", "3.5", "7.5"),
        ("7.2.3.4", "3.5", "8.6"),
        ("8.2.1.8", "3.5", "8.6"),
        ("8.4.2.4", "5.0", "8.6"),
        ("8.5.1.7", "5.0", "9.0"),
        ("8.6.1.6", "5.0", "9.0"),
        ("9.2.0.5", "6.0", "9.0"),
        ("10.3.0.26", "7.0", "9.0"),
        ("10.5.0.18", "7.5", "9.0"),
        ("10.9.0.34", "7.5", "12.0"),
        ("10.11.0.33", "7.5", "12.0"),
        ("10.16.1.11", "7.5", "12.1"),
        ("11.1.0.106", "7.5", "12.1"),
    ],
)
def test_range_of_each_release(version: str, lowest: str, highest: str) -> None:
    row = support.tensorrt_range(version)
    assert row is not None
    assert (row["min"], row["max"]) == (lowest, highest)
    assert row["confidence"]


@pytest.mark.parametrize("version", ["6.0.1", "8.3.1", "11.3", "12.0.0.1"])
def test_a_release_outside_the_facts_is_unknown_not_refused(version: str) -> None:
    assert support.tensorrt_range(version) is None
    assert support.tensorrt_supports(version, "8.6").verdict == "unknown"


@pytest.mark.parametrize(
    ("version", "capability", "verdict"),
    [
        ("8.6.1", "8.0", "yes"),
        ("8.6.1", "9.0", "yes"),
        ("8.5.1", "7.5", "yes"),
        ("8.5.1", "8.9", "yes"),
        ("8.5.1", "7.0", "yes"),
        ("8.4", "6.1", "yes"),
        ("8.4.1", "8.9", "no"),  # observed: Unsupported SM: 0x809
        ("7.0", "8.6", "no"),  # observed: Unsupported SM
        ("10.0.1", "6.1", "no"),  # observed: Target GPU SM 61
        ("10.4", "7.0", "yes"),
        ("10.5", "7.0", "no"),
        ("10.7.0", "12.0", "no"),  # observed: Target GPU SM 120
        ("10.8", "12.0", "yes"),
        ("10.13", "12.1", "unknown"),
        ("10.14", "12.1", "yes"),
        ("11.0.0.114", "7.5", "yes"),
        # a Jetson's own GPU follows JetPack
        ("7.1.3", "7.2", "yes"),
        ("7.2.3.4", "7.2", "no"),
        ("8.2.1", "7.2", "yes"),
        ("8.2.1", "8.7", "no"),
        ("8.4.1", "8.7", "yes"),
        ("10.3", "8.7", "yes"),
        ("10.7", "8.7", "yes"),
        ("10.9", "8.7", "unknown"),
        ("11.0", "8.7", "no"),
        ("11.4.1", "8.7", "yes"),
        ("10.13.3.9", "11.0", "yes"),
        ("8.5.2", "5.3", "unknown"),
    ],
)
def test_capabilities_of_tensorrt(version: str, capability: str, verdict: str) -> None:
    answer = support.tensorrt_supports(version, capability)
    assert answer.verdict == verdict
    assert version in answer.reason
    assert capability in answer.reason
    assert answer.source.startswith("docs/facts/")


def test_a_refusal_names_the_release_that_would_do() -> None:
    assert "TensorRT 10.4 is the last that takes 7.0" in support.tensorrt_supports("10.5", "7.0").reason
    assert "12.0 came with TensorRT 10.8" in support.tensorrt_supports("10.7", "12.0").reason


@pytest.mark.parametrize(
    ("precision", "capability", "backend", "version", "verdict", "words"),
    [
        ("fp16", "6.1", "tensorrt", "8.4", "yes", "far below fp32"),
        ("fp16", "5.2", "tensorrt", "8.2", "no", "5.3 or newer"),
        ("bf16", "7.5", "tensorrt", "10.9", "no", "8.0 or newer"),
        ("bf16", "8.0", "tensorrt", "8.6.1", "no", "TensorRT 9.0"),
        ("bf16", "8.0", "tensorrt", "10.3", "yes", "bf16"),
        ("fp8", "8.6", "tensorrt", "10.9", "no", "8.9 or newer"),
        ("fp8", "8.9", "tensorrt", "10.9", "yes", "Q/DQ"),
        ("fp8", "9.0", "tensorrt", "8.5.1", "no", "TensorRT 8.6"),
        ("int8", "6.1", "tensorrt", "8.4", "yes", "Q/DQ"),
        ("int8", "6.0", "tensorrt", "8.4", "no", "6.1 or newer"),
        ("int8", "6.2", "tensorrt", "8.2.1", "no", "lacks int8"),
        ("fp16", "8.0", "tensorrt", "11.0", "yes", "converted first"),
        ("fp16", "8.0", "tensorrt", None, "yes", "fp16"),
        ("fp32", "7.5", "tensorrt-rtx", "1.7", "yes", "refuses fp32 matrix products"),
        ("fp32", "8.6", "tensorrt-rtx", "1.7", "yes", "fp32"),
        ("fp16", "7.5", "tensorrt-rtx", "1.7", "yes", "fp16"),
        ("bf16", "7.5", "tensorrt-rtx", "1.7", "no", "8.0 or newer"),
        ("fp8", "8.6", "tensorrt-rtx", "1.7", "no", "8.9 or newer"),
        ("fp8", "8.9", "tensorrt-rtx", "1.7", "yes", "e4m3"),
        ("int8", "7.5", "tensorrt-rtx", "1.7", "yes", "matrix products"),
        ("fp32", "", "onnxruntime", None, "yes", "CPU provider"),
        ("fp16", "", "onnxruntime", None, "yes", "not faster"),
        ("fp8", "", "onnxruntime", None, "unknown", "fp8"),
        ("bf16", "7.5", "onnxruntime", None, "no", "8.0 or newer"),
        ("fp4", "12.0", "tensorrt", "10.9", "unknown", "fp4"),
    ],
)
def test_precisions(precision: str, capability: str, backend: str, version: str | None, verdict: str, words: str) -> None:
    answer = support.precision_supported(precision, capability, backend, version)
    assert answer.verdict == verdict
    assert words in answer.reason


def test_a_note_of_turing_is_not_given_to_other_capabilities() -> None:
    assert "matrix products" not in support.precision_supported("fp32", "8.0", "tensorrt-rtx", "1.7").reason


def test_an_unknown_backend_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="not a backend"):
        support.precision_supported("fp32", "8.0", "tvm")


def test_rtx_capabilities_of_each_release() -> None:
    all_six = ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")
    assert support.rtx_capabilities("1.4.0.76") == all_six[:-1]
    assert support.rtx_capabilities("1.5") == all_six
    assert support.rtx_capabilities("1.7.1.116") == all_six
    assert support.rtx_capabilities("1.9") == all_six  # newer than the facts
    assert support.rtx_capabilities("1.2") == ()
    assert not set(all_six) & set(load("rtx")["never"])


def test_releases_do_not_overlap_and_are_in_order() -> None:
    rows = load("trt_sm_support")["releases"]
    for earlier, later in itertools.pairwise(rows):
        last, first = (tuple(map(int, text.split("."))) for text in (earlier["last"], later["first"]))
        assert last < first
