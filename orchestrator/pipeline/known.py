"""What is known of files that did not change since they were read: models, and the host behind a local interpreter.

A memo (store/memo.py) answers only when every file that the answer rests on has the status it had. The rules that made the answer are part
of the question: another release of this package, or of the library that checks shapes, reads a model anew.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from orchestrator import models as models_package
from orchestrator.models.model import ExternalFile, Model, TensorInfo
from orchestrator.pipeline.keys import version_of
from orchestrator.runners.base import Runner
from orchestrator.runners.bundle import worker_version
from orchestrator.runners.process import ProcessRunner
from orchestrator.store.memo import Memo

_DEEP, _SHALLOW = "model", "model without its weights"
_DRIVER = Path("/proc/driver/nvidia/version")
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_SEEN_BY_STEPS = ("PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES")


@functools.cache
def model_rules() -> str:
    """Digest over the modules that read models, and the version of onnx."""
    digest = hashlib.sha256(version_of("onnx").encode())
    for path in sorted(Path(models_package.__path__[0]).glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def recall_model(memo: Memo, path: Path, *, deep: bool) -> Model | None:
    """The model at ``path`` as it was read last, when no byte of it can have changed; ``deep`` as in load_model."""
    value = memo.get(_DEEP, str(path.absolute()), model_rules())
    if value is None and not deep:
        value = memo.get(_SHALLOW, str(path.absolute()), model_rules())
    return None if value is None else _revived(value, path)


def read_model(memo: Memo, path: Path, *, stage: Path | None, deep: bool) -> Model:
    """Read a model (see load_model) and remember what was read."""
    from orchestrator.models.load import load_model

    seen: dict[Path, os.stat_result] = {}
    since = memo.settle([path])
    model = load_model(path, stage=stage, deep=deep, seen=seen)
    files = [(file.absolute(), status) for file, status in seen.items()]
    memo.put(_DEEP if deep else _SHALLOW, str(path.absolute()), model_rules(), files, _plain(model), since=since)
    return model


def _plain(model: Model) -> dict[str, Any]:
    value = asdict(model)
    del value["path"], value["staged"]
    return value


def _tensors(values: Iterable[dict[str, Any]]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(value["name"], value["dtype"], None if value["shape"] is None else tuple(value["shape"])) for value in values)


def _revived(value: dict[str, Any], path: Path) -> Model:
    """A model out of its JSON: lists become tuples again."""
    plain: dict[str, Any] = {name: tuple(item) if isinstance(item, list) else item for name, item in value.items()}
    plain["inputs"], plain["outputs"] = _tensors(value["inputs"]), _tensors(value["outputs"])
    plain["external"] = tuple(ExternalFile(**item) for item in value["external"])
    return Model(**{**plain, "path": path, "staged": None})


def _interpreter_files(python: str) -> list[tuple[Path, os.stat_result]]:
    """The files and folders that say what an interpreter can import: itself, and the folders that packages are installed into."""
    program = Path(python)
    prefix = program.parent.parent
    places = [program, prefix / "pyvenv.cfg", *sorted(prefix.glob("lib/python3*/site-packages")), Path("/etc/ld.so.cache")]
    base = program.resolve().parent.parent
    if base != prefix:
        places += [*sorted(base.glob("lib/python3*/site-packages")), *sorted(base.glob("lib/python3*/dist-packages"))]
    return [(place, place.stat()) for place in places if place.exists()]


def _machine(runner: ProcessRunner) -> str:
    """What else a probe's answer hangs on: the worker, the kernel's boot, the driver, the environment that steps see."""
    facts = [worker_version(), sys.platform, *(os.environ.get(name, "") for name in _SEEN_BY_STEPS)]
    facts += [path.read_text(encoding="ascii", errors="replace") if path.exists() else "" for path in (_BOOT, _DRIVER)]
    facts += sorted(str(path) for path in Path("/dev").glob("nvidia*"))
    return hashlib.sha256("\0".join([runner.python, *facts]).encode()).hexdigest()


class KnownHosts:
    """Spares local runners the probe when nothing that it looks at has changed since an earlier run."""

    def __init__(self, memo: Memo, runners: Iterable[Runner]) -> None:
        self._memo = memo
        self._asked: list[tuple[ProcessRunner, str, list[tuple[Path, os.stat_result]]]] = []
        for runner in runners:
            if type(runner) is not ProcessRunner:
                continue
            machine = _machine(runner)
            runner.known = memo.get("host", runner.python, machine)
            if runner.known is None:
                self._asked.append((runner, machine, _interpreter_files(runner.python)))

    def keep(self) -> None:
        """Remember what the others were found to be, once they were probed."""
        for runner, machine, files in self._asked:
            self._memo.put("host", runner.python, machine, files, dict(runner.host()))
        self._asked = []
