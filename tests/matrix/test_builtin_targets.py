"""The shipped matrix: what it promises, row by row."""

from __future__ import annotations

import re

import pytest

from orchestrator.matrix.load import load_matrix
from orchestrator.matrix.select import Matrix
from orchestrator.portable.facts import support, version
from orchestrator.resources import builtin_targets

# name, tag, backend, image or its start, TensorRT, CUDA, capabilities, platform
TABLE = [
    ("ampere-cu122", "ampere", "tensorrt", "nvcr.io/nvidia/tensorrt:23.09-py3", "8.6.1", "12.2", ("8.0",), "linux/amd64"),
    ("hopper-cu122", "hopper", "tensorrt", "nvcr.io/nvidia/tensorrt:23.09-py3", "8.6.1", "12.2", ("9.0",), "linux/amd64"),
    ("turing-cu118", "turing", "tensorrt", "nvcr.io/nvidia/tensorrt:22.12-py3", "8.5.1", "11.8", ("7.5",), "linux/amd64"),
    ("volta-cu118", "volta", "tensorrt", "nvcr.io/nvidia/tensorrt:22.12-py3", "8.5.1", "11.8", ("7.0",), "linux/amd64"),
    ("pascal-cu116", "pascal", "tensorrt", "nvcr.io/nvidia/tensorrt:22.0", "8.4", "11.7", ("6.1",), "linux/amd64"),
    ("jetson-cu102", "jetson", "tensorrt", "nvcr.io/nvidia/l4t-tensorrt:r8.2.1-runtime", "8.2.1", "10.2", ("7.2",), "linux/arm64"),
    ("xavier-jp44", "xavier-jp44", "tensorrt", "nvcr.io/nvidia/l4t-base:r32.4.3", "7.1.3", "10.2", ("7.2",), "linux/arm64"),
    ("orin-jp6", "orin", "tensorrt", "nvcr.io/nvidia/l4t-jetpack:r36.4.0", "10.3", "12.6", ("8.7",), "linux/arm64"),
    ("ampere86-cu12", "ampere86", "tensorrt", "nvcr.io/nvidia/tensorrt:25.0", "10", "12", ("8.6",), "linux/amd64"),
    ("ada-cu12", "ada", "tensorrt", "nvcr.io/nvidia/tensorrt:25.0", "10", "12", ("8.9",), "linux/amd64"),
    ("blackwell-cu13", "blackwell", "tensorrt", "nvcr.io/nvidia/tensorrt:26.0", "10", "13", ("12.0",), "linux/amd64"),
    ("blackwell-trt11", "blackwell-trt11", "tensorrt", "nvcr.io/nvidia/tensorrt:26.0", "11", "13", ("12.0",), "linux/amd64"),
    ("rtx-turing", "rtx-turing", "tensorrt-rtx", None, "1.7", "13.0", ("7.5",), "linux/amd64"),
    ("rtx-ampere", "rtx-ampere", "tensorrt-rtx", None, "1.7", "13.0", ("8.0", "8.6"), "linux/amd64"),
    ("rtx-ada", "rtx-ada", "tensorrt-rtx", None, "1.7", "13.0", ("8.9",), "linux/amd64"),
    ("rtx-blackwell", "rtx-blackwell", "tensorrt-rtx", None, "1.7", "13.0", ("12.0",), "linux/amd64"),
    ("cpu", "cpu", "onnxruntime", None, None, None, (), "any"),
]


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return load_matrix()


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_the_promised_rows_ship(
    matrix: Matrix, row: tuple[str, str, str, str | None, str | None, str | None, tuple[str, ...], str]
) -> None:
    name, tag, backend, image, release, cuda, capabilities, platform = row
    target = matrix.targets[name].target
    assert (target.tag, target.backend, target.compute_capability, target.platform) == (tag, backend, capabilities, platform)
    assert (target.image or "").startswith(image or "")
    assert (image is None) == (target.image is None)
    given = target.tensorrt or target.tensorrt_rtx
    assert given == release or (given is not None and release is not None and version.matches(given, release))
    assert target.cuda == cuda or (target.cuda is not None and cuda is not None and version.matches(target.cuda, cuda))


def test_the_cuda_fallback_takes_every_gpu_from_turing_on(matrix: Matrix) -> None:
    target = matrix.targets["ort-cuda"].target
    assert (target.backend, target.provider, target.tag) == ("onnxruntime", "cuda", "ort-cuda")
    assert target.compute_capability[0] == "7.5"
    assert {"8.0", "8.6", "8.9", "9.0", "10.0", "12.0"} <= set(target.compute_capability)


def test_every_row_is_described_labelled_and_has_a_ci_runner(matrix: Matrix) -> None:
    for name, effective in matrix.targets.items():
        assert effective.target.description, name
        assert {"gpu", "cpu"} & set(effective.target.labels), name
        assert effective.target.runs_on, name


def test_tags_are_unique(matrix: Matrix) -> None:
    tags = [effective.target.tag for effective in matrix.targets.values()]
    assert len(set(tags)) == len(tags)


def test_no_digest_is_typed_by_hand() -> None:
    assert [path.name for path in builtin_targets().glob("*.yaml") if re.search(r"sha256", path.read_text())] == []


def test_every_image_is_one_that_the_facts_hold(matrix: Matrix) -> None:
    for name, effective in matrix.targets.items():
        if effective.target.image is not None:
            facts = support.image_facts(effective.target.image)
            assert facts is not None, name
            assert effective.target.platform in facts["platforms"], name


def test_rtx_turing_is_fp16_since_it_refuses_fp32_products(matrix: Matrix) -> None:
    assert matrix.targets["rtx-turing"].target.precision == "fp16"
    assert matrix.targets["rtx-ada"].target.precision == "fp32"
