"""The policy: which drivers, CUDA versions, images, verdicts, ages and precisions an organisation lets into production.

Read from ``policy.yaml`` (docs/policy.md); a rule that is left out is not checked.
"""

from __future__ import annotations

import datetime as dt
import difflib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.artifacts.manifest import Status
from orchestrator.errors import CONFIG_VALUE, EnginefarmError, Where, raise_all
from orchestrator.matrix.binder import Binder, Bound
from orchestrator.matrix.layers import wrong_value
from orchestrator.matrix.schema import Precision, Version, VersionRange
from orchestrator.matrix.yaml_reader import Mapping, Sequence, read_file
from orchestrator.matrix.yaml_syntax import short

POLICY_FILE = "policy.yaml"
DEFAULT = Path(__file__).with_name("default_policy.yaml")

RULES = {
    "minimum_driver": ("P101", "NVIDIA driver is older than the policy allows"),
    "cuda": ("P102", "CUDA version is outside of the policy's range"),
    "registries": ("P103", "image comes from a registry that the policy does not name"),
    "locked_images": ("P104", "image has no digest"),
    "verdict": ("P105", "engine's verdict is not one that the policy asks for"),
    "maximum_age_days": ("P106", "engine is older than the policy allows"),
    "forbidden_precisions": ("P107", "precision is forbidden"),
    "signature": ("P108", "manifest is not signed by a trusted key"),
    "except": ("P109", "exception of the policy has expired"),
}
"""Rule -> its stable code and a title."""

_Text = Annotated[str, Field(min_length=1)]


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Exemption(_Frozen):
    """``rules`` are not checked for ``targets`` (names or globs; runners by their names too), ``because`` of a reason, ``until`` a day."""

    targets: tuple[_Text, ...] = Field(min_length=1)
    rules: tuple[_Text, ...] = Field(min_length=1)
    because: _Text
    until: _Text | None = None

    @property
    def last_day(self) -> dt.date | None:
        return dt.date.fromisoformat(self.until) if self.until else None


class Rules(_Frozen):
    """The keys of policy.yaml, but for ``except``. ``trusted_keys`` are public key files, from the policy's folder."""

    minimum_driver: Version | None = None
    cuda: VersionRange | None = None
    registries: tuple[_Text, ...] | None = None
    locked_images: bool = False
    verdict: tuple[Status, ...] | None = None
    maximum_age_days: Annotated[int, Field(ge=1, le=36500)] | None = None
    forbidden_precisions: tuple[Precision, ...] = ()
    signature: bool = False
    trusted_keys: tuple[_Text, ...] = ()


@dataclass(frozen=True)
class Policy:
    """``exemptions`` with the place where each stands; ``path`` is the file it was read from."""

    rules: Rules
    exemptions: tuple[tuple[Exemption, Where], ...] = ()
    path: Path = field(default=DEFAULT)

    @property
    def keys(self) -> list[Path]:
        """The public keys, one of which has to have signed."""
        return [self.path.parent / key for key in self.rules.trusted_keys]

    def exempt(self, name: str, rule: str, today: dt.date) -> bool:
        """Whether ``rule`` is not checked for the target or runner ``name``."""
        for exemption, _ in self.exemptions:
            expired = exemption.last_day is not None and today > exemption.last_day
            if not expired and rule in exemption.rules and any(fnmatchcase(name, glob) for glob in exemption.targets):
                return True
        return False


def find_policy(project: Path) -> Path:
    """The project's policy.yaml, else the one that ships with the program."""
    own = project / POLICY_FILE
    return own if own.is_file() else DEFAULT


def load_policy(path: Path) -> Policy:
    """Read a policy. Raises EnginefarmError with every problem of the file at its line and column."""
    document = read_file(path)
    problems = list(document.problems)
    policy = Policy(Rules(), (), path)
    if document.root is not None:
        policy = _bind(document.root, path, problems)
    raise_all(problems)
    return policy


def _bind(root: Mapping, path: Path, problems: list[EnginefarmError]) -> Policy:
    entries = {name: node for name, node in root.entries.items() if name != "except"}
    binder = Binder()
    bound = binder.fields(Mapping(entries, root.keys, root.where), Rules)
    problems += binder.problems
    rules = _validated(Rules, bound, problems, root.where)
    if rules is not None and rules.signature and not rules.trusted_keys:
        where = bound["signature"].where
        fix = "name public keys: trusted_keys: [release.pub]"
        problems.append(EnginefarmError(CONFIG_VALUE, "signature is required and no key is trusted", where=where, fix=fix))
    exemptions: list[tuple[Exemption, Where]] = []
    node = root.entries.get("except")
    if isinstance(node, Sequence):
        for number, item in enumerate(node.items):
            found = _exemption(item, f"except.{number + 1}", problems) if isinstance(item, Mapping) else None
            if not isinstance(item, Mapping):
                problems.append(EnginefarmError(CONFIG_VALUE, "an exception needs targets, rules and because", where=item.where))
            elif found is not None:
                exemptions.append((found, item.where))
    elif node is not None:
        problems.append(EnginefarmError(CONFIG_VALUE, "except is a list", where=node.where, fix="start each exception with a dash"))
    return Policy(rules or Rules(), tuple(exemptions), path)


def _validated(model: Any, bound: dict[str, Bound], problems: list[EnginefarmError], home: Where) -> Any:
    values = {name.rsplit(".", 1)[-1]: item for name, item in bound.items()}
    try:
        return model.model_validate({name: item.value for name, item in values.items() if item.value is not None})
    except ValidationError as error:
        for details in error.errors(include_url=False):
            name = str(details["loc"][0])
            where = values[name].where if name in values else home
            problems.append(wrong_value(CONFIG_VALUE, name, dict(details), where))
        return None


def _exemption(node: Mapping, name: str, problems: list[EnginefarmError]) -> Exemption | None:
    binder = Binder()
    bound = binder.fields(node, Exemption, f"{name}.")
    problems += binder.problems
    if binder.problems:
        return None
    found: Exemption | None = _validated(Exemption, bound, problems, node.where)
    if found is None:
        return None
    for rule in found.rules:
        if rule not in RULES:
            close = difflib.get_close_matches(rule, RULES, n=1)
            fix = f"did you mean {close[0]}?" if close else f"rules: {', '.join(RULES)}"
            problems.append(EnginefarmError(CONFIG_VALUE, f'"{short(rule)}" is no rule', where=bound[f"{name}.rules"].where, fix=fix))
    try:
        _ = found.last_day
    except ValueError:
        where = bound[f"{name}.until"].where
        problems.append(
            EnginefarmError(CONFIG_VALUE, f"until is not a day: {short(found.until or '')}", where=where, fix="write 2027-01-31")
        )
        return None
    return found
