"""Fills a project with thousands of engines: enginefarm itself, with every step in this process instead of in one of its own.

    python cached_fill.py build MODEL... (in the project's folder; the words are those of enginefarm)

Builds, validations, reference outputs, the cache, manifests and the history are the real ones, made by the project's own code. What is left
out is what takes the time: starting a process per step, and waiting for the disk.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.cli import entry
from orchestrator.models import declared, reference
from orchestrator.pipeline import site
from orchestrator.portable.worker.events import Events
from orchestrator.portable.worker.files import write_json
from orchestrator.portable.worker.protocol import RESULT_SCHEMA
from orchestrator.portable.worker.steps import STEPS
from orchestrator.runners import bundle
from orchestrator.runners.process import ProcessRunner
from orchestrator.runners.supervise import Ended


class _InHere(ProcessRunner):
    """The local runner, whose builds and validations are calls."""

    def _supervise(self, argument: str, folder: Path, nonce: str, *rest: Any) -> Ended:
        request = json.loads((folder / argument).read_bytes())
        if request["step"] == "probe":
            return super()._supervise(argument, folder, nonce, *rest)
        started = time.monotonic()
        module, function = STEPS[(request["step"], request["backend"])]
        step = getattr(importlib.import_module(f"orchestrator.portable.{module}"), function)
        answer = step(request, str(folder), Events(_NOWHERE, nonce))
        head = {"schema": RESULT_SCHEMA, "step": request["step"], "ok": True, "error": None, "worker": bundle.worker_version()}
        seconds = time.monotonic() - started
        write_json(str(folder / "result.json"), {**answer, **head, "seconds": round(seconds, 3)})
        return Ended(0, None, seconds)


_NOWHERE = os.open(os.devnull, os.O_WRONLY)


def _call(function: str, request: Mapping[str, Any], **_limits: Any) -> Any:
    """models.child.run_child without the child."""
    module, _, name = function.rpartition(".")
    return getattr(importlib.import_module(f"orchestrator.models.{module}"), name)(dict(request))


def main() -> None:
    site.load_runners = lambda *_: [_InHere("local", sys.executable)]  # type: ignore[attr-defined]
    declared.run_child = reference.run_child = _call  # type: ignore[attr-defined]
    os.fsync = lambda _: None  # type: ignore[assignment]
    entry.run()


if __name__ == "__main__":
    main()
