"""TorchScript as the last resort."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from orchestrator.portable.runtime.api import load, select

Folder = Any
ONES = np.ones((2, 4), np.float32)
HOST = {"platform": "linux/amd64", "gpus": [], "driver": None, "backends": {"onnxruntime": {"version": "1.20.0", "providers": ["cpu"]}}}


def test_torchscript_is_the_last_resort_and_must_be_the_named_file(folder: Folder, doubling: bytes) -> None:
    engine = folder.add("cpu", doubling)
    script = folder.path / "lane.pt"
    folder.fallback = {"file": "weights/lane.pt", "digest": "sha256:" + hashlib.sha256(b"torch").hexdigest()}
    manifest = str(folder.write())
    engine.unlink()

    for content, text in ((None, "lane.pt is not there"), (b"touch", "its digest is")):
        if content is not None:
            script.write_bytes(content)
        choice = select(manifest, HOST)
        assert [refused.tier for refused in choice.refused] == ["ONNX Runtime on CPU", "TorchScript"]
        assert text in choice.refused[1].why
    script.write_bytes(b"torch")
    choice = select(manifest, HOST)
    assert choice.chosen is not None
    assert (choice.chosen.backend, choice.chosen.status, choice.degraded) == ("torchscript", "fallback", True)


def test_torchscript_runs(folder: Folder) -> None:
    torch = pytest.importorskip("torch")

    class Double(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x * 2

    script = folder.path / "lane.pt"
    torch.jit.trace(Double(), torch.ones(1, 4)).save(str(script))
    folder.fallback = {"file": "lane.pt", "digest": "sha256:" + hashlib.sha256(script.read_bytes()).hexdigest()}

    with load(str(folder.write())) as model:
        assert np.array_equal(model({"x": ONES})["y"], 2 * ONES)
        assert model.degraded
