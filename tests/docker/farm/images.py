"""Images for the farm's tests, put into a registry layer by layer: one layer of Python with ONNX Runtime is shared by all of them."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from enginefarm_docker_images import CHANGES, HOME, ORT, RTX, write_image  # loaded by conftest.py

DOUBLE = Path(__file__).parent / "double"
BACKENDS = Path(__file__).parents[2] / "portable/backends"
CONFIG = "application/vnd.docker.container.image.v1+json"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"
ENV = tuple(line.removeprefix("ENV ") for line in CHANGES if line.startswith("ENV "))

# what the registry's configuration says of the real images (docs/facts/ngc_tensorrt.yaml), and which inventory the double has
DOUBLES = {
    "nvidia/tensorrt:23.09-py3": {"version": "8.6.1.6", "cuda": "12.2.1.008", "inventory": "8.6.1", "capability": "8.0"},
    "nvidia/tensorrt:22.12-py3": {"version": "8.5.1.7", "cuda": "11.8.0.065", "inventory": "8.5", "capability": "7.5"},
    "nvidia/l4t-tensorrt:r8.2.1-runtime": {"version": "8.2.1.8", "cuda": "10.2.300", "inventory": "8.2", "capability": "7.2"},
}
ORT_IMAGE, RTX_IMAGE = "lane/onnxruntime:1", "lane/tensorrt-rtx:1"


class Layers:
    """Layers as plain tar files: an engine takes them as well as compressed ones, and nobody compresses 400 MB for a test."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def ort(self) -> Path:
        path = self._folder / "ort.tar"
        if not path.exists():
            write_image(path, ORT)
        return path

    def rtx(self) -> Path:
        """What the image with TensorRT-RTX has over that of ONNX Runtime."""
        path, whole = self._folder / "rtx.tar", self._folder / "whole.tar"
        if not path.exists():
            write_image(whole, RTX)
            with tarfile.open(self.ort()) as lower, tarfile.open(whole) as source, tarfile.open(path, "w") as target:
                there = set(lower.getnames())
                for member in source:
                    if member.name not in there:
                        target.addfile(member, source.extractfile(member))
            whole.unlink()
        return path

    def double(self) -> Path:
        path = self._folder / "double.tar"
        if not path.exists():
            files = [*DOUBLE.glob("*.py"), BACKENDS / "trt_double.py", *(BACKENDS / "trt_api").glob("*.json")]
            with tarfile.open(path, "w") as archive:
                for file in files:
                    inside = f"trt_api/{file.name}" if file.suffix == ".json" else file.name
                    archive.add(file, f"{HOME}/site-packages/{inside}".lstrip("/"), filter=_plain)
        return path


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mode = 0o644
    return info


def registry_files() -> dict[str, bytes]:
    """Debian's docker-registry with its libraries and a configuration: absolute path -> content."""
    binary = Path(shutil.which("docker-registry") or "")
    told = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=True).stdout
    libraries = [word for word in told.split() if word.startswith("/")]
    config = {"version": 0.1, "log": {"level": "error"}, "storage": {"filesystem": {"rootdirectory": "/data"}}, "http": {"addr": ":0"}}
    found = {name: Path(name).read_bytes() for name in (str(binary), *libraries)}
    return found | {"/etc/registry.yml": json.dumps(config).encode()}


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest() if sys.version_info >= (3, 11) else _digest(file)


def _digest(file: Any) -> str:
    found = hashlib.sha256()
    while piece := file.read(1 << 20):
        found.update(piece)
    return "sha256:" + found.hexdigest()


class Pusher:
    """Puts images into one registry."""

    def __init__(self, server: Any, layers: Layers) -> None:
        self.server = server
        self.layers = layers
        self._home: dict[str, str] = {}  # digest -> a repository that has it

    def push(self, name: str, layers: list[Path], env: dict[str, str] | None = None, platform: str = "linux/amd64") -> str:
        """Put an image; its manifest's digest. ``platform`` is what it says of itself: the content is this machine's either way."""
        repository, _, tag = name.rpartition(":")
        described = [self._blob(repository, path) for path in layers]
        system, architecture = platform.split("/")
        config = {
            "os": system,
            "architecture": architecture,
            "config": {"Env": [*ENV, *(f"{key}={value}" for key, value in (env or {}).items())], "Entrypoint": ["/entrypoint"]},
            "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in described]},
            "history": [{"created_by": "test"} for _ in layers],
        }
        about = self.server.put_blob(repository, json.dumps(config).encode()) | {"mediaType": CONFIG}
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": about, "layers": described}
        return str(self.server.put_manifest(repository, tag, manifest))

    def _blob(self, repository: str, path: Path) -> dict[str, Any]:
        digest = file_digest(path)
        home = self._home.setdefault(digest, repository)
        start = f"/v2/{repository}/blobs/uploads/"
        if home != repository:
            self.server.call("POST", f"{start}?mount={digest}&from={home}")
        else:
            place = self.server.call("POST", start).headers["Location"]
            with path.open("rb") as file:
                self.server.call("PUT", place + ("&" if "?" in place else "?") + f"digest={digest}", data=file)
        return {"digest": digest, "size": path.stat().st_size, "mediaType": LAYER}

    def push_double(self, name: str, platform: str = "linux/amd64") -> str:
        about = DOUBLES[name]
        env = {"TRT_VERSION": about["version"], "CUDA_VERSION": about["cuda"]}
        env |= {f"DOUBLE_{key.upper()}": about[key] for key in ("version", "inventory", "capability")}
        return self.push(name, [self.layers.ort(), self.layers.double()], env, platform)

    def push_ort(self) -> str:
        return self.push(ORT_IMAGE, [self.layers.ort()])

    def push_rtx(self) -> str:
        return self.push(RTX_IMAGE, [self.layers.ort(), self.layers.rtx()])
