"""Brings ``targets.lock`` up to date with the matrix, and says what changed in versions rather than in hashes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from orchestrator import errors
from orchestrator.errors import IMAGE_PLATFORM, TARGET_CONFLICT, EnginefarmError, Where, raise_all
from orchestrator.images.faults import Fault
from orchestrator.images.lock import Entry, Lock, entry_for, wanted
from orchestrator.images.reference import Reference, parse
from orchestrator.images.registry import Registry
from orchestrator.matrix.layers import EffectiveTarget
from orchestrator.matrix.schema import Target
from orchestrator.portable.facts.support import image_facts
from orchestrator.portable.facts.version import matches

# after one of these the other images of the same registry are not asked for
_DEAD = (errors.REGISTRY_UNREACHABLE, errors.REGISTRY_NAME, errors.REGISTRY_CERTIFICATE, errors.REGISTRY_RATE_LIMIT)


@dataclass(frozen=True)
class Change:
    """One difference of two locks; ``before`` None: added, ``after`` None: removed."""

    before: Entry | None
    after: Entry | None

    @property
    def kind(self) -> str:
        return "added" if self.before is None else "removed" if self.after is None else "changed"

    def __str__(self) -> str:
        entry = self.after or self.before
        if entry is None:
            return self.kind
        head = f"{self.kind:<7} {entry.reference} ({entry.platform})"
        if self.before is None or self.after is None:
            return f"{head}: {entry.holds}, {entry.size_bytes / 1e9:.2f} GB, {_short(entry.digest)}"
        pairs = [("TensorRT", self.before.tensorrt, self.after.tensorrt), ("CUDA", self.before.cuda, self.after.cuda)]
        old_requires, new_requires = self.before.requires, self.after.requires
        names = sorted({*old_requires, *new_requires})
        pairs += [(f"NVIDIA_REQUIRE_{name.upper()}", old_requires.get(name), new_requires.get(name)) for name in names]
        moved = [f"{name} {old or 'unknown'} -> {new or 'unknown'}" for name, old, new in pairs if old != new]
        return f"{head}: {', '.join(moved) or 'same versions'}; {_short(self.before.digest)} -> {_short(self.after.digest)}"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        entry = self.after or self.before
        named = {} if entry is None else {"reference": entry.reference, "platform": entry.platform}
        sides = {name: None if side is None else _facts(side) for name, side in (("before", self.before), ("after", self.after))}
        return {"change": self.kind, **named, **sides}


def _facts(entry: Entry) -> dict[str, Any]:
    return {name: value for name, value in vars(entry).items() if name not in ("reference", "platform")} | {
        "requires": dict(entry.requires)
    }


def _short(digest: str) -> str:
    return digest[: len("sha256:") + 12]


def changes(before: Lock, after: Lock) -> list[Change]:
    """What differs, sorted by reference and platform."""
    keys = sorted({*before.entries, *after.entries})
    found = [Change(before.entries.get(key), after.entries.get(key)) for key in keys]
    return [change for change in found if change.before != change.after]


def contradictions(effective: EffectiveTarget, entry: Entry) -> list[EnginefarmError]:
    """What the image of a target holds other than the target says, each at the line that says it."""
    target = effective.target
    from_image = target.backend == "tensorrt" and target.tensorrt_from == "image"
    pairs = (("tensorrt", "TensorRT", target.tensorrt if from_image else None, entry.tensorrt), ("cuda", "CUDA", target.cuda, entry.cuda))
    found = []
    for name, label, said, holds in pairs:
        if said is not None and holds is not None and not matches(said, holds):
            where = effective.sources[name].where
            place = Where(where.file, where.line, where.column, target.name) if where else Where(target=target.name)
            what = f"{entry.reference} holds {label} {holds}, not {said}"
            fix = f'write {name}: "{holds}", or take another image'
            found.append(EnginefarmError(TARGET_CONFLICT, what, where=place, why="by the image's own configuration", fix=fix))
    return found


def lock(
    chosen: Sequence[EffectiveTarget],
    current: Lock,
    registry: Registry,
    *,
    upgrade: bool = False,
    unused_by: Iterable[Target] | None = None,
    now: datetime | None = None,
) -> Lock:
    """``current`` with the images of ``chosen`` added; with ``upgrade`` those that it has are read again too.

    An image that did not change keeps its entry. ``unused_by``: entries that none of these targets uses are dropped. Raises
    EnginefarmError with the problem of every image: a Fault of the registry, or what contradicts a target.
    """
    at = (now or datetime.now(timezone.utc)).strftime("%Y-%m-%dT%H:%M:%SZ")
    work = _Work(registry, at)
    entries = dict(current.entries)
    for effective in chosen:
        target = effective.target
        if target.image is None:
            continue
        if upgrade or entry_for(current, target) is None:
            for entry in work.read(effective):
                before = current.entries.get(entry.key)
                same = before is not None and (before.digest, before.holds) == (entry.digest, entry.holds)
                entries[entry.key] = before if before is not None and same else entry
        held = [entries.get((str(parse(target.image)), platform)) for platform in wanted(target)]
        work.problems += [problem for entry in held if entry is not None for problem in contradictions(effective, entry)]
    raise_all(work.problems)
    if unused_by is not None:
        used = {(str(parse(target.image)), platform) for target in unused_by if target.image for platform in wanted(target)}
        entries = {key: entry for key, entry in entries.items() if key in used}
    return Lock(entries)


class _Work:
    """Reads each image once, however many targets use it."""

    def __init__(self, registry: Registry, at: str) -> None:
        self.problems: list[EnginefarmError] = []
        self._registry = registry
        self._at = at
        self._read: dict[tuple[str, str], Entry | EnginefarmError] = {}
        self._dead: set[str] = set()

    def read(self, effective: EffectiveTarget) -> list[Entry]:
        """The entries of a target's platforms; what cannot be read is added to ``problems``, once per image."""
        target = effective.target
        where = effective.sources["image"].where
        place = Where(where.file, where.line, where.column, target.name) if where else Where(target=target.name)
        reference = parse(target.image or "", place)
        if reference.registry in self._dead:
            return []
        fresh = [platform for platform in wanted(target) if (str(reference), platform) not in self._read]
        found = [self._one(reference, platform, place) for platform in wanted(target)]
        entries = [item for item in found if isinstance(item, Entry)]
        failed = [item for item in found if isinstance(item, EnginefarmError)]
        # of a target for any platform one is enough
        needed = [item for item in failed if item.kind is not IMAGE_PLATFORM] or ([] if entries else failed[:1])
        if fresh:
            self.problems += needed
        return entries

    def _one(self, reference: Reference, platform: str, where: Where) -> Entry | EnginefarmError:
        key = str(reference), platform
        if key not in self._read:
            try:
                self._read[key] = self._resolve(reference, platform, where)
            except EnginefarmError as error:
                self._read[key] = error
                if isinstance(error, Fault) and error.kind in _DEAD:
                    self._dead.add(reference.registry)
        return self._read[key]

    def _resolve(self, reference: Reference, platform: str, where: Where) -> Entry:
        resolved = self._registry.resolve(reference, platform, where)
        known = image_facts(str(reference)) or {}
        arm = known.get("tensorrt_arm64") if platform == "linux/arm64" else None
        from_image = known.get("tensorrt_from") == "image"
        return Entry(
            reference=str(reference),
            platform=platform,
            digest=resolved.digest,
            image_id=resolved.image_id,
            size_bytes=resolved.size_bytes,
            locked_at=self._at,
            # the image's own word first; where it says nothing, what is known of it
            tensorrt=resolved.contents.tensorrt or (arm or known.get("tensorrt") if from_image else None),
            cuda=resolved.contents.cuda or known.get("cuda"),
            requires=dict(resolved.contents.requires),
        )
