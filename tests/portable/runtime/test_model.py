"""Calling a loaded model: inputs, threads, the end."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from orchestrator.portable.runtime.api import InputError, RunError, load

Folder = Any
ONES = np.ones((2, 4), np.float32)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, 'input "x" is missing'),
        ({"x": ONES, "z": ONES}, 'the model has no input "z"; its inputs are "x"'),
        ({"X": ONES}, 'no input "X"'),
        ({"x": ONES.astype(np.float64)}, r'input "x" is float64; the model takes float32: x.astype\("float32"\)'),
        ({"x": np.ones((2, 5), np.float32)}, r'input "x" has shape 2x5; the model takes \?x4'),
        ({"x": np.ones((4,), np.float32)}, r'input "x" has shape 4; the model takes \?x4'),
        ({"x": np.ones((9, 4), np.float32)}, r"has shape 9x4; the engine's profile goes from 1x4 to 8x4"),
        ({"x": [[1.0] * 4]}, 'input "x" is a list; give a numpy array'),
        ({"x": None}, 'input "x" is None'),
        ([ONES], "as a mapping from name to array, not a list"),
    ],
)
def test_wrong_inputs_are_named_and_nothing_is_run(folder: Folder, doubling: bytes, given: Any, text: str) -> None:
    folder.add("cpu", doubling)

    with load(str(folder.write())) as model, pytest.raises(InputError, match=text):
        model(given)


def test_layouts_that_numpy_allows_are_taken(folder: Folder, doubling: bytes) -> None:
    folder.add("cpu", doubling)
    whole = np.arange(16, dtype=np.float32).reshape(4, 4)

    with load(str(folder.write())) as model:
        for x in (whole.T, whole[::2], whole.astype(">f4"), whole[:1]):
            assert np.array_equal(model({"x": x})["y"], 2 * x)


def test_32_threads_get_each_their_own_answer(folder: Folder, doubling: bytes) -> None:
    folder.add("cpu", doubling)
    wrong: list[int] = []

    with load(str(folder.write()), threads=1) as model:

        def work(number: int) -> None:
            x = np.full((1 + number % 8, 4), number, np.float32)
            wrong.extend(number for _ in range(25) if not np.array_equal(model({"x": x})["y"], 2 * x))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        runs = next(line for line in model.metrics_text().splitlines() if line.startswith("enginefarm_runs_total"))
    assert wrong == []
    assert int(runs.rsplit(" ", 1)[1]) >= 32 * 25


def test_a_closed_model_says_so(folder: Folder, doubling: bytes) -> None:
    folder.add("cpu", doubling)
    model = load(str(folder.write()))
    model.close()
    model.close()

    with pytest.raises(RunError, match="the model is closed"):
        model({"x": ONES})
