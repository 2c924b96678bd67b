"""What the facts answer with."""

from typing import NamedTuple

YES = "yes"
NO = "no"
UNKNOWN = "unknown"

Answer = NamedTuple("Answer", [("verdict", str), ("reason", str), ("confidence", str), ("source", str)])
"""``verdict`` is "yes", "no" or "unknown"; ``reason`` is one line for people; ``confidence`` and ``source`` as in docs/facts."""
