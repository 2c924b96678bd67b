"""What holds for every engine on every host: rules never contradict each other, better hosts are never worse."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.portable.facts.loads import SEVERITY, verdict

from .loads_cases import grid

HOSTS, ENGINES, _ = grid()

VERSIONS = ["7.1.3.0", "7.2.3.4", "8.2.1.8", "8.5.3.1", "8.6.0.12", "8.6.1", "8.6.1.6", "10", "10.3.0.26", "10.11.0.33", "11.4.0.106", None]
CAPABILITIES = ["5.3", "6.1", "7.0", "7.2", "7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.1", "11.0", "12.0", "13.0", None]
CUDAS = ["10.2", "11.3", "11.8", "12.2", "12.9", "13.0", None]
DRIVERS = ["418.39", "450.80.02", "470.57.02", "470.82.01", "510.47.03", "525.60.13", "535.86.10", "535.104.05", "580.65.06", "615.65.02"]
NAMES = ["Tesla T4", "NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 3090", "NVIDIA RTX A5000", None]
PLATFORMS = ["linux/amd64", "linux/arm64", "windows/amd64", "any", None]
MEMORY = [None, 8 << 30, 80 << 30]
RTX = ["1.7", "1.7.1.116", "1.6.1.120", None]


@st.composite
def engines(draw: st.DrawFn) -> dict[str, Any]:
    backend = draw(st.sampled_from(["tensorrt", "tensorrt", "tensorrt-rtx", "onnxruntime"]))
    return {
        "backend": backend,
        "backend_version": draw(st.sampled_from(RTX if backend == "tensorrt-rtx" else VERSIONS)),
        "serialization": draw(st.sampled_from([None, None, 96, 232])),
        "compute_capability": draw(st.lists(st.sampled_from(CAPABILITIES[:-1]), max_size=2)),
        "hardware_compatibility": draw(st.sampled_from(["none", "ampere_plus", "same_compute_capability", None])),
        "version_compatible": draw(st.sampled_from([False, True, None])),
        "platform": draw(st.sampled_from(PLATFORMS)),
        "cuda": draw(st.sampled_from(CUDAS)),
        "plugins": draw(st.sampled_from([{}, {}, {"libp.so": "sha256:aa"}, None])),
        "size_bytes": draw(st.sampled_from([None, 1_000_000, 30_000_000_000])),
        "provider": draw(st.sampled_from(["cpu", "cuda"])),
        "status": draw(st.sampled_from(["passed", "unvalidated", "failed", None])),
        "image": draw(st.sampled_from([None, "nvcr.io/nvidia/tensorrt:23.09-py3"])),
    }


@st.composite
def hosts(draw: st.DrawFn) -> dict[str, Any]:
    gpu = st.fixed_dictionaries(
        {
            "name": st.sampled_from(NAMES),
            "compute_capability": st.sampled_from(CAPABILITIES),
            "memory_bytes": st.sampled_from(MEMORY),
        }
    )
    backend = st.sampled_from([{"error": "not installed"}, {"error": "comes with the image"}, None, "version", "version"])
    found = {}
    for name, versions in (("tensorrt", VERSIONS), ("tensorrt-rtx", RTX), ("onnxruntime", VERSIONS)):
        said = draw(backend)
        if said == "version":
            said = {"version": draw(st.sampled_from(versions)), "cuda": draw(st.sampled_from(CUDAS)), "providers": ["cpu", "cuda"]}
        if said is not None:
            found[name] = said
    return {
        "platform": draw(st.sampled_from(PLATFORMS[:3])),
        "gpus": draw(st.lists(gpu, max_size=2)),
        "driver": draw(st.sampled_from([None, *({"version": driver} for driver in DRIVERS)])),
        "jetson": draw(st.sampled_from([None, None, {"l4t": "35.4.1", "jetpack": None}])),
        "container": draw(st.booleans()),
        "image": draw(st.sampled_from([None, "nvcr.io/nvidia/tensorrt:23.09-py3"])),
        "backends": found,
    }


pairs = st.tuples(st.one_of(engines(), st.sampled_from(list(ENGINES.values()))), st.one_of(hosts(), st.sampled_from(list(HOSTS.values()))))


def severity(engine: dict[str, Any], host: dict[str, Any]) -> int:
    return SEVERITY[verdict(engine, host)["verdict"]]


@given(pairs)
@settings(max_examples=150, deadline=None)
def test_the_verdict_is_that_of_the_worst_rule(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    found = verdict(*pair)
    rules = found["rules"]

    assert found["verdict"] == max((rule["verdict"] for rule in rules), key=SEVERITY.__getitem__)
    assert found["reason"] in {rule["text"] for rule in rules if rule["verdict"] == found["verdict"]}
    assert len({rule["rule"] for rule in rules}) == len(rules)
    assert all(rule["text"] and rule["source"] and rule["confidence"] for rule in rules)
    assert json.loads(json.dumps(found)) == found


@given(pairs)
@settings(max_examples=150, deadline=None)
def test_no_two_rules_contradict_each_other(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """One of them cannot hold what another denies: a version that fits is not crossed over, a missing backend has no version."""
    said = {rule["rule"]: rule["verdict"] for rule in verdict(*pair)["rules"]}

    if said.get("version-compatible") == "does-not-load":
        assert said.get("version") != "loads" or pair[0].get("version_compatible")
    if said.get("serialization") == "does-not-load":
        assert said.get("version", "does-not-load") == "does-not-load"
    if said.get("backend") == "does-not-load":
        assert not {"version", "version-compatible", "serialization", "cuda-build", "provider", "driver"} & said.keys()
    if said.get("gpu", "loads") != "loads":
        assert not {"capability", "tensorrt-range", "memory", "driver"} & said.keys()


@given(pairs, st.sampled_from(DRIVERS), st.sampled_from(DRIVERS))
@settings(max_examples=150, deadline=None)
def test_a_newer_driver_never_makes_it_worse(pair: tuple[dict[str, Any], dict[str, Any]], one: str, other: str) -> None:
    """Forward compatibility is a list of branches with gaps: there the promise holds within a branch."""
    engine, host = pair
    older, newer = sorted([one, other], key=lambda driver: [int(part) for part in driver.split(".")])
    same_branch = older.split(".")[0] == newer.split(".")[0]
    base = host if same_branch else host | {"container": False}

    assert severity(engine, base | {"driver": {"version": newer}}) <= severity(engine, base | {"driver": {"version": older}})


@given(pairs, st.integers(1, 1 << 40), st.integers(1, 1 << 40))
@settings(max_examples=150, deadline=None)
def test_more_memory_never_makes_it_worse(pair: tuple[dict[str, Any], dict[str, Any]], one: int, other: int) -> None:
    engine, host = pair

    def with_memory(size: int) -> dict[str, Any]:
        return host | {"gpus": [gpu | {"memory_bytes": size} for gpu in host.get("gpus", ())]}

    assert severity(engine, with_memory(max(one, other))) <= severity(engine, with_memory(min(one, other)))


@given(pairs, hosts())
@settings(max_examples=150, deadline=None)
def test_one_more_gpu_never_makes_it_worse(pair: tuple[dict[str, Any], dict[str, Any]], other: dict[str, Any]) -> None:
    engine, host = pair
    if "gpus" not in host or "gpu_problem" in host:
        return  # not known is not none

    assert severity(engine, host | {"gpus": [*host["gpus"], *other["gpus"]]}) <= severity(engine, host)


@given(pairs, st.sampled_from(["platform", "gpus", "driver", "backends"]))
@settings(max_examples=150, deadline=None)
def test_knowing_less_never_turns_a_refusal_into_a_yes(pair: tuple[dict[str, Any], dict[str, Any]], forgotten: str) -> None:
    engine, host = pair
    if host.get("jetson"):
        return  # of a Jetson the backend and the missing driver are known from its JetPack
    known = verdict(engine, host)
    refused_by = {rule["rule"] for rule in known["rules"] if rule["verdict"] == "does-not-load"}
    if not refused_by - {"memory", "plugins"}:
        return
    less = {key: value for key, value in host.items() if key != forgotten}

    assert verdict(engine, less)["verdict"] in ("unknown", "does-not-load")


@given(engines(), hosts())
@settings(max_examples=150, deadline=None)
def test_ampere_plus_runs_wherever_the_exact_engine_does(engine: dict[str, Any], host: dict[str, Any]) -> None:
    exact = engine | {"hardware_compatibility": "none"}

    assert severity(engine | {"hardware_compatibility": "ampere_plus"}, host) <= severity(exact, host)


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["8.6", "tensorrt", "linux/amd64", "cuda"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = ["backend", "backend_version", "compute_capability", "platform", "cuda", "plugins", "verdict", "built_on", "problems", "size_bytes"]
PLACES = ["platform", "gpus", "driver", "jetson", "backends", "image", "plugins", "gpu_problem", "container"]


@given(
    st.dictionaries(st.sampled_from(KEYS), junk), st.dictionaries(st.sampled_from(PLACES), junk), st.sampled_from(list(ENGINES.values()))
)
@settings(max_examples=150, deadline=None)
def test_whatever_stands_in_a_file_gives_an_answer(engine: dict[str, Any], host: dict[str, Any], base: dict[str, Any]) -> None:
    assert verdict(engine, host)["verdict"] in SEVERITY
    assert verdict(base, HOSTS["a100-861-122"] | host)["verdict"] in SEVERITY
    assert verdict(base | engine, HOSTS["a100-861-122"])["verdict"] in SEVERITY
