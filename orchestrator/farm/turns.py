"""The line of builds before the runners: who works now, who waits, who has which slot. The rules are in order.py.

A build that waits for a runner does not count as one that works, so that a full runner never keeps another one idle.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

from orchestrator.farm.order import NO_WEIGHT, Ask, Slots, pick
from orchestrator.runners.base import Cancel, Cancelled

_POLL_SECONDS = 0.5  # how soon a cancel is seen by those that nobody wakes
_T = TypeVar("_T")


class Turn:
    """A build's turn: ``run`` each of a line once, in a thread of its own."""

    def __init__(self, queue: Queue, ask: Ask) -> None:
        self._queue = queue
        self.ask = ask
        self.works = False
        self.begun = False  # has had a slot
        self.meant_for: str | None = None  # the runner whose free slot let it begin; no more than a preference

    def run(self, call: Callable[[], _T], cancel: Cancel) -> _T:
        """Wait until it is this build's turn, then ``call``, whose steps take their slots by ``Farm.slot``. Raises Cancelled."""
        with self._queue.turn(self, cancel):
            return call()


class _Waiter:
    """A step that waits for a slot on one of ``runners()``, which changes when a runner is set aside."""

    def __init__(self, runners: Callable[[], tuple[str, ...]], turn: Turn | None) -> None:
        self.runners = runners
        self.turn = turn
        self.runner: str | None = None

    def ask(self) -> Ask:
        begun = self.turn is not None and self.turn.begun
        # how long a validation takes is not known, only that it is the shorter part
        return Ask(self.turn.ask.weight if self.turn and not begun else NO_WEIGHT, self.runners(), begun)


class Queue:
    """Slots of runners, by name. ``slots_of`` gives how many one has, ``failures`` how often each failed so far."""

    def __init__(self, slots_of: Callable[[str], int], failures: Mapping[str, int]) -> None:
        self.changed = threading.Condition()
        self._slots_of = slots_of
        self._failures = failures
        self._current = threading.local()  # the turn that a thread works for
        self._at_once = 0
        self._working = 0
        self._ahead: list[Turn] = []  # have not asked for a slot yet, in the order of the plan
        self._coming: list[Turn] = []  # those of them that have a thread and wait to begin
        self._waiting: list[_Waiter] = []
        self._held: dict[_Waiter, tuple[str, float]] = {}  # runner, and the time at which the step should be done

    def line_up(self, asks: Sequence[Ask], at_once: int) -> list[Turn]:
        """A turn for each of ``asks``; at most ``at_once`` of all turns work at a time."""
        with self.changed:
            turns = [Turn(self, ask) for ask in asks]
            self._at_once = at_once
            self._ahead += turns
            return turns

    @contextmanager
    def turn(self, turn: Turn, cancel: Cancel) -> Iterator[None]:
        """Hold a turn: the steps of this thread belong to it. Raises Cancelled."""
        with self.changed:
            self._coming.append(turn)  # not before it has a thread: it would keep another one from working
            self.serve()
            self._wait(lambda: turn.works, cancel, lambda: self._gone(turn))
        self._current.turn = turn
        try:
            _stop_if(cancel)
            yield
        finally:
            self._current.turn = None
            with self.changed:
                self._gone(turn)

    @contextmanager
    def slot(self, runners: Callable[[], tuple[str, ...]], cancel: Cancel) -> Iterator[str]:
        """Hold a slot on one of ``runners()``: its name. Waits for it. Raises Cancelled."""
        waiter = _Waiter(runners, getattr(self._current, "turn", None))
        with self.changed:
            self._set_works(waiter.turn, False)
            self._drop(waiter.turn)
            self._waiting.append(waiter)
            self._serve_meant(waiter)
            self.serve()
            self._wait(lambda: waiter.runner is not None, cancel, lambda: self._give_up(waiter))
        try:
            _stop_if(cancel)
            yield str(waiter.runner)
        finally:
            with self.changed:
                del self._held[waiter]
                self.serve()

    def rest(self) -> None:
        """The build of this thread has no step ahead of it any more: while it puts its engine away, the next one may begin."""
        with self.changed:
            self._set_works(getattr(self._current, "turn", None), False)
            self.serve()

    def serve(self) -> None:
        """Give out what is free; to be called with ``changed`` held, after whatever may have changed that."""
        while self._serve_waiting() or self._let_begin():
            pass
        self.changed.notify_all()

    # --- all below with ``changed`` held ---

    def _wait(self, done: Callable[[], bool], cancel: Cancel, give_up: Callable[[], None]) -> None:
        while not done():
            if cancel.is_set():
                give_up()
                raise Cancelled
            self.changed.wait(_POLL_SECONDS)

    def _serve_waiting(self) -> bool:
        able = [waiter for waiter in self._waiting if waiter.turn is None or self._room()]
        asks = [waiter.ask() for waiter in able]
        later = [turn.ask for turn in self._ahead]
        found = pick(asks, self._slots([*asks, *later]), later) if asks else None
        if found is None:
            return False
        self._give(able[found[0]], found[1])
        return True

    def _serve_meant(self, waiter: _Waiter) -> None:
        """The slot that let a build begin is still the best for it, if nobody took it meanwhile."""
        name = waiter.turn.meant_for if waiter.turn and self._room() else None
        if name is not None and name in waiter.runners() and self._slots([waiter.ask()]).free(name):
            self._give(waiter, name)

    def _give(self, waiter: _Waiter, runner: str) -> None:
        self._waiting.remove(waiter)
        self._held[waiter] = (runner, time.monotonic() + waiter.ask().weight.seconds)
        waiter.runner = runner
        self._set_works(waiter.turn, True)
        if waiter.turn is not None:
            waiter.turn.begun = True
            waiter.turn.meant_for = None  # a preference for the first step: that runner may have failed since

    def _let_begin(self) -> bool:
        """Let the build begin that should have the next free slot; without a free slot the heaviest, which prepares itself meanwhile."""
        if not self._coming or not self._room():
            return False
        asks = [turn.ask for turn in self._coming]
        later = [turn.ask for turn in self._ahead if turn not in self._coming]
        found = pick(asks, self._slots([*asks, *later], meant=True), later)
        number, runner = found or (max(range(len(asks)), key=lambda number: (asks[number].weight, -number)), None)
        if not all(ask.runners for ask in asks):
            number, runner = next(number for number, ask in enumerate(asks) if not ask.runners), None  # nothing to wait for
        turn = self._coming.pop(number)
        turn.meant_for = runner
        self._set_works(turn, True)
        return True

    def _room(self) -> bool:
        return self._working < self._at_once

    def _set_works(self, turn: Turn | None, works: bool) -> None:
        if turn is not None and turn.works != works:
            turn.works = works
            self._working += 1 if works else -1

    def _slots(self, asks: Sequence[Ask], meant: bool = False) -> Slots:
        """The runners that ``asks`` name; ``meant``: slots count as in use that builds without a slot began for."""
        names = dict.fromkeys(name for ask in asks for name in ask.runners)
        now = time.monotonic()
        running = Counter(runner for runner, _ in self._held.values())
        left = dict.fromkeys(names, 0.0)
        for runner, until in self._held.values():
            left[runner] = left.get(runner, 0.0) + max(0.0, until - now)
        if meant:
            running.update(turn.meant_for for turn in self._ahead if turn.works and turn.meant_for)
        return Slots({name: self._slots_of(name) for name in names}, running, left, self._failures)

    def _drop(self, turn: Turn | None) -> None:
        if turn in self._ahead:
            self._ahead.remove(turn)

    def _gone(self, turn: Turn) -> None:
        self._set_works(turn, False)
        self._drop(turn)
        if turn in self._coming:
            self._coming.remove(turn)
        self.serve()

    def _give_up(self, waiter: _Waiter) -> None:
        self._waiting.remove(waiter)
        self._set_works(waiter.turn, True)  # until its build has ended
        self.serve()


def _stop_if(cancel: Cancel) -> None:
    if cancel.is_set():
        raise Cancelled
