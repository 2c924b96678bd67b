"""Container image references: ``[registry/]repository[:tag][@sha256:...]``.

Rules are those of the distribution project's reference grammar, which Docker follows: a first part without a dot, a colon and other than
``localhost`` is no registry (then it is ``docker.io``), and a single name there lies under ``library/``.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, replace

from orchestrator.errors import IMAGE_REFERENCE, EnginefarmError, Where

DEFAULT_REGISTRY = "docker.io"
EXAMPLE = "nvcr.io/nvidia/tensorrt:23.09-py3"

_REGISTRY = re.compile(r"^(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?\Z")
_PART = re.compile(r"^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*\Z")
_TAG = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")
_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}\Z")
_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]*://")
_MAX_NAME = 255  # characters of registry and repository together


@dataclass(frozen=True)
class Reference:
    """A reference with nothing left to be guessed; ``str()`` gives its one spelling."""

    registry: str
    repository: str
    tag: str | None = None
    digest: str | None = None

    @property
    def name(self) -> str:
        """``nvcr.io/nvidia/tensorrt``."""
        return f"{self.registry}/{self.repository}"

    def pinned(self, digest: str) -> Reference:
        """The same repository at a digest, without the tag."""
        return replace(self, tag=None, digest=digest)

    def __str__(self) -> str:
        return self.name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


def is_digest(text: str) -> bool:
    """Whether ``text`` is ``sha256:`` and 64 lower-case hexadecimal digits."""
    return _DIGEST.match(text) is not None


def parse(text: str, where: Where | None = None) -> Reference:
    """Read a reference. Raises EnginefarmError(IMAGE_REFERENCE) that says which part is wrong and, where it can, how to write it."""
    problem = _Problem(text, where)
    if not text or text != text.strip() or any(character.isspace() or not character.isprintable() for character in text):
        raise problem.of("it holds a space or a character that cannot be seen" if text else "it is empty", text.strip().split(" ")[-1])
    if _SCHEME.match(text):
        raise problem.of("it is written without a scheme", _SCHEME.sub("", text))
    rest, at, digest = text.partition("@")
    if at and not is_digest(digest):
        raise problem.of("a digest is sha256: and 64 lower-case hexadecimal digits", rest if _ends_in_tag(rest) else None)
    registry, repository = _split_registry(rest)
    repository, colon, tag = repository.partition(":")
    if colon and not _TAG.match(tag):
        raise problem.of(f'"{tag}" is not a tag: at most 128 letters, digits, and . _ - not at its start', None)
    if not _REGISTRY.match(registry) or (":" in registry and not registry.endswith("]") and int(registry.rpartition(":")[2]) > 65535):
        raise problem.of(f'"{registry}" is not a registry: a host name, and a port where needed', None)
    _check_repository(repository, problem)
    if len(registry) + 1 + len(repository) > _MAX_NAME:
        raise problem.of(f"registry and repository have more than {_MAX_NAME} characters", None)
    return Reference(registry.lower(), repository, tag or None, digest or None)


def normalise(text: str) -> str:
    """The one spelling of a reference: ``python:3.12`` -> ``docker.io/library/python:3.12``."""
    return str(parse(text))


def _split_registry(name: str) -> tuple[str, str]:
    head, slash, rest = name.partition("/")
    if slash and ("." in head or ":" in head or head == "localhost"):
        if head.lower() in ("index.docker.io", "registry-1.docker.io"):
            head = DEFAULT_REGISTRY
        under_library = head == DEFAULT_REGISTRY and "/" not in rest
        return head, f"library/{rest}" if under_library else rest
    return DEFAULT_REGISTRY, name if slash else f"library/{name}"


def _check_repository(repository: str, problem: _Problem) -> None:
    if repository != repository.lower():
        raise problem.of("a repository is written in lower case", problem.text.replace(repository, repository.lower()))
    wrong = next((part for part in repository.split("/") if not _PART.match(part)), None)
    if wrong is not None:
        why = f'"{wrong}" cannot be a part of a repository' if wrong else "a part of the repository is empty"
        raise problem.of(f"{why}: lower-case letters and digits, single . _ - between them", None)


def _ends_in_tag(name: str) -> bool:
    return ":" in name.rpartition("/")[2]


@dataclass(frozen=True)
class _Problem:
    text: str
    where: Where | None

    def of(self, why: str, suggestion: str | None) -> EnginefarmError:
        shown = "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in self.text[:200])
        fix = f"write it like {EXAMPLE}"
        if suggestion and suggestion != self.text:
            with contextlib.suppress(EnginefarmError):
                parse(suggestion)
                fix = f"did you mean {suggestion}?"
        return EnginefarmError(IMAGE_REFERENCE, f'"{shown}" is not an image reference', where=self.where, why=why, fix=fix)
