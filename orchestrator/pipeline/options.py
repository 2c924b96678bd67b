"""What a build is asked for: one immutable value, made by the command line and read by the whole pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.matrix.schema import ModelConfig


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """Options of ``enginefarm build``; times in seconds, memory in bytes.

    ``available`` builds what can be built here and implies ``allow_unvalidated``. ``version`` is N of ``_v<N>``.
    ``project`` is the folder whose ``targets/`` is laid over the built-in targets.
    ``jobs``: builds at a time, None for what this machine and the engines can do. ``cache`` is the folder of the store (store/store.py).
    The run stops after ``max_failures`` failed builds; ``last_failed`` builds what failed last only.
    ``weak`` names the fields that come from enginefarm.yaml: a model's own YAML goes before them.
    ``allow`` and ``mirrors`` are prefixes and ``PREFIX=PREFIX`` rules of images/policy.py; empty means its defaults.
    """

    project: Path
    models: tuple[Path, ...]
    model_folders: tuple[Path, ...] = ()
    targets: tuple[str, ...] = ()
    output: Path = Path("artifacts")
    state: Path = Path(".enginefarm")
    cache: Path = Path(".enginefarm/cache")
    available: bool = False
    allow_unvalidated: bool = False
    version: int | None = None
    name: str | None = None
    shapes: dict[str, Any] = field(default_factory=dict)
    precision: str | None = None
    jobs: int | None = 1
    force: bool = False
    validate: bool = True
    max_failures: int | None = None
    last_failed: bool = False
    memory: int | None = None
    build_timeout: float | None = None
    validate_timeout: float | None = None
    runners: Path | None = None
    python: str | None = None
    locked: bool = False
    offline: bool = False
    allow: tuple[str, ...] = ()
    mirrors: tuple[str, ...] = ()
    ci: bool = False
    weak: frozenset[str] = frozenset()

    @property
    def unvalidated_is_fine(self) -> bool:
        return self.available or self.allow_unvalidated

    def overrides(self, config: ModelConfig | None) -> dict[str, Any]:
        """Target fields that the command line sets for a model; what only enginefarm.yaml says gives way to the model's own YAML."""
        given: dict[str, Any] = {"precision": self.precision, "shapes": self.shapes}
        said = config.model_fields_set if config else frozenset()
        return {name: value for name, value in given.items() if value and not (name in self.weak and name in said)}

    def cells(self) -> dict[str, Any]:
        """Values that pick cells of targets with axes: what the command line itself says (matrix/select.py)."""
        given: dict[str, Any] = {"precision": self.precision, "shapes": self.shapes}
        return {name: value for name, value in given.items() if value and name not in self.weak}

    def selectors(self, config: ModelConfig | None) -> tuple[str, ...]:
        """The targets that are meant for a model; empty means all."""
        own = config.targets if config else ()
        if "targets" in self.weak and own:
            return own
        return self.targets or own
