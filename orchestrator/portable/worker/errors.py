"""How a step fails: one exception with a kind of the protocol, and the reading of kinds out of foreign texts."""

import errno
import re
from typing import Any, Dict, List, Optional

# Texts seen when memory runs out: std::bad_alloc and OutOfMemory from the builders under a limit, the loader's and
# the kernel's own words, CUDA's and ONNX Runtime's (docs/facts/rtx.yaml).
_MEMORY = re.compile(
    r"bad_alloc|OutOfMemory|out of memory|cannot allocate memory|failed to allocate memory|MEM_ALLOC_FAILED"
    r"|CUDA_ERROR_OUT_OF_MEMORY|Resource temporarily unavailable|can't start new thread"
    r"|BFCArena::AllocateRawInternal|Memory allocation still failed|\bMemoryError\b",
    re.IGNORECASE,
)
_GPU = re.compile(r"CUDA|\bGPU\b|BFCArena", re.IGNORECASE)
_DISK = re.compile(r"No space left on device|Disk quota exceeded|File too large", re.IGNORECASE)
_DISK_ERRNO = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StepError(Exception):
    """The step ends with ``ok: false``.

    ``kind`` is one of protocol.ERROR_KINDS, ``message`` one sentence for a person, ``details`` JSON-ready,
    ``log`` the lines that show it.
    """

    def __init__(
        self,
        kind: str,
        message: str,
        details: Optional[Dict[str, Any]] = None,
        log: Optional[List[str]] = None,
    ) -> None:
        super(StepError, self).__init__(message)
        self.kind = kind
        self.message = printable(message)
        self.details = details or {}
        self.log = [printable(line) for line in log or []]


def memory_limit_text(limit: Optional[int]) -> str:
    """``its limit was 50 MiB``; ``limit`` in bytes, None for none."""
    return "its limit was {}".format(binary_size(limit)) if limit else "no limit was set"


def memory_fix(limit: Optional[int], text: str = "") -> str:
    """What to do when memory ran out, under ``limit`` bytes for the process; ``text``: what was said about it."""
    if _GPU.search(text):
        return "free the GPU's memory (nvidia-smi lists who uses it), or lower the largest shape of the profile"
    if limit:
        return 'give it more: --memory "8 GiB", or limits: {memory: 8 GiB} in the target'
    return "use a machine with more memory, or build one at a time (--jobs 1)"


def binary_size(count: int) -> str:
    """Bytes as limits are written: ``50 MiB``, ``1.5 GiB``."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return "{:.1f}".format(count / size).replace(".0", "") + " " + unit
    return "1 byte" if count == 1 else "{} bytes".format(count)


def printable(text: str, limit: int = 4000) -> str:
    """``text`` with control characters shown as ``\\xNN`` (names in a model may hold any), cut to ``limit`` characters."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii") for c in text)
    return shown if len(shown) <= limit else shown[: limit - 4] + " ..."


def quoted(name: str) -> str:
    """A foreign name between quotes, printable."""
    return '"{}"'.format(printable(name, 200))


def kind_of_text(text: str) -> Optional[str]:
    """``out-of-memory`` or ``disk-full`` when a library's text says so, else None."""
    if _MEMORY.search(text):
        return "out-of-memory"
    if _DISK.search(text):
        return "disk-full"
    return None


def kind_of_exception(error: BaseException) -> Optional[str]:
    """``out-of-memory`` or ``disk-full`` when that is what the exception means, else None."""
    if isinstance(error, MemoryError):
        return "out-of-memory"
    if isinstance(error, OSError) and error.errno in _DISK_ERRNO:
        return "disk-full"
    return kind_of_text(str(error))
