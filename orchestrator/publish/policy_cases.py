"""Tests of a policy, written by the people whose policy it is: things, and the codes that the policy must find.

::

    cases:
      - name: CUDA 13 is too new
        target: {backend: tensorrt, image: "nvcr.io/nvidia/tensorrt:26.05-py3", cuda: "13.2", precision: fp16}
        locked: true
        expect: [P102]
      - name: an old driver
        runner: {gpus: [{name: NVIDIA A100}], driver: {version: 470.82.01}}
        expect: [P101]
      - name: an engine that nothing checked
        engine: {file: lane_v3_ada.engine, verdict: {status: unvalidated}, built_at: 2026-01-01T00:00:00Z}
        today: 2026-02-01
        expect: [P105]
"""

from __future__ import annotations

import datetime as dt
import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import CONFIG_FIELD, CONFIG_VALUE, EnginefarmError, Where, raise_all
from orchestrator.matrix.yaml_reader import Mapping, Node, Scalar, Sequence, read_file
from orchestrator.matrix.yaml_syntax import short
from orchestrator.publish.policy import RULES, Policy
from orchestrator.publish.policy_check import Checker

_KINDS = ("target", "engine", "runner")
_KEYS = ("name", *_KINDS, "locked", "signed", "today", "expect")
_CODES = {code for code, _ in RULES.values()}


@dataclass(frozen=True)
class Case:
    name: str
    kind: str
    subject: dict[str, Any]
    expect: tuple[str, ...]
    where: Where
    locked: bool = False
    signed: bool = False
    today: dt.date | None = None


@dataclass(frozen=True)
class CaseResult:
    """``found`` are the codes that the policy gave."""

    case: Case
    found: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return set(self.found) == set(self.case.expect)


def load_cases(path: Path) -> list[Case]:
    """The cases of a file. Raises EnginefarmError with every problem at its line."""
    document = read_file(path)
    problems = list(document.problems)
    cases: list[Case] = []
    if document.root is not None:
        node = document.root.entries.get("cases")
        if not isinstance(node, Sequence) or not node.items:
            where = node.where if node is not None else document.root.where
            problems.append(EnginefarmError(CONFIG_VALUE, "the file lists no case", where=where, fix="write cases: and a list below it"))
        else:
            for item in node.items:
                case = _case(item, problems)
                cases += [case] if case else []
    raise_all(problems)
    return cases


def run_case(policy: Policy, case: Case, now: dt.datetime) -> CaseResult:
    """Hold the case's subject against the policy; ``now`` counts where the case names no day."""
    at = dt.datetime.combine(case.today, dt.time(), dt.timezone.utc) if case.today else now
    checker = Checker(policy, at)
    name = str(case.subject.get("target") or case.subject.get("name") or case.name)
    if case.kind == "target":
        checker.target(name, case.subject, lambda _: case.where, locked=case.locked)
    elif case.kind == "engine":
        checker.engine(name, case.subject, None, lambda _: case.where, unsigned=None if case.signed else "the case says so")
    else:
        checker.runner(name, case.subject, case.where)
    return CaseResult(case, tuple(dict.fromkeys(finding.code for finding in checker.findings)))


def _case(node: Node, problems: list[EnginefarmError]) -> Case | None:
    def wrong(what: str, where: Where, fix: str | None = None) -> None:
        problems.append(EnginefarmError(CONFIG_VALUE, what, where=where, fix=fix))

    before = len(problems)
    if not isinstance(node, Mapping):
        wrong("a case needs lines of the form name: value", node.where)
        return None
    for name, key in node.keys.items():
        if name not in _KEYS:
            close = difflib.get_close_matches(name, _KEYS, n=1)
            fix = f"did you mean {close[0]}?" if close else f"known here: {', '.join(_KEYS)}"
            problems.append(EnginefarmError(CONFIG_FIELD, f'"{short(name)}" is not a field of a case', where=key.where, fix=fix))
    kinds = [kind for kind in _KINDS if kind in node.entries]
    if len(kinds) != 1 or not isinstance(node.entries.get(kinds[0] if kinds else ""), Mapping):
        wrong("a case needs one of target, engine and runner, with fields", node.where)
    expect = _plain(node.entries["expect"]) if "expect" in node.entries else None
    if not isinstance(expect, list):
        wrong("a case needs expect: a list of codes, or []", node.where)
    else:
        for code in expect:
            if code not in _CODES:
                wrong(f'"{short(str(code))}" is no code of a policy', node.entries["expect"].where, f"codes: {', '.join(sorted(_CODES))}")
    today = _day(node.entries.get("today"), wrong)
    if len(problems) > before or not isinstance(expect, list):
        return None
    said = {name: _plain(child) for name, child in node.entries.items()}
    name = str(said.get("name") or f"case at line {node.where.line}")
    locked, signed = (said.get(key) == "true" for key in ("locked", "signed"))
    return Case(name, kinds[0], said[kinds[0]], tuple(expect), node.where, locked, signed, today)


def _day(node: Node | None, wrong: Any) -> dt.date | None:
    if node is None:
        return None
    try:
        return dt.date.fromisoformat(node.text if isinstance(node, Scalar) else "")
    except ValueError:
        wrong("today is not a day", node.where, "write 2026-02-01")
        return None


def _plain(node: Node) -> Any:
    """Values as they are written; ``null`` and ``~`` are None. Numbers stay text: 12.10 is a version here."""
    if isinstance(node, Mapping):
        return {name: _plain(child) for name, child in node.entries.items()}
    if isinstance(node, Sequence):
        return [_plain(item) for item in node.items]
    return None if node.plain and node.text in ("", "null", "~") else node.text
