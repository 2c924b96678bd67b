"""Which targets are meant: names, globs (``*``, ``?``, ``[]``, ``{a,b}``) and ``label:NAME``."""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, TypeVar

from orchestrator.errors import EMPTY_SELECTION, TARGET_UNKNOWN, EnginefarmError, raise_all
from orchestrator.matrix.axes import ExcludedCell, differs
from orchestrator.matrix.binder import CLOSE
from orchestrator.matrix.layers import EffectiveTarget
from orchestrator.matrix.yaml_syntax import short

_GLOB = re.compile(r"[*?\[\]{}]")
_LIST_THEM = "see them with: enginefarm targets list"
_MAX_SUGGESTIONS = 5
_MAX_ALTERNATIVES = 1000
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Matrix:
    """All targets, sorted by name in natural order (``cu9`` before ``cu12``). Of a target with axes the cells are here, not itself;
    ``without`` holds the cells that are not built."""

    targets: dict[str, EffectiveTarget]
    without: dict[str, ExcludedCell] = field(default_factory=dict)

    def select(self, selectors: Sequence[str], given: Mapping[str, Any] | None = None) -> list[EffectiveTarget]:
        """The targets that any selector means, in the order of the matrix, each once; no selectors means all.

        A selector may hold several, separated by commas. The name of a target with axes means its cells. ``given`` is what the
        command line says (``precision``: str, ``shapes``: input name -> Profile): it picks the cells that have it. Raises
        TARGET_UNKNOWN for a name that is none, EMPTY_SELECTION for a glob or label that no target has, or when no cell of a target
        has what is given, TARGET_IMPOSSIBLE when all that is meant are excluded cells; all problems of one kind together.
        """
        meant = self._meant(selectors)
        chosen = [target for name, target in self.targets.items() if name in meant]
        if not chosen:
            raise_all(cell.refusal for name, cell in self.without.items() if name in meant)
        if not given:
            return chosen
        kept = [target for target in chosen if differs(target, given) is None]
        lost = {target.cell_of: target for target in chosen} | {target.cell_of: None for target in kept}
        raise_all(self._no_cell(target, chosen, given) for target in lost.values() if target is not None)
        return kept

    def excluded(self, selectors: Sequence[str] = (), given: Mapping[str, Any] | None = None) -> tuple[ExcludedCell, ...]:
        """The cells that the same arguments of :meth:`select` would mean, were they not excluded.

        Raises as it does, but not when nothing else is meant.
        """
        meant = self._meant(selectors) if self.without else ()
        return tuple(cell for name, cell in self.without.items() if name in meant and differs(cell.effective, given or {}) is None)

    @cached_property
    def forks(self) -> dict[str, list[str]]:
        """Name of a target with axes -> names of its cells, excluded ones too."""
        found: dict[str, list[str]] = defaultdict(list)
        for effective in self._rows.values():
            if effective.cell_of is not None:
                found[effective.cell_of].append(effective.target.name)
        return dict(found)

    @cached_property
    def _rows(self) -> dict[str, EffectiveTarget]:
        return sort_targets(self.targets | {name: cell.effective for name, cell in self.without.items()})

    def _meant(self, selectors: Sequence[str]) -> Iterable[str]:
        """Names of targets and excluded cells."""
        if not selectors:
            return self._rows
        chosen: set[str] = set()
        problems: list[EnginefarmError] = []
        for selector in (part for text in selectors for part in split_commas(text)):
            chosen.update(self._names(selector, problems))
        if not problems and not chosen:
            problems.append(EnginefarmError(EMPTY_SELECTION, "the selection names no target", fix="leave it out to take all targets"))
        raise_all(problems)
        return chosen

    def _no_cell(self, target: EffectiveTarget, chosen: Sequence[EffectiveTarget], given: Mapping[str, Any]) -> EnginefarmError:
        """What is said when ``given`` picks none of the chosen cells of one target."""
        named = differs(target, given)
        names = [other.target.name for other in chosen if other.cell_of == target.cell_of]
        why = f"there {'are' if len(names) > 1 else 'is'} {_some(names)}"
        # an excluded one would have had it
        out = [
            cell for cell in self.without.values() if cell.effective.cell_of == target.cell_of and differs(cell.effective, given) is None
        ]
        why += "".join(f"; {cell.name} is excluded: {cell.why}" for cell in out[:1])
        fix = "leave the option out, select other targets, or add the value to the target's axes"
        return EnginefarmError(EMPTY_SELECTION, f"no selected cell of {target.cell_of} has {named}", why=why, fix=fix)

    def _names(self, selector: str, problems: list[EnginefarmError]) -> list[str]:
        """The names that one selector means; none, with a problem added, when it means nothing."""
        if selector in self._rows:
            return [selector]
        if selector in self.forks:
            return self.forks[selector]
        if selector.startswith("label:"):
            label = selector[len("label:") :]
            names = [name for name, effective in self._rows.items() if label in effective.target.labels]
            problem = EnginefarmError(EMPTY_SELECTION, f'no target has the label "{short(label)}"', fix=self._suggest_label(label))
        elif _GLOB.search(selector):
            patterns = expand_braces(selector)
            names = [name for name in self._rows if any(fnmatchcase(name, glob) for glob in patterns)]
            names += [name for base, cells in self.forks.items() for name in cells if any(fnmatchcase(base, glob) for glob in patterns)]
            problem = EnginefarmError(EMPTY_SELECTION, f'no target\'s name matches "{short(selector)}"', fix=_LIST_THEM)
        else:
            names = []
            problem = EnginefarmError(TARGET_UNKNOWN, f'no target is called "{short(selector)}"', fix=self._suggest(selector))
        if not names:
            problems.append(problem)
        return names

    def _suggest_label(self, label: str) -> str:
        known = sorted({name for effective in self._rows.values() for name in effective.target.labels})
        close = difflib.get_close_matches(label, known, n=_MAX_SUGGESTIONS, cutoff=CLOSE)
        return f"did you mean {' or '.join(f'label:{name}' for name in close)}?" if close else f"labels: {', '.join(known)}"

    def _suggest(self, name: str) -> str:
        """Close names first, then targets whose tag or label this is."""
        known = [*self._rows, *self.forks]
        close = difflib.get_close_matches(name.lower(), known, n=_MAX_SUGGESTIONS, cutoff=CLOSE)
        by_tag = [key for key, effective in self._rows.items() if effective.target.tag == name.lower()]
        starts = [key for key in known if key.startswith(name.lower()) and name]
        label = [f"label:{name.lower()}"] if any(name.lower() in item.target.labels for item in self._rows.values()) else []
        forks = [base for base in self.forks if name.lower().startswith(f"{base}-")]
        found = list(dict.fromkeys([*by_tag, *close, *starts, *label, *forks]))[:_MAX_SUGGESTIONS]
        return f"did you mean {' or '.join(found)}?" if found else _LIST_THEM


def _some(names: Sequence[str]) -> str:
    """At most eight names."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def natural(name: str) -> tuple[tuple[int, int], ...]:
    """Sort key: as plain text, but runs of digits compare as numbers (``ampere-cu122`` < ``ampere86-cu12`` < ``ampere86-cu102``)."""
    return tuple((ord("0"), int(part)) if part[0] in "0123456789" else (ord(part), 0) for part in re.findall(r"[0-9]+|[^0-9]", name))


def sort_targets(targets: Mapping[str, _Item]) -> dict[str, _Item]:
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
