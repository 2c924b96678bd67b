from __future__ import annotations

from orchestrator.artifacts.entry import changed, engine_facts, find_entry


def _released(make, tmp_path):
    make.commit(tmp_path / "artifacts", (make.record("ampere", content=b"one"), b"one"), (make.record("turing", "skipped"), None))
    return tmp_path / "artifacts" / "lane" / "v1"


def test_the_entry_of_an_engine_is_the_one_that_names_it(make, tmp_path):
    folder = _released(make, tmp_path)
    entry = find_entry(folder / "lane_v1_ampere.engine")
    assert (entry.path, entry.record.target, entry.manifest.revision) == (folder / "lane_v1.json", "ampere", 1)
    assert find_entry(folder / "other.engine") is None
    assert find_entry(folder / "other.engine", make.digest(b"one")).record.target == "ampere"
    assert find_entry(folder / "other.engine", make.digest(b"two")) is None


def test_a_name_counts_more_than_a_digest(make, tmp_path):
    folder = _released(make, tmp_path)
    make.commit(tmp_path / "artifacts", (make.record("ada", content=b"two"), b"two"))
    entry = find_entry(folder / "lane_v1_ampere.engine", make.digest(b"two"))
    assert entry.record.target == "ampere"
    assert changed(folder / "lane_v1_ampere.engine", entry, make.digest(b"two")).kind.code == "EF601"
    assert changed(folder / "lane_v1_ampere.engine", entry, make.digest(b"one")) is None


def test_facts_of_a_file_that_is_no_plan(make, tmp_path):
    folder = _released(make, tmp_path)
    facts = engine_facts(folder / "lane_v1_ampere.engine")
    assert not facts.is_plan
    assert facts.name.tag == "ampere"
    assert facts.digest == make.digest(b"one")
    assert [problem.kind.code for problem in facts.problems] == ["EF600"]
