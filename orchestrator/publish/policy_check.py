"""Holds targets, engines of manifests and runners against a policy. Pure: files and hosts are read by who calls."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.errors import Where
from orchestrator.portable.facts.version import satisfies
from orchestrator.publish.policy import RULES, Policy

Place = Callable[[str], Where]
"""Where a field of the thing that is checked stands."""


@dataclass(frozen=True)
class Subject:
    """What was checked: ``kind`` is target, engine, runner or policy; ``where`` is where it is declared; exceptions name ``key``."""

    kind: str
    name: str
    where: Where
    key: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Finding:
    """One violation, at the line that causes it."""

    code: str
    rule: str
    subject: Subject
    what: str
    why: str
    fix: str
    where: Where

    def as_dict(self) -> dict[str, Any]:
        where = {key: value for key, value in asdict(self.where).items() if value is not None}
        subject = {"kind": self.subject.kind, "name": self.subject.name}
        return {
            "code": self.code,
            "rule": self.rule,
            "subject": subject,
            "what": self.what,
            "why": self.why,
            "fix": self.fix,
            "where": where,
        }


class Checker:
    """Collects findings; ``subjects`` are all that were looked at, in order."""

    def __init__(self, policy: Policy, now: dt.datetime) -> None:
        self.policy = policy
        self.rules = policy.rules
        self.now = now
        self.findings: list[Finding] = []
        self.subjects: list[Subject] = []

    def target(self, name: str, fields: Mapping[str, Any], place: Place, *, locked: bool) -> None:
        """A target: its fields as in its file; ``locked``: its image has a digest."""
        subject = self._subject("target", name, place("name"))
        self._cuda(subject, fields, place)
        self._image(subject, fields.get("image"), locked, place)
        self._precision(subject, fields.get("precision"), place)

    def engine(
        self, name: str, record: Mapping[str, Any], created_at: str | None, place: Place, *, unsigned: str | None = "nobody verified it"
    ) -> None:
        """An engine: its record in a manifest; one without a file is none and breaks no rule. ``unsigned``: what is wrong with the
        manifest's signature, None when a trusted key signed it."""
        if not record.get("file"):
            return
        subject = self._subject("engine", name, place("target"), record.get("target"))
        locked = bool(record.get("image_digest")) or "@sha256:" in str(record.get("image"))
        self._cuda(subject, record, place)
        self._image(subject, record.get("image"), locked, place)
        self._precision(subject, record.get("precision"), place)
        self._verdict(subject, (record.get("verdict") or {}).get("status"), place)
        self._age(subject, record.get("built_at") or created_at, place)
        built_on = record.get("built_on") or {}
        self._driver(subject, built_on, "the host that built it has", place("built_on"))
        if self.rules.signature and unsigned is not None:
            what = "its manifest is not signed by a trusted key"
            self._add("signature", subject, what, unsigned, "enginefarm sign MANIFEST --key release.key", place("file"))

    def runner(self, name: str, host: Mapping[str, Any], where: Where) -> None:
        """A runner, by its host description."""
        subject = self._subject("runner", name, where)
        self._driver(subject, host, "it has", where)

    def exceptions(self) -> None:
        """Exceptions whose last day has passed."""
        for exemption, where in self.policy.exemptions:
            if exemption.last_day is not None and self.now.date() > exemption.last_day:
                subject = self._subject("policy", ", ".join(exemption.targets), where)
                fix = "remove it, or give it another day"
                self._add("except", subject, f"the exception expired on {exemption.until}", exemption.because, fix, where)

    def _subject(self, kind: str, name: str, where: Where, key: str | None = None) -> Subject:
        subject = Subject(kind, name, where, key or name)
        self.subjects.append(subject)
        return subject

    def _add(self, rule: str, subject: Subject, what: str, why: str, fix: str, where: Where) -> None:
        if not self.policy.exempt(subject.key, rule, self.now.date()):
            self.findings.append(Finding(RULES[rule][0], rule, subject, what, why, fix, where))

    def _cuda(self, subject: Subject, fields: Mapping[str, Any], place: Place) -> None:
        wanted, cuda = self.rules.cuda, fields.get("cuda")
        if wanted is None:
            return
        why = f"the policy allows {wanted}"
        if cuda is None:
            if fields.get("backend") == "tensorrt":
                self._add("cuda", subject, "it names no CUDA version", why, "say which CUDA its image has: cuda: ...", place("backend"))
        elif not _quietly(satisfies, str(cuda), wanted):
            self._add("cuda", subject, f"CUDA {cuda} is not allowed", why, "take an image with a CUDA in that range", place("cuda"))

    def _image(self, subject: Subject, image: Any, locked: bool, place: Place) -> None:
        if not image:
            return
        allowed = self.rules.registries
        if allowed is not None and not any(f"{_full(str(image))}/".startswith(f"{entry.rstrip('/')}/") for entry in allowed):
            why = f"the policy allows {', '.join(allowed) or 'none'}"
            what = f"{image} comes from {_full(str(image)).split('/')[0]}"
            self._add("registries", subject, what, why, "take the image from an allowed registry", place("image"))
        if self.rules.locked_images and not locked:
            why = "a tag can be moved to another image"
            self._add("locked_images", subject, f"{image} has no digest", why, "enginefarm targets lock", place("image"))

    def _precision(self, subject: Subject, precision: Any, place: Place) -> None:
        if precision in self.rules.forbidden_precisions:
            why = f"the policy forbids {', '.join(self.rules.forbidden_precisions)}"
            fix = "set another precision in the target or the model's YAML"
            self._add("forbidden_precisions", subject, f"precision {precision} is forbidden", why, fix, place("precision"))

    def _verdict(self, subject: Subject, status: Any, place: Place) -> None:
        wanted = self.rules.verdict
        if wanted is not None and status not in wanted:
            why = f"the policy asks for {' or '.join(wanted)}"
            fix = "validate it on hardware that the target names, with independent references"
            self._add("verdict", subject, f"its verdict is {status}", why, fix, place("verdict"))

    def _age(self, subject: Subject, built_at: Any, place: Place) -> None:
        limit = self.rules.maximum_age_days
        if limit is None:
            return
        why = f"the policy allows {limit} days"
        built = _time(built_at)
        if built is None:
            self._add("maximum_age_days", subject, "nothing says when it was built", why, "build it again", place("built_at"))
        elif self.now - built > dt.timedelta(days=limit):
            days = (self.now - built).days
            self._add("maximum_age_days", subject, f"it was built {days} days ago", why, "build it again", place("built_at"))

    def _driver(self, subject: Subject, host: Mapping[str, Any], who: str, where: Where) -> None:
        floor = self.rules.minimum_driver
        if floor is None or host.get("jetson") or not host.get("gpus"):
            return  # no GPU, or a Jetson, which has no driver of its own
        driver = (host.get("driver") or {}).get("version")
        why = f"the policy asks for {floor} or newer"
        if not driver:
            self._add("minimum_driver", subject, f"{who} a GPU and its driver is not known", why, "see: enginefarm doctor", where)
        elif not _quietly(satisfies, str(driver), f">={floor}"):
            self._add("minimum_driver", subject, f"{who} driver {driver}", why, f"install driver {floor} or newer", where)


def _quietly(function: Callable[..., bool], *arguments: str) -> bool:
    """False for what is no version: what cannot be compared is not allowed."""
    try:
        return function(*arguments)
    except ValueError:
        return False


def _full(image: str) -> str:
    """The image's name with its registry, without tag and digest: ``ubuntu:22.04`` -> ``docker.io/library/ubuntu``."""
    name = re.sub(r":[^/:]*$", "", image.split("@", 1)[0])
    head, slash, _ = name.partition("/")
    if slash and ("." in head or ":" in head or head == "localhost"):
        return name
    return f"docker.io/{name}" if slash else f"docker.io/library/{name}"


def _time(text: Any) -> dt.datetime | None:
    try:
        found = dt.datetime.fromisoformat(str(text).replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=dt.timezone.utc)


def record_places(text: str, file: str, target: str) -> Place:
    """Where the fields of a target's record stand in the manifest ``text``, by line."""
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if re.match(r'^\s*"target":\s*"', line)]
    wanted = f'"{target}"'
    start = next((number for number in starts if lines[number].split(":", 1)[1].strip().rstrip(",") == wanted), None)
    end = next((number for number in starts if start is not None and number > start), len(lines))

    def place(field: str) -> Where:
        for number in range(start or 0, end):
            if re.match(rf'^\s*"{re.escape(field)}":', lines[number]):
                return Where(file=file, line=number + 1)
        return Where(file=file, line=None if start is None else start + 1)

    return place
