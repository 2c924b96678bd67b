"""Compute capabilities as people write them, and what is known of each.

Source of the table: docs/facts/capabilities.yaml.
"""

import re
from typing import Any, Dict, List, Sequence, Tuple, Union

from .data import load

_DOTTED = re.compile(r"^(\d{1,2})\.(\d)$")
# sm_90a and sm_100f name code that runs on that one capability (or family), the hardware is still 9.0 / 10.0
_COMPACT = re.compile(r"^(?:(?:sm|compute|cc)[ _-]?)?(\d{1,2})[.]?(\d)[af]?$")
_UNDERSCORE = re.compile(r"^(\d{1,2})_(\d)$")
_LONG_MINOR = re.compile(r"^\d{1,2}\.\d{2,}$")
_SPLIT = re.compile(r"^0*([1-9]\d?)[._:](\d+)$")
_DIGITS = re.compile(r"^0*([1-9]\d?)(\d)$")


def _rows() -> List[Dict[str, Any]]:
    return list(load("capabilities")["capabilities"])


def key(capability: str) -> Tuple[int, int]:
    """``"8.6"`` -> ``(8, 6)``, for ordering. Raises ValueError when it is not ``major.minor``."""
    match = _DOTTED.match(capability)
    if not match:
        raise ValueError('"{}" is not a compute capability like "8.6"'.format(capability))
    return int(match.group(1)), int(match.group(2))


def known() -> Tuple[str, ...]:
    """All capabilities in the facts, oldest first."""
    return tuple(sorted((row["capability"] for row in _rows()), key=key))


def family(capability: str) -> str:
    """GPU family ("Ampere"), or "unknown" for a capability that the facts do not hold."""
    for row in _rows():
        if row["capability"] == capability:
            return str(row["family"])
    return "unknown"


def is_jetson(capability: str) -> bool:
    """Whether the GPU with this capability is the integrated one of a Jetson module."""
    return any(row["capability"] == capability and row.get("jetson", False) for row in _rows())


def parse(text: Union[str, int, float]) -> str:
    """Normalise an unambiguous spelling to ``"8.6"``.

    Takes "8.6", "86", "sm_86", "SM86", "compute_86", "sm_90a", 86, 8.6, a family with one capability ("Turing", "Ada") and the
    chip of a Jetson ("Orin"). A capability newer than all known ones is taken as it is.
    Raises ValueError for anything else; its text names the candidates.
    """
    if isinstance(text, bool):
        raise ValueError('{} is not a compute capability; write one like "8.6"'.format(text))
    written = str(text).strip()
    lowered = written.lower()
    underscore = _UNDERSCORE.match(lowered)
    if underscore:
        fixed = "{}.{}".format(*underscore.groups())
        misread = fixed.replace(".", "")
        raise ValueError('"{}" is not a compute capability (YAML reads it as {}); write "{}"'.format(written, misread, fixed))
    if _LONG_MINOR.match(lowered):
        raise ValueError(_no_gpu(written, lowered))
    compact = _COMPACT.match(lowered)
    if compact and int(compact.group(1)) > 1:  # "10" is a major number without its minor, not 1.0
        return _checked(written, "{}.{}".format(*compact.groups()))
    return _by_name(written, lowered)


def _checked(written: str, capability: str) -> str:
    names = known()
    if capability in names or key(capability) > key(names[-1]):
        return capability
    raise ValueError(_no_gpu(written, capability))


def candidates(text: str) -> Tuple[str, ...]:
    """Known capabilities that a misspelt number may stand for: the one it must be, else all of its major number; () for other texts.

    ``8_6``, ``8.60`` and ``086`` are "8.6", ``12:0`` is "12.0". A zero too many at the end is dropped, as YAML drops it, but ``8.10``
    is none of them, since there is no 8.1: 8.0, 8.6, 8.7, 8.9.
    """
    match = _SPLIT.match(text) or _DIGITS.match(text)
    if not match:
        return ()
    major, minor = match.groups()
    exact = "{}.{}".format(major, minor.rstrip("0") or "0")
    return (exact,) if exact in known() else tuple(name for name in known() if name.split(".")[0] == major)


def _no_gpu(written: str, capability: str) -> str:
    import difflib

    names = known()
    close = candidates(capability) or difflib.get_close_matches(capability, names, n=3, cutoff=0.3) or names[-3:]
    return 'no GPU has compute capability "{}"; did you mean {}?'.format(written, one_of(close))


def _by_name(written: str, lowered: str) -> str:
    words = " ".join(re.split(r"[\s_-]+", lowered))
    if words.startswith("nvidia "):
        words = words[len("nvidia ") :]
    aliases: Dict[str, str] = load("capabilities")["families"]
    wanted = aliases.get(words, words).lower()
    of_family = [row["capability"] for row in _rows() if row["family"].lower() == wanted and "renamed" not in row]
    if len(of_family) == 1:
        return str(of_family[0])
    if of_family:
        candidates = one_of([_with_example(name) for name in of_family])
        raise ValueError('"{}" has several compute capabilities; write {}'.format(written, candidates))
    for row in _rows():
        if words in row.get("chip", ()) or "jetson " + words in row.get("chip", ()):
            return str(row["capability"])
    if lowered.isdigit():
        same_major = [name for name in known() if name.split(".")[0] == lowered]
        if same_major:
            raise ValueError('"{}" lacks the minor number; write {}'.format(written, one_of(same_major)))
    raise ValueError(_unknown(written, words))


def _unknown(written: str, words: str) -> str:
    import difflib

    names = {row["family"].lower(): row["family"] for row in _rows()}
    names.update({alias: alias.capitalize() for alias in load("capabilities")["families"]})
    for row in _rows():
        names.update({chip: chip.capitalize() for chip in row.get("chip", ())})
    close = difflib.get_close_matches(words, names, n=1)
    hint = 'did you mean "{}"?'.format(names[close[0]]) if close else 'write one like "8.6"'
    return '"{}" is not a compute capability; {}'.format(written, hint)


def _with_example(capability: str) -> str:
    for row in _rows():
        if row["capability"] == capability and row["examples"]:
            return "{} ({})".format(capability, row["examples"][0])
    return capability


def one_of(names: Sequence[str]) -> str:
    """``["8.0", "8.6", "8.7"]`` -> ``"8.0, 8.6 or 8.7"``."""
    if len(names) < 2:
        return "".join(names)
    return ", ".join(names[:-1]) + " or " + names[-1]
