"""Build hook: the wheel holds orchestrator/portable under the name enginefarm_runtime."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PackageHook(BuildHookInterface):  # type: ignore[type-arg]
    """An editable install is refused: the package exists only as it is written here."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            raise RuntimeError("enginefarm-runtime has no editable form; use orchestrator.portable.runtime.api in a checkout")
        project = str(Path(self.root).parent)
        sys.path.insert(0, project)
        try:
            from orchestrator.portable.runtime.package import PACKAGE, write_package
        finally:
            sys.path.remove(project)
        self._folder = tempfile.TemporaryDirectory()
        write_package(self._folder.name, self.metadata.version)
        build_data["force_include"][str(Path(self._folder.name) / PACKAGE)] = PACKAGE
        build_data["pure_python"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        del version, build_data, artifact_path
        if hasattr(self, "_folder"):
            self._folder.cleanup()
