"""Does an engine load on a host: the grid that was derived by hand, the worked examples of docs/facts, and what holds for every pair."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestrator.portable.facts import plan_header
from orchestrator.portable.facts.loads import engine_of, verdict

from .loads_cases import ENGINE, grid

ROOT = Path(__file__).resolve().parents[3]
HOSTS, ENGINES, ANSWERS = grid()
A100: dict[str, Any] = HOSTS["a100-861-122"]


def rule(found: dict[str, Any], name: str) -> dict[str, Any]:
    return next(item for item in found["rules"] if item["rule"] == name)


def on(version: str, cc: str, driver: str = "615.65.02", cuda: str = "12.2", **more: Any) -> dict[str, Any]:
    gpus = [{"name": more.pop("name", "NVIDIA GPU"), "compute_capability": cc, "memory_bytes": 80 << 30}]
    backends = {"tensorrt": {"version": version, "cuda": cuda}}
    return {"platform": "linux/amd64", "gpus": gpus, "driver": {"version": driver}, "jetson": None, "backends": backends} | more


def made(version: str, cc: str, cuda: str = "12.2", **more: Any) -> dict[str, Any]:
    return {**ENGINE, "backend": "tensorrt", "backend_version": version, "compute_capability": [cc], "cuda": cuda, **more}


def test_the_grid_is_as_large_as_promised() -> None:
    assert len(HOSTS) >= 40
    assert len(ENGINES) >= 30
    counts = Counter(answer for row in ANSWERS.values() for answer in row.values())
    assert min(counts["loads"], counts["loads-with-warning"], counts["unknown"], counts["does-not-load"]) >= 25


@pytest.mark.parametrize("engine", ENGINES)
def test_the_grid_derived_by_hand(engine: str) -> None:
    found = {host: verdict(ENGINES[engine], HOSTS[host])["verdict"] for host in HOSTS}

    assert found == ANSWERS[engine]


# --- why: the rule that decides ---


@pytest.mark.parametrize(
    ("engine", "host", "deciding", "part"),
    [
        ("a100-861-122", "a100-861-118", "cuda-build", "crashes under load"),
        ("a100-861-122", "a100-old-driver", "driver", "it needs 525.60.13 or newer"),
        ("a100-861-122", "a100-forward", "driver", "compat package"),
        ("a100-861-122", "a100-103", "version", "built by TensorRT 8.6.1.6, this host has 10.3.0.26"),
        ("a100-861-122", "t4-861-122", "capability", "built for compute capability 8.0, this GPU is Tesla T4 (compute capability 7.5)"),
        ("a100-861-122", "cpu-only", "gpu", "no NVIDIA GPU here"),
        ("a100-861-122", "a100-bare", "backend", "TensorRT is not installed here"),
        ("a100-861-122", "xavier-461", "platform", "built for linux/amd64, this host is linux/arm64"),
        ("a100-861-122", "a100-mig", "capability", "another model"),
        ("a10-861", "rtx3090-861", "capability", "NVIDIA warns"),
        ("ampere-plus-861", "orin-60", "platform", "linux/arm64"),
        ("ampere-plus-861", "t4-861-122", "capability", "needs 8.0 or newer"),
        ("ampere-plus-861-vc", "rtx5090-111", "version-compatible", "not in 11.1.0.106"),
        ("ampere-plus-861-vc", "a100-103", "version-compatible", "host code"),
        ("a100-plugin", "a100-without-plugin", "plugins", "libdeform.so"),
        ("a100-60gb", "a100-mig", "memory", "60000 MB"),
        ("tensorrt7-plan", "a100-861-122", "serialization", "TensorRT 7 or older"),
        ("bare-861", "a100-861-122", "platform", "not known"),
        ("rtx-ada", "h200-rtx17", "capability", "holds code for 8.9"),
        ("rtx-ada", "rtx4090-rtx16", "version", "no engine crosses releases"),
        ("rtx-ada", "newer-gpu-rtx17", "capability", "PTX"),
        ("rtx-ada", "l4-861", "backend", "TensorRT 8.6.1.6 is, and never loads engines of TensorRT-RTX"),
        ("l4-861", "rtx4090-rtx17", "backend", "TensorRT-RTX 1.7.1.116 is, and never loads engines of TensorRT"),
        ("ort-cpu", "cpu-arm64", "version", "older"),
        ("failed", "a100-861-122", "validation", "failed validation"),
        ("damaged", "a100-861-122", "file", "the plan is cut"),
    ],
)
def test_the_reason_names_the_rule_that_decides(engine: str, host: str, deciding: str, part: str) -> None:
    found = verdict(ENGINES[engine], HOSTS[host])

    assert part in found["reason"]
    assert rule(found, deciding)["text"] == found["reason"]
    assert rule(found, deciding)["verdict"] == found["verdict"]


def test_every_refusal_says_what_to_do() -> None:
    for name, engine in ENGINES.items():
        for place, host in HOSTS.items():
            for item in verdict(engine, host)["rules"]:
                if item["verdict"] == "does-not-load" and item["rule"] not in ("serialization", "validation", "file"):
                    assert item["fix"], (name, place, item)


# --- the worked examples of the facts ---


@pytest.mark.parametrize(
    ("runtime", "engine"),
    [
        ("8.0.0", "8.0.1"),  # TensorRT 8.0 compared three numbers
        ("8.6.1.6", "8.6.0.12"),
        ("9.2.0.5", "9.3.0.1"),
        ("10.7.0.23", "10.3.0.26"),
        ("5.1.5", "5.1.4"),
    ],
)
def test_expecting_library_version_x_got_y(runtime: str, engine: str) -> None:
    found = verdict(made(engine, "8.0"), on(runtime, "8.0"))

    assert rule(found, "version")["verdict"] == "does-not-load"
    assert rule(found, "version")["evidence"] == f"engine {engine}, host {runtime}"


@pytest.mark.parametrize(("device", "engine"), [("8.0", "8.6"), ("8.6", "7.5"), ("10.0", "9.0"), ("7.2", "8.0")])
def test_expecting_compute_x_got_y(device: str, engine: str) -> None:
    found = verdict(made("10.8.0.43", engine), on("10.8.0.43", device))

    assert rule(found, "capability")["verdict"] == "does-not-load"


@pytest.mark.parametrize(
    ("engine", "host", "answer"),
    [
        ("8.6.1.6", "8.6.1.6", "loads"),
        ("8.6.1.6", "8.6.1", "unknown"),  # the fourth number counts from 8.6 on
        ("8.2.1.8", "8.2.1", "loads"),  # and not before
        ("8.5.3.1", "8.5.3.0", "unknown"),  # documented as four, compared as three
        ("10.11.0.33", "10.11", "unknown"),
        ("10.11.0.33", "10.12", "does-not-load"),
    ],
)
def test_versions_are_compared_to_the_number_that_counts(engine: str, host: str, answer: str) -> None:
    assert rule(verdict(made(engine, "8.0"), on(host, "8.0")), "version")["verdict"] == answer


@pytest.mark.parametrize(
    ("engine", "host", "crosses"),
    [
        ("8.6.1.6", "10.3.0.26", True),
        ("8.6.0.12", "8.6.1.6", True),
        ("10.3.0.26", "10.11.0.33", True),
        ("10.3.0.26", "11.4.0.106", True),
        ("8.6.1.6", "11.0.0.114", False),
        ("8.6.1.6", "9.2.0.5", False),
        ("9.2.0.5", "10.3.0.26", False),
        ("10.11.0.33", "10.3.0.26", False),
        ("10.3.0.26", "8.6.1.6", False),
    ],
)
def test_version_compatible_engines_cross_forward_only(engine: str, host: str, crosses: bool) -> None:
    allowed = on(host, "8.0", engine_host_code_allowed=True)
    found = rule(verdict(made(engine, "8.0", version_compatible=True), allowed), "version-compatible")

    assert found["verdict"] == ("loads" if crosses else "does-not-load")


def test_version_compatibility_did_not_exist_before_8_6() -> None:
    found = verdict(made("8.5.3.1", "8.0", version_compatible=True), on("8.6.1.6", "8.0"))

    assert found["verdict"] == "does-not-load"
    assert "version-compatible" not in {item["rule"] for item in found["rules"]}


def test_version_compatible_engines_need_volta_and_allowed_host_code() -> None:
    def of(cc: str, host: dict[str, Any], **more: Any) -> dict[str, Any]:
        return rule(verdict(made("8.6.1.6", cc, version_compatible=True, **more), host), "version-compatible")

    pascal = of("6.1", on("8.6.1.6", "6.1"))
    forbidden = of("8.0", on("8.6.1.6", "8.0", engine_host_code_allowed=False))
    lean = of("8.0", on("8.6.1.6", "8.0"), exclude_lean_runtime=True)

    assert (pascal["verdict"], forbidden["verdict"], lean["verdict"]) == ("does-not-load", "does-not-load", "loads-with-warning")
    assert forbidden["fix"] == "runtime.engine_host_code_allowed = True"
    assert "libnvinfer_lean.so.8" in lean["fix"]


def test_levels_do_not_exist_on_jetson_or_before_their_release() -> None:
    orin = HOSTS["orin-62"]
    for level, version in (("ampere_plus", "10.3.0.30"), ("same_compute_capability", "10.9.0.34")):
        found = rule(verdict(made(version, "8.0", hardware_compatibility=level, platform="linux/arm64"), orin), "capability")
        assert found["verdict"] == "does-not-load"
    old = verdict(made("8.5.3.1", "8.0", hardware_compatibility="ampere_plus"), on("8.5.3.1", "8.6"))
    assert rule(old, "capability")["verdict"] == "does-not-load"


@pytest.mark.parametrize(
    ("cuda", "driver", "name", "image", "answer"),
    [
        ("11.3.1", "450.80.02", "NVIDIA GeForce RTX 3090", None, "loads-with-warning"),
        ("11.3.1", "465.19.01", "NVIDIA GeForce RTX 3090", None, "loads"),
        ("11.8", "450.80.02", "NVIDIA A10", None, "loads-with-warning"),
        ("11.8", "520.61.05", "NVIDIA A10", None, "loads"),
        ("12.2.1", "525.60.13", "NVIDIA A10", None, "loads-with-warning"),
        ("12.2.1", "535.86.10", "NVIDIA A10", None, "loads"),
        ("12.2.1", "470.57.02", "NVIDIA A10", "nvcr.io/nvidia/tensorrt:23.09-py3", "loads-with-warning"),
        ("12.2.1", "450.51.06", "NVIDIA A10", "nvcr.io/nvidia/tensorrt:23.09-py3", "loads-with-warning"),
        ("12.2.1", "460.32.03", "NVIDIA A10", "nvcr.io/nvidia/tensorrt:23.09-py3", "does-not-load"),  # R460 is excluded by name
        ("12.2.1", "470.57.02", "NVIDIA GeForce RTX 3090", "nvcr.io/nvidia/tensorrt:23.09-py3", "does-not-load"),
        ("12.2.1", "470.57.02", "NVIDIA RTX A5000", "nvcr.io/nvidia/tensorrt:23.09-py3", "unknown"),  # some RTX are server-ready
        ("13.0", "575.57.08", "NVIDIA A10", None, "does-not-load"),
        ("10.2", "418.39", "NVIDIA A10", None, "does-not-load"),  # no minor-version compatibility before CUDA 11
    ],
)
def test_the_driver_examples(cuda: str, driver: str, name: str, image: str | None, answer: str) -> None:
    more = {"image": image, "container": True} if image else {}
    found = verdict(made("8.6.1.6", "8.6", cuda), on("8.6.1.6", "8.6", driver, cuda, name=name, **more))

    assert rule(found, "driver")["verdict"] == answer


def test_a_driver_floor_is_a_yes_and_never_a_no() -> None:
    host = on("8.6.1.6", "8.0") | {"driver": {"minimum": "525.60.13"}}

    assert rule(verdict(made("8.6.1.6", "8.0"), host), "driver")["verdict"] == "loads-with-warning"
    host["backends"] = {"tensorrt": {"version": "8.6.1.6", "cuda": "13.2"}}
    assert rule(verdict(made("8.6.1.6", "8.0", "13.2"), host), "driver")["verdict"] == "unknown"


def test_one_chip_under_two_names_is_unknown() -> None:
    found = verdict(made("10.8.0.43", "10.1", platform="linux/arm64"), on("10.8.0.43", "11.0", platform="linux/arm64"))

    assert rule(found, "capability")["verdict"] == "unknown"


@pytest.mark.parametrize(
    ("facts", "verdict_is"), [({"stripped": True}, "loads-with-warning"), ({"safety": True}, "does-not-load"), ({"dla": True}, "loads")]
)
def test_special_kinds_of_plans(facts: dict[str, Any], verdict_is: str) -> None:
    assert verdict(made("8.6.1.6", "8.0", **facts), on("8.6.1.6", "8.0"))["verdict"] == verdict_is


def test_both_from_one_image_is_one_version() -> None:
    image = "nvcr.io/nvidia/l4t-jetpack:r36.4.0"
    jetson = {"l4t": "36.4.0", "jetpack": "6.1"}
    host = on("10.3.0", "8.7", cuda="12.6", platform="linux/arm64", image=image, container=True, jetson=jetson)

    assert verdict(made("10.3.0", "8.7", "12.6", platform="linux/arm64"), host)["verdict"] == "unknown"
    assert verdict(made("10.3.0", "8.7", "12.6", platform="linux/arm64", image=image), host)["verdict"] == "loads"


# --- from a file ---


def plan(magic: bytes, version: tuple[int, int, int, int], tag: int = 232, outer: int = 0) -> bytes:
    head = magic + outer.to_bytes(4, "little") + tag.to_bytes(4, "little") + bytes(12) + bytes(version)
    return head + bytes(200)


def test_a_bare_plan_is_refused_by_its_header_and_unknown_otherwise() -> None:
    raw = plan(b"ftrt", (8, 5, 3, 1))
    engine = engine_of(header=plan_header.read_bytes(raw, len(raw), raw[-8:]))

    assert engine["backend_version"] == "8.5.3.1"
    assert verdict(engine, on("8.6.1.6", "8.0"))["verdict"] == "does-not-load"
    same = verdict(engine, on("8.5.3.1", "8.0", cuda="11.8"))
    assert same["verdict"] == "unknown"
    assert {item["rule"] for item in same["rules"] if item["verdict"] == "unknown"} == {"platform", "capability", "cuda-build", "plugins"}


def test_the_file_goes_before_its_record() -> None:
    raw = plan(b"ftrt", (8, 5, 3, 1))
    engine = engine_of(made("8.6.1.6", "8.0"), plan_header.read_bytes(raw, len(raw), raw[-8:]))

    assert engine["backend_version"] == "8.5.3.1"
    assert engine["size_bytes"] == len(raw)
    assert rule(verdict(engine, on("8.6.1.6", "8.0")), "version")["verdict"] == "does-not-load"


def test_a_tensorrt_7_plan_keeps_the_version_of_its_record() -> None:
    raw = plan(b"ftrt", (0, 0, 0, 0), outer=96)
    header = plan_header.read_bytes(raw, len(raw), raw[-8:])

    assert engine_of(header=header)["serialization"] == 96
    assert engine_of(made("7.2.3.4", "7.5"), header)["backend_version"] == "7.2.3.4"
    assert "backend_version" not in engine_of(made("8.6.1.6", "7.5"), header)


def test_a_page_saved_as_an_engine_does_not_load() -> None:
    raw = b"<html><body>404</body></html>"
    engine = engine_of(made("8.6.1.6", "8.0"), plan_header.read_bytes(raw, len(raw), raw[-8:]))

    found = verdict(engine, on("8.6.1.6", "8.0"))
    assert found["verdict"] == "does-not-load"
    assert "web page" in found["reason"]


def test_of_several_gpus_the_one_that_fits_is_judged() -> None:
    found = verdict(ENGINES["a100-861-122"], HOSTS["t4-and-a100"])

    assert found["gpu"] == "NVIDIA A100-SXM4-80GB (compute capability 8.0)"


# --- other interpreters ---

_PROGRAM = """
import json, sys
from portable.facts.loads import verdict
table = json.load(sys.stdin)
print(json.dumps({e: {h: verdict(table["engines"][e], table["hosts"][h])["verdict"] for h in table["hosts"]} for e in table["engines"]}))
"""
_VERSIONS = ("3.6", "3.8", "3.10", "3.13")


def _interpreters() -> list[str]:
    """ENGINEFARM_PYTHONS (colon-separated), else by name on PATH, else what pyenv holds."""
    given = os.environ.get("ENGINEFARM_PYTHONS")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    if given:
        return given.split(":")
    held = {version: next(iter(map(str, sorted(pyenv.glob(f"{version}.*/bin/python3")))), None) for version in _VERSIONS}
    named = [held[version] or shutil.which(f"python{version}") for version in _VERSIONS]
    return [path for path in named if path]


@pytest.mark.interpreters
@pytest.mark.parametrize("python", _interpreters() or [""])
def test_the_grid_on_other_pythons(python: str, tmp_path: Path) -> None:
    if not python:
        pytest.skip("no other Python here: name some in ENGINEFARM_PYTHONS")
    shutil.copytree(ROOT / "orchestrator" / "portable", tmp_path / "portable", ignore=shutil.ignore_patterns("__pycache__"))
    table = json.dumps({"engines": ENGINES, "hosts": HOSTS})

    done = subprocess.run([python, "-c", _PROGRAM], input=table, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ANSWERS
    assert sys.version_info >= (3, 10)


def test_every_rule_is_in_the_documentation() -> None:
    text = (ROOT / "docs" / "compat.md").read_text(encoding="utf-8")
    spoken = {item["rule"] for engine in ENGINES.values() for host in HOSTS.values() for item in verdict(engine, host)["rules"]}

    assert len(spoken) >= 14
    assert all(re.search(rf"^\| [^|]*\b{name}\b", text, re.MULTILINE) for name in spoken), spoken
