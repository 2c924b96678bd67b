"""Limits on what a file of tiny pieces can make the reader keep."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from orchestrator.errors import MODEL_DAMAGED, MODEL_HOSTILE, EnginefarmError, flatten
from orchestrator.models import decode
from orchestrator.models.load import load_model

PIECES = 400_000


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _wrap(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload


def _model(graph: bytes) -> bytes:
    return b"\x08\x0a" + _wrap(7, graph) + _wrap(8, b"\x10\x11")


def _refused(make: Any, data: bytes) -> EnginefarmError:
    with pytest.raises(EnginefarmError) as caught:
        load_model(make.save(data), deep=False)
    return next(iter(flatten(caught.value)))


TENSOR = b"\x08\x01\x10\x01"  # one float
NODE_WITH = {
    "attribute graphs": lambda count: _wrap(5, _wrap(1, b"a") + b"\x5a\x00" * count),
    "attribute tensors": lambda count: _wrap(5, _wrap(1, b"a") + b"\x52\x00" * count),
}
GRAPHS = {
    "inputs": lambda count: b"\x5a\x00" * count,
    "outputs": lambda count: b"\x62\x00" * count,
    "initializers": lambda count: b"\x2a\x00" * count,
    "sparse initializers": lambda count: b"\x7a\x00" * count,
    "packed pieces": lambda count: _wrap(5, TENSOR + b"\x22\x00" * count),
    "external entries": lambda count: _wrap(5, TENSOR + b"\x6a\x00" * count),
} | {what: lambda count, node=node: _wrap(1, node(count)) for what, node in NODE_WITH.items()}


@pytest.mark.parametrize("what", GRAPHS)
def test_empty_pieces_are_counted_not_gathered(make: Any, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    for limit in ("MAX_GRAPHS", "MAX_VALUES", "MAX_PARTS"):
        monkeypatch.setattr(decode, limit, 1000)
    tracemalloc.start()
    try:
        error = _refused(make, _model(GRAPHS[what](PIECES)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert error.kind == MODEL_HOSTILE
    assert "more than 1,000" in error.what
    assert peak < 8 << 20


def test_unknown_parts_and_opsets_are_bounded(make: Any) -> None:
    assert _refused(make, b"\x48\x00" * PIECES + _model(b"")).kind != MODEL_HOSTILE
    opsets = b"".join(_wrap(8, _wrap(1, f"d{number}".encode()) + b"\x10\x01") for number in range(decode.MAX_OPSETS + 1))
    assert "opsets" in _refused(make, _model(b"") + opsets).what


def test_many_pieces_of_one_tensor_are_read_in_one_pass(make: Any) -> None:
    """Linear: gathered as tuples, 100,000 pieces copied 40 GB."""
    count = 100_000
    tensor = b"\x08" + _varint(count) + b"\x10\x01" + _wrap(8, b"w") + _wrap(4, bytes(4)) * count
    neg = make.neg()
    data = neg.SerializeToString()
    graph = _wrap(5, tensor) + neg.graph.SerializeToString()
    model = load_model(make.save(data[: data.index(b"\x3a")] + _wrap(7, graph) + _wrap(8, b"\x10\x11")), deep=False)
    assert model.weight_dtypes == {"float32": 1}


def test_entries_of_external_data_are_looked_at_once_each(make: Any) -> None:
    entry = _wrap(13, _wrap(1, b"location") + _wrap(2, b"w.bin"))
    tensor = b"\x08\x40\x10\x01" + _wrap(8, b"w") + b"\x70\x01" + entry * 50_000
    error = _refused(make, _model(_wrap(5, tensor) + make.neg().graph.SerializeToString()))
    assert "twice" in error.what
    assert error.kind != MODEL_DAMAGED


def test_a_small_weight_in_pieces_is_still_looked_at_for_nan(make: Any) -> None:
    nan = np.float32(np.nan).tobytes()
    tensor = b"\x08\x02\x10\x01" + _wrap(8, b"w") + _wrap(4, bytes(4)) + _wrap(4, nan)
    path = make.save(_model(_wrap(5, tensor) + make.neg().graph.SerializeToString()))
    assert any("NaN in initializer 'w'" in warning for warning in load_model(path).warnings)
