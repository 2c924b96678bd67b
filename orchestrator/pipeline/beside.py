"""Calls beside each other, in threads that nobody has to wait for: a run that is stopped while it reads ends at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def usable_cpus() -> int:
    """Cores that this process may use, at most 4: a build takes about 0.4 GB of memory."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, 4)


def beside_each_other(calls: Sequence[Callable[[], _T]], at_once: int) -> list[Callable[[], _T]]:
    """Begin the calls, at most ``at_once`` at a time; what is returned waits for each, in the same order: its answer or its exception."""
    from concurrent.futures import Future

    futures: list[Future[_T]] = [Future() for _ in calls]
    ahead = iter(list(zip(calls, futures, strict=True)))
    turn = threading.Lock()

    def work() -> None:
        while True:
            with turn:
                found = next(ahead, None)
            if found is None:
                return
            call, future = found
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001  (raised where its answer is asked for)
                future.set_exception(error)

    for _ in range(min(at_once, len(calls))):
        threading.Thread(target=work, daemon=True).start()
    return [future.result for future in futures]
