"""Real TensorRT-RTX plans, where no GPU can run them: what the loader says of them, whole and damaged."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from orchestrator.portable.runtime.api import LoadError, load
from orchestrator.portable.runtime.host import ThisProcess

pytestmark = pytest.mark.rtx

PLANS = Path(__file__).resolve().parents[1] / "facts" / "rtx_plans.py"
ONES = np.ones((2, 4), np.float32)


@pytest.fixture(scope="module")
def plan() -> bytes:
    spec = importlib.util.spec_from_file_location("rtx_plans", PLANS)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: bytes = module.build_plan("SM80", "SM86")
    return found


@pytest.fixture(scope="module")
def version() -> str:
    import tensorrt_rtx_bindings

    return str(tensorrt_rtx_bindings.__version__)


def record(version: str, **changes: Any) -> dict[str, Any]:
    return {"backend": "tensorrt-rtx", "backend_version": version, "compute_capability": ("8.0", "8.6"), **changes}


def test_a_plan_without_a_gpu_gives_way_to_onnx_runtime(folder: Any, plan: bytes, version: str, doubling: bytes) -> None:
    if ThisProcess().facts()["gpus"]:
        pytest.skip("this machine has a GPU")
    folder.add("rtx-ampere", plan, status="unvalidated", **record(version))
    folder.add("cpu", doubling)

    with load(str(folder.write()), allow_unvalidated=True) as model:
        assert np.array_equal(model({"x": ONES})["y"], 2 * ONES)
        assert model.degraded
        refused = model.choice.refused[0]
        assert (refused.stage, refused.why) == ("rules", "no NVIDIA GPU here; it needs compute capability 8.0 or 8.6")


def test_a_plan_that_the_rules_let_pass_fails_in_the_real_runtime_and_is_explained(
    folder: Any, plan: bytes, version: str, doubling: bytes, on_gpu: Callable[..., None]
) -> None:
    folder.add("rtx-ampere", plan, **record(version))
    folder.add("cpu", doubling)
    on_gpu()  # the rules believe in this GPU; the driver does not

    with load(str(folder.write())) as model:
        refused = model.choice.refused[0]
        assert refused.stage == "load"
        assert "no NVIDIA driver on this machine" in refused.why
        assert model.choice.reasons == [f"rtx-ampere did not load: {refused.why}"]


def test_a_plan_of_another_release_is_not_tried(folder: Any, plan: bytes, on_gpu: Callable[..., None]) -> None:
    folder.add("rtx-ampere", plan, **record("1.4.0.76"))
    on_gpu()

    with pytest.raises(LoadError) as caught:
        load(str(folder.write()))
    (refused,) = caught.value.choice.refused
    assert (refused.stage, refused.kind) == ("backend", "plan-version-mismatch")
    assert "built by TensorRT-RTX 1.4.0.76, this host has" in refused.why


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda data: data.replace(b"\n", b"\r\n"), "text-mode transfer"),
        (lambda data: data.decode("utf-8", "replace").encode(), "UTF-8 replacement character"),
        (lambda data: data[:-9], "the plan is cut"),
        (lambda data: data + b"\0", "the plan is too long"),
        (lambda data: data[:-4] + bytes(4), "end mark is missing"),
        (lambda data: b"", "the file is empty"),
        (lambda data: b"PK\x03\x04" + data[4:], "it is a zip archive"),
    ],
    ids=["text mode", "text conversion", "cut", "grown", "end overwritten", "empty", "zip"],
)
def test_damaged_plans_never_reach_the_runtime(
    folder: Any, plan: bytes, version: str, doubling: bytes, on_gpu: Callable[..., None], damage: Callable[[bytes], bytes], text: str
) -> None:
    engine = folder.add("rtx-ampere", plan, **record(version))
    folder.add("cpu", doubling)
    manifest = folder.write()
    engine.write_bytes(damage(plan))
    on_gpu()

    with load(str(manifest)) as model:
        refused = model.choice.refused[0]
        assert (refused.stage, refused.kind) == ("file", "corrupt-engine")
        assert text in refused.why
        assert model.degraded
