"""The command that builds an engine again, as its manifest records it."""

from __future__ import annotations

import shlex

from orchestrator.artifacts.manifest import EngineRecord, ModelRecord

_VALUES = frozenset({"--target", "--name", "--model-version", "--precision", "--shape"})
_FLAGS = frozenset({"--force", "--allow-unvalidated"})


def _plain(words: list[str]) -> bool:
    """Whether the words after ``build`` are one model and options that only say what to build."""
    rest, models = iter(words), 0
    for word in rest:
        if word in _VALUES:
            if next(rest, None) is None:
                return False
        elif not word.startswith("-"):
            models += 1
        elif word not in _FLAGS:
            return False
    return models == 1 and all(word.isprintable() for word in words)


def arguments(model: ModelRecord, record: EngineRecord) -> list[str]:
    """The command as a list: the recorded one, or one made from the record's fields when what is recorded is no plain command of ours.

    A manifest may come from a stranger, and the command is there to be pasted: it has to be one ``enginefarm build`` with quoted arguments,
    without anything that a shell would act on, and without options that choose what runs here or where it writes (``--python``,
    ``--runners``, ``--output`` and so on).
    """
    try:
        words = shlex.split(record.reproduce or "")
    except ValueError:
        words = []
    if words[:2] == ["enginefarm", "build"] and shlex.join(words) == record.reproduce and _plain(words[2:]):
        return words
    source = f"./{model.source}" if model.source.startswith("-") else model.source  # a file name, not an option
    words = ["enginefarm", "build", source, "--target", record.target, "--name", model.name, "--model-version", str(model.version)]
    words += ["--precision", record.precision]
    for name, sides in record.profiles.items():
        shape = ":".join("x".join(map(str, sides[side])) for side in ("min", "opt", "max") if side in sides)
        words += ["--shape", f"{name}:{shape}"]
    return [*words, "--force", "--allow-unvalidated"]
