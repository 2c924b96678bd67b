"""The package ``enginefarm_runtime`` as files: what the wheel enginefarm-runtime holds and ``enginefarm runtime export`` writes."""

import os
import shutil
import tempfile
from typing import Iterator, Tuple

PACKAGE = "enginefarm_runtime"
PORTABLE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_SUFFIXES = (".py", ".json")

_INIT = '''"""Loads the engine of an enginefarm manifest that fits this machine, or falls back loudly (docs/loader.md of enginefarm).

    from enginefarm_runtime import load
    model = load("artifacts/lane/latest.json")
    y = model({{"image": x}})
"""

from .runtime.api import Choice, Chosen, DeviceArray, InputError, LoadError, Model, Refused, RunError, load, metrics_text, select

__version__ = "{version}"
__all__ = ["Choice", "Chosen", "DeviceArray", "InputError", "LoadError", "Model", "Refused", "RunError", "load", "metrics_text", "select"]
'''


def package_files(version: str) -> Iterator[Tuple[str, bytes]]:
    """Path (with ``/``, from the package's folder) and content of every file, sorted."""
    found = {"__init__.py": _INIT.format(version=version).encode("utf-8"), "py.typed": b""}
    for folder, _, names in os.walk(PORTABLE):
        for name in names:
            path = os.path.join(folder, name)
            relative = os.path.relpath(path, PORTABLE).replace(os.sep, "/")
            if name.endswith(_SUFFIXES) and relative != "__init__.py":
                with open(path, "rb") as file:
                    found[relative] = file.read()
    return iter(sorted(found.items()))


def write_package(folder: str, version: str) -> str:
    """Write the package into ``folder`` as ``enginefarm_runtime/``, whole or not at all, in place of an older copy; gives its path.

    Raises OSError. What is there under that name and is no copy of this package is left alone: FileExistsError.
    """
    target = os.path.join(folder, PACKAGE)
    if os.path.lexists(target) and not os.path.isfile(os.path.join(target, "runtime", "package.py")):
        raise FileExistsError(target)
    os.makedirs(folder, exist_ok=True)
    stage = tempfile.mkdtemp(prefix=".{}-".format(PACKAGE), dir=folder)
    try:
        fresh, old = os.path.join(stage, "new"), os.path.join(stage, "old")
        os.mkdir(fresh)
        for name, content in package_files(version):
            path = os.path.join(fresh, *name.split("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        if os.path.lexists(target):
            os.rename(target, old)
        os.rename(fresh, target)
    finally:
        shutil.rmtree(stage)
    return target
