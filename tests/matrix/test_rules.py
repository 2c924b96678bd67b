"""Which rows can exist: every rule refuses what it is for, and lets through what it does not know."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import TARGET_CONFLICT, TARGET_IMPOSSIBLE

NO_IMAGE = "image cuda"
RTX = ("backend: tensorrt-rtx", 'tensorrt_rtx: "1.7"')
JETSON = (
    "image: nvcr.io/nvidia/l4t-tensorrt:r8.2.1-runtime",
    'tensorrt: "8.2.1"',
    'cuda: "10.2"',
    "compute_capability: 7.2",
    "platform: linux/arm64",
    'jetpack: ">=4.6.1,<5"',
)


@pytest.mark.parametrize(
    ("changes", "without", "kind", "said"),
    [
        # TensorRT and the GPU
        (['tensorrt: "10.3"', "compute_capability: 6.1"], NO_IMAGE, TARGET_IMPOSSIBLE, "TensorRT 10.3 builds nothing for 6.1"),
        (['tensorrt: "8.6.1"', "compute_capability: 12.0"], NO_IMAGE, TARGET_IMPOSSIBLE, "TensorRT 8.6.1 builds nothing for 12.0"),
        (["compute_capability: [8.0, 8.6]"], "", TARGET_CONFLICT, "one TensorRT engine cannot be for 8.0 and 8.6"),
        (["compute_capability: [8.6, sm_86]", "hardware_compatibility: ampere_plus"], "", TARGET_CONFLICT, "8.6 is given twice"),
        ([], "compute_capability", TARGET_CONFLICT, "compute_capability is missing"),
        ([], "tensorrt image cuda", TARGET_CONFLICT, "neither tensorrt nor image is given"),
        ([], "platform", TARGET_CONFLICT, "an engine is for one platform, not for any"),
        # levels
        (
            ['tensorrt: "8.5"', "hardware_compatibility: ampere_plus"],
            NO_IMAGE,
            TARGET_IMPOSSIBLE,
            "TensorRT 8.5 has no hardware compatibility level",
        ),
        (
            ['tensorrt: "10.8"', "hardware_compatibility: same_compute_capability"],
            NO_IMAGE,
            TARGET_IMPOSSIBLE,
            "TensorRT 10.8 has no hardware",
        ),
        (["compute_capability: 7.5", "hardware_compatibility: ampere_plus"], "", TARGET_IMPOSSIBLE, "ampere_plus does not reach 7.5"),
        (
            ['tensorrt: "10.9"', "compute_capability: [8.0, 8.6]", "hardware_compatibility: same_compute_capability"],
            NO_IMAGE,
            TARGET_CONFLICT,
            "same_compute_capability cannot span 8.0 and 8.6",
        ),
        (
            ['tensorrt: "10.3"', "compute_capability: 8.7", "platform: linux/arm64", "hardware_compatibility: ampere_plus"],
            NO_IMAGE,
            TARGET_IMPOSSIBLE,
            "ampere_plus cannot be had on a Jetson",
        ),
        (['tensorrt: "8.5"', "version_compatible: true"], NO_IMAGE, TARGET_IMPOSSIBLE, "TensorRT 8.5 has no version compatible engines"),
        (["compute_capability: 6.1", "version_compatible: true"], "", TARGET_IMPOSSIBLE, "version compatible engines cannot be for 6.1"),
        (['tensorrt: "8.5"', "optimization_level: 3"], NO_IMAGE, TARGET_IMPOSSIBLE, "TensorRT 8.5 has no builder optimization level"),
        # precision
        (["precision: bf16"], "", TARGET_IMPOSSIBLE, "precision bf16 cannot be had on compute capability 8.6"),
        (['tensorrt: "10.11"', "compute_capability: 7.5", "precision: bf16"], NO_IMAGE, TARGET_IMPOSSIBLE, "precision bf16 cannot be had"),
        (["precision: fp8"], "", TARGET_IMPOSSIBLE, "precision fp8 cannot be had on compute capability 8.6"),
        (
            [*RTX, "compute_capability: [7.5, 8.9]", "precision: bf16"],
            "image tensorrt cuda",
            TARGET_IMPOSSIBLE,
            "on compute capability 7.5",
        ),
        # TensorRT-RTX
        ([*RTX, "compute_capability: 9.0"], "image tensorrt cuda", TARGET_IMPOSSIBLE, "TensorRT-RTX 1.7 cannot target 9.0"),
        ([*RTX, "compute_capability: 8.7"], "image tensorrt cuda", TARGET_IMPOSSIBLE, "TensorRT-RTX 1.7 cannot target 8.7"),
        (
            [RTX[0], 'tensorrt_rtx: "1.4"', "compute_capability: 12.1"],
            "image tensorrt cuda",
            TARGET_IMPOSSIBLE,
            "TensorRT-RTX 1.4 cannot target 12.1",
        ),
        ([RTX[0], 'tensorrt_rtx: "1.0"'], "image tensorrt cuda", TARGET_IMPOSSIBLE, "TensorRT-RTX 1.0 cannot be had"),
        ([*RTX, "platform: linux/arm64"], "image tensorrt cuda", TARGET_CONFLICT, "TensorRT-RTX cannot be had for linux/arm64"),
        ([*RTX], "image cuda", TARGET_CONFLICT, "tensorrt means nothing to backend tensorrt-rtx"),
        ([*RTX, "plugins: a.so"], "image tensorrt cuda", TARGET_CONFLICT, "plugins means nothing to backend tensorrt-rtx"),
        # ONNX Runtime
        (["provider: cpu"], "", TARGET_CONFLICT, "provider means nothing to backend tensorrt"),
        (["backend: onnxruntime"], "image tensorrt cuda compute_capability", TARGET_CONFLICT, "backend onnxruntime needs a provider"),
        (["backend: onnxruntime", "provider: cpu"], "image tensorrt cuda", TARGET_CONFLICT, "compute_capability means nothing to the CPU"),
        (["backend: onnxruntime", "provider: cuda"], "image tensorrt compute_capability", TARGET_CONFLICT, "compute_capability is missing"),
        (['tensorrt_rtx: "1.7"'], "", TARGET_CONFLICT, "tensorrt_rtx means nothing to backend tensorrt"),
        # images
        (['tensorrt: "8.5.1"'], "", TARGET_CONFLICT, "nvcr.io/nvidia/tensorrt:23.09-py3 holds TensorRT 8.6.1.6, not 8.5.1"),
        (['cuda: "11.8"'], "", TARGET_CONFLICT, "nvcr.io/nvidia/tensorrt:23.09-py3 holds CUDA 12.2.1, not 11.8"),
        (["image: nvcr.io/nvidia/tensorrt:21.01-py3"], "tensorrt cuda", TARGET_IMPOSSIBLE, "was never published"),
        (["image: nvcr.io/nvidia/tensorrt"], "", TARGET_CONFLICT, '"nvcr.io/nvidia/tensorrt" has no tag'),
        (["image: https://nvcr.io/nvidia/tensorrt:23.09-py3"], "", TARGET_CONFLICT, "is not an image reference"),
        (["image: a b"], "", TARGET_CONFLICT, '"a b" is not an image reference'),
        (["tensorrt_from: host"], "", TARGET_CONFLICT, "tensorrt_from: host is for Jetson devices"),
        # Jetson
        (
            [*JETSON, "image: nvcr.io/nvidia/tensorrt:22.12-py3", 'tensorrt: "8.5.1"'],
            "cuda",
            TARGET_IMPOSSIBLE,
            "cannot be used for compute capability 7.2",
        ),
        ([*JETSON, "platform: linux/amd64"], "", TARGET_CONFLICT, "a Jetson is never linux/amd64"),
        ([*JETSON, "compute_capability: 8.6"], "", TARGET_CONFLICT, "no Jetson has compute capability 8.6"),
        ([*JETSON, "tensorrt_from: host"], "", TARGET_CONFLICT, "takes TensorRT from the image, not from the host"),
    ],
)
def test_impossible_rows_are_refused(project: Any, changes: list[str], without: str, kind: object, said: str) -> None:
    project.good(*changes, without=without)
    problems = project.problems()
    match = [problem for problem in problems if said in problem.what]
    assert len(match) == 1, [problem.what for problem in problems]
    assert match[0].kind is kind
    assert match[0].where.file == "targets/mine.yaml"
    assert match[0].where.target == "mine"
    assert match[0].exit == 2


@pytest.mark.parametrize(
    ("changes", "without"),
    [
        (["compute_capability: [8.0, 8.6]", "hardware_compatibility: ampere_plus"], ""),
        (["version_compatible: true", "optimization_level: 5"], ""),
        (['tensorrt: "10.9"', "hardware_compatibility: same_compute_capability"], NO_IMAGE),
        (['tensorrt: "99.1"', "compute_capability: 12.1"], NO_IMAGE),  # newer than the facts: unknown is not refused
        (["image: registry.example:5000/team/trt:1"], ""),
        (["image: nvcr.io/nvidia/tensorrt:99.01-py3", 'tensorrt: "12.0"'], "cuda"),
        ([], "tensorrt cuda"),  # the image says which
        ([], "image"),  # a local interpreter
        (["precision: fp16"], ""),
        (["precision: int8"], ""),
        ([*RTX, "compute_capability: [7.5, 8.0, 8.6, 8.9, 12.0]"], "image tensorrt cuda"),
        ([*RTX, "compute_capability: 7.5"], "image tensorrt cuda"),
        (["backend: onnxruntime", "provider: cpu", "platform: any"], "image tensorrt cuda compute_capability"),
        (["backend: onnxruntime", "provider: cuda", "compute_capability: [8.0, 9.0]"], "image tensorrt cuda"),
        (JETSON, ""),
    ],
)
def test_possible_and_unknown_rows_pass(project: Any, changes: list[str], without: str) -> None:
    project.good(*changes, without=without)
    assert [problem.what for problem in project.problems()] == []


def test_the_reason_names_its_source_in_the_docs(project: Any) -> None:
    project.good('tensorrt: "10.3"', "compute_capability: 6.1", without=NO_IMAGE)
    assert "docs/facts/trt_sm_support.yaml" in (project.only_problem().why or "")


def test_all_contradictions_of_a_row_come_together(project: Any) -> None:
    project.good("compute_capability: [8.0, 8.6]", 'cuda: "11.8"', "provider: cpu")
    lines = (project.folder / "targets" / "mine.yaml").read_text().splitlines()
    told = {lines[problem.where.line - 1].split(":")[0] for problem in project.problems()}
    assert told == {"compute_capability", "cuda", "provider"}
