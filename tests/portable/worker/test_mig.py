"""MIG: what the probe says of divided GPUs, through a named double of NVML (no GPU of this kind was at hand)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orchestrator.portable.backends import nvml
from orchestrator.portable.worker import probe
from orchestrator.portable.worker.doctor_rules import findings
from orchestrator.runners.docker_gpu import GpuAccess, options
from orchestrator.runners.lease import lease_name

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
OLD_PYTHONS = sorted(str(path) for path in PYENV.glob("3.[678].*/bin/python3"))


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("nvml_double", HERE / "nvml_double.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


double = _load()


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``on(gpu, ..., without=names)``: this machine has these GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def put(*gpus: Any, without: Any = ()) -> None:
        library = double.Double(list(gpus), without=without)
        monkeypatch.setattr(nvml, "_load", lambda: library)

    return put


def test_the_slices_stand_in_the_place_of_a_divided_gpu(on: Any) -> None:
    on(double.whole(0), double.divided(1, numbers=(0, 3)))

    gpus, driver = probe.gpus_and_driver()

    assert driver == {"version": "580.159.04", "cuda": "13.0"}
    assert [(gpu["index"], gpu["uuid"]) for gpu in gpus] == [
        (0, "GPU-00000000-aaaa"), (1, "MIG-00000001-0000"), (1, "MIG-00000001-0003"),
    ]  # fmt: skip
    assert gpus[2] == {
        "index": 1,
        "name": "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "uuid": "MIG-00000001-0003",
        "compute_capability": "8.0",
        "memory_bytes": 5 << 30,
        "sm_count": 14,
        "mig": {"gpu": "GPU-00000001-aaaa", "gpu_instance": 10, "compute_instance": 0},
    }
    assert "mig" not in gpus[0]
    assert gpus[0]["memory_bytes"] == 40 << 30


def test_mode_and_number_of_slices_are_told_for_gpus_that_can_be_divided(on: Any) -> None:
    on(double.whole(0, mig=None), double.whole(1, mig=(0, 1)), double.divided(2))

    assert [(gpu["index"], gpu["enabled"], gpu["pending"], gpu["devices"]) for gpu in probe.divisible()] == [
        (1, False, True, 0), (2, True, True, 2),
    ]  # fmt: skip
    assert probe.describe_host()["mig"] == probe.divisible()


def test_a_divided_gpu_without_slices_is_nothing_to_run_on(on: Any) -> None:
    on(double.divided(0, numbers=()))

    assert probe.gpus_and_driver()[0] == []
    assert probe.divisible()[0]["devices"] == 0


@pytest.mark.parametrize("missing", [*([name] for name in double.MIG_FUNCTIONS), double.MIG_FUNCTIONS])
def test_a_driver_without_these_functions_is_none_that_fails(on: Any, missing: list[str]) -> None:
    on(double.divided(0), without=missing)

    gpus, _ = probe.gpus_and_driver()

    if "nvmlDeviceGetMigMode" in missing:
        assert [gpu["uuid"] for gpu in gpus] == ["GPU-00000000-aaaa"]
        assert probe.divisible() == []
    elif missing[0].endswith("InstanceId"):
        assert len(gpus) == 2
        assert None in gpus[0]["mig"].values()
    else:
        assert gpus == []
        assert probe.divisible()[0]["devices"] == 0


@pytest.mark.parametrize(
    ("variable", "uuids"),
    [
        ("0", ["MIG-00000000-0000"]),  # CUDA takes the first slice
        ("1", ["GPU-00000001-aaaa"]),
        ("MIG-00000000-0003", ["MIG-00000000-0003"]),
        ("MIG-00000000", []),
        ("0,1", ["MIG-00000000-0000", "GPU-00000001-aaaa"]),
    ],
)
def test_visible_devices_name_slices_too(on: Any, monkeypatch: pytest.MonkeyPatch, variable: str, uuids: list[str]) -> None:
    on(double.divided(0), double.whole(1))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)

    assert [gpu["uuid"] for gpu in probe.gpus_and_driver()[0]] == uuids


def test_every_slice_is_a_lease_and_a_container_gets_that_one(on: Any) -> None:
    on(double.whole(0), double.divided(1))
    gpus = probe.gpus_and_driver()[0]

    assert len({lease_name(str(gpu["uuid"])) for gpu in gpus}) == 3
    (request,) = options(GpuAccess("request"), [gpus[2]], jetson=False).host_config["device_requests"]
    assert request["DeviceIDs"] == ["MIG-00000001-0003"]
    nodes = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap66")
    found = options(GpuAccess("devices", nodes), [gpus[2]], jetson=False)
    assert found.host_config["devices"] == [f"{node}:{node}:rw" for node in nodes[1:]]
    assert found.environment["CUDA_VISIBLE_DEVICES"] == "MIG-00000001-0003"


def test_a_declared_slice_gets_every_node_and_its_own_uuid() -> None:
    gpu = {"index": 0, "name": "NVIDIA A100 MIG 1g.5gb", "uuid": "MIG-dd", "compute_capability": "8.0"}
    found = options(GpuAccess("devices", ("/dev/nvidia0", "/dev/nvidia1")), [gpu], jetson=False)

    assert len(found.host_config["devices"]) == 2
    assert found.environment["CUDA_VISIBLE_DEVICES"] == "MIG-dd"
    assert lease_name("MIG-GPU-ee/7/0") == "enginefarm-gpu-MIG-GPU-ee-7-0"


def said(mig: list[dict[str, Any]], code: str, **more: Any) -> str:
    host = {"gpus": [], "mig": mig, "driver": None, "jetson": None, "container": False, "backends": {}} | more
    return next((f"{item['level']}: {item['text']}; {item['fix']}" for item in findings(host) if item["code"] == code), "")


def test_the_doctor_says_what_mig_does(on: Any) -> None:
    on(double.whole(0, mig=(0, 1)), double.divided(1, numbers=()), double.divided(2))
    mig, gpus = probe.divisible(), probe.gpus_and_driver()[0]

    assert said(mig, "D110", gpus=gpus).startswith("info: MIG is on (MIG-00000002-0000, MIG-00000002-0003): an engine built on a slice")
    assert said(mig, "D112").startswith("warning: MIG is on for GPU 1 (NVIDIA A100-SXM4-40GB) and no slice of it is here")
    assert "nvidia-smi mig -i 1 -cgi 0 -C" in said(mig, "D112")
    assert "--gpus device=MIG-" in said(mig, "D112", container=True)
    assert said(mig, "D113").startswith("warning: MIG goes on for GPU 0 at its next reset")
    assert said([mig[2]], "D112") == said([mig[2]], "D113") == ""


@pytest.mark.interpreters
@pytest.mark.parametrize("python", OLD_PYTHONS or [sys.executable])
def test_old_interpreters_say_the_same(on: Any, python: str) -> None:
    on(double.divided(0))
    code = (
        "import json, sys; sys.path[:0] = sys.argv[1:]\n"
        "import nvml_double\n"
        "from orchestrator.portable.backends import nvml\n"
        "from orchestrator.portable.worker import probe\n"
        "nvml._load = lambda: nvml_double.Double([nvml_double.divided(0)])\n"
        "print(json.dumps([probe.gpus_and_driver(), probe.divisible()]))"
    )
    done = subprocess.run([python, "-c", code, str(HERE), str(ROOT)], capture_output=True, text=True, check=True)

    assert json.loads(done.stdout) == json.loads(json.dumps([probe.gpus_and_driver(), probe.divisible()]))
