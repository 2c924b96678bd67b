"""Build hook: puts ``worker.pyz`` into the wheel, so that an installed enginefarm ships the one-file worker."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WorkerHook(BuildHookInterface):  # type: ignore[type-arg]
    """An editable install gets none: a checkout makes its worker from the sources as they are."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        sys.path.insert(0, self.root)
        try:
            from orchestrator.runners.bundle import write_pyz
        finally:
            sys.path.remove(self.root)
        self._folder = tempfile.TemporaryDirectory()
        path = Path(self._folder.name) / "worker.pyz"
        write_pyz(path)
        build_data["force_include"][str(path)] = "orchestrator/_data/worker.pyz"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        del version, build_data, artifact_path
        if hasattr(self, "_folder"):
            self._folder.cleanup()
