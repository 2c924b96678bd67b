"""From which registries images may come, and where they are fetched instead.

An allow-list entry and both sides of a mirror rule are prefixes of ``registry/repository`` that end at a ``/``. A mirror serves the same
bytes under another name: what it gives is held to the digest of the original, so a mirror need not be trusted, nor be on the allow-list.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from orchestrator.errors import IMAGE_NOT_ALLOWED, USAGE, EnginefarmError, Where
from orchestrator.images.reference import Reference, parse

DEFAULT_ALLOWED = ("nvcr.io/",)


@dataclass(frozen=True)
class Policy:
    """``allowed``: prefixes; ``mirrors``: prefix -> prefix, the longest that fits counts. Make one with :func:`policy`."""

    allowed: tuple[str, ...] = DEFAULT_ALLOWED
    mirrors: Mapping[str, str] = field(default_factory=dict)

    def check(self, reference: Reference, where: Where | None = None) -> None:
        """Raise EnginefarmError(IMAGE_NOT_ALLOWED) for an image outside of the allow-list. Uses no network."""
        if any(f"{reference.name}/".startswith(prefix) for prefix in self.allowed):
            return
        registries = sorted({prefix.split("/", 1)[0] for prefix in self.allowed})
        close = difflib.get_close_matches(reference.registry, registries, n=1)
        same = reference.registry in registries
        fix = f"allow it with: allow: [{reference.name if same else reference.registry}]"
        raise EnginefarmError(
            IMAGE_NOT_ALLOWED,
            f"{reference} comes from {reference.name if same else reference.registry}, which is not allowed",
            where=where,
            why=f"images come only from {', '.join(prefix.rstrip('/') for prefix in self.allowed) or 'nowhere: the allow-list is empty'}",
            fix=f"did you mean {close[0]}? Else {fix}" if close and not same else fix,
        )

    def fetched_from(self, reference: Reference) -> Reference:
        """Where the image is fetched: the same tag and digest in the mirror's repository, or ``reference`` itself."""
        fitting = [prefix for prefix in self.mirrors if f"{reference.name}/".startswith(prefix)]
        if not fitting:
            return reference
        prefix = max(fitting, key=len)
        name = (self.mirrors[prefix] + f"{reference.name}/"[len(prefix) :]).rstrip("/")
        mirrored = parse(f"{name}:none")
        return replace(mirrored, tag=reference.tag, digest=reference.digest)


def policy(allowed: Iterable[str] = DEFAULT_ALLOWED, mirrors: Mapping[str, str] | None = None, where: Where | None = None) -> Policy:
    """A policy from what people write: ``nvcr.io``, ``ghcr.io/acme``; ``{"nvcr.io/": "registry.example:5000/nvcr/"}``.

    Raises EnginefarmError(USAGE) for a prefix that cannot be one.
    """
    rules = {_prefix(source, where): _prefix(goal, where) for source, goal in (mirrors or {}).items()}
    return Policy(tuple(dict.fromkeys(_prefix(item, where) for item in allowed)), rules)


def read_mirror(text: str) -> tuple[str, str]:
    """One rule as the command line takes it: ``nvcr.io/=registry.example:5000/nvcr/``. Raises EnginefarmError(USAGE)."""
    source, equals, goal = text.partition("=")
    if not (source and equals and goal):
        raise EnginefarmError(USAGE, f"{text!r} is not a mirror rule", fix="write PREFIX=PREFIX: nvcr.io/=registry.example:5000/nvcr/")
    return source, goal


def _prefix(text: str, where: Where | None) -> str:
    stripped = text.strip().rstrip("/")
    head = stripped.partition("/")[0]
    named = "." in head or ":" in head or head == "localhost"
    try:
        # two more parts make it a whole reference whose registry and repository are checked, and no library/ is put in
        reference = parse(f"{stripped}/x/x:none")
    except EnginefarmError:
        named = False
    if not named:
        fix = "write a registry, or a registry and the first parts of a repository: nvcr.io, ghcr.io/acme"
        raise EnginefarmError(USAGE, f"{text!r} is not the start of an image's name", where=where, fix=fix)
    return reference.name.removesuffix("x/x")
