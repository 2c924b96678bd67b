"""Images for the tests, made of the interpreter that runs them: no registry and no package mirror is needed.

An image holds this Python with its standard library, the packages that a test names, and the shared libraries that all
of these need, as ``ldd`` gives them.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
HOME = f"/usr/local/lib/{VERSION}"
# an entrypoint that is not there: a runner that does not bypass it fails
CHANGES = (
    "ENV PATH=/usr/local/bin:/usr/bin:/bin",
    "ENV LD_LIBRARY_PATH=/usr/local/lib",
    "WORKDIR /workspace",
    'ENTRYPOINT ["/entrypoint"]',
)
LEFT_OUT = {"test", "idlelib", "ensurepip", "site-packages", "tkinter", "turtledemo", "lib2to3"}
ORT = ("onnxruntime", "numpy", "numpy.libs", "flatbuffers", "google")
RTX = (*ORT, "tensorrt_rtx_bindings", "tensorrt_rtx_libs")


def write_image(path: Path, packages: Iterable[str] | None = (), files: Mapping[str, bytes] | None = None) -> None:
    """The file system of an image as a tar file. ``packages`` None: no Python. ``files``: absolute path -> content of executables."""
    with tarfile.open(path, "w", dereference=True) as archive:
        for name in ("tmp", "workspace", "proc", "sys", "dev", "etc"):
            _add(archive, name, None, 0o1777 if name == "tmp" else 0o755)
        _add(archive, "etc/passwd", b"root:x:0:0:root:/root:/bin/false\n", 0o644)
        for target, source in _files(tuple(packages)) if packages is not None else ():
            archive.add(source, target.lstrip("/"), recursive=False, filter=_root_owned)
        for name, content in (files or {}).items():
            _add(archive, name.lstrip("/"), content, 0o755)


def import_image(api: Any, path: Path, name: str, changes: Iterable[str] = ()) -> None:
    """Put a file system on an engine as the image ``repository:tag``."""
    repository, tag = name.rsplit(":", 1)
    api.import_image_from_file(str(path), repository=repository, tag=tag, changes=[*CHANGES, *changes])


def _files(packages: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
    """Path in the image and the file here."""
    binary = Path(sys.executable).resolve()
    standard = Path(sysconfig.get_path("stdlib"))
    own = Path(sysconfig.get_path("purelib"))
    found = [("/usr/local/bin/python3", binary)]
    found += [(f"{HOME}/{path.relative_to(standard)}", path) for path in _tree(standard, LEFT_OUT)]
    for package in packages:
        found += [(f"{HOME}/site-packages/{path.relative_to(own)}", path) for path in _tree(own / package, set())]
    libraries = [path for _, path in found if path == binary or re.search(r"\.so(\.|$)", path.name)]
    yield from found
    for path in _closure(libraries, found):
        # the loader's own path is written into every program
        yield (str(path) if path.name.startswith("ld-") else f"/usr/local/lib/{path.name}"), path


def _tree(folder: Path, left_out: set[str]) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in left_out and not name.startswith("config-")]
        yield from (Path(place) / name for name in names if not (Path(place) / name).is_symlink())


def _closure(libraries: list[Path], found: list[tuple[str, Path]]) -> list[Path]:
    """Libraries outside of ``found`` that any of ``libraries`` needs."""
    carried = {path.resolve() for _, path in found}
    text = subprocess.run(["ldd", *map(str, libraries)], capture_output=True, text=True, check=False).stdout
    needed = {match[1] for match in re.finditer(r"(?:=>\s+|^\s+)(/\S+)\s+\(0x", text, re.MULTILINE)}
    return sorted(Path(name) for name in needed if Path(name).resolve() not in carried)


def _root_owned(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def _add(archive: tarfile.TarFile, name: str, content: bytes | None, mode: int) -> None:
    info = tarfile.TarInfo(name)
    info.mode = mode
    if content is None:
        info.type = tarfile.DIRTYPE
        archive.addfile(info)
    else:
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
