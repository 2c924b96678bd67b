"""Owners and times on an engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from orchestrator.runners import docker_labels as marks


def changed(**fields: object) -> str:
    return json.dumps({**json.loads(marks.this_owner()), **fields})


def test_this_process_is_alive() -> None:
    assert marks.owner_state(marks.this_owner()) == "alive"
    assert marks.owner_name(marks.this_owner()).startswith(f"process {os.getpid()} on ")


def test_a_process_that_ended_is_dead_and_so_is_one_whose_number_was_given_away() -> None:
    code = "from orchestrator.runners import docker_labels as marks; print(marks.this_owner())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert marks.owner_state(ended) == "dead"
    assert marks.owner_state(changed(start="1")) == "dead"


@pytest.mark.parametrize("label", [None, "", "[]", "{}", "not json", '{"pid": "x", "boot": "b", "ns": "n", "start": 1}'])
def test_an_owner_that_cannot_be_read_is_elsewhere(label: str | None) -> None:
    assert marks.owner_state(label) == "elsewhere"
    assert marks.owner_name(label) == "an unknown owner"


def test_another_machine_or_namespace_is_elsewhere() -> None:
    assert marks.owner_state(changed(boot="other")) == "elsewhere"
    assert marks.owner_state(changed(ns="pid:[1]")) == "elsewhere"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:10Z", 10.0),
        ("1970-01-01T00:00:10.250000000Z", 10.25),
        ("1970-01-01T01:00:00.5+01:00", 0.5),
        ("2026-11-30T21:58:42.480392288Z", 1796075922.480392288),
    ],
)
def test_engine_times(text: str, seconds: float) -> None:
    assert marks.engine_time(text) == pytest.approx(seconds)


def test_a_text_that_is_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a time"):
        marks.engine_time("yesterday")


def test_a_container_expires_by_the_engines_clock() -> None:
    labels = marks.labels("step", project="p", run="r", ttl=60)
    container = {"Created": "1970-01-01T00:00:00Z", "Config": {"Labels": labels}}
    assert not marks.expired(container, 59)
    assert marks.expired(container, 61)
    assert not marks.expired({"Created": "1970-01-01T00:00:00Z", "Config": {"Labels": {}}}, 1e9)


def test_a_claim_is_one_threads() -> None:
    claims = marks.Claims()
    assert claims.take("e", "gpu")
    assert not claims.take("e", "gpu")
    assert claims.take("other", "gpu")
    claims.leave("e", "gpu")
    assert claims.take("e", "gpu")
