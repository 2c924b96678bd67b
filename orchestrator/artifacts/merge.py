"""What a new revision keeps of the one before it, and whether ``latest.json`` may follow: pure rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.artifacts.manifest import EngineRecord, Manifest
from orchestrator.matrix.select import natural

_RANK = {"passed": 3, "self-consistent": 2, "unvalidated": 1, "failed": 0, "skipped": 0}
_LOADABLE = 2  # what a service loads without being told to


def rank(record: EngineRecord) -> int:
    """How much a record is worth: 0 without an engine, up to 3 for passed."""
    return _RANK[record.verdict.status] if record.file is not None else 0


def _keeps(old: EngineRecord, new: EngineRecord) -> bool:
    """Whether the old engine of a target stays although this run has a record of it."""
    if rank(new) == 0:
        # a failed or skipped rebuild takes nothing away, unless it is these very bytes that failed
        return not (new.verdict.status == "failed" and new.digest is not None and new.digest == old.digest)
    # less well checked this time (its GPU was away, or validation was left out): the better evidence stays, whatever the options
    return rank(new) < rank(old)


def merge_engines(previous: Manifest | None, new: Sequence[EngineRecord], *, folder: Path) -> tuple[EngineRecord, ...]:
    """The records of the next revision: ``new`` ones, and those of ``previous`` (the same version and digest) that they do not replace.

    Kept are targets that this run did not build, and engines whose rebuild failed or was skipped (``problem`` then says why); always only
    if the engine is still in ``folder``, and no new engine took its tag or file name. ``file`` of a failed record is cleared: it is in
    quarantine.
    """
    fresh = {record.target: record if rank(record) else record.model_copy(update={"file": None}) for record in new}
    taken = {record.tag for record in fresh.values() if record.file is not None}
    # of another target: its own may win against the new one
    names = {record.file: record.target for record in fresh.values() if record.file is not None}
    merged = dict(fresh)
    for old in previous.engines if previous else ():
        mine = fresh.get(old.target)
        there = old.file is not None and names.get(old.file, old.target) == old.target and (folder / old.file).is_file()
        if mine is None:
            if old.file is None or (old.tag not in taken and there):
                merged[old.target] = old
        elif there and rank(old) and _keeps(old, mine):
            merged[old.target] = old.model_copy(update={"problem": mine.problem})
    return tuple(sorted(merged.values(), key=lambda record: natural(record.target)))


def statuses(engines: Sequence[EngineRecord]) -> dict[str, str]:
    """Target -> status, of the targets that have an engine."""
    return {record.target: record.verdict.status for record in engines if rank(record)}


def lost(before: Mapping[str, str], after: Mapping[str, str], *, renamed: Mapping[str, str] | None = None) -> list[str]:
    """What services would lose by moving from one set of engines to another, each as a phrase; empty when nothing.

    ``renamed``: target before -> the one that has its tag after.
    """
    losses = []
    for target, status in sorted(before.items()):
        now = after.get(target) or after.get((renamed or {}).get(target, ""))
        if now is None:
            losses.append(f"{target} has no engine")
        elif _RANK.get(status, 0) >= _LOADABLE > _RANK[now]:
            losses.append(f"{target} was {status} and is {now}")
    return losses
