from __future__ import annotations

from typing import Any

import pytest

from orchestrator.portable.facts.placement import Decision, can_build, can_validate, driver_check

Row = dict[str, Any]


def host(platform: str = "linux/amd64", gpus: list[Row] | None = None, **changes: Any) -> Row:
    """A host as the probe describes it: by default a laptop without a GPU that has TensorRT-RTX and ONNX Runtime."""
    described: Row = {
        "schema": "enginefarm.host/1",
        "platform": platform,
        "libc": "glibc 2.36",
        "python": "3.11.7",
        "cpu": {"model": "AMD EPYC", "count": 2},
        "memory_bytes": 2**34,
        "gpus": gpus or [],
        "driver": None,
        "jetson": None,
        "container": False,
        "backends": {
            "tensorrt": {"error": "not installed"},
            "tensorrt-rtx": {"version": "1.7.1.116", "compute_capabilities": ["7.5", "8.0", "8.6", "8.9", "12.0", "12.1"]},
            "onnxruntime": {"version": "1.32.0", "providers": ["cpu"]},
        },
    }
    backends = {**described["backends"], **changes.pop("backends", {})}
    return {**described, **changes, "backends": backends}


def gpu(name: str, capability: str | None, index: int = 0) -> Row:
    return {"index": index, "name": name, "uuid": None, "compute_capability": capability, "memory_bytes": 2**34, "sm_count": None}


def target(backend: str, *capabilities: str, **changes: Any) -> Row:
    row: Row = {
        "backend": backend,
        "provider": None,
        "tensorrt": None,
        "tensorrt_rtx": None,
        "compute_capability": list(capabilities),
        "platform": "linux/amd64",
        "cuda": None,
        "jetpack": None,
        "image": None,
        "tensorrt_from": "image",
        "gpu": None,
        "precision": "fp32",
    }
    return {**row, **changes}


AMPERE = target("tensorrt", "8.0", tensorrt="8.6.1", cuda="12.2", image="nvcr.io/nvidia/tensorrt:23.09-py3")
TURING = target("tensorrt", "7.5", tensorrt="8.5.1", cuda="11.8", image="nvcr.io/nvidia/tensorrt:22.12-py3")
JETSON = target(
    "tensorrt",
    "7.2",
    tensorrt="8.2.1",
    cuda="10.2",
    image="nvcr.io/nvidia/l4t-tensorrt:r8.2.1-runtime",
    platform="linux/arm64",
    jetpack=">=4.6.1",
)
RTX_AMPERE = target("tensorrt-rtx", "8.0", "8.6", tensorrt_rtx="1.7")
CPU = target("onnxruntime", provider="cpu", platform="any")
ORT_CUDA = target("onnxruntime", provider="cuda")
LAPTOP = host()
A100 = host(
    gpus=[gpu("NVIDIA A100-SXM4-80GB", "8.0")],
    driver={"version": "535.104.05", "cuda": "12.2"},
    backends={"tensorrt": {"version": "8.6.1.6"}, "onnxruntime": {"version": "1.32.0", "providers": ["cuda", "cpu"]}},
)
XAVIER = host(
    "linux/arm64",
    [gpu("Xavier", "7.2")],
    jetson={"l4t": "32.7.1", "jetpack": "4.6.1"},
    backends={"tensorrt": {"version": "8.2.1.8"}, "tensorrt-rtx": {"error": "not installed"}},
)


def refused(decision: Decision) -> str:
    assert decision.verdict == "no"
    assert "\n" not in decision.reasons[0]
    return str(decision.reasons[0])


# --- a stranger's laptop: no GPU, no Docker ---


def test_a_laptop_builds_rtx_and_cpu_engines() -> None:
    assert can_build(RTX_AMPERE, LAPTOP).verdict == "yes"
    assert can_build(CPU, LAPTOP).verdict == "yes"
    assert can_validate(CPU, LAPTOP).verdict == "yes"


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (AMPERE, "no NVIDIA GPU here; needs compute capability 8.0 and TensorRT 8.6.1 (image nvcr.io/nvidia/tensorrt:23.09-py3)"),
        (TURING, "no NVIDIA GPU here; needs compute capability 7.5 and TensorRT 8.5.1 (image nvcr.io/nvidia/tensorrt:22.12-py3)"),
        (JETSON, "this host is linux/amd64; an engine for a Jetson builds on the Jetson (linux/arm64)"),
        (ORT_CUDA, "no NVIDIA GPU here; ONNX Runtime's CUDA provider needs one"),
    ],
)
def test_the_line_a_laptop_gets_for_every_other_target(row: Row, line: str) -> None:
    assert refused(can_build(row, LAPTOP)) == line
    assert refused(can_validate(row, LAPTOP)) == line


@pytest.mark.parametrize(
    ("capabilities", "line"),
    [(("8.6",), "no runner with compute capability 8.6"), (("8.0", "8.6"), "no runner with compute capability 8.0 or 8.6")],
)
def test_an_rtx_engine_without_a_matching_gpu_stays_unvalidated(capabilities: tuple[str, ...], line: str) -> None:
    row = target("tensorrt-rtx", *capabilities, tensorrt_rtx="1.7")
    assert refused(can_validate(row, LAPTOP)) == line
    assert refused(can_validate(row, host(gpus=[gpu("NVIDIA H200", "9.0")]))) == line


def test_a_mac_builds_only_for_the_cpu() -> None:
    mac = host("darwin/arm64", backends={"tensorrt-rtx": {"error": "not installed"}})
    assert can_build(CPU, mac).verdict == "yes"
    assert refused(can_build(RTX_AMPERE, mac)) == "this host is darwin/arm64; TensorRT-RTX builds on linux/amd64"
    assert "darwin/arm64 without an NVIDIA GPU; needs compute capability 8.0" in refused(can_build(AMPERE, mac))
    assert refused(can_build(ORT_CUDA, mac)) == "this host is darwin/arm64; needs linux/amd64"


# --- tensorrt-rtx ---


def test_rtx_validates_where_one_of_its_capabilities_is() -> None:
    machine = host(gpus=[gpu("NVIDIA GeForce RTX 3090", "8.6")])
    assert can_validate(RTX_AMPERE, machine).verdict == "yes"
    assert can_validate(target("tensorrt-rtx", "8.9", tensorrt_rtx="1.7"), machine).verdict == "no"


def test_rtx_of_another_version_is_refused() -> None:
    machine = host(backends={"tensorrt-rtx": {"version": "1.6.1.120"}})
    assert refused(can_build(RTX_AMPERE, machine)) == "this host has TensorRT-RTX 1.6.1.120; needs 1.7"


def test_rtx_that_is_absent_or_broken_says_which() -> None:
    absent = host(backends={"tensorrt-rtx": {"error": "not installed"}})
    assert refused(can_build(RTX_AMPERE, absent)) == "TensorRT-RTX 1.7 is not installed here; pip install 'enginefarm[rtx]'"
    broken = host(backends={"tensorrt-rtx": {"error": "Traceback ...\nOSError: libtensorrt_rtx.so.1: version GLIBC_2.28 not found"}})
    assert "does not import here (OSError: libtensorrt_rtx.so.1: version GLIBC_2.28 not found)" in refused(can_build(RTX_AMPERE, broken))


# --- onnxruntime ---


def test_a_missing_onnxruntime_is_named() -> None:
    bare = host(backends={"onnxruntime": {"error": "not installed"}})
    assert refused(can_build(CPU, bare)) == "ONNX Runtime is not installed here; pip install onnxruntime"


@pytest.mark.parametrize(
    ("target", "backend", "probed", "said"),
    [
        (
            CPU,
            "onnxruntime",
            "not installed",
            "ONNX Runtime is not installed for /usr/bin/python3; /usr/bin/python3 -m pip install onnxruntime",
        ),
        (
            RTX_AMPERE,
            "tensorrt-rtx",
            "OSError: {it}",
            "TensorRT-RTX 1.7 does not import for /usr/bin/python3 (OSError: {it}); /usr/bin/python3 -m pip install 'enginefarm[rtx]'",
        ),
        (AMPERE, "tensorrt", "not installed", "TensorRT 8.6.1 is not installed for /usr/bin/python3; install it for /usr/bin/python3"),
    ],
)
def test_the_interpreter_that_lacks_a_backend_is_named(target: dict[str, Any], backend: str, probed: str, said: str) -> None:
    machine = {**A100, "python_executable": "/usr/bin/python3", "backends": {backend: {"error": probed}}}
    assert refused(can_build(target, machine)) == said


def test_an_interpreter_with_a_blank_in_its_path_can_be_pasted() -> None:
    machine = {**host(backends={"onnxruntime": {"error": "not installed"}}), "python_executable": "/opt/my python/bin/python3"}
    assert refused(can_build(CPU, machine)).endswith("'/opt/my python/bin/python3' -m pip install onnxruntime")


def test_the_cuda_provider_needs_gpu_provider_and_driver() -> None:
    assert can_build(ORT_CUDA, A100).verdict == "yes"
    cpu_only = host(gpus=[gpu("NVIDIA A100", "8.0")])
    assert "no CUDAExecutionProvider" in refused(can_build(ORT_CUDA, cpu_only))
    old = {**A100, "driver": {"version": "470.82.01", "cuda": "11.4"}}
    assert "too old for CUDA 12" in refused(can_build({**ORT_CUDA, "cuda": "12"}, old))


@pytest.mark.parametrize("name", ["cuda", "CUDAExecutionProvider"])
def test_both_spellings_of_a_provider_count(name: str) -> None:
    machine = host(gpus=[gpu("NVIDIA A100", "8.0")], backends={"onnxruntime": {"version": "1.32.0", "providers": [name]}})
    assert can_validate(ORT_CUDA, machine).verdict == "yes"


# --- tensorrt ---


def test_a_matching_machine_builds_and_validates() -> None:
    decision = can_build(AMPERE, A100)
    assert (decision.verdict, decision.reasons) == ("yes", ["TensorRT 8.6.1.6 on NVIDIA A100-SXM4-80GB (compute capability 8.0)"])
    assert can_validate(AMPERE, A100).verdict == "yes"


def test_the_compute_capability_is_exact() -> None:
    machine = {**A100, "gpus": [gpu("NVIDIA A10", "8.6")]}
    assert refused(can_build(AMPERE, machine)).startswith(
        "the GPU here is NVIDIA A10 (8.6); needs compute capability 8.0 and TensorRT 8.6.1"
    )


def test_one_matching_gpu_of_several_is_enough() -> None:
    assert can_build(AMPERE, {**A100, "gpus": [gpu("Tesla T4", "7.5"), gpu("NVIDIA A30", "8.0", 1)]}).verdict == "yes"


def test_a_gpu_of_unknown_capability_does_not_refuse() -> None:
    decision = can_build(AMPERE, {**A100, "gpus": [gpu("NVIDIA something", None)]})
    assert decision.verdict == "unknown"
    assert "not known" in decision.reasons[0]
    assert can_validate(RTX_AMPERE, host(gpus=[gpu("NVIDIA something", None)])).verdict == "unknown"


def test_a_process_host_needs_the_images_tensorrt_itself() -> None:
    other = {**A100, "backends": {**A100["backends"], "tensorrt": {"version": "10.3.0.26"}}}
    assert refused(can_build(AMPERE, other)) == "this host has TensorRT 10.3.0.26; needs 8.6.1 (image nvcr.io/nvidia/tensorrt:23.09-py3)"
    none = {**A100, "backends": {**A100["backends"], "tensorrt": {"error": "not installed"}}}
    assert refused(can_build(AMPERE, none)) == "TensorRT 8.6.1 is not installed here; install it for the runner's Python"


def test_another_build_of_the_same_tensorrt_is_a_note() -> None:
    decision = can_build(AMPERE, {**A100, "backends": {**A100["backends"], "tensorrt": {"version": "8.6.1.2"}}})
    assert decision.verdict == "yes"
    assert any("8.6.1.6" in note for note in decision.reasons[1:])


@pytest.mark.parametrize(
    ("driver", "container", "verdict"),
    [
        ("535.104.05", False, "yes"),
        ("525.60.13", False, "yes"),
        ("470.82.01", False, "no"),
        ("470.82.01", True, "yes"),  # through the compat package that is in the image only
        ("460.91.03", True, "no"),
        (None, False, "yes"),
    ],
)
def test_the_driver_must_run_the_targets_cuda(driver: str | None, container: bool, verdict: str) -> None:
    machine = {**A100, "driver": {"version": driver, "cuda": None}, "container": container}
    assert can_build({**AMPERE, "cuda": "12.2.1"}, machine).verdict == verdict


def test_minor_version_compatibility_is_a_note() -> None:
    decision = can_build({**AMPERE, "cuda": "12.2.1"}, {**A100, "driver": {"version": "525.60.13", "cuda": "12.0"}})
    assert any("minor-version" in note for note in decision.reasons[1:])


def test_a_target_bound_to_a_gpu_model() -> None:
    assert can_build({**AMPERE, "gpu": "A100-SXM4-80GB"}, A100).verdict == "yes"
    assert refused(can_build({**AMPERE, "gpu": "NVIDIA A30"}, A100)) == "no NVIDIA A30 here; the target is bound to that GPU model"


def test_an_engine_for_several_capabilities_builds_on_any_of_them() -> None:
    row = target("tensorrt", "8.0", "8.6", tensorrt="8.6.1", hardware_compatibility="ampere_plus")
    assert can_build(row, A100).verdict == "yes"


def test_a_target_that_names_no_capability_still_gets_a_sentence() -> None:
    assert refused(can_build(target("tensorrt"), LAPTOP)) == "no NVIDIA GPU here"


# --- Jetson ---


def test_a_jetson_builds_for_itself() -> None:
    assert can_build(JETSON, XAVIER).verdict == "yes"
    assert can_validate(JETSON, XAVIER).verdict == "yes"


def test_the_jetpack_condition_is_checked() -> None:
    older = {**XAVIER, "jetson": {"l4t": "32.6.1", "jetpack": "4.6"}}
    assert refused(can_build(JETSON, older)) == "this device has JetPack 4.6; needs JetPack >=4.6.1"


def test_jetpack_follows_from_l4t() -> None:
    assert can_build(JETSON, {**XAVIER, "jetson": {"l4t": "32.7.3", "jetpack": None}}).verdict == "yes"
    assert can_build(JETSON, {**XAVIER, "jetson": {"l4t": "40.0", "jetpack": None}}).verdict == "unknown"


def test_the_driver_rule_of_discrete_gpus_does_not_apply_to_a_jetson() -> None:
    assert can_build(JETSON, {**XAVIER, "driver": {"version": "32.7.1", "cuda": "10.2"}}).verdict == "yes"


def test_an_arm_server_is_no_jetson() -> None:
    server = host("linux/arm64", [gpu("NVIDIA GH200", "9.0")])
    assert refused(can_build(JETSON, server)).startswith("this host is not a Jetson; needs compute capability 7.2 and TensorRT 8.2.1")


def test_tensorrt_from_the_host_names_no_image_in_a_version_refusal() -> None:
    row = target("tensorrt", "7.2", tensorrt="7.1.3", image="nvcr.io/nvidia/l4t-base:r32.4.3", tensorrt_from="host", platform="linux/arm64")
    assert refused(can_build(row, XAVIER)) == "this host has TensorRT 8.2.1.8; needs 7.1.3"


def test_the_driver_check_is_offered_here_too() -> None:
    assert driver_check("535.86.10", "12.2.1", None, None).verdict == "yes"
