"""Which of the findings of a log is the cause, which follow from it, and which are harmless."""

from collections import OrderedDict
from typing import Any, Dict, List

from .failures import Catalogue, Entry

CAUSES = 8
GUESSES = 2
SHORT = 8  # lines of a log that can only be a question about the harmless line in it
CLOSE = 3  # lines within which two figures belong to one message
_WEIGHT = {"cause": 2, "warning": 1}


def verdict(table: Catalogue, findings: List[Any], lines: int, unknown: Dict[int, str]) -> Dict[str, Any]:
    """The answer of :func:`explain.explain` from findings (explain.Finding), the number of lines and the unexplained ones."""
    by_source = OrderedDict()  # type: Dict[str, List[Any]]
    for finding in findings:
        if finding.count > 0:
            by_source.setdefault(finding.source, []).append(finding)
    causes = []  # type: List[Dict[str, Any]]
    harmless = []  # type: List[Dict[str, Any]]
    for found in by_source.values():
        blamed, rest = _judge(table, found, lines)
        causes += blamed
        harmless += rest
    causes.sort(key=lambda cause: (-cause["weight"], -cause["rank"], cause["evidence"][0]["line"] if cause["evidence"] else 0))
    went_well = any(finding.entry.role == "success" for finding in findings)
    sources = {cause["source"] for cause in causes}
    for cause in causes:
        del cause["weight"], cause["rank"]
        if len(sources) < 2 and not cause["source"]:
            del cause["source"]
    return {
        "causes": causes[:CAUSES],
        "harmless": harmless,
        "unknown": [] if causes or went_well else [{"line": number, "text": text} for number, text in unknown.items()],
        "mixed": len(sources) > 1 or _several_runtimes(causes),
        "lines": lines,
    }


def _several_runtimes(causes: List[Dict[str, Any]]) -> bool:
    """Whether causes of one kind name different runtimes or devices: one process has one of each."""
    seen = {}  # type: Dict[str, Any]
    for cause in causes:
        runs = cause["figures"].get("runs_on")
        if runs is not None and seen.setdefault(cause["code"], runs) != runs:
            return True
    return False


def _judge(table: Catalogue, found: List[Any], lines: int) -> Any:
    """(causes, harmless) of one source, as dicts."""
    found = _merged(found)
    seen = {finding.entry.code for finding in found}
    roles = {}  # type: Dict[str, List[Any]]
    for finding in found:
        finding.entry = _instead(table, finding.entry, seen)
        roles.setdefault(finding.entry.role, []).append(finding)
    blamed = roles.get("cause", [])
    warnings = roles.get("warning", [])
    guesses = sorted(roles.get("guess", []), key=lambda finding: -finding.entry.rank)
    symptoms = roles.get("symptom", [])
    harmless = roles.get("harmless", [])
    ended_well = max((finding.last for finding in roles.get("success", [])), default=0)
    went_well = bool(ended_well) and not blamed and all(symptom.last < ended_well for symptom in symptoms)
    if went_well:
        guesses = [guess for guess in guesses if guess.last > ended_well]
        went_well = not guesses
    if not went_well:
        blamed = blamed + [w for w in warnings if not blamed or _explains(w.entry, blamed)]
        warnings = [w for w in warnings if w not in blamed]
        if not blamed:
            blamed = guesses[:GUESSES]
        if not blamed:
            blamed, symptoms = [s for s in symptoms if s.entry.kind], [s for s in symptoms if not s.entry.kind]
        if not blamed and not symptoms and (lines <= SHORT or 2 * sum(finding.count for finding in harmless) >= lines):
            # nothing but such lines: the question is about them
            blamed, harmless = [h for h in harmless if h.entry.kind], []
    causes = _folded(sorted(blamed, key=lambda finding: (-finding.entry.rank, finding.first)), symptoms)
    return causes, [_brief(finding) for finding in warnings + harmless if finding.entry.sentences]


def _explains(entry: Entry, blamed: List[Any]) -> bool:
    return any(finding.entry.code in entry.causes or finding.entry.kind in entry.causes for finding in blamed)


def _instead(table: Catalogue, entry: Entry, seen: Any) -> Entry:
    """The entry that ``entry`` becomes beside another code in the log."""
    for code, better in entry.instead.items():
        if code in seen:
            return table.entries[better]
    return entry


def _merged(found: List[Any]) -> List[Any]:
    """Findings of one entry become one where the figures of one are part of the other's, or the lines are close and none contradicts."""
    kept = []  # type: List[Any]
    for finding in sorted(found, key=lambda item: -len(item.figures)):
        whole = next((k for k in kept if k.entry is finding.entry and _of_one(k, finding)), None)
        if whole is None:
            kept.append(finding)
            continue
        whole.figures = dict(finding.figures, **whole.figures)
        whole.count += finding.count
        whole.first = min(whole.first, finding.first)
        for number, text in finding.evidence.items():
            whole.evidence.setdefault(number, text)
    return sorted(kept, key=lambda item: item.first)


def _of_one(one: Any, other: Any) -> bool:
    if any(one.figures.get(name, value) != value for name, value in other.figures.items()):
        return False
    return bool(other.figures.items() <= one.figures.items()) or abs(one.first - other.first) <= CLOSE


def _folded(blamed: List[Any], symptoms: List[Any]) -> List[Dict[str, Any]]:
    """Causes with what follows from them inside; a finding that a better one causes is no cause of its own."""
    roots = []  # type: List[Any]
    under = []  # type: List[Any]
    for finding in blamed:
        root = next((r for r in roots if finding.entry.code in r.entry.causes or finding.entry.kind in r.entry.causes), None)
        if root is None and any(_same_lines(better, finding) for _, better in under):
            continue  # a better entry says what the same lines mean
        if root is None:
            roots.append(finding)
        under.append((root, finding))
    for symptom in symptoms:
        near = [root for root in roots if root.first <= symptom.first] or roots
        if near:
            under.append((max(near, key=lambda root: root.first) if len(near) > 1 else near[0], symptom))
    return [_cause(root, [finding for owner, finding in under if owner is root]) for root in roots]


def _same_lines(root: Any, finding: Any) -> bool:
    return bool(finding.count <= root.count and finding.evidence.keys() <= root.evidence.keys())


def _cause(finding: Any, consequences: List[Any]) -> Dict[str, Any]:
    entry = finding.entry
    told = {
        "kind": entry.kind,
        "code": entry.code,
        "figures": finding.figures,
        "sentence": entry.sentence(finding.figures),
        "fix": entry.fix,
        "confidence": entry.sure,
        "evidence": [{"line": number, "text": text} for number, text in sorted(finding.evidence.items())],
        "count": finding.count,
        "consequences": [_brief(item) for item in consequences],
        "source": finding.source,
        "weight": max(_WEIGHT.get(item.entry.role, 0) for item in [finding, *consequences]),
        "rank": entry.rank,
    }  # type: Dict[str, Any]
    if entry.others:
        told["or"] = [{"kind": kind, "when": when} for kind, when in entry.others.items()]
    return told


def _brief(finding: Any) -> Dict[str, Any]:
    """A finding that is no cause: code, sentence, first line, how often."""
    entry = finding.entry
    told = {"code": entry.code, "sentence": entry.then or entry.sentence(finding.figures), "line": finding.first, "count": finding.count}
    if entry.kind:
        told["kind"] = entry.kind
    if finding.figures:
        told["figures"] = finding.figures
    return told
