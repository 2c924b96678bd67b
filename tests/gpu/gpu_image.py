"""An image for a GPU machine, made of that machine's own Python, packages and CUDA libraries, and streamed into its engine.

Everything keeps the path that it has here, since that is how an interpreter finds its own library; shared libraries that ``ldd`` names go
to /usr/local/lib. The driver's libraries stay outside: the runner mounts them.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

PACKAGES = ("onnxruntime", "numpy", "numpy.libs", "flatbuffers", "google", "packaging")
LIBRARIES = "/usr/local/lib"
LEFT_OUT = {"test", "idlelib", "ensurepip", "site-packages", "dist-packages", "tkinter", "turtledemo", "lib2to3", "__pycache__"}
# opened by name at run time, so no program says that it needs them: cuDNN's parts, NVRTC and its built-ins, cuFFT
OPENED = re.compile(r"^lib(?:cudnn\w*|nvrtc|nvrtc-builtins|nvJitLink|cufft)\.so\.[\d.]+$")
_CHUNK = 1 << 20
_DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1", "libnvidia-ptxjitcompiler.so.1")
_NOT_NEEDED = "providers_tensorrt"  # needs TensorRT, which is not here; ONNX Runtime opens it only when asked

File = tuple[str, Path]


def base_python() -> Path:
    """The interpreter behind this (virtual) environment."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def site_folder() -> str:
    """Where that interpreter looks for packages: Debian's and Ubuntu's have a folder of their own."""
    code = "import site; print(site.getsitepackages()[0])"
    return subprocess.run([base_python(), "-I", "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def cuda_folders(roots: Iterable[Path]) -> list[Path]:
    """The ``lib`` folders of NVIDIA's Python packages below ``roots``."""
    return sorted(folder for root in roots for folder in root.glob("nvidia/*/lib") if folder.is_dir())


def driver_folder(place: Path) -> Path | None:
    """The folder with the driver's libraries in ``lib64``; where they lie among the system's, copies of them. None: no driver."""
    for folder in (Path("/usr/local/nvidia"), Path("/usr/lib/nvidia")):
        if (folder / "lib64/libcuda.so.1").exists():
            return folder
    for system in (Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64")):
        if (system / "libcuda.so.1").exists():
            copies = place / "driver/lib64"
            copies.mkdir(parents=True)
            for path in [*system.glob("libcuda.so*"), *system.glob("libnvidia-*.so*")]:
                shutil.copy(path, copies / path.name)
            return copies.parent
    return None


class Contents:
    """The files of an image: where each goes, and what was not found."""

    def __init__(self, cuda: list[Path], driver: Path | None, replaced: Mapping[str, str] | None = None) -> None:
        """``cuda``: folders to look for CUDA libraries in; ``driver``: folder of the driver's; ``replaced``: path in the image -> text."""
        self.replaced = dict(replaced or {})
        binary, standard, own = base_python(), Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))
        site = site_folder()
        self.files: list[File] = [(str(binary), binary)]
        self.files += [(str(path), path) for path in _tree(standard) if not path.name.startswith("_tkinter")]
        places = [*cuda, *([driver] if driver else [])]
        found, _ = _needed([path for _, path in self.files], places)  # a module of the library that lacks something is not asked for
        own_files = [(f"{site}/{package}/{path.relative_to(own / package)}", path) for package in PACKAGES for path in _tree(own / package)]
        self.cuda = {path.name: path for folder in reversed(cuda) for path in sorted(folder.iterdir()) if OPENED.match(path.name)}
        own_files += [(f"{LIBRARIES}/{name}", path) for name, path in sorted(self.cuda.items())]
        self.files += own_files
        more, self.missing = _needed([path for _, path in own_files], places)
        found |= more
        drivers = [driver / name for name in _DRIVER if (driver / name).exists()] if driver else []
        found |= _needed(drivers, places)[0]  # glibc's and the like, that the driver's own libraries need
        carried = {path.resolve() for _, path in self.files}
        for path in sorted(found):
            if path.resolve() in carried or (driver and path.parent == driver):
                continue
            # the loader's own path is written into every program
            self.files.append((str(path) if path.name.startswith("ld-") else f"{LIBRARIES}/{path.name}", path))
        self.files = [(target, path) for target, path in self.files if target not in self.replaced]
        self.size = sum(path.stat().st_size for _, path in self.files)

    def changes(self) -> list[str]:
        """What ``docker import --change`` gets. The entrypoint is not there: a runner that does not bypass it fails."""
        return ["ENV PATH=/usr/local/bin:/usr/bin:/bin", f"ENV LD_LIBRARY_PATH={LIBRARIES}", 'ENTRYPOINT ["/entrypoint"]']

    def write(self, file: IO[bytes]) -> None:
        """The file system as a tar stream."""
        with tarfile.open(fileobj=file, mode="w|", bufsize=_CHUNK) as archive:
            names = ["usr/local/bin/python3", *self.replaced, *(target for target, _ in self.files)]
            parents = {str(parent) for name in names for parent in Path(name.lstrip("/")).parents} - {"."}
            for name in sorted(parents | {"tmp", "proc", "sys", "dev", "etc"}):  # said, since what an engine makes of itself differs
                folder = tarfile.TarInfo(name)
                folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
                archive.addfile(folder)
            link = tarfile.TarInfo("usr/local/bin/python3")
            link.type, link.linkname = tarfile.SYMTYPE, str(base_python())
            archive.addfile(link)
            for target, text in {"/etc/passwd": "root:x:0:0:root:/root:/bin/false\n", **self.replaced}.items():
                archive.addfile(_entry(target, len(text.encode()), 0o644), io.BytesIO(text.encode()))
            for target, path in self.files:
                with path.open("rb") as content:
                    state = os.fstat(content.fileno())
                    archive.addfile(_entry(target, state.st_size, 0o755 if state.st_mode & 0o100 else 0o644), content)


def import_image(api: Any, contents: Contents, name: str, changes: Iterable[str] = ()) -> None:
    """Stream ``contents`` into an engine as the image ``repository:tag``. Raises RuntimeError with what the engine says."""
    repository, tag = name.rsplit(":", 1)
    changes = [*contents.changes(), *changes]
    answer = api.import_image_from_data(_stream(contents), repository=repository, tag=tag, changes=changes)
    for line in answer.splitlines():
        said = json.loads(line)
        if "error" in said:
            raise RuntimeError(said["error"])


def _stream(contents: Contents) -> Iterator[bytes]:
    read, write = os.pipe()
    failed: list[BaseException] = []

    def fill() -> None:
        try:
            with open(write, "wb") as file:  # noqa: PTH123  (a descriptor)
                contents.write(file)
        except BaseException as error:  # noqa: BLE001  (raised again on the other side)
            failed.append(error)

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    with open(read, "rb", buffering=0) as file:  # noqa: PTH123
        while data := file.read(_CHUNK):
            yield data
    thread.join()
    if failed:
        raise failed[0]


def _entry(target: str, size: int, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(target.lstrip("/"))
    info.size, info.mode = size, mode
    return info


def _tree(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT and not name.startswith("config-")]
        yield from (Path(place) / name for name in names if not (Path(place) / name).is_symlink())


def _needed(files: list[Path], places: list[Path]) -> tuple[set[Path], list[str]]:
    """The libraries that the dynamic loader would take for ``files``, and the names for which it finds none."""
    binaries = [path for path in files if (path == base_python() or re.search(r"\.so(\.|$)", path.name)) and _NOT_NEEDED not in path.name]
    if not binaries:
        return set(), []
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, places))}
    text = subprocess.run(["ldd", *map(str, binaries)], env=environment, capture_output=True, text=True, check=False).stdout
    found = {Path(match[1]) for match in re.finditer(r"(?:=>\s+|^\s+)(/\S+)\s+\(0x", text, re.MULTILINE)}
    return found, sorted(set(re.findall(r"^\s+(\S+) => not found", text, re.MULTILINE)))
