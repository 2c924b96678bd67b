"""Which targets are meant: names, globs (``*``, ``?``, ``[]``, ``{a,b}``) and ``label:NAME``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from orchestrator.errors import EMPTY_SELECTION, TARGET_UNKNOWN, EnginefarmError, raise_all
from orchestrator.matrix.binder import CLOSE
from orchestrator.matrix.layers import EffectiveTarget
from orchestrator.matrix.yaml_syntax import short

_GLOB = re.compile(r"[*?\[\]{}]")
_LIST_THEM = "see them with: enginefarm targets list"
_MAX_SUGGESTIONS = 5
_MAX_ALTERNATIVES = 1000


@dataclass(frozen=True)
class Matrix:
    """All targets, sorted by name in natural order (``cu9`` before ``cu12``)."""

    targets: dict[str, EffectiveTarget]

    def select(self, selectors: Sequence[str]) -> list[EffectiveTarget]:
        """The targets that any selector means, in the order of the matrix, each once; no selectors means all.

        A selector may hold several, separated by commas. Raises TARGET_UNKNOWN for a name that is none, EMPTY_SELECTION for
        a glob or label that no target has; all of them together.
        """
        if not selectors:
            return list(self.targets.values())
        chosen: set[str] = set()
        problems: list[EnginefarmError] = []
        for selector in (part for text in selectors for part in split_commas(text)):
            chosen.update(self._names(selector, problems))
        if not problems and not chosen:
            problems.append(EnginefarmError(EMPTY_SELECTION, "the selection names no target", fix="leave it out to take all targets"))
        raise_all(problems)
        return [target for name, target in self.targets.items() if name in chosen]

    def _names(self, selector: str, problems: list[EnginefarmError]) -> list[str]:
        """The names that one selector means; none, with a problem added, when it means nothing."""
        if selector in self.targets:
            return [selector]
        if selector.startswith("label:"):
            label = selector[len("label:") :]
            names = [name for name, effective in self.targets.items() if label in effective.target.labels]
            problem = EnginefarmError(EMPTY_SELECTION, f'no target has the label "{short(label)}"', fix=self._suggest_label(label))
        elif _GLOB.search(selector):
            patterns = expand_braces(selector)
            names = [name for name in self.targets if any(fnmatchcase(name, pattern) for pattern in patterns)]
            problem = EnginefarmError(EMPTY_SELECTION, f'no target\'s name matches "{short(selector)}"', fix=_LIST_THEM)
        else:
            names = []
            problem = EnginefarmError(TARGET_UNKNOWN, f'no target is called "{short(selector)}"', fix=self._suggest(selector))
        if not names:
            problems.append(problem)
        return names

    def _suggest_label(self, label: str) -> str:
        known = sorted({name for effective in self.targets.values() for name in effective.target.labels})
        close = difflib.get_close_matches(label, known, n=_MAX_SUGGESTIONS, cutoff=CLOSE)
        return f"did you mean {' or '.join(f'label:{name}' for name in close)}?" if close else f"labels: {', '.join(known)}"

    def _suggest(self, name: str) -> str:
        """Close names first, then targets whose tag or label this is."""
        close = difflib.get_close_matches(name.lower(), self.targets, n=_MAX_SUGGESTIONS, cutoff=CLOSE)
        by_tag = [key for key, effective in self.targets.items() if effective.target.tag == name.lower()]
        starts = [key for key in self.targets if key.startswith(name.lower()) and name]
        label = [f"label:{name.lower()}"] if any(name.lower() in item.target.labels for item in self.targets.values()) else []
        found = list(dict.fromkeys([*by_tag, *close, *starts, *label]))[:_MAX_SUGGESTIONS]
        return f"did you mean {' or '.join(found)}?" if found else _LIST_THEM


def natural(name: str) -> tuple[tuple[int, int], ...]:
    """Sort key: as plain text, but runs of digits compare as numbers (``ampere-cu122`` < ``ampere86-cu12`` < ``ampere86-cu102``)."""
    return tuple((ord("0"), int(part)) if part[0] in "0123456789" else (ord(part), 0) for part in re.findall(r"[0-9]+|[^0-9]", name))


def sort_targets(targets: Mapping[str, EffectiveTarget]) -> dict[str, EffectiveTarget]:
    return {name: targets[name] for name in sorted(targets, key=lambda name: (natural(name), name))}


def split_commas(text: str) -> list[str]:
    """Split at commas outside of braces and brackets; empty parts are dropped."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "{[") - (character in "}]")
        if character == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def expand_braces(glob: str) -> list[str]:
    """``"{ada,rtx-*}-cu12"`` -> ``["ada-cu12", "rtx-*-cu12"]``; braces may be nested. An unclosed brace is taken as a character.

    Raises EMPTY_SELECTION when the alternatives pass 1000.
    """
    opened = [index for index, character in enumerate(glob) if character == "{"]
    for start in reversed(opened):
        end = glob.find("}", start)
        if end < 0:
            continue
        found = []
        for part in glob[start + 1 : end].split(","):
            found += expand_braces(glob[:start] + part + glob[end + 1 :])
            if len(found) > _MAX_ALTERNATIVES:
                raise EnginefarmError(EMPTY_SELECTION, f'"{short(glob)}" stands for too many names', fix="use * instead")
        return found
    return [glob]
