"""The doctor on recorded machines: files below a folder that stands for the root, and what commands printed there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.portable.worker import doctor
from orchestrator.portable.worker.doctor_facts import collect
from orchestrator.portable.worker.doctor_machine import Machine
from orchestrator.portable.worker.doctor_rules import findings
from orchestrator.runners.bundle import write_pyz

LIB = "/usr/lib/x86_64-linux-gnu"
LDCONFIG = f"""3 libs found in cache `/etc/ld.so.cache'
\tlibnvinfer.so.8 (libc6,x86-64) => {LIB}/libnvinfer.so.8
\tlibcuda.so.1 (libc6,x86-64) => {LIB}/libcuda.so.1
\tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1
\tlibfoo.so.1 (libc6,x86-64) => {LIB}/libfoo.so.1
"""
KERNEL = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Wed Aug  2 13:05:37 UTC 2023\n"
DPKG = """Package: libnvinfer8
Status: install ok installed
Version: 8.6.1.6-1+cuda12.0

Package: nvidia-container-toolkit
Status: install ok installed
Version: 1.17.8-1

Package: libcudnn8
Status: deinstall ok config-files
Version: 8.9.0
"""
CDI = 'cdiVersion: "0.5.0"\nkind: nvidia.com/gpu\nmounts:\n- hostPath: /usr/lib/libcuda.so.{}\n'
T4 = {"name": "Tesla T4", "compute_capability": "7.5", "memory_bytes": 16 << 30}
GEFORCE = T4 | {"name": "NVIDIA GeForce RTX 3090"}
COMPAT = "/usr/local/cuda/compat/libcuda.so.1"
BOTH_ORT = [{"name": name, "version": "1.20.0", "folder": "/site"} for name in ("onnxruntime", "onnxruntime_gpu")]
TORCH = {"version": "2.4.0", "cuda": "12.1", "folder": "/s"}
OLD_SPEC = {"path": "/etc/cdi/n.yaml", "kind": "nvidia.com/gpu", "driver": "525.60.13"}
OK_SPACE = {"/": {"total": 100 << 30, "free": 50 << 30}}


class Root:
    """A folder that grows the files of a machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def file(self, path: str, text: str = "") -> None:
        place = self.folder / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def library(self, folder: str, soname: str, real: str) -> None:
        self.file(f"{folder}/{real}")
        (self.folder / folder.lstrip("/") / soname).symlink_to(real)

    def machine(self, **environment: str) -> Machine:
        return Machine(str(self.folder), {"ldconfig -p": LDCONFIG}, environment, ["/site"])


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


def host(details: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "gpus": [T4],
        "driver": {"version": "535.104.05", "cuda": "12.2"},
        "jetson": None,
        "container": False,
        "backends": {},
    }
    return base | more | {"details": {"space": OK_SPACE} | (details or {})}


def codes(described: dict[str, Any], *levels: str) -> list[str]:
    return [finding["code"] for finding in findings(described) if not levels or finding["level"] in levels]


def text_of(described: dict[str, Any], code: str) -> str:
    return next(finding["text"] for finding in findings(described) if finding["code"] == code)


# --- what is collected ---


def test_an_empty_machine_has_empty_details(root: Root) -> None:
    details = collect(Machine(str(root.folder), {}, {}, []))

    assert (details["libraries"], details["packages"], details["debs"], details["mig"]) == ([], [], {}, [])
    assert details["driver"] == {"kernel": None, "user": None, "user_path": None, "devices": []}
    assert details["docker"]["socket"] is False
    assert details["torch"] is None
    assert details["jetson"] is None


def test_libraries_come_in_the_order_of_the_loader(root: Root) -> None:
    root.library("/opt/trt/lib", "libnvinfer.so.8", "libnvinfer.so.8.5.3")
    root.library(LIB, "libnvinfer.so.8", "libnvinfer.so.8.6.1")
    root.library(LIB, "libcuda.so.1", "libcuda.so.535.104.05")
    root.library("/site/nvidia/cudnn/lib", "libcudnn.so.9", "libcudnn.so.9.3.0")

    details = collect(root.machine(LD_LIBRARY_PATH="/opt/trt/lib:/gone"))

    assert [(item["name"], item["version"], item["from"]) for item in details["libraries"]] == [
        ("libnvinfer.so.8", "8.5.3", "LD_LIBRARY_PATH"),
        ("libnvinfer.so.8", "8.6.1", "ldconfig"),
        ("libcuda.so.1", "535.104.05", "ldconfig"),
        ("libcudnn.so.9", "9.3.0", "python"),
    ]
    assert details["missing_folders"] == ["/gone"]


def test_packages_drivers_and_toolkit_are_read_from_their_files(root: Root) -> None:
    root.file("/proc/driver/nvidia/version", KERNEL.format("535.104.05"))
    root.file("/dev/nvidia0")
    root.file("/var/lib/dpkg/status", DPKG)
    root.file("/site/tensorrt_cu12-10.3.0.dist-info/METADATA")
    root.file("/site/torch/version.py", "__version__ = '2.4.0+cu121'\ncuda: Optional[str] = '12.1'\n")
    root.file(
        "/etc/docker/daemon.json", json.dumps({"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}, "default-runtime": "nvidia"})
    )
    root.file("/etc/nvidia-container-runtime/config.toml", '[nvidia-container-runtime]\nmode = "cdi"\n')
    root.file("/usr/bin/nvidia-ctk")
    root.file("/etc/cdi/nvidia.yaml", CDI.format("535.104.05"))
    root.file("/proc/driver/nvidia/capabilities/gpu0/mig/gi3/access")
    root.file("/var/run/docker.sock")

    details = collect(root.machine(CUDA_VISIBLE_DEVICES="0"))

    assert details["driver"]["kernel"] == "535.104.05"
    assert details["driver"]["devices"] == ["nvidia0"]
    assert details["debs"] == {"libnvinfer8": "8.6.1.6-1+cuda12.0", "nvidia-container-toolkit": "1.17.8-1"}
    assert details["packages"] == [{"name": "tensorrt_cu12", "version": "10.3.0", "folder": "/site"}]
    assert details["torch"] == {"version": "2.4.0+cu121", "cuda": "12.1", "folder": "/site"}
    assert details["docker"] | {"usable": True} == {
        "binary": False, "socket": True, "usable": True, "address": None, "runtimes": ["nvidia"], "default_runtime": "nvidia",
    }  # fmt: skip
    assert details["container_toolkit"]["cdi"] == [{"path": "/etc/cdi/nvidia.yaml", "kind": "nvidia.com/gpu", "driver": "535.104.05"}]
    assert (details["container_toolkit"]["mode"], details["container_toolkit"]["binaries"]) == ("cdi", ["nvidia-ctk"])
    assert details["mig"] == ["gpu0/gi3"]
    assert details["environment"] == {"CUDA_VISIBLE_DEVICES": "0"}


def test_a_jetson_says_which_of_its_csv_files_are_gone(root: Root) -> None:
    root.file("/etc/nv_tegra_release", "# R32 (release), REVISION: 7.1\n")
    folder = "/etc/nvidia-container-runtime/host-files-for-container.d"
    root.file(f"{folder}/tensorrt.csv", "lib, /usr/lib/libnvinfer.so.8\nsym, /usr/lib/gone.so\n\ndir, /usr/src\n")
    root.file("/usr/lib/libnvinfer.so.8")
    root.file("/usr/src/x")

    details = collect(root.machine())

    assert details["jetson"] == {"csv": {"tensorrt.csv": {"listed": 3, "missing": 1, "first_missing": "/usr/lib/gone.so"}}}


def test_a_command_that_hangs_or_is_missing_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.portable.worker.doctor_machine.COMMAND_SECONDS", 0.2)

    assert Machine().run("no-such-command-anywhere") == ""
    assert Machine().run(sys.executable, "-c", "import time; time.sleep(30)") == ""
    assert Machine().run(sys.executable, "-c", "print('x')") in ("x\n", "")


# --- what is said about it ---


def test_a_healthy_machine_has_no_warning() -> None:
    details = {
        "driver": {"kernel": "535.104.05", "user": "535.104.05", "user_path": f"{LIB}/libcuda.so.1", "devices": ["nvidia0"]},
        "docker": {"socket": True, "usable": True, "runtimes": ["nvidia"]},
        "container_toolkit": {"binaries": ["nvidia-ctk"], "cdi": []},
        "libraries": [{"name": "libnvinfer.so.8", "path": f"{LIB}/libnvinfer.so.8", "version": "8.6.1", "from": "ldconfig"}],
    }
    described = host(details, backends={"tensorrt": {"version": "8.6.1.6", "cuda": "12.0"}})

    assert codes(described, "warning", "error") == []
    assert {"D100", "D102", "D200", "D211", "D303", "D312", "D500"} <= set(codes(described, "ok"))


def seen(kernel: str | None, user: str | None, path: str = f"{LIB}/libcuda.so.1") -> dict[str, Any]:
    return {"driver": {"kernel": kernel, "user": user, "user_path": path, "devices": []}}


@pytest.mark.parametrize(
    ("described", "code", "part"),
    [
        (host(seen("535.104.05", "550.54.15")), "D103", "differ"),
        (host(seen("535.104.05", None)), "D104", "no libcuda.so.1"),
        (host(seen(None, "550.54.15"), gpus=[], driver=None), "D106", "not loaded"),
        (host(seen("470.82.01", "535.86.10", COMPAT), gpus=[GEFORCE]), "D107", "804"),
        (host(seen("470.82.01", "535.86.10", COMPAT)), "D108", "forward compatibility"),
        (host(backends={"tensorrt": {"version": "10.3.0.26", "cuda": "13.0"}}), "D109", "too old for CUDA 13.0"),
        (host(backends={"tensorrt": {"version": "10.3.0.26", "cuda": "12.6"}}), "D111", "minor-version compatibility"),
        (host({"mig": ["gpu0/gi3"]}), "D110", "MIG is on"),
        (host({"environment": {"CUDA_VISIBLE_DEVICES": ""}}, gpus=[]), "D105", "hides every GPU"),
        (host(backends={"tensorrt": {"error": "ImportError: libnvinfer.so.8: cannot open shared object file"}}), "D202", "does not import"),
        (host(gpus=[T4 | {"compute_capability": "12.0"}], backends={"tensorrt": {"version": "8.6.1.6"}}), "D203", "does not know"),
        (
            host({"libraries": [
                {"name": "libcudnn.so.8", "path": "/opt/libcudnn.so.8", "version": "8.9.4", "from": "LD_LIBRARY_PATH"},
                {"name": "libcudnn.so.9", "path": f"{LIB}/libcudnn.so.9", "version": "9.3.0", "from": "ldconfig"},
            ]}), "D210", "2 versions",
        ),
        (host({"missing_folders": ["/gone"]}), "D212", "/gone"),
        (
            host(
                {"libraries": [{"name": "libnvinfer.so.8", "path": f"{LIB}/libnvinfer.so.8", "version": "8.5.3", "from": "ldconfig"}]},
                backends={"tensorrt": {"version": "8.6.1.6"}},
            ), "D213", "the loader finds libnvinfer 8.5.3",
        ),
        (
            host({"packages": BOTH_ORT}), "D220", "share one folder",
        ),
        (
            host({"torch": TORCH}, backends={"tensorrt": {"version": "8.6.1.6", "cuda": "11.8"}}),
            "D222", "PyTorch is for CUDA 12.1 and TensorRT for CUDA 11.8",
        ),
        (host({"docker": {"socket": False}}), "D301", "no Docker engine"),
        (host({"docker": {"socket": True, "usable": False}}), "D302", "may not use it"),
        (host({"docker": {"socket": True, "usable": True}, "container_toolkit": {"binaries": []}}), "D310", "not installed"),
        (host({"docker": {"socket": True, "usable": True}, "container_toolkit": {"binaries": ["nvidia-ctk"]}}), "D311", "neither"),
        (
            host({
                "docker": {"socket": True, "usable": True},
                "container_toolkit": {"binaries": ["nvidia-ctk"], "cdi": [OLD_SPEC]},
            }), "D313", "is of driver 525.60.13, here is 535.104.05",
        ),
        (host({"space": {"/": {"total": 10 << 30, "free": 1 << 20}}}), "D501", "0.0 of 10.0 GiB free"),
        (host({"space": {"/dev/shm": {"total": 64 << 20, "free": 64 << 20}}}, container=True), "D502", "Docker's default"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(described: dict[str, Any], code: str, part: str) -> None:
    assert part in text_of(described, code)


def xavier(details: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    board = more.pop("jetson", {"l4t": "32.7.1", "jetpack": None, "model": "NVIDIA Jetson Xavier NX"})
    return host(details, driver=None, jetson=board, gpus=[{"name": "Xavier", "compute_capability": "7.2"}], **more)


def test_a_jetson_is_told_by_its_l4t() -> None:
    assert text_of(xavier(), "D400") == "NVIDIA Jetson Xavier NX, L4T 32.7.1, JetPack 4.6.1"


@pytest.mark.parametrize(
    ("described", "code"),
    [
        (xavier(jetson={"l4t": "99.1.0", "jetpack": None, "model": None}), "D401"),
        (xavier(backends={"tensorrt": {"version": "8.4.1.5"}}), "D402"),
        (xavier({"jetson": {"csv": {"cuda.csv": {"listed": 9, "missing": 2, "first_missing": "/x"}}}}), "D403"),
        (xavier({"jetson": {"csv": {"cuda.csv": {"listed": 9, "missing": 0, "first_missing": None}}}}), "D404"),
        (xavier({"docker": {"socket": True, "usable": True, "default_runtime": "runc"}}), "D405"),
    ],
)
def test_what_is_wrong_with_a_jetson_is_named(described: dict[str, Any], code: str) -> None:
    assert code in codes(described)


def test_a_jetson_as_shipped_has_no_error() -> None:
    csv = {name: {"listed": 5, "missing": 0, "first_missing": None} for name in ("cuda.csv", "cudnn.csv", "tensorrt.csv", "l4t.csv")}
    described = xavier({"jetson": {"csv": csv}}, backends={"tensorrt": {"version": "8.2.1.8", "cuda": "10.2"}})

    assert codes(described, "warning", "error") == []


def test_every_problem_says_what_to_do() -> None:
    described = host(
        seen("535.104.05", "550.54.15") | {"docker": {"socket": True, "usable": False}, "space": {"/": {"total": 9, "free": 9}}}
    )

    assert all(finding["fix"] for finding in findings(described) if finding["level"] in ("warning", "error"))


def test_a_host_without_details_is_judged_too() -> None:
    described = host() | {"details": None}

    assert codes(described) == ["D100", "D102"]


def test_the_exit_code_is_4_only_for_errors() -> None:
    assert doctor.exit_code(findings(host(seen("535.104.05", "550.54.15")))) == 4
    assert doctor.exit_code(findings(host({"docker": {"socket": True, "usable": False}}))) == 0


def test_a_finding_cannot_write_to_the_terminal() -> None:
    described = host(backends={"tensorrt": {"error": "\x1b[31mred"}})

    assert not any("\x1b" in line for line, _ in doctor.lines(findings(described)))


# --- as it is shipped ---

_VERSIONS = ("3.6", "3.8", "3.10", "3.13")


def _interpreters() -> list[str]:
    given = os.environ.get("ENGINEFARM_PYTHONS")
    if given:
        return given.split(":")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    held = {version: next(iter(map(str, sorted(pyenv.glob(f"{version}.*/bin/python3")))), None) for version in _VERSIONS}
    return [path for path in (held[version] or shutil.which(f"python{version}") for version in _VERSIONS) if path]


@pytest.fixture(scope="module")
def pyz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("doctor") / "worker.pyz"
    write_pyz(path)
    return path


def run(pyz: Path, *arguments: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, "-I", pyz, "doctor", *arguments], capture_output=True, text=True, timeout=120, check=False)


def test_the_shipped_doctor_prints_json_or_a_table(pyz: Path) -> None:
    as_json = run(pyz, "--json")
    answer = json.loads(as_json.stdout)

    assert answer["schema"] == "enginefarm.doctor/1"
    assert answer["host"]["schema"] == "enginefarm.host/1"
    assert as_json.returncode == doctor.exit_code(answer["findings"])
    assert run(pyz).stdout.startswith("gpu\n  D1")
    assert run(pyz, "--jsn").returncode == 2


def test_the_shipped_doctor_saves_the_description_that_compat_takes(pyz: Path, tmp_path: Path) -> None:
    done = run(pyz, "--json", "--save", str(tmp_path / "host.json"))

    saved = json.loads((tmp_path / "host.json").read_text())
    assert saved["schema"] == "enginefarm.host/1"
    assert saved.keys() == json.loads(done.stdout)["host"].keys()
    nowhere = run(pyz, "--save", str(tmp_path / "none" / "host.json"))
    assert (nowhere.returncode, nowhere.stdout) == (4, "")
    assert "cannot write" in nowhere.stderr
    for words in (["--save"], ["--save", ""], ["--save", "a", "b"], ["--json", "--json"]):
        assert run(pyz, *words).returncode == 2


@pytest.mark.interpreters
@pytest.mark.parametrize("python", _interpreters() or [""])
def test_the_doctor_runs_on_other_pythons(pyz: Path, python: str) -> None:
    if not python:
        pytest.skip("no other Python here: name some in ENGINEFARM_PYTHONS")

    done = run(pyz, "--json", python=python)

    assert done.stderr == ""
    assert json.loads(done.stdout)["host"]["details"]["space"]["/"]["total"] > 0


def test_every_code_is_in_the_documentation_and_nothing_else_is() -> None:
    root = Path(__file__).resolve().parents[3]
    rules = (root / "orchestrator" / "portable" / "worker" / "doctor_rules.py").read_text()
    documented = set(re.findall(r"^\| (D\d{3}) \|", (root / "docs" / "doctor.md").read_text(), re.MULTILINE))

    assert documented == set(re.findall(r'"(D\d{3})"', rules))
