"""From a host description with details to findings: what is fine, what is odd, what does not work, and what to do.

A finding is ``{"code", "area", "level", "text", "fix"}``; ``level`` is ok, info, warning or error. Codes are stable (docs/doctor.md).
"""

import re
from typing import Any, Dict, List, Optional

from ..facts.answer import NO, YES
from ..facts.drivers import driver_check, is_data_center
from ..facts.images import jetpack_facts, jetpack_of_l4t
from ..facts.support import tensorrt_supports
from ..facts.version import compare, matches, parse

LEVELS = ("ok", "info", "warning", "error")
_GIB = 1 << 30
_NAMES = {"tensorrt": "TensorRT", "tensorrt-rtx": "TensorRT-RTX", "onnxruntime": "ONNX Runtime"}
_ABSENT = "not installed"

Finding = Dict[str, str]


def findings(host: Dict[str, Any]) -> List[Finding]:
    """Everything that can be said of ``host`` ("enginefarm.host/1", with "details" as doctor_facts.py gives them, or without)."""
    details = host.get("details") or {}
    found = _gpus(host) + _driver(host, details)
    found += _backends(host) + _libraries(host, details) + _packages(host, details)
    if host.get("jetson"):
        found += _jetson(host, details)
    if details:
        found += _containers(host, details) + _space(host, details)
    return found


def _say(code: str, level: str, text: str, fix: str = "") -> Finding:
    areas = {"1": "gpu", "2": "libraries", "3": "containers", "4": "jetson", "5": "system"}
    return {"code": code, "area": areas[code[1]], "level": level, "text": text, "fix": fix}


# --- D1: GPU and driver ---


def _gpus(host: Dict[str, Any]) -> List[Finding]:
    found = []
    for gpu in host.get("gpus") or ():
        size = gpu.get("memory_bytes")
        memory = ", {:.0f} GiB".format(size / _GIB) if size else ""
        found.append(_say("D100", "ok", "{}, compute capability {}{}".format(gpu.get("name"), gpu.get("compute_capability"), memory)))
    if not found:
        found.append(_say("D101", "info", "no NVIDIA GPU here: TensorRT-RTX engines can be built, nothing on a GPU can run"))
    return found + _mig(host)


def _mig(host: Dict[str, Any]) -> List[Finding]:
    """Divided GPUs: from NVML, else from the names that the kernel module gives its slices (a container without NVML)."""
    found = []
    slices = [gpu for gpu in host.get("gpus") or () if gpu.get("mig") or "MIG" in str(gpu.get("name"))]
    divided = [gpu for gpu in host.get("mig") or () if gpu.get("enabled")]
    named = (host.get("details") or {}).get("mig") or []
    if slices or (named and not divided):
        text = "MIG is on ({}): an engine built on a slice has the slice's memory and multiprocessors".format(
            ", ".join(str(gpu.get("uuid") or gpu.get("name")) for gpu in slices) or ", ".join(named)
        )
        found.append(_say("D110", "info", text, "build on the same kind of slice that the service runs on"))
    for gpu in divided:
        if not gpu.get("devices"):
            text = "MIG is on for GPU {index} ({name}) and no slice of it is here: nothing runs on it".format(**gpu)
            fix = "make slices: sudo nvidia-smi mig -i {0} -cgi 0 -C; or use it whole: sudo nvidia-smi -i {0} -mig 0".format(gpu["index"])
            found.append(
                _say("D112", "warning", text, "start the container with a slice: --gpus device=MIG-..." if host.get("container") else fix)
            )
    for gpu in host.get("mig") or ():
        if gpu.get("enabled") != gpu.get("pending"):
            text = "MIG goes {} for GPU {} at its next reset".format("on" if gpu.get("pending") else "off", gpu.get("index"))
            found.append(
                _say("D113", "warning", text, "stop what uses the GPU, then: sudo nvidia-smi --gpu-reset -i {}".format(gpu["index"]))
            )
    return found


def _driver(host: Dict[str, Any], details: Dict[str, Any]) -> List[Finding]:
    driver = host.get("driver") or {}
    seen = details.get("driver") or {}
    version = driver.get("version") or seen.get("kernel")
    if host.get("jetson"):
        return []
    found = _mismatch(host, seen)
    if version and not found:
        text = "driver {}, runs CUDA up to {} in full".format(version, driver.get("cuda") or "what it shipped with")
        found.append(_say("D102", "ok", text))
    if version and host.get("gpus") == [] and (host.get("details") or {}).get("environment", {}).get("CUDA_VISIBLE_DEVICES") is not None:
        found.append(_say("D105", "warning", "CUDA_VISIBLE_DEVICES hides every GPU", "unset CUDA_VISIBLE_DEVICES"))
    if seen.get("kernel") and not seen.get("user"):
        text = "the kernel module {} is loaded and no libcuda.so.1 is found".format(seen["kernel"])
        fix = "start the container with the GPU's driver files: --gpus all, or capabilities compute,utility"
        found.append(_say("D104", "error", text, fix if host.get("container") else "install the driver's libraries (libnvidia-compute)"))
    if seen.get("user") and not seen.get("kernel") and not host.get("gpus"):
        found.append(_say("D106", "warning", "libcuda.so.1 is here and the kernel module is not loaded", "modprobe nvidia; nvidia-smi"))
    return found


def _mismatch(host: Dict[str, Any], seen: Dict[str, Any]) -> List[Finding]:
    """Kernel module and user-space library of different releases."""
    kernel, user = seen.get("kernel"), seen.get("user")
    if not kernel or not user or kernel == user:
        return []
    if "/compat" in str(seen.get("user_path")):
        name = str(((host.get("gpus") or [{}])[0]).get("name") or "")
        if is_data_center(name) is False:
            text = "forward compatibility ({}) is for data-center GPUs, not for {}: CUDA stops with error 804".format(user, name)
            return [_say("D107", "error", text, "take {} off LD_LIBRARY_PATH and update the driver".format(seen["user_path"]))]
        text = "forward compatibility: libcuda {} over the kernel driver {}".format(user, kernel)
        return [_say("D108", "info", text, "it works from listed driver branches only: docs/facts/drivers.yaml")]
    text = "kernel driver {} and libcuda {} differ: every CUDA program fails".format(kernel, user)
    return [_say("D103", "error", text, "reboot, or unload and load the nvidia kernel modules; in a container start it again")]


# --- D2: libraries and packages ---


def _backends(host: Dict[str, Any]) -> List[Finding]:
    found = []
    for name, facts in sorted((host.get("backends") or {}).items()):
        title, error = _NAMES.get(name, name), facts.get("error")
        if error == _ABSENT:
            found.append(_say("D201", "info", "{} is not installed for this Python".format(title)))
        elif error is not None:
            found.append(_say("D202", "error", "{} does not import: {}".format(title, error), _import_fix(str(error))))
        else:
            cuda = " for CUDA {}".format(facts["cuda"]) if facts.get("cuda") else ""
            able = ", providers " + ", ".join(facts["providers"]) if facts.get("providers") else ""
            found.append(_say("D200", "ok", "{} {}{}{}".format(title, facts.get("version"), cuda, able)))
            found += _fits(host, name, facts)
    return found


def _import_fix(error: str) -> str:
    library = re.search(r"(lib[\w-]+\.so[.\d]*): cannot open shared object", error)
    if library:
        return "install the package that brings {}, or put its folder on LD_LIBRARY_PATH".format(library.group(1))
    return "run the import by hand to see all of it"


def _fits(host: Dict[str, Any], name: str, facts: Dict[str, Any]) -> List[Finding]:
    """Whether what is installed fits the GPU and the driver."""
    found = []
    for gpu in host.get("gpus") or ():
        capability = gpu.get("compute_capability")
        if name == "tensorrt" and capability and facts.get("version"):
            answer = _quiet(tensorrt_supports, facts["version"], capability)
            if answer is not None and answer.verdict == NO:
                found.append(_say("D203", "error", answer.reason, "install a TensorRT that supports {}".format(capability)))
    driver = (host.get("driver") or {}).get("version")
    if driver and facts.get("cuda") and host.get("gpus") and not host.get("jetson"):
        gpu_name = str(host["gpus"][0].get("name") or "")
        answer = _quiet(driver_check, driver, facts["cuda"], is_data_center(gpu_name))
        if answer is not None and answer.verdict == NO:
            found.append(_say("D109", "error", "{}: {}".format(_NAMES.get(name, name), answer.reason), "update the driver"))
        elif answer is not None and answer.verdict == YES and "in full" not in answer.reason and len(parse(facts["cuda"])) > 1:
            found.append(_say("D111", "info", "{}: {}".format(_NAMES.get(name, name), answer.reason), "a newer driver lifts the limits"))
    return found


def _quiet(function: Any, *arguments: Any) -> Any:
    """An answer of the facts, None for a version that is none: a saved description may hold anything."""
    try:
        return function(*arguments)
    except ValueError:
        return None


def _libraries(host: Dict[str, Any], details: Dict[str, Any]) -> List[Finding]:
    found = []
    by_name = {}  # type: Dict[str, List[Dict[str, Any]]]
    for library in details.get("libraries") or ():
        by_name.setdefault(re.sub(r"\.so.*", "", library["name"]), []).append(library)
    for name, copies in sorted(by_name.items()):
        versions = {copy["version"] for copy in copies if copy["version"]}
        if len(versions) > 1 and name not in ("libcuda", "libnvidia-ml"):
            places = ", ".join("{} ({})".format(copy["path"], copy["version"] or "version unknown") for copy in _distinct(copies))
            text = "{} is here in {} versions, the first one found wins: {}".format(name, len(versions), places)
            found.append(_say("D210", "warning", text, "keep one, or order LD_LIBRARY_PATH so that the right one comes first"))
        elif name in ("libnvinfer", "libcudnn", "libcudart"):
            known = " ".join([copies[0]["name"], copies[0]["version"] or ""]).strip()
            found.append(_say("D211", "ok", "{} from {}".format(known, copies[0]["path"])))
    gone = "LD_LIBRARY_PATH names {}, which is not there"
    found += [_say("D212", "info", gone.format(folder), "take it off LD_LIBRARY_PATH") for folder in details.get("missing_folders") or ()]
    return found + _module_and_library(host, by_name.get("libnvinfer") or [])


def _distinct(copies: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    seen = {}  # type: Dict[str, Dict[str, Any]]
    for copy in copies:
        seen.setdefault(copy["path"], copy)
    return list(seen.values())


def _module_and_library(host: Dict[str, Any], copies: List[Dict[str, Any]]) -> List[Finding]:
    """The Python module must find the library that it was built with."""
    module = ((host.get("backends") or {}).get("tensorrt") or {}).get("version")
    found = [copy for copy in copies if copy["from"] != "python" and copy["version"]]
    if (
        not module
        or not found
        or any(copy["from"] == "python" for copy in copies)
        or _quiet(matches, module, found[0]["version"]) is not False
    ):
        return []
    text = "the Python module is TensorRT {} and the loader finds libnvinfer {} ({})".format(module, found[0]["version"], found[0]["path"])
    return [_say("D213", "error", text, "install the Python package and the library of one release")]


def _packages(host: Dict[str, Any], details: Dict[str, Any]) -> List[Finding]:
    found = []
    by_folder = {}  # type: Dict[str, List[str]]
    for package in details.get("packages") or ():
        if package["name"] in ("onnxruntime", "onnxruntime_gpu"):
            by_folder.setdefault(package["folder"], []).append("{} {}".format(package["name"], package["version"]))
    for folder, names in by_folder.items():
        if len(names) > 1:
            text = "{} share one folder: whichever was installed last has overwritten the other".format(" and ".join(sorted(names)))
            fix = "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu"
            found.append(_say("D220", "error", text + " ({})".format(folder), fix))
    torch = details.get("torch")
    if torch:
        found.append(
            _say("D221", "ok", "PyTorch {} for {}".format(torch["version"], "CUDA " + torch["cuda"] if torch["cuda"] else "the CPU"))
        )
        cuda = ((host.get("backends") or {}).get("tensorrt") or {}).get("cuda")
        if cuda and torch["cuda"] and parse(cuda)[0] != parse(torch["cuda"])[0]:
            text = "PyTorch is for CUDA {} and TensorRT for CUDA {}: in one process their libraries get in each other's way"
            found.append(_say("D222", "warning", text.format(torch["cuda"], cuda), "install builds for one CUDA, or use two processes"))
    return found


# --- D3: containers ---


def _containers(host: Dict[str, Any], details: Dict[str, Any]) -> List[Finding]:
    docker, toolkit = details.get("docker") or {}, details.get("container_toolkit") or {}
    if host.get("container"):
        return [_say("D300", "info", "this is a container: its engine is asked on the host")]
    found = []
    if not docker.get("socket"):
        address = docker.get("address")
        text = "the Docker engine is at {}".format(address) if address else "no Docker engine here: nothing can be built in an image"
        found.append(_say("D301", "info", text))
    elif not docker.get("usable"):
        fix = "sudo usermod -aG docker $USER, then log in again"
        found.append(_say("D302", "warning", "the Docker engine's socket is here and this user may not use it", fix))
    else:
        found.append(_say("D303", "ok", "the Docker engine's socket can be used"))
    if host.get("gpus") and docker.get("socket"):
        found += _gpu_in_containers(host, docker, toolkit)
    return found


def _gpu_in_containers(host: Dict[str, Any], docker: Dict[str, Any], toolkit: Dict[str, Any]) -> List[Finding]:
    specs = [spec for spec in toolkit.get("cdi") or () if str(spec.get("kind")).startswith("nvidia.com/")]
    if not toolkit.get("binaries") or not ({"nvidia-ctk", "nvidia-container-runtime"} & set(toolkit["binaries"])):
        text = "the NVIDIA container toolkit is not installed: containers get no GPU"
        return [_say("D310", "warning", text, "install nvidia-container-toolkit, then: nvidia-ctk runtime configure --runtime=docker")]
    found = []
    if "nvidia" not in docker.get("runtimes", ()) and not specs:
        text = "the toolkit is installed, and Docker knows neither the nvidia runtime nor a CDI device"
        found.append(_say("D311", "error", text, "nvidia-ctk runtime configure --runtime=docker && systemctl restart docker"))
    else:
        ways = (["runtime nvidia"] if "nvidia" in docker.get("runtimes", ()) else []) + ["CDI {}".format(spec["path"]) for spec in specs]
        found.append(_say("D312", "ok", "containers get the GPU through {}".format(", ".join(ways))))
    driver = (host.get("driver") or {}).get("version")
    for spec in specs:
        if spec.get("driver") and driver and spec["driver"] != driver:
            text = "{} is of driver {}, here is {}: containers mount files that are gone".format(spec["path"], spec["driver"], driver)
            found.append(_say("D313", "error", text, "nvidia-ctk cdi generate --output={}".format(spec["path"])))
    return found


# --- D4: Jetson ---


def _jetson(host: Dict[str, Any], details: Dict[str, Any]) -> List[Finding]:
    board = host["jetson"]
    l4t = board.get("l4t")
    name = board.get("jetpack") or (_quiet(jetpack_of_l4t, l4t) if l4t else None)
    facts = jetpack_facts(name) if name else None
    found = [_say("D400", "ok", "{}, L4T {}, JetPack {}".format(board.get("model") or "Jetson", l4t or "unknown", name or "unknown"))]
    if l4t and facts is None:
        found.append(_say("D401", "warning", "the JetPack of L4T {} is not in the facts".format(l4t), "say it in the target: jetpack: ..."))
    found += _own_tensorrt(host, facts)
    csv = (details.get("jetson") or {}).get("csv") or {}
    for file, counts in sorted(csv.items()):
        if counts["missing"]:
            text = "{} lists {} files that are not there, the first is {}".format(file, counts["missing"], counts["first_missing"])
            found.append(_say("D403", "warning", text + ": containers lack them", "reinstall the JetPack packages that own them"))
    release = parse(l4t)[0] if l4t and _quiet(parse, l4t) else None
    if release == 32 and details and not host.get("container"):
        found += _csv_mode(details, csv)
    return found


def _own_tensorrt(host: Dict[str, Any], facts: Optional[Dict[str, Any]]) -> List[Finding]:
    here = ((host.get("backends") or {}).get("tensorrt") or {}).get("version")
    if not facts or not facts["tensorrt"] or not here or _quiet(compare, here, facts["tensorrt"]) in (0, None):
        return []
    text = "TensorRT {} is here, JetPack {} brings {}: engines of one do not load in the other"
    return [
        _say("D402", "warning", text.format(here, facts["jetpack"], facts["tensorrt"]), "build engines on a device with the same TensorRT")
    ]


def _csv_mode(details: Dict[str, Any], csv: Dict[str, Any]) -> List[Finding]:
    """JetPack 4: TensorRT comes from the device, by files that the nvidia runtime mounts."""
    found = []
    wanted = [name for name in ("cuda.csv", "cudnn.csv", "tensorrt.csv") if name not in csv]
    if wanted:
        text = "containers get no {} from this device".format(", ".join(name[:-4] for name in wanted))
        fix = "apt install nvidia-container-csv-{}".format(" nvidia-container-csv-".join(name[:-4] for name in wanted))
        found.append(_say("D404", "error", text, fix))
    docker = details.get("docker") or {}
    if docker.get("socket") and docker.get("default_runtime") != "nvidia":
        fix = 'add "default-runtime": "nvidia" to /etc/docker/daemon.json and restart docker'
        found.append(_say("D405", "warning", "Docker's default runtime is not nvidia: `docker build` sees no TensorRT", fix))
    return found


# --- D5: system ---


def _space(host: Dict[str, Any], details: Dict[str, Any]) -> List[Finding]:
    found = []
    for path, space in sorted((details.get("space") or {}).items()):
        free = space["free"] / _GIB
        text = "{}: {:.1f} of {:.1f} GiB free".format(path, free, space["total"] / _GIB)
        if path == "/dev/shm":  # noqa: S108
            small = space["total"] <= 64 << 20
            level = "warning" if small and host.get("container") else "ok"
            text = "{} has {:.0f} MiB".format(path, space["total"] / (1 << 20)) + (", Docker's default" if small else "")
            found.append(_say("D502", level, text, "start the container with --shm-size=1g" if level == "warning" else ""))
        elif free < 1:
            found.append(_say("D501", "error", text, "free some space: an engine and its build take several times the model's size"))
        elif free < 10:
            found.append(_say("D501", "warning", text, "an NGC image alone takes about 10 GiB"))
        else:
            found.append(_say("D500", "ok", text))
    return found
