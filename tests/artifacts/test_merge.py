from __future__ import annotations

import pytest

from orchestrator.artifacts.merge import lost, merge_engines, statuses


@pytest.fixture
def folder(tmp_path):
    return tmp_path


@pytest.fixture
def old(make, folder):
    """A manifest with a passed ampere engine that is there, an unvalidated ada one that is there, and a skipped jetson."""
    ampere = make.record("ampere", content=b"ampere", build_key="k1")
    ada = make.record("ada", "unvalidated", b"ada", build_key="k2")
    for record, content in ((ampere, b"ampere"), (ada, b"ada")):
        (folder / record.file).write_bytes(content)
    return make.manifest(ampere, ada, make.record("jetson", "skipped"))


def _merged(previous, folder, *new):
    return {record.target: record for record in merge_engines(previous, new, folder=folder)}


def test_without_a_previous_manifest_the_new_records_are_all(make, folder):
    new = make.record("ampere", content=b"x")
    assert merge_engines(None, [new], folder=folder) == (new,)


def test_targets_that_were_not_built_are_kept(make, old, folder):
    new = make.record("turing", content=b"turing")
    merged = _merged(old, folder, new)
    assert list(merged) == ["ada", "ampere", "jetson", "turing"]
    assert merged["ampere"] == old.engines[0]


def test_an_engine_whose_file_is_gone_is_not_kept(old, folder):
    (folder / "lane_v1_ampere.engine").unlink()
    assert list(_merged(old, folder)) == ["ada", "jetson"]


@pytest.mark.parametrize("status", ["failed", "skipped"])
def test_a_rebuild_that_gave_nothing_keeps_the_engine_and_says_why(make, old, folder, status):
    new = make.record("ampere", status, problem={"code": "EF300", "what": "the builder failed"})
    merged = _merged(old, folder, new)
    assert merged["ampere"].verdict.status == "passed"
    assert merged["ampere"].file == "lane_v1_ampere.engine"
    assert merged["ampere"].problem == {"code": "EF300", "what": "the builder failed"}


def test_an_engine_is_withdrawn_when_these_very_bytes_failed(make, old, folder):
    failed = old.engines[1].model_copy(update={"verdict": make.record("x", "failed").verdict})
    merged = _merged(old, folder, failed)
    assert merged["ada"].verdict.status == "failed"
    assert merged["ada"].file is None


def test_a_failure_replaces_a_record_without_an_engine(make, old, folder):
    assert _merged(old, folder, make.record("jetson", "failed"))["jetson"].verdict.status == "failed"


def test_the_same_build_less_well_checked_does_not_replace_a_passed_engine(make, old, folder):
    again = make.record("ampere", "unvalidated", b"ampere again", build_key="k1")
    assert _merged(old, folder, again)["ampere"].verdict.status == "passed"


@pytest.mark.parametrize("status", ["unvalidated", "self-consistent"])
def test_a_build_with_other_options_does_not_replace_better_evidence(make, old, folder, status):
    other = make.record("ampere", status, b"other options", build_key="k9")
    assert _merged(old, folder, other)["ampere"] == old.engines[0]


def test_of_two_engines_checked_alike_the_new_one_stays(make, old, folder):
    other = make.record("ampere", content=b"other options", build_key="k9")
    assert _merged(old, folder, other)["ampere"] == other


def test_a_new_engine_that_took_over_a_file_name_replaces_the_record_that_had_it(make, old, folder):
    renamed = make.record("ampere", "unvalidated", b"renamed", tag="other")
    new = make.record("ampere-2", content=b"new", tag="ampere")
    merged = _merged(old, folder, renamed, new)
    assert (merged["ampere"], merged["ampere-2"]) == (renamed, new)


def test_better_evidence_replaces(make, old, folder):
    passed = make.record("ada", content=b"ada again", build_key="k2")
    assert _merged(old, folder, passed)["ada"] == passed


def test_a_target_that_took_over_a_tag_replaces_the_one_that_had_it(make, old, folder):
    new = make.record("ampere-new", content=b"new", tag="ampere")
    merged = _merged(old, folder, new)
    assert "ampere" not in merged
    assert merged["ampere-new"] == new


def test_statuses_hold_only_targets_with_an_engine(old):
    assert statuses(old.engines) == {"ampere": "passed", "ada": "unvalidated"}


@pytest.mark.parametrize(
    ("before", "after", "losses"),
    [
        ({}, {"a": "passed"}, []),
        ({"a": "passed"}, {"a": "passed", "b": "unvalidated"}, []),
        ({"a": "passed"}, {"b": "passed"}, ["a has no engine"]),
        ({"a": "unvalidated"}, {}, ["a has no engine"]),
        ({"a": "passed"}, {"a": "unvalidated"}, ["a was passed and is unvalidated"]),
        ({"a": "self-consistent"}, {"a": "unvalidated"}, ["a was self-consistent and is unvalidated"]),
        ({"a": "passed"}, {"a": "self-consistent"}, []),
        ({"a": "unvalidated"}, {"a": "unvalidated"}, []),
        ({"a": "status of a later version"}, {"a": "unvalidated"}, []),
    ],
)
def test_what_services_would_lose(before, after, losses):
    assert lost(before, after) == losses


def test_a_target_that_was_renamed_with_its_tag_is_not_lost():
    assert lost({"a": "passed"}, {"b": "passed"}, renamed={"a": "b"}) == []
    assert lost({"a": "passed"}, {"b": "unvalidated"}, renamed={"a": "b"}) == ["a was passed and is unvalidated"]
    assert lost({"a": "passed", "c": "passed"}, {"b": "passed"}, renamed={"a": "b"}) == ["c has no engine"]
