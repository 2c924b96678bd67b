"""Dotted version numbers of TensorRT, CUDA, drivers and JetPack, compared to the precision they are given in."""

import functools
import re
from typing import Tuple

_NUMBER = re.compile(r"^\s*[vVrR]?(\d+(?:\.\d+)*)")
_CLAUSE = re.compile(r"^\s*(>=|<=|==|!=|=|>|<)?\s*([vVrR]?\d\S*(?:\s+\w+)?)\s*$")


@functools.lru_cache(maxsize=1024)
def parse(text: str) -> Tuple[int, ...]:
    """``"8.5.3.1+cuda11.8"`` -> ``(8, 5, 3, 1)``, ``"8.4.0 EA"`` -> ``(8, 4, 0)``. Raises ValueError when no number leads."""
    match = _NUMBER.match(str(text))
    if not match:
        raise ValueError('"{}" is not a version number like "8.6.1"'.format(text))
    return tuple(int(part) for part in match.group(1).split("."))


def compare(a: str, b: str) -> int:
    """-1, 0 or 1 over the components that both give: ``compare("450.80.02", "450") == 0``."""
    left, right = parse(a), parse(b)
    shared = min(len(left), len(right))
    return (left[:shared] > right[:shared]) - (left[:shared] < right[:shared])


def matches(a: str, b: str) -> bool:
    """Equal up to the precision both give: ``"10.11.0.33"`` matches ``"10.11.0"``."""
    return compare(a, b) == 0


def satisfies(version: str, spec: str) -> bool:
    """Whether ``version`` fulfils all comma-separated clauses of ``spec``: ``">=4.6.1"``, ``"==6.1"``, ``"4.6.1"``, ``">=6.1,<7"``.

    The version is cut, or filled with zeros, to the clause's precision: 4.6 does not satisfy ">=4.6.1", 6.2.1 satisfies "<=6.2".
    A clause without an operator, or with ``==``, means :func:`matches`. Raises ValueError for a spec that cannot be read.
    """
    given = parse(version)
    clauses = [_CLAUSE.match(clause) for clause in spec.split(",")]
    results = []
    for clause in clauses:
        if clause is None:
            raise ValueError('"{}" is not a version condition like ">=4.6.1"'.format(spec))
        operator, number = clause.group(1) or "==", parse(clause.group(2))
        same = matches(version, clause.group(2))
        cut = (given + (0,) * len(number))[: len(number)]
        results.append(
            {
                "==": same,
                "=": same,
                "!=": not same,
                ">=": cut >= number,
                ">": cut > number,
                "<=": cut <= number,
                "<": cut < number,
            }[operator]
        )
    return all(results)
