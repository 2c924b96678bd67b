"""Places steps on the configured runners: which runner builds a target, which validates it, and why the others cannot.

The rules are ``portable/facts/placement.py``; this module only asks them for every runner, in the order of the configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.matrix.schema import Target
from orchestrator.portable.facts import placement
from orchestrator.runners.base import Runner


@dataclass(frozen=True)
class Placement:
    """``build`` / ``validate`` is None when no runner can; ``refused`` then says why, one reason per runner."""

    build: Runner | None
    validate: Runner | None
    build_refused: dict[str, str]
    validate_refused: dict[str, str]


def _first(decide: str, target: Target, runners: Sequence[Runner]) -> tuple[Runner | None, dict[str, str]]:
    row = target.model_dump(mode="json")
    rule = placement.can_build if decide == "build" else placement.can_validate
    refused: dict[str, str] = {}
    maybe: Runner | None = None
    for runner in runners:
        decision = rule(row, dict(runner.host()))
        if decision.verdict == "yes":
            return runner, {}
        if decision.verdict == "unknown" and maybe is None:
            # facts that are silent do not refuse: the build itself will tell
            maybe = runner
        elif decision.verdict == "no":
            refused[runner.name] = decision.reasons[0]
    return maybe, {} if maybe is not None else refused


def place(target: Target, runners: Sequence[Runner]) -> Placement:
    """The first runner that can build and the first that can validate ``target``."""
    build, build_refused = _first("build", target, runners)
    validate, validate_refused = _first("validate", target, runners)
    return Placement(build, validate, build_refused, validate_refused)


def reason(refused: dict[str, str]) -> str:
    """One line out of the refusals: the common reason, or each runner with its own."""
    distinct = list(dict.fromkeys(refused.values()))
    if len(distinct) == 1:
        return distinct[0]
    return "; ".join(f"{name}: {why}" for name, why in refused.items()) or "no runner is configured"
