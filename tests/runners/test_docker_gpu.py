"""GPU access modes, and when the image's compat libraries are needed."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.runners.docker_gpu import GpuAccess, needs_compat, options, settle

A = {"index": 0, "name": "NVIDIA L4", "uuid": "GPU-a", "compute_capability": "8.9"}
B = {"index": 1, "name": "NVIDIA L4", "uuid": "GPU-b", "compute_capability": "8.9"}
DECLARED = {**A, "uuid": "declared-lab-0", "declared_uuid": True}


@pytest.mark.parametrize(
    ("info", "mode"),
    [
        ({"Runtimes": {"runc": {}}}, "none"),
        ({"Runtimes": {"runc": {}, "nvidia": {}}, "Architecture": "x86_64"}, "request"),
        ({"Runtimes": {"runc": {}, "nvidia": {}}, "Architecture": "aarch64"}, "runtime"),
        ({"Runtimes": {"runc": {}}, "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}]}, "cdi"),
        ({}, "none"),
    ],
)
def test_auto_takes_what_the_engine_has(info: dict[str, Any], mode: str) -> None:
    assert settle(GpuAccess(), info).mode == mode
    assert settle(GpuAccess("cdi"), info) == GpuAccess("cdi")


def test_a_device_request_names_exactly_the_leased_gpu() -> None:
    (request,) = options(GpuAccess("request"), [B], jetson=False).host_config["device_requests"]
    assert (request["DeviceIDs"], request["Count"]) == (["GPU-b"], 0)
    (request,) = options(GpuAccess("request"), None, jetson=False).host_config["device_requests"]
    assert request["Count"] == -1


def test_cdi_and_runtime_name_it_their_way() -> None:
    (request,) = options(GpuAccess("cdi"), [B], jetson=False).host_config["device_requests"]
    assert (request["Driver"], request["DeviceIDs"]) == ("cdi", ["nvidia.com/gpu=GPU-b"])
    found = options(GpuAccess("runtime"), [B], jetson=False)
    assert found.host_config == {"runtime": "nvidia"}
    assert found.environment["NVIDIA_VISIBLE_DEVICES"] == "GPU-b"


def test_a_step_without_gpu_gets_none_even_where_nvidia_is_the_default_runtime() -> None:
    found = options(GpuAccess("runtime"), (), jetson=True)
    assert (found.host_config, found.environment) == ({}, {"NVIDIA_VISIBLE_DEVICES": "void"})


def test_a_declared_uuid_is_never_given_to_the_engine() -> None:
    assert options(GpuAccess("runtime"), [DECLARED], jetson=False).environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    (request,) = options(GpuAccess("request"), [DECLARED], jetson=False).host_config["device_requests"]
    assert request["Count"] == -1


def test_explicit_devices_are_those_of_the_leased_gpu_and_the_drivers_own() -> None:
    nodes = ("/dev/nvidia10", "/dev/nvidia0", "/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia-uvm")
    access = GpuAccess("devices", nodes, "/usr/local/nvidia")
    found = options(access, [{**B, "index": 1}], jetson=False)
    assert found.host_config["devices"] == [f"{node}:{node}:rw" for node in ("/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia-uvm")]
    (mount,) = found.host_config["mounts"]
    assert (mount["Source"], mount["Type"], mount["ReadOnly"]) == ("/usr/local/nvidia", "bind", True)
    assert found.libraries == ["/usr/local/nvidia/lib64"]
    assert found.environment["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert len(options(access, None, jetson=False).host_config["devices"]) == 5


def test_a_jetson_gets_its_csv_mounts_and_the_video_group() -> None:
    found = options(GpuAccess("runtime"), [DECLARED], jetson=True)
    assert found.environment["NVIDIA_REQUIRE_JETPACK"] == "csv-mounts=all"
    assert found.host_config["group_add"] == ["44"]


IMAGE = "nvcr.io/nvidia/tensorrt:23.09-py3"
CUDA = {"CUDA_VERSION": "12.2.1.009"}


@pytest.mark.parametrize(
    ("driver", "gpu", "needed"),
    [
        ("535.104.05", "NVIDIA A100-SXM4-80GB", False),
        ("525.85.12", "NVIDIA A100-SXM4-80GB", False),  # minor-version compatibility
        ("470.57.02", "NVIDIA A100-SXM4-80GB", True),
        ("470.57.02", "NVIDIA GeForce RTX 3090", False),  # the compat libraries would only give error 804
        (None, "NVIDIA A100-SXM4-80GB", False),
    ],
)
def test_compat_libraries_are_used_where_placement_relied_on_them(driver: str | None, gpu: str, needed: bool) -> None:
    host = {"driver": {"version": driver} if driver else None, "jetson": None}
    assert needs_compat(IMAGE, CUDA, host, {"name": gpu}) is needed
    assert needs_compat(IMAGE, CUDA, {**host, "jetson": {"l4t": "32.7.1"}}, {"name": gpu}) is False


def test_the_facts_know_the_cuda_of_an_image_that_does_not_say_it() -> None:
    host = {"driver": {"version": "470.57.02"}, "jetson": None}
    assert needs_compat(IMAGE, {}, host, {"name": "Tesla T4"}) is True
    assert needs_compat("example.com/own:1", {}, host, {"name": "Tesla T4"}) is False
