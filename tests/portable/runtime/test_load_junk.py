"""Manifests and host descriptions that somebody edited, or that a disk garbled: an answer or a LoadError, never another exception."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.portable.runtime.api import LoadError, select

TRT = {"backend": "tensorrt", "backend_version": "10.11.0.33", "compute_capability": ("8.6",), "cuda": "12.9"}
JUNK = st.sampled_from([None, True, 5, -1, 1.5, "", "x", [], [1], ["a"], {}, {"a": 1}, 10**30, "\ud800"])
A10 = {"index": 0, "name": "NVIDIA A10", "compute_capability": "8.6", "memory_bytes": 24 << 30}
HOST: dict[str, Any] = {
    "schema": "enginefarm.host/1",
    "platform": "linux/amd64",
    "gpus": [A10],
    "driver": {"version": "580.65.06", "cuda": "13.0"},
}
HOST |= {"jetson": None, "backends": {"tensorrt": {"version": "10.11.0.33"}, "onnxruntime": {"version": "1.23", "providers": ["cpu"]}}}


def replaced(data: st.DataObject, value: Any) -> Any:
    """``value`` with junk in the place of one thing in it."""
    if isinstance(value, (dict, list)) and value and data.draw(st.integers(0, 5)):
        key = data.draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
        changed = dict(value) if isinstance(value, dict) else list(value)
        changed[key] = replaced(data, value[key])
        return changed
    return data.draw(JUNK)


@given(st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_stands_in_a_manifest_or_a_host_description_gives_an_answer(folder: Any, data: st.DataObject) -> None:
    if not folder.records:
        folder.fallback = {"file": "a.pt", "digest": "sha256:" + "0" * 64}
        folder.add("ampere", b"plan", plugins={"libx.so": "sha256:" + "0" * 64}, built_on={"gpus": [A10]}, **TRT)
        folder.add("absent", None, status="skipped", **TRT)
        folder.add("cpu", b"onnx")
        folder.write()
        (folder.path / "kept.json").write_bytes((folder.path / "lane_v3.json").read_bytes())
    content = json.loads((folder.path / "kept.json").read_bytes())
    manifest, host = folder.path / "lane_v3.json", HOST
    if data.draw(st.booleans()):
        content = replaced(data, content)
    else:
        host = replaced(data, HOST)
    manifest.write_text(json.dumps(content))
    if not isinstance(host, dict):
        return

    with contextlib.suppress(LoadError):
        assert select(str(manifest), host, allow_unvalidated=True).as_dict()["model"]
