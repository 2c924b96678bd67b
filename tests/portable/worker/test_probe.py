"""What a host says about itself, on machines that have little or broken parts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.portable.backends import cuda, nvml
from orchestrator.portable.worker import backend_probe, machine, probe
from orchestrator.portable.worker.errors import StepError
from orchestrator.portable.worker.protocol import HOST_SCHEMA

GPUS: list[dict[str, Any]] = [{"index": 0, "uuid": "GPU-aa11"}, {"index": 1, "uuid": "GPU-ab22"}, {"index": 2, "uuid": "GPU-cc33"}]


def test_the_description_has_every_documented_field() -> None:
    host = probe.describe_host()

    assert list(host) == [
        "schema", "platform", "os", "kernel", "libc", "python", "python_executable", "cpu", "memory_bytes", "gpus", "mig", "driver",
        "jetson", "container", "backends",
    ]  # fmt: skip
    assert all(f'"{field}":' in str(probe.__doc__) for field in host)
    assert host["schema"] == HOST_SCHEMA
    assert host["python"] == ".".join(map(str, sys.version_info[:3]))
    assert host["python_executable"] == sys.executable
    assert host["cpu"]["count"] >= 1
    assert host["backends"]["onnxruntime"]["version"]
    assert "cpu" in host["backends"]["onnxruntime"]["providers"]


@pytest.mark.rtx
def test_rtx_says_which_capabilities_it_builds_for() -> None:
    found = backend_probe.probe_backends()["tensorrt-rtx"]

    assert found["compute_capabilities"][:5] == ["7.5", "8.0", "8.6", "8.9", "12.0"]


def test_without_libraries_there_are_no_gpus_and_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_NAMES", ("libno-such-nvml.so",))
    monkeypatch.setattr(cuda, "_NAMES", ("libno-such-cuda.so",))
    monkeypatch.setattr(machine, "kernel_module_version", lambda: None)

    assert probe.gpus_and_driver() == ([], None)
    with pytest.raises(StepError, match="no NVIDIA driver on this machine"):
        cuda.Cuda()


def test_a_driver_without_user_libraries_is_told_by_its_kernel_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_NAMES", ("libno-such-nvml.so",))
    monkeypatch.setattr(cuda, "_NAMES", ("libno-such-cuda.so",))
    text = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\nGCC version: gcc 12.2.0\n"
    monkeypatch.setattr(machine, "read", lambda path: text if path == "/proc/driver/nvidia/version" else "")

    assert probe.gpus_and_driver() == ([], {"version": "580.159.04", "cuda": None})


def test_a_library_that_is_no_nvml_is_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "_NAMES", ("libc.so.6",))

    with pytest.raises(nvml.NvmlError, match="nvmlInit_v2 is not in this NVML"), nvml.Nvml():
        pass


@pytest.mark.parametrize(
    ("variable", "indexes"),
    [
        (None, [0, 1, 2]),
        ("2,0", [2, 0]),
        ("GPU-cc, 0", [2, 0]),
        ("GPU-a", []),
        ("0,7,1", [0]),
        ("1,1", [1]),
        ("", []),
        ("-1", []),
    ],
)
def test_visible_gpus_are_read_as_cuda_reads_them(variable: str | None, indexes: list[int]) -> None:
    assert [gpu["index"] for gpu in probe.visible(GPUS, variable)] == indexes


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("# R32 (release), REVISION: 7.1, GCID: 29818004, BOARD: t186ref, EABI: aarch64, DATE: Sat Feb 19 17:07:00 UTC 2022", "32.7.1"),
        ("# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, DATE: Wed Jan  8 01:49:37 UTC 2025", "36.4.3"),
        ("", None),
        ("something else", None),
    ],
)
def test_l4t_release_is_read_from_its_file(text: str, release: str | None) -> None:
    assert machine.l4t_release(text) == release


def test_jetpack_is_read_from_the_installed_package() -> None:
    status = "Package: nvidia-l4t-core\nStatus: install ok installed\nVersion: 32.7.1-2022\n\n"
    package = "Package: nvidia-jetpack\nStatus: install ok installed\nArchitecture: arm64\nVersion: 4.6.1-b110\n"

    assert machine.jetpack_package(status + package) == "4.6.1"
    assert machine.jetpack_package(status) is None


def test_a_jetson_in_a_container_is_known_by_its_device_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "read", lambda path: "NVIDIA Jetson Xavier NX\0" if path == "/proc/device-tree/model" else "")

    assert machine.jetson() == {"l4t": None, "jetpack": None, "model": "NVIDIA Jetson Xavier NX"}


def test_other_machines_with_a_device_tree_are_no_jetson(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "read", lambda path: "Raspberry Pi 4 Model B\0" if path == "/proc/device-tree/model" else "")

    assert machine.jetson() is None


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("raise ImportError('libnvinfer.so.8: cannot open shared object file')", "libnvinfer.so.8: cannot open shared object file"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "import ended with signal 11"),
        ("import os; os._exit(0)", "import ended without an answer"),
        ("print('banner'); __version__ = '8.6.1'", None),
    ],
)
def test_a_broken_module_cannot_hurt_the_probe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, text: str | None) -> None:
    (tmp_path / "tensorrt.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(backend_probe, "_interpreter_flags", list)

    found = backend_probe.probe_backends()["tensorrt"]

    if text is None:
        assert found == {"version": "8.6.1"}
    else:
        assert text in found["error"]


def test_a_module_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_probe, "TIMEOUT_SECONDS", 0.2)
    child = backend_probe._Child("import time; time.sleep(60)")

    assert backend_probe._answer(child) == {"error": "import took more than 0 s"}
    assert child.process.returncode is not None


def test_the_description_needs_nothing_outside_the_standard_library(tmp_path: Path) -> None:
    from orchestrator.runners.bundle import write_pyz

    write_pyz(tmp_path / "worker.pyz")
    done = subprocess.run([sys.executable, "-I", "-S", tmp_path / "worker.pyz", "probe"], capture_output=True, text=True, check=True)

    assert '"error": "not installed"' in done.stdout
