"""``enginefarm targets lock``: the digests of the targets' images, read from the registries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.image_options import Allow, Mirror, policy_of, project_lock
from orchestrator.cli.targets import Json, Selectors, app, project_matrix

if TYPE_CHECKING:
    from orchestrator.errors import EnginefarmError
    from orchestrator.images.lock import Lock
    from orchestrator.images.policy import Policy
    from orchestrator.images.update import Change
    from orchestrator.matrix.layers import EffectiveTarget
    from orchestrator.matrix.select import Matrix


@app.command("lock")
def lock_command(
    selectors: Selectors = None,
    upgrade: Annotated[bool, typer.Option("--upgrade", help="Read images that are locked already again too.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 5 when the file is stale. Asks no registry unless --upgrade is given.")
    ] = False,
    allow: Allow = None,
    mirror: Mirror = None,
    as_json: Json = False,
) -> None:
    """Lock the targets' images: read their digests and contents from the registries into targets/targets.lock.

    Without --upgrade only images that are missing in the file are read. `--upgrade 'ampere*'` reads those of some targets again.
    """
    from orchestrator.errors import raise_all
    from orchestrator.images.lock import write_lock
    from orchestrator.images.update import changes

    matrix = project_matrix()
    chosen = matrix.select(selectors or [])
    path, current = project_lock()
    if check and not upgrade:
        problems = _stale(path, current, chosen, matrix if not selectors else None)
        if as_json:
            _print(path, [], stale=bool(problems))
        raise_all(problems)
        if not as_json:
            typer.echo(f"{_shown(path)} is current")
        return
    after = _read(matrix, chosen, current, upgrade, bool(selectors), policy_of(allow, mirror))
    found = changes(current, after)
    if found and not check:
        write_lock(path, after)
    if as_json:
        _print(path, found, stale=bool(found))
    else:
        for change in found:
            typer.echo(str(change))
        typer.echo(_summary(path, found, check))
    if found and check:
        raise _is_stale(path, f"{len(found)} of its images changed", "enginefarm targets lock --upgrade")


def _read(matrix: Matrix, chosen: list[EffectiveTarget], current: Lock, upgrade: bool, some: bool, policy: Policy) -> Lock:
    from orchestrator.images.credentials import Credentials
    from orchestrator.images.registry import Registry
    from orchestrator.images.update import lock

    everything = None if some else [effective.target for effective in matrix.targets.values()]
    return lock(chosen, current, Registry(policy, Credentials()), upgrade=upgrade, unused_by=everything)


def _stale(path: Path, current: Lock, chosen: list[EffectiveTarget], matrix: Matrix | None) -> list[EnginefarmError]:
    """What is wrong with the file without asking a registry: images that are missing, contradict a target, or are of no target."""
    from orchestrator.images.lock import entry_for, unlocked, wanted
    from orchestrator.images.reference import parse
    from orchestrator.images.update import contradictions

    problems = []
    missing = unlocked(current, [effective.target for effective in chosen])
    if missing:
        images = sorted({f"{image} ({platform})" for _, image, platform in missing})
        problems.append(_is_stale(path, f"it lacks {', '.join(images)}", "enginefarm targets lock"))
    for effective in chosen:
        entry = entry_for(current, effective.target)
        problems += contradictions(effective, entry) if entry is not None else []
    if matrix is not None:
        targets = [effective.target for effective in matrix.targets.values() if effective.target.image]
        used = {(str(parse(target.image or "")), platform) for target in targets for platform in wanted(target)}
        extra = sorted(f"{image} ({platform})" for image, platform in current.entries if (image, platform) not in used)
        if extra:
            problems.append(_is_stale(path, f"no target uses {', '.join(extra)}", "enginefarm targets lock"))
    return problems


def _is_stale(path: Path, why: str, fix: str) -> EnginefarmError:
    from orchestrator.errors import GENERATED_STALE, EnginefarmError, Where

    return EnginefarmError(GENERATED_STALE, f"{_shown(path)} is stale", where=Where(file=_shown(path)), why=why, fix=fix)


def _shown(path: Path) -> str:
    from orchestrator.matrix.yaml_reader import display

    return display(path)


def _summary(path: Path, found: list[Change], check: bool) -> str:
    if not found:
        return f"{_shown(path)} is current"
    count = f"{len(found)} image{'s' if len(found) > 1 else ''}"
    return f"{count} would change in {_shown(path)}" if check else f"{count} changed in {_shown(path)}"


def _print(path: Path, found: list[Change], stale: bool) -> None:
    value = {"schema": "enginefarm.lock-diff/1", "file": _shown(path), "stale": stale, "changes": [change.as_dict() for change in found]}
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
