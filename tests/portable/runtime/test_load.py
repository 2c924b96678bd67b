"""The loader with real ONNX Runtime engines, and what it does about files that are not what the manifest says."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.portable.runtime.api import LoadError, load, select

Folder = Any
ONES = np.ones((2, 4), np.float32)
RTX = {"backend": "tensorrt-rtx", "backend_version": "1.7.1.116", "compute_capability": ("8.6",)}
TRT = {"backend": "tensorrt", "backend_version": "10.11.0.33", "compute_capability": ("8.6",), "cuda": "12.9"}


def stages(error_or_model: Any) -> dict[str, str]:
    return {refused.target: refused.stage for refused in error_or_model.choice.refused}


def test_a_passed_engine_is_loaded_and_run(folder: Folder, doubling: bytes) -> None:
    folder.add("cpu", doubling)

    with load(str(folder.write())) as model:
        assert np.array_equal(model({"x": ONES})["y"], 2 * ONES)
        assert model.choice.chosen is not None
        assert (model.choice.chosen.target, model.choice.chosen.provider) == ("cpu", "cpu")
        assert not model.degraded


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan")])
def test_a_timeout_that_is_none_is_refused(folder: Folder, doubling: bytes, timeout: float) -> None:
    folder.add("cpu", doubling)
    with pytest.raises(ValueError, match="give seconds, or None for no limit"):
        load(str(folder.write()), timeout=timeout)


@pytest.mark.parametrize("what", ["latest.json", "model folder", "version folder", "path object"])
def test_a_manifest_is_found_in_every_documented_way(folder: Folder, doubling: bytes, what: str) -> None:
    folder.add("cpu", doubling)
    manifest = folder.write()
    given = {"latest.json": folder.model / "latest.json", "model folder": folder.model, "version folder": folder.path}.get(what, manifest)

    with load(given if what == "path object" else str(given)) as model:
        assert model.choice.manifest == str(manifest)


def test_latest_json_finds_its_revision_in_the_archive(folder: Folder, doubling: bytes) -> None:
    folder.add("cpu", doubling)
    manifest = folder.write()
    raw = manifest.read_bytes()
    named = json.loads((folder.model / "latest.json").read_text())["digest"]
    manifest.write_bytes(raw.replace(b'"revision": 2', b'"revision": 3'))
    (folder.path / "manifests").mkdir()
    archived = folder.path / "manifests" / f"{named.removeprefix('sha256:')}.json"
    archived.write_bytes(raw)

    with load(str(folder.model)) as model:
        assert model.choice.revision == 2
    archived.unlink()
    with pytest.raises(LoadError, match=r"is not the one that .*latest\.json names"):
        load(str(folder.model))


@pytest.mark.parametrize("named", ["../v3/lane_v3.json", "v3/../../x.json", "/etc/hostname", "v3/.hidden.json", "lane_v3.json"])
def test_latest_json_cannot_lead_out_of_its_folder(folder: Folder, doubling: bytes, named: str) -> None:
    folder.add("cpu", doubling)
    folder.write()
    folder.latest("sha256:" + "0" * 64, named)

    with pytest.raises(LoadError, match="manifest cannot be used"):
        load(str(folder.model))


@pytest.mark.parametrize("name", ["../cpu.onnx", "/etc/hostname", "sub/cpu.onnx", ".cpu.onnx", ""])
def test_an_engine_outside_the_folder_is_refused(folder: Folder, doubling: bytes, name: str) -> None:
    folder.add("cpu", doubling)
    manifest = folder.write()
    content = json.loads(manifest.read_bytes())
    content["engines"][0]["file"] = name
    manifest.write_text(json.dumps(content))

    with pytest.raises(LoadError) as caught:
        load(str(manifest))
    assert stages(caught.value) == {"cpu": "file"}
    assert "is not the name of a file beside the manifest" in str(caught.value)


def test_a_link_out_of_the_folder_is_refused_and_one_inside_is_not(folder: Folder, doubling: bytes, tmp_path: Path) -> None:
    engine = folder.add("cpu", doubling)
    manifest = folder.write()
    engine.rename(folder.path / "kept.onnx")
    engine.symlink_to("kept.onnx")
    load(str(manifest)).close()

    (folder.path / "kept.onnx").rename(tmp_path / "outside.onnx")
    engine.unlink()
    engine.symlink_to(tmp_path / "outside.onnx")
    with pytest.raises(LoadError, match="link that leaves the manifest's folder"):
        load(str(manifest))


def test_a_folder_that_is_itself_a_link_loads(folder: Folder, doubling: bytes, tmp_path: Path) -> None:
    folder.add("cpu", doubling)
    folder.write()
    (tmp_path / "current").symlink_to(folder.model)

    load(str(tmp_path / "current")).close()


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "cut": (lambda data: data[:-7], "the one that was checked has"),
    "empty": (lambda data: b"", "the file is empty"),
    "one bit": (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "its digest is"),
    "page": (lambda data: b"<!DOCTYPE html><html>gone</html>", "a web page"),
    "pointer": (lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "a Git LFS pointer"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_refused_with_what_happened_to_them(
    folder: Folder, doubling: bytes, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = folder.add("cpu", doubling)
    manifest = folder.write()
    change, text = DAMAGES[damage]
    engine.write_bytes(change(doubling))

    with caplog.at_level(logging.ERROR, "enginefarm.runtime"), pytest.raises(LoadError, match=text) as caught:
        load(str(manifest))

    assert stages(caught.value) == {"cpu": "file"}
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_missing_file_is_named(folder: Folder, doubling: bytes) -> None:
    engine = folder.add("cpu", doubling)
    manifest = folder.write()
    engine.unlink()

    with pytest.raises(LoadError, match=r"lane_v3_cpu\.onnx is not there"):
        load(str(manifest))


def test_a_pipe_in_the_place_of_a_file_does_not_hang_the_loader(folder: Folder, doubling: bytes) -> None:
    engine = folder.add("cpu", doubling)
    manifest = folder.write()
    engine.unlink()
    os.mkfifo(engine)

    with pytest.raises(LoadError, match="is not a regular file"):
        load(str(manifest))


def test_swapped_engines_are_recognised(folder: Folder, doubling: bytes, tripling: bytes) -> None:
    assert len(doubling) == len(tripling)
    one, two = folder.add("one", doubling), folder.add("two", tripling)
    manifest = folder.write()
    one.write_bytes(tripling)
    two.write_bytes(doubling)

    with pytest.raises(LoadError) as caught:
        load(str(manifest))
    whys = {refused.target: refused.why for refused in caught.value.choice.refused}
    assert "it is lane_v3_two.onnx under this name" in whys["one"]
    assert "it is lane_v3_one.onnx under this name" in whys["two"]


def test_an_engine_newer_than_its_manifest_is_said_to_be(folder: Folder, doubling: bytes) -> None:
    engine = folder.add("cpu", doubling)
    manifest = folder.write()
    engine.write_bytes(doubling[:-1] + b"!")
    os.utime(manifest, (1, 1))

    with pytest.raises(LoadError, match="it was written after the manifest"):
        load(str(manifest))


def test_what_passed_the_digest_and_does_not_load_is_failed_and_the_next_is_taken(
    folder: Folder, doubling: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    folder.add("bad", b"\x08\x08not really a model")
    folder.add("good", doubling)
    events: list[dict[str, Any]] = []

    with caplog.at_level(logging.INFO, "enginefarm.runtime"), load(str(folder.write()), on_event=events.append) as model:
        assert stages(model) == {"bad": "load"}
        assert model.degraded
        assert model.choice.reasons[0].startswith("bad did not load: ONNX Runtime refuses the model")
        text = model.metrics_text()

    assert [event["event"] for event in events] == ["failed", "loaded", "degraded"]
    levels = [record.levelname for record in caplog.records]
    assert levels == ["ERROR", "INFO", "WARNING"]
    assert 'enginefarm_model_degraded{model="lane",version="3"} 1' in text
    assert 'outcome="failed",provider="cpu",target="bad",version="3"} 1' in text


def test_a_listener_that_fails_does_not_stop_the_load(folder: Folder, doubling: bytes, caplog: pytest.LogCaptureFixture) -> None:
    folder.add("cpu", doubling)

    def broken(event: dict[str, Any]) -> None:
        raise KeyError(event["event"])

    load(str(folder.write()), on_event=broken).close()
    assert "the on_event function failed" in caplog.text


@pytest.mark.parametrize("status", ["unvalidated", "self-consistent"])
def test_what_did_not_pass_needs_leave(folder: Folder, doubling: bytes, status: str) -> None:
    folder.add("cpu", doubling, status=status)
    manifest = str(folder.write())

    with pytest.raises(LoadError, match="allow_unvalidated=True") as caught:
        load(manifest)
    assert stages(caught.value) == {"cpu": "policy"}
    with load(manifest, allow_unvalidated=True) as model:
        assert model.choice.chosen is not None
        assert (model.choice.chosen.status, model.choice.chosen.checked) == (status, False)


def test_a_failed_engine_is_never_loaded(folder: Folder, doubling: bytes) -> None:
    folder.add("cpu", doubling, status="failed")

    with pytest.raises(LoadError, match="its status is failed"):
        load(str(folder.write()), allow_unvalidated=True)


def test_a_name_that_says_unvalidated_is_believed_over_the_record(folder: Folder, doubling: bytes) -> None:
    folder.add("cpu", doubling, name="lane_v3_cpu.unvalidated.onnx")

    with pytest.raises(LoadError, match="its name says unvalidated"):
        load(str(folder.write()))


def test_gpu_engines_without_a_gpu_fall_back_loudly(folder: Folder, doubling: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"platform": "linux/amd64", "gpus": [], "driver": None, "jetson": None}
    monkeypatch.setattr("orchestrator.portable.runtime.host.ThisProcess.facts", lambda self: facts)
    folder.add("ampere", b"plan", **TRT)
    folder.add("rtx-ampere", b"plan", **RTX)
    folder.add("cpu", doubling)

    with load(str(folder.write())) as model:
        assert stages(model) == {"ampere": "rules", "rtx-ampere": "rules"}
        assert model.degraded
        assert "no NVIDIA GPU here; it needs compute capability 8.6" in model.choice.reasons[0]
        assert model.choice.reasons[0].startswith("ONNX Runtime on CPU in place of TensorRT (ampere:")


def test_require_forbids_falling_back_and_lists_everything(folder: Folder, doubling: bytes) -> None:
    folder.add("ampere", b"plan", **TRT)
    folder.add("cpu", doubling)

    with pytest.raises(LoadError) as caught:
        load(str(folder.write()), require="tensorrt")
    assert stages(caught.value) == {"ampere": "rules", "cpu": "policy"}
    assert "not cpu (ONNX Runtime on CPU): require=tensorrt forbids it" in str(caught.value)
    with pytest.raises(LoadError, match=r"did you mean onnxruntime\?"):
        load(str(folder.path), require=["onxruntime"])


def test_a_missing_backend_for_this_gpu_is_a_reason_to_alarm(folder: Folder, doubling: bytes, on_gpu: Callable[..., None]) -> None:
    folder.add("ampere", b"plan", **TRT)
    folder.add("cpu", doubling)
    on_gpu()

    with load(str(folder.write())) as model:
        assert stages(model)["ampere"] == "backend"
        assert model.choice.reasons == ["ampere is for this GPU: TensorRT is not installed"]


def test_a_cpu_file_runs_on_cuda_only_with_leave(folder: Folder, doubling: bytes, on_gpu: Callable[..., None]) -> None:
    folder.add("cpu", doubling)
    on_gpu()
    manifest = str(folder.write())

    with load(manifest) as model:
        assert model.choice.refused == []
        assert not model.degraded
    with load(manifest, allow_unvalidated=True) as model:  # no CUDA provider here
        assert stages(model) == {"cpu": "backend"}


def test_signatures_fail_closed(folder: Folder, doubling: bytes) -> None:
    folder.add("cpu", doubling)
    manifest = str(folder.write())

    with pytest.raises(LoadError, match="no trusted key is named"):
        load(manifest, require_signature=True)
    for answer in (None, "", True, 1):
        with pytest.raises(LoadError, match="named no signer"):
            load(manifest, require_signature=lambda path, raw, answer=answer: answer)
    with pytest.raises(LoadError, match="ValueError: wrong key"):
        select(manifest, require_signature=_wrong_key)
    seen: list[bytes] = []

    def verify(path: str, raw: bytes) -> str:
        seen.append(raw)
        return "ci@example.com"

    with load(manifest, require_signature=verify) as model:
        assert model.signer == "ci@example.com"
    assert seen == [Path(manifest).read_bytes()]


def _wrong_key(path: str, raw: bytes) -> str:
    raise ValueError("wrong key")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"schema": "enginefarm.manifest/9"}, "is no enginefarm.manifest/1"),
        ({"model": {"name": "../lane", "version": 3}}, "no name of a file or folder"),
        ({"model": {"name": "lane"}}, "no name or no version"),
        ({"engines": {}}, "engines is not a list"),
        ({"engines": [{"target": "t", "backend": "x"}]}, "backend is none of"),
        ({"engines": [5]}, "engines is not a list of records"),
        ({"fallback": {"file": "a.pt", "digest": "md5:1"}}, "fallback needs a file and its digest"),
        ({"revision": "two"}, "revision is not a number"),
    ],
)
def test_manifests_that_are_none_are_refused_in_one_sentence(folder: Folder, doubling: bytes, change: dict[str, Any], text: str) -> None:
    folder.add("cpu", doubling)

    with pytest.raises(LoadError, match=text):
        load(str(folder.write(**change)))


@pytest.mark.parametrize("content", [b"", b"[1]", b"\xff\xfe", b'{"schema": "enginefarm.latest/1"}', b"[" * 100_000])
def test_files_that_are_no_manifest_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lane_v3.json"
    path.write_bytes(content)

    with pytest.raises(LoadError, match="manifest cannot be used"):
        load(str(path))
    with pytest.raises(LoadError, match="cannot be read"):
        load(str(tmp_path / "other.json"))


def test_a_file_is_hashed_once_and_again_when_it_changes(folder: Folder, doubling: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = folder.add("cpu", doubling)
    manifest = str(folder.write())
    from orchestrator.portable.runtime import files

    hashed: list[int] = []
    real = files.hashlib.sha256
    monkeypatch.setattr(files.hashlib, "sha256", lambda *data: hashed.append(1) or real(*data))
    load(manifest).close()
    load(manifest).close()
    assert len(hashed) == 1

    engine.write_bytes(doubling)
    os.utime(engine, (1, 1))
    load(manifest).close()
    assert len(hashed) == 2


def test_select_says_what_load_does_without_opening(folder: Folder, doubling: bytes, on_gpu: Callable[..., None]) -> None:
    folder.add("ampere", b"plan", **TRT)
    folder.add("cpu", doubling)
    manifest = str(folder.write())
    on_gpu()

    chosen = select(manifest)
    with load(manifest) as model:
        assert [refused[:8] for refused in chosen.refused] == [refused[:8] for refused in model.choice.refused]
        assert chosen.reasons == model.choice.reasons
        assert (chosen.chosen or [None])[0] == (model.choice.chosen or [None])[0] == "cpu"
