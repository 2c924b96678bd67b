"""Tags that are known to exist near one that does not (docs/facts/ngc_tensorrt.yaml, docs/facts/jetson.yaml)."""

from __future__ import annotations

import difflib
import itertools
import re

from orchestrator.portable.facts.data import load

_MONTHLY = re.compile(r"^\d\d\.\d\d(-.*)?\Z")


def known_tags(repository: str) -> list[str]:
    """The tags of a repository that the facts hold, by the part after the registry (a mirror serves the same); may be empty."""
    path = f"/{repository}"
    tags = [row["tag"] for row in load("ngc_tensorrt")["releases"]] if path.endswith("/nvidia/tensorrt") else []
    for row in load("jetson")["images"]:
        if path.endswith("/" + row["repository"].split("/", 1)[1]):
            tags += row["tags"]
    return list(dict.fromkeys(tags))


def nearest_tags(repository: str, tag: str, count: int = 2) -> list[str]:
    """Up to ``count`` known tags: of monthly tags those before and after, else those spelled alike, from the left."""
    tags = [known for known in known_tags(repository) if known != tag]
    if _MONTHLY.match(tag):
        monthly = sorted(known for known in tags if _MONTHLY.match(known))
        older = [known for known in monthly if known < tag]
        newer = [known for known in monthly if known > tag]
        near = older[-1:] + newer[:1]
        return near if len(near) == count else (older[-count:] or newer[:count])

    def likeness(known: str) -> tuple[int, float]:
        same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(tag, known, strict=False)))
        return same, difflib.SequenceMatcher(None, tag, known).ratio()

    return sorted(tags, key=likeness, reverse=True)[:count]
