"""The worker as one file, and digests over it.

``worker.pyz`` holds all of ``orchestrator/portable``. A wheel ships it; a checkout makes it, the same bytes each time, into
the user's cache under the name of its digest. A step's key takes only the modules that the step can import.
"""

from __future__ import annotations

import ast
import atexit
import functools
import hashlib
import io
import os
import shutil
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

from orchestrator import __version__
from orchestrator.errors import DISK, EnginefarmError
from orchestrator.portable.worker.steps import STEPS

PORTABLE = Path(__file__).resolve().parent.parent / "portable"
SHIPPED = Path(__file__).resolve().parent.parent / "_data" / "worker.pyz"

_PACKAGE = "enginefarm_portable"
_MAIN = f"import sys\n\nfrom {_PACKAGE}.worker.main import main\n\nsys.exit(main())\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time a zip file can hold
_SUFFIXES = (".py", ".json")
_PRIVATE_LOCK = threading.Lock()
_PARSING = threading.Lock()
_private: Path | None = None


def worker_pyz() -> Path:
    """The worker's file; made when this is a checkout.

    Where the cache cannot be written it lies in a private folder that goes with this process; EnginefarmError DISK when no folder takes it.
    """
    return SHIPPED if SHIPPED.is_file() else _cached_pyz()


@functools.cache
def worker_version() -> str:
    """``<release>+<first 12 hex digits of the digest over all portable sources>``; the worker puts it into every result."""
    digest = hashlib.sha256()
    for name, content in _sources():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return f"{__version__}+{digest.hexdigest()[:12]}"


def write_pyz(path: Path) -> None:
    """Write the worker to ``path``, whole or not at all (used by the wheel's build hook too)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(pyz_bytes())
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def pyz_bytes() -> bytes:
    """The zip application: entries sorted, times fixed, stored (compressed bytes would depend on the zlib at hand)."""
    entries = {"__main__.py": _MAIN.encode(), "_enginefarm_bundle.py": f"VERSION = {worker_version()!r}\n".encode()}
    entries |= {f"{_PACKAGE}/{name}": content for name, content in _sources()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(entries):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = 0o644 << 16
            info.create_system = 3  # Unix, on every system
            archive.writestr(info, entries[name])
    return buffer.getvalue()


@functools.cache
def step_modules_digest(step: str, backend: str) -> str:
    """sha256 in hex over the portable modules that this step of this backend can import, found without importing them.

    Raises KeyError for a step or backend that does not exist.
    """
    module, _ = STEPS[(step, backend)]
    files: set[Path] = set()
    # builds run in threads, and the ast module of CPython 3.11 is not safe in several at once (python/cpython issue 106905)
    with _PARSING:
        for start in ("worker/main.py", module.replace(".", "/") + ".py"):
            _follow(PORTABLE / start, files)
    digest = hashlib.sha256()
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(PORTABLE).as_posix()}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _sources() -> Iterator[tuple[str, bytes]]:
    for path in sorted(PORTABLE.rglob("*"), key=lambda path: path.relative_to(PORTABLE).as_posix()):
        if path.suffix in _SUFFIXES and path.is_file():
            yield path.relative_to(PORTABLE).as_posix(), path.read_bytes()


@functools.cache
def _pyz_digest() -> str:
    return hashlib.sha256(pyz_bytes()).hexdigest()


def _cached_pyz() -> Path:
    from platformdirs import user_cache_path

    digest = _pyz_digest()
    path = user_cache_path("enginefarm") / "worker" / f"worker-{digest[:16]}.pyz"
    try:
        if not (path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest):
            write_pyz(path)
    except OSError as error:
        return _private_pyz(path.parent, error)
    return path


def _private_pyz(cache: Path, error: OSError) -> Path:
    """The worker in a temporary folder of this process: a cache that cannot be written is no reason to build nothing."""
    global _private
    with _PRIVATE_LOCK:
        if _private is None or not _private.is_file():
            try:
                folder = tempfile.mkdtemp(prefix="enginefarm-worker-")
                atexit.register(shutil.rmtree, folder, ignore_errors=True)
                write_pyz(Path(folder) / "worker.pyz")
            except OSError as second:
                what = f"the worker cannot be written: {cache}: {error.strerror}; a temporary folder: {second.strerror}"
                fix = "free some space there, or set XDG_CACHE_HOME or TMPDIR to a folder that can be written"
                raise EnginefarmError(DISK, what, fix=fix) from second
            _private = Path(folder) / "worker.pyz"
        return _private


def _follow(path: Path, found: set[Path]) -> None:
    """Add ``path`` and everything it imports from the portable package, packages' ``__init__`` included."""
    if path in found or not path.is_file():
        return
    found.add(path)
    _follow(path.parent / "__init__.py", found)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for candidate in (base, *(base / alias.name for alias in node.names)):
                _follow(candidate.with_suffix(".py"), found)
                _follow(candidate / "__init__.py", found)
