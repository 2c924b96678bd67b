"""The plan header rules against plans that NVIDIA's own builder makes here."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orchestrator.portable.facts import plan_header, support
from orchestrator.portable.facts.file_kind import sniff

from .rtx_plans import build_plan

pytestmark = pytest.mark.rtx


@pytest.fixture(scope="module")
def trt() -> ModuleType:
    return pytest.importorskip("tensorrt_rtx_bindings", reason="TensorRT-RTX is not installed")


@pytest.fixture(scope="module")
def plan(trt: ModuleType) -> bytes:
    return build_plan("SM80", "SM86")


def describe(content: bytes) -> dict[str, Any]:
    return plan_header.read_bytes(content[: plan_header.HEAD_BYTES], len(content), content[-plan_header.TAIL_BYTES :])


@pytest.mark.parametrize("names", [("SM75",), ("SM80",), ("SM80", "SM86"), ("SM89",), ("SM120",), ("SM121",), ("SM75", "SM89", "SM120")])
def test_a_real_plan_names_version_size_and_capabilities(trt: ModuleType, tmp_path: Path, names: tuple[str, ...]) -> None:
    content = build_plan(*names)
    path = tmp_path / "relu.engine"
    path.write_bytes(content)
    facts = plan_header.read(str(path))
    assert facts["kind"] == "tensorrt-rtx"
    assert facts["version"] == trt.__version__
    assert facts["declared_size"] == len(content)
    assert facts["capabilities"] == [f"{name[2:-1]}.{name[-1]}" for name in names]
    assert facts["problems"] == []
    assert sniff(content[:512], len(content))["kind"] == "rtx-plan"


def test_a_default_build_leaves_turing_out(trt: ModuleType) -> None:
    capabilities = describe(build_plan())["capabilities"]
    assert "7.5" not in capabilities
    assert {"8.6", "8.9", "12.0"} <= set(capabilities)


def test_the_builder_can_name_exactly_the_capabilities_of_the_facts(trt: ModuleType) -> None:
    named = {f"{name[2:-1]}.{name[-1]}" for name in trt.ComputeCapability.__members__ if name.startswith("SM")}
    assert named == set(support.rtx_capabilities(trt.__version__))


def test_the_runtime_agrees_on_the_length_of_the_header(trt: ModuleType) -> None:
    assert trt.Runtime(trt.Logger(trt.Logger.ERROR)).engine_header_size == plan_header._RTX_HEADER_BYTES


def test_damage_to_a_real_plan_is_named(plan: bytes) -> None:
    for content, kind, words in (
        (plan[:-1], "corrupt-engine", "cut"),
        (plan[: len(plan) // 2], "corrupt-engine", "cut"),
        (plan + b"\n", "corrupt-engine", "too long"),
        (plan[:-4] + bytes(4), "corrupt-engine", "end mark"),
        (plan.replace(b"\n", b"\r\n"), "wrong-file-type", "text-mode"),
        (plan.decode("utf-8", "replace").encode(), "wrong-file-type", "UTF-8"),
    ):
        problems = describe(content)["problems"]
        assert [problem["kind"] for problem in problems] == [kind], words
        assert words in problems[0]["text"]


def test_text_mode_damage_leaves_capabilities_readable(plan: bytes) -> None:
    assert describe(plan.replace(b"\n", b"\r\n"))["capabilities"] == ["8.0", "8.6"]


def test_the_installed_release_is_in_the_facts(trt: ModuleType) -> None:
    versions = [
        version
        for row in importlib.import_module("orchestrator.portable.facts.data").load("rtx")["releases"]
        for version in row["versions"]
    ]
    assert trt.__version__ in versions
