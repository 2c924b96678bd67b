"""Findings of a policy as text, JSON, SARIF 2.1.0 and JUnit XML."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

from orchestrator import __version__
from orchestrator.publish.policy import RULES, Policy
from orchestrator.publish.policy_check import Finding, Subject

POLICY_SCHEMA = "enginefarm.policy/1"
_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


def lines(findings: Sequence[Finding]) -> list[str]:
    """``file:line: code what``, then why and what to do."""
    text = []
    for finding in findings:
        place = str(finding.where) or str(finding.subject)
        text += [f"{place}: {finding.code} {finding.subject}: {finding.what}", f"  why: {finding.why}", f"  fix: {finding.fix}"]
    return text


def as_json(policy: Policy, subjects: Sequence[Subject], findings: Sequence[Finding]) -> dict[str, Any]:
    """``enginefarm.policy/1``."""
    checked = [{"kind": subject.kind, "name": subject.name} for subject in subjects]
    rules = policy.rules.model_dump(mode="json")
    found = [finding.as_dict() for finding in findings]
    return {"schema": POLICY_SCHEMA, "policy": str(policy.path), "rules": rules, "checked": checked, "findings": found}


def sarif(findings: Sequence[Finding]) -> dict[str, Any]:
    """A SARIF log with one run; every rule is declared, found or not."""
    rules = [{"id": code, "name": name, "shortDescription": {"text": title}} for name, (code, title) in RULES.items()]
    driver = {"name": "enginefarm policy", "version": __version__, "rules": rules}
    order = [rule["id"] for rule in rules]
    results = [_result(finding, order.index(finding.code)) for finding in findings]
    return {"$schema": _SARIF, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}


def _result(finding: Finding, index: int) -> dict[str, Any]:
    text = f"{finding.subject}: {finding.what} ({finding.why}); {finding.fix}"
    result: dict[str, Any] = {"ruleId": finding.code, "ruleIndex": index, "level": "error", "message": {"text": text}}
    if finding.where.file:
        region = {"startLine": finding.where.line or 1}
        if finding.where.column:
            region["startColumn"] = finding.where.column
        place = {"artifactLocation": {"uri": quote(finding.where.file.replace("\\", "/"))}, "region": region}
        result["locations"] = [{"physicalLocation": place}]
    return result


def junit(subjects: Sequence[Subject], findings: Sequence[Finding]) -> bytes:
    """One test case for each thing that was checked."""
    by_subject = {id(subject): [finding for finding in findings if finding.subject is subject] for subject in subjects}
    failed = sum(bool(found) for found in by_subject.values())
    suite = ET.Element("testsuite", name="enginefarm policy", tests=str(len(subjects)), failures=str(failed), errors="0")
    for subject in subjects:
        found = by_subject[id(subject)]
        case = ET.SubElement(suite, "testcase", classname=f"policy.{subject.kind}", name=_xml(subject.name))
        if found:
            message = "; ".join(f"{finding.code} {finding.what}" for finding in found)
            failure = ET.SubElement(case, "failure", type=found[0].code, message=_xml(message))
            failure.text = _xml("\n".join(lines(found)))
    data: bytes = ET.tostring(suite, encoding="utf-8", xml_declaration=True)
    return data


def _xml(text: str) -> str:
    """Without characters that XML 1.0 cannot hold."""
    return "".join(c if c in "\t\n" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff" else "?" for c in text)
