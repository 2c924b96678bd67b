"""What the loader raises. Every text says what, why and what to do."""

from typing import Any, Optional


class LoadError(Exception):
    """No engine was loaded, or the manifest cannot be used.

    ``what``, ``why`` and ``fix`` are texts for people; ``choice`` (see choice.py) lists every engine and why it was not taken; it is None
    when the manifest itself is the problem. ``kind``: "manifest", "signature", "engine" (it holds none that can be taken) or "usage".
    """

    def __init__(self, what: str, why: Optional[str] = None, fix: Optional[str] = None, choice: Any = None, kind: str = "manifest") -> None:
        lines = [what if not why else "{}: {}".format(what, why)]
        if choice is not None:
            lines += ["  " + line for line in choice.lines()]
        if fix:
            lines.append("  fix: " + fix)
        super(LoadError, self).__init__("\n".join(lines))
        self.what = what
        self.why = why
        self.fix = fix
        self.choice = choice
        self.kind = kind


class InputError(ValueError):
    """A model was called with inputs that are not its own; nothing was run."""


class RunError(RuntimeError):
    """A loaded engine did not run. ``kind`` is one of worker/protocol.py's ERROR_KINDS."""

    def __init__(self, message: str, kind: str = "run-failed") -> None:
        super(RunError, self).__init__(message)
        self.kind = kind


class Refusal(Exception):  # noqa: N818  (an answer, not an error)
    """One engine is not taken; the next is tried. Never leaves this package.

    ``stage`` is one of choice.STAGES; ``kind`` a kind of docs/facts/failures.yaml or of worker/protocol.py, or empty; ``code`` the code of
    the catalogue's entry that explains it, or empty.
    """

    def __init__(self, stage: str, why: str, fix: str = "", kind: str = "", code: str = "") -> None:
        super(Refusal, self).__init__(why)
        self.stage = stage
        self.why = why
        self.fix = fix
        self.kind = kind
        self.code = code
