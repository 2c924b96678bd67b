"""Whether a file is the one that was read before, from its status alone.

The kernel stamps a change with a clock that moves in steps (a tick: at most 10 ms on Linux, 1 or 2 s on some file systems). A file that was
changed less than a tick before its status was read can be changed again without any trace in it, so a status is only worth keeping once
it is *settled*: older than a tick at the moment when it was read. The one change that no status shows is a write through a shared memory
map that the kernel has not written back yet.
"""

from __future__ import annotations

import os
from typing import TypeAlias

TICK_NS = 20_000_000
"""Twice the longest jiffy of Linux (CONFIG_HZ=100), in nanoseconds."""
COARSE_TICK_NS = 2_000_000_000
"""FAT keeps time in steps of two seconds, others in whole seconds; in nanoseconds."""
_SECOND_NS = 1_000_000_000

Fingerprint: TypeAlias = tuple[int, int, int, int, int]


def fingerprint(status: os.stat_result) -> Fingerprint:
    """Device, inode, size, mtime and ctime: another file, another content or another name for the inode changes at least one."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def tick_of(status: os.stat_result, now: int) -> int:
    """The step of the clock, in nanoseconds, that has to be reckoned with for a file whose status was read at ``now``."""
    whole = status.st_mtime_ns % _SECOND_NS == 0 and status.st_ctime_ns % _SECOND_NS == 0
    return COARSE_TICK_NS if whole or status.st_mtime_ns > now else TICK_NS


def is_settled(status: os.stat_result, now: int) -> bool:
    """Whether every change after ``now`` shows in the status; ``now`` is in nanoseconds since 1970, not later than when it was read.

    A file that was changed in the future is never settled: the clock was set back and may come by that moment again. A time that somebody
    only gave to a file (``touch -d``) does no harm, as its ctime tells when that was.
    """
    tick = tick_of(status, now)
    return status.st_ctime_ns < now - tick and not now - tick <= status.st_mtime_ns <= now + tick
