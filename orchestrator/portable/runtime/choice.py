"""The decision: which engine, which others and why not, degraded or not."""

from typing import Any, Dict, List, NamedTuple, Optional

STAGES = (
    "absent",  # the manifest holds no file for this target
    "policy",  # the caller's options, or the file's status, forbid it
    "rules",  # it cannot run on this machine
    "file",  # missing, damaged or not the one that was checked
    "backend",  # what runs it is not here, or in another version
    "load",  # it was tried and did not load
)
FAILURES = ("file", "load")
"""Stages that mean that something is broken, not that an engine is for another machine."""

Chosen = NamedTuple(
    "Chosen",
    [
        ("target", str),
        ("file", str),
        ("backend", str),
        ("provider", Optional[str]),
        ("tier", str),
        ("status", str),
        ("checked", bool),
        ("digest", str),
        ("backend_version", Optional[str]),
        ("device", Optional[str]),
    ],
)
"""The engine that was taken. ``status`` is the manifest's word; ``checked``: it passed on this kind of device."""

Refused = NamedTuple(
    "Refused",
    [
        ("target", str),
        ("file", Optional[str]),
        ("backend", str),
        ("provider", Optional[str]),
        ("tier", str),
        ("stage", str),
        ("kind", str),
        ("why", str),
        ("fix", str),
        ("code", str),
    ],
)
"""An engine that was not taken: ``stage`` is one of STAGES; ``code`` explains a failed load (``enginefarm explain CODE``), or is empty."""


def status_of(chosen: Chosen) -> str:
    """The status in words; a file that passed elsewhere has not passed here."""
    return "passed on the CPU only" if chosen.status == "passed" and not chosen.checked else chosen.status


class Choice:
    """``chosen`` (None when nothing fits), ``refused`` in the order they were tried, ``degraded`` and ``reasons`` for it."""

    def __init__(self, model: str, version: int, revision: int, manifest: str) -> None:
        self.model = model
        self.version = version
        self.revision = revision
        self.manifest = manifest
        self.chosen: Optional[Chosen] = None
        self.refused: List[Refused] = []
        self.reasons: List[str] = []

    @property
    def degraded(self) -> bool:
        """Whether a better engine should have been loaded: what a service alarms on."""
        return bool(self.reasons)

    def as_dict(self) -> Dict[str, Any]:
        """JSON-ready."""
        return {
            "model": self.model,
            "version": self.version,
            "revision": self.revision,
            "manifest": self.manifest,
            "chosen": None if self.chosen is None else dict(self.chosen._asdict()),
            "degraded": self.degraded,
            "reasons": list(self.reasons),
            "refused": [dict(refused._asdict()) for refused in self.refused],
        }

    def lines(self) -> List[str]:
        """The decision as lines of text."""
        found = []
        if self.chosen is not None:
            where = " on {}".format(self.chosen.device) if self.chosen.device else ""
            found.append("{} ({}, {}){}: {}".format(self.chosen.target, self.chosen.tier, status_of(self.chosen), where, self.chosen.file))
        for refused in self.refused:
            found.append("not {} ({}): {}".format(refused.target, refused.tier, refused.why))
            if refused.fix and refused.stage != "rules":
                found.append("    fix: " + refused.fix)
        found += ["degraded: " + reason for reason in self.reasons]
        return found

    def __str__(self) -> str:
        head = "{} v{} revision {}".format(self.model, self.version, self.revision)
        return "\n".join([head] + ["  " + line for line in self.lines()])
