from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from pydantic import ValidationError

from orchestrator.artifacts.manifest import EngineRecord, Manifest, Verdict, export_schema, parse_manifest, read_manifest
from orchestrator.errors import MANIFEST_UNREADABLE, EnginefarmError

ROOT = Path(__file__).parents[2]


def _refusal(path):
    with pytest.raises(EnginefarmError) as caught:
        read_manifest(path)
    assert caught.value.kind is MANIFEST_UNREADABLE
    assert caught.value.where.file == str(path)
    return caught.value.why


def test_the_schema_in_docs_is_the_one_of_the_code():
    assert (ROOT / "docs" / "manifest.schema.json").read_text("utf-8") == export_schema()


def test_a_written_manifest_satisfies_the_schema_and_reads_back_equal(make, tmp_path):
    written = make.manifest(make.record("ampere", content=b"engine"), make.record("turing", "skipped"))
    path = tmp_path / "lane_v1.json"
    path.write_bytes(written.as_json())
    jsonschema.validate(json.loads(path.read_bytes()), json.loads(export_schema()))
    assert read_manifest(path) == written


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "empty"),
        (b"\n\n", "empty"),
        (b"<!DOCTYPE html>", "not JSON"),
        (b'{"schema": "enginefarm.manifest/1", "model"', "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"name": "package"}', "no enginefarm manifest"),
        (b'["enginefarm.manifest/1"]', "no enginefarm manifest"),
        (b'{"schema": "enginefarm.manifest/2"}', "enginefarm.manifest/2; this enginefarm reads enginefarm.manifest/1"),
        (b'{"schema": "enginefarm.manifest/1"}', "model: Field required"),
    ],
)
def test_what_is_no_manifest_is_named(tmp_path, data, why):
    path = tmp_path / "lane_v1.json"
    path.write_bytes(data)
    assert why in _refusal(path)


def test_a_missing_manifest_and_a_folder_are_refused(tmp_path):
    assert _refusal(tmp_path / "none.json") == "No such file or directory"
    assert _refusal(tmp_path) == "Is a directory"


@pytest.mark.parametrize("file", ["../../etc/passwd", "/etc/passwd", "a/b.engine", "..", ".hidden", "a\\b.engine", ""])
def test_an_engine_file_outside_the_manifests_folder_is_refused(make, file):
    content = json.loads(make.manifest(make.record("ampere", content=b"engine")).as_json())
    content["engines"][0]["file"] = file
    with pytest.raises(EnginefarmError) as caught:
        parse_manifest(json.dumps(content).encode(), Path("lane_v1.json"))
    assert "engines.0.file" in caught.value.why


def test_only_an_independent_reference_makes_passed():
    for reference in ("same-runtime", None):
        with pytest.raises(ValidationError, match="independent reference"):
            Verdict(status="passed", reason="it ran", reference=reference)
    assert Verdict(status="passed", reason="it agrees", reference="supplied").status == "passed"


def test_a_file_without_a_digest_or_size_is_refused(make):
    with pytest.raises(ValidationError, match="no digest"):
        EngineRecord(**(make.record("ampere", content=b"engine").model_dump() | {"digest": None}))


def test_a_target_or_file_named_twice_is_refused(make):
    one = make.record("ampere", content=b"engine")
    with pytest.raises(ValidationError, match="target ampere is named twice"):
        make.manifest(one, make.record("ampere", "skipped"))
    with pytest.raises(ValidationError, match=r"file lane_v1_ampere\.engine is named twice"):
        make.manifest(one, one.model_copy(update={"target": "other"}))


def test_infinite_figures_are_refused_because_json_has_none():
    with pytest.raises(ValidationError, match="finite"):
        Verdict(status="failed", reason="x", outputs=({"name": "y", "max_abs": float("inf")},))


def test_names_of_any_script_are_written_as_they_are(make):
    written = make.manifest(model=make.model(name="車線"))
    assert "車線".encode() in written.as_json()
    assert isinstance(parse_manifest(written.as_json(), Path("x")), Manifest)
