"""Steps of a process runner of this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import EnginefarmError
from orchestrator.runners.base import Cancel, Step, StepResult
from orchestrator.runners.process import ProcessRunner

PROBE = {"step": "probe"}


def run(step: Step, folder: Path, on_event: Callable[[Any], None] = lambda _: None, cancel: Cancel | None = None) -> StepResult:
    return ProcessRunner("test").run(step, folder, on_event, cancel or Cancel())


def fail(step: Step, folder: Path) -> EnginefarmError:
    with pytest.raises(EnginefarmError) as caught:
        run(step, folder)
    return caught.value
