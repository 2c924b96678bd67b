from __future__ import annotations

import threading
from functools import partial

import pytest

from orchestrator.pipeline.beside import beside_each_other


def test_each_gives_its_own_answer_or_exception_and_no_more_run_than_may() -> None:
    most, now, guard = [0], [0], threading.Lock()

    def call(number: int) -> int:
        with guard:
            now[0] += 1
            most[0] = max(most[0], now[0])
        threading.Event().wait(0.01)
        with guard:
            now[0] -= 1
        return 10 // number

    answers = beside_each_other([partial(call, number) for number in (1, 2, 0, 5, 10)], 2)
    assert [answers[at]() for at in (0, 1, 3, 4)] == [10, 5, 2, 1]
    with pytest.raises(ZeroDivisionError):
        answers[2]()
    assert most == [2]


def test_the_first_answer_is_there_before_the_last_call_ended() -> None:
    last = threading.Event()
    answers = beside_each_other([lambda: True, last.wait], 2)
    assert answers[0]() is True
    last.set()
    assert answers[1]() is True
