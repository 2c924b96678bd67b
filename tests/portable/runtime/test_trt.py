"""TensorRT's path over doubles of its API, release by release: contexts, device memory, refusals.

This proves which calls are made and what the loader does with the answers, never what TensorRT does: no real TensorRT runs here.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from orchestrator.portable.runtime import session_trt
from orchestrator.portable.runtime.api import DeviceArray, InputError, LoadError, RunError, load
from orchestrator.portable.runtime.host import ThisProcess

DOUBLES = Path(__file__).resolve().parents[1] / "backends" / "trt_double.py"
VERSIONS = ("7.1", "8.4", "8.6.1", "10.3.0", "11.4.0.106")
ONES = np.ones((2, 4), np.float32)


@pytest.fixture(scope="session")
def doubles() -> ModuleType:
    spec = importlib.util.spec_from_file_location("runtime_trt_double", DOUBLES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["runtime_trt_double"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, doubles: ModuleType, on_gpu: Callable[..., None]) -> Callable[..., Any]:
    """Make this process one with a GPU and this TensorRT; gives the double."""

    entered: set[int] = set()

    class Shared(doubles.DoubleCuda):  # type: ignore[misc, name-defined]
        def keep_context(self) -> None:
            entered.clear()

        def enter(self) -> None:
            entered.add(threading.get_ident())

        def copy_in(self, address: int, source: int, size: int) -> None:
            ctypes.memmove(address, source, size)

    def make(version: str, capability: str = "8.6") -> Any:
        double = doubles.DoubleTensorRT(version)
        double.entered = entered
        on_gpu(compute_capability=capability)
        monkeypatch.setattr(ThisProcess, "backend", lambda self, name: {"version": version})
        monkeypatch.setattr(session_trt, "import_tensorrt", lambda: double.module)
        monkeypatch.setattr(session_trt, "SharedCuda", Shared)
        return double

    return make


def record(version: str, **changes: Any) -> dict[str, Any]:
    return {"backend": "tensorrt", "backend_version": version, "compute_capability": ("8.6",), **changes}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_release_loads_and_runs(folder: Any, world: Any, version: str) -> None:
    capability = "7.5" if version == "7.1" else "8.6"  # TensorRT 7.1 knows no 8.6
    world(version, capability)
    folder.add("one", b"plan", **record(version, compute_capability=(capability,)))

    with load(str(folder.write())) as model:
        for rows in (1, 3, 2):
            x = np.full((rows, 4), rows, np.float32)
            assert np.array_equal(model({"x": x})["y"], 2 * x)
        assert not model.degraded
        assert model.choice.chosen is not None
        assert model.choice.chosen.device == f"Double GPU (compute capability {capability})"


def test_exact_goes_before_compatible_goes_before_the_rest(folder: Any, world: Any, doubling: bytes) -> None:
    world("10.3.0")
    folder.add("cpu", doubling)
    folder.add("vc", b"plan", **record("10.1.0", version_compatible=True))
    folder.add("plus", b"plan", **record("10.3.0", compute_capability=("8.0",), hardware_compatibility="ampere_plus"))
    exact = folder.add("exact", b"plan", **record("10.3.0"))
    manifest = str(folder.write())

    taken = []
    for name in ("exact", "plus", "vc", "cpu"):
        with load(manifest) as model:
            assert model.choice.chosen is not None
            taken.append(model.choice.chosen.target)
            assert model.degraded is (name != "exact")
        next(folder.path.glob(f"lane_v3_{name}.*")).unlink()
    assert taken == ["exact", "plus", "vc", "cpu"]
    assert not exact.exists()


@pytest.mark.parametrize(("compatible", "allowed"), [(True, [True]), (False, [])])
def test_host_code_is_allowed_only_where_the_manifest_says_that_there_is_some(
    folder: Any, world: Any, doubles: ModuleType, monkeypatch: pytest.MonkeyPatch, compatible: bool, allowed: list[bool]
) -> None:
    world("10.3.0")
    folder.add("ampere", b"plan", **record("10.3.0", version_compatible=compatible))
    said: list[bool] = []
    real = doubles.DoubleRuntime.__setattr__

    def spy(self: Any, name: str, value: Any) -> None:
        if name == "engine_host_code_allowed" and value:
            said.append(value)
        real(self, name, value)

    monkeypatch.setattr(doubles.DoubleRuntime, "__setattr__", spy)
    load(str(folder.write())).close()
    assert said == allowed


def test_a_plan_that_does_not_load_is_explained_and_the_next_is_taken(folder: Any, world: Any, doubling: bytes) -> None:
    world("8.6.1")
    folder.add("ampere", b"other plan", **record("8.6.1"))
    folder.add("cpu", doubling)

    with load(str(folder.write())) as model:
        refused = model.choice.refused[0]
        assert (refused.target, refused.stage) == ("ampere", "load")
        assert "the engine does not load: Magic tag does not match" in refused.why
        assert model.degraded


def test_the_wrong_release_is_refused_before_the_file_is_read(folder: Any, world: Any) -> None:
    world("10.3.0")
    folder.add("ampere", b"plan", **record("8.6.1.6")).unlink()

    with pytest.raises(LoadError) as caught:
        load(str(folder.write()))
    (refused,) = caught.value.choice.refused
    assert (refused.stage, refused.kind) == ("backend", "plan-version-mismatch")


@pytest.mark.parametrize(("version", "most"), [("8.6.1", 1), ("10.3.0", 4)])
def test_32_threads_share_a_pool_of_contexts(folder: Any, world: Any, version: str, most: int) -> None:
    double = world(version)
    folder.add("ampere", b"plan", **record(version))
    wrong: list[int] = []

    with load(str(folder.write()), contexts=4) as model:
        pool = model._session
        assert isinstance(pool, session_trt.TensorRTPool)

        def work(number: int) -> None:
            x = np.full((1 + number % 8, 4), number, np.float32)
            wrong.extend(number for _ in range(20) if not np.array_equal(model({"x": x})["y"], 2 * x))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert 1 <= len(pool._contexts) <= most
        assert len(pool._free) == len(pool._contexts)
        assert len(double.entered) > 1
    assert wrong == []


def test_when_no_more_contexts_fit_calls_wait(folder: Any, world: Any, doubles: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    world("10.3.0")
    folder.add("ampere", b"plan", **record("10.3.0"))
    with load(str(folder.write()), contexts=4) as model:
        pool: Any = model._session
        monkeypatch.setattr(doubles.DoubleEngine, "create_execution_context", lambda self: None)
        held = pool._take()
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(model({"x": ONES})["y"]))
        thread.start()
        with pool._turn:
            pool._free.append(held)
            pool._turn.notify()
        thread.join(30)
        assert len(answers) == 1
        assert np.array_equal(answers[0], 2 * ONES)


def test_device_memory_goes_in_and_out_without_copies(folder: Any, world: Any) -> None:
    world("10.3.0")
    folder.add("ampere", b"plan", **record("10.3.0"))
    x, y = np.arange(8, dtype=np.float32).reshape(2, 4), np.zeros((2, 4), np.float32)  # the double's GPU has host memory
    there, back = (DeviceArray(array.ctypes.data, "float32", (2, 4)) for array in (x, y))

    with load(str(folder.write())) as model:
        found = model({"x": there}, outputs={"y": back})
        assert found["y"] is back
        assert np.array_equal(y, 2 * x)
        assert np.array_equal(model({"x": there})["y"], 2 * x)
        assert np.array_equal(model({"x": ONES})["y"], 2 * ONES)
        with pytest.raises(InputError, match="has shape 9x4"):
            model({"x": DeviceArray(x.ctypes.data, "float32", (9, 4))})
        with pytest.raises(InputError, match=r"the memory given for it is float32 \(1, 4\)"):
            model({"x": ONES}, outputs={"y": DeviceArray(y.ctypes.data, "float32", (1, 4))})
        with pytest.raises(InputError, match='no output "z"'):
            model({"x": ONES}, outputs={"z": back})
        with pytest.raises(InputError, match="give device memory, not ndarray"):
            model({"x": ONES}, outputs={"y": y})


def test_device_memory_that_is_not_contiguous_is_refused(folder: Any, world: Any) -> None:
    world("10.3.0")
    folder.add("ampere", b"plan", **record("10.3.0"))
    strided = DeviceArray(16, "float32", (2, 4))
    strided.__cuda_array_interface__["strides"] = (32, 4)

    with load(str(folder.write())) as model, pytest.raises(InputError, match="contiguous in C order"):
        model({"x": strided})


def test_onnx_runtime_takes_no_device_memory(folder: Any, doubling: bytes) -> None:
    folder.add("cpu", doubling)

    with load(str(folder.write())) as model:
        with pytest.raises(InputError, match="this engine takes numpy arrays"):
            model({"x": DeviceArray(16, "float32", (2, 4))})
        with pytest.raises(InputError, match="outputs= is for TensorRT"):
            model({"x": ONES}, outputs={"y": DeviceArray(16, "float32", (2, 4))})


def test_a_run_that_fails_frees_its_context(folder: Any, world: Any, doubles: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    world("10.3.0")
    folder.add("ampere", b"plan", **record("10.3.0"))
    with load(str(folder.write())) as model:
        with monkeypatch.context() as patch:
            patch.setattr(doubles.DoubleContext, "execute_v2", lambda self, addresses: False)
            for _ in range(3):
                with pytest.raises(RunError, match="the engine does not run"):
                    model({"x": ONES})
        assert np.array_equal(model({"x": ONES})["y"], 2 * ONES)


def test_plugins_lie_beside_the_manifest_and_are_checked(folder: Any, world: Any) -> None:
    world("10.3.0")
    digest = "sha256:" + "0" * 64
    folder.add("ampere", b"plan", **record("10.3.0", plugins={"plugins/libnms.so": digest}))
    manifest = str(folder.write())

    with pytest.raises(LoadError, match=r"its plugin libnms\.so is not beside the manifest"):
        load(manifest)
    (folder.path / "libnms.so").write_bytes(b"no library")
    with pytest.raises(LoadError, match="its digest is"):
        load(manifest)


def test_an_engine_of_another_cuda_build_is_refused_although_the_version_is_the_same(
    folder: Any, world: Any, doubling: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    world("8.6.1")
    folder.add("ampere", b"plan", **record("8.6.1.6", cuda="12.2"))
    folder.add("cpu", doubling)
    monkeypatch.setattr(ThisProcess, "backend", lambda self, name: {"version": "8.6.1.6", "cuda": "11.8", "providers": ["cpu"]})

    with load(str(folder.write())) as model:
        refused = model.choice.refused[0]
        assert (refused.target, refused.stage, refused.kind) == ("ampere", "backend", "plan-version-mismatch")
        assert "a CUDA 12 build of TensorRT 8.6.1.6 made it, here is the CUDA 11 build" in refused.why
        assert model.degraded


def test_the_cuda_of_an_installed_tensorrt_is_read_as_the_probe_reads_it(run_code: Any, tmp_path: Path) -> None:
    (tmp_path / "tensorrt.py").write_text('__version__ = "10.11.0.33"')
    (tmp_path / "tensorrt_cu12-10.11.0.33.dist-info").mkdir()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
    code += 'from enginefarm_runtime.runtime.host import ThisProcess; print(ThisProcess().backend("tensorrt"))'

    done = run_code(code)

    assert done.stdout.strip() == str({"version": "10.11.0.33", "cuda": "12"}), done.stderr
