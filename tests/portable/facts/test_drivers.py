from __future__ import annotations

import pytest

from orchestrator.portable.facts import support
from orchestrator.portable.facts.data import load
from orchestrator.portable.facts.drivers import driver_check, is_data_center

COMPAT_22_12 = ["450.51", "470.57", "510.47", "515.65"]
COMPAT_23_09 = ["450.51", "470.57", "510.47", "525.85", "535.86"]


@pytest.mark.parametrize(
    ("cuda", "full", "minor"),
    [
        ("10.2", "440.33.01", None),
        ("10.2.89", "440.33.01", None),
        ("11.0", "450.51.05", "450.36.06"),
        ("11.0.194", "450.51.05", "450.36.06"),
        ("11.3.1", "465.19.01", "450.80.02"),
        ("11.6.1", "510.39.01", "450.80.02"),  # not in the table: the nearest older patch
        ("11.8", "520.61.05", "450.80.02"),
        ("12.1.1", "530.30.02", "525.60.13"),
        ("12.2", "535.54.03", "525.60.13"),
        ("12.2.1", "535.86.10", "525.60.13"),
        ("12.9.1", "575.57.08", "525.60.13"),
        ("13.0", "580.65.06", "580.65.06"),
        ("12.99", None, "525.60.13"),
        ("12", None, "525.60.13"),
        ("15.0", None, None),
    ],
)
def test_driver_floors(cuda: str, full: str | None, minor: str | None) -> None:
    assert support.minimum_driver(cuda) == {"full": full, "minor": minor}


@pytest.mark.parametrize(
    ("driver", "cuda", "data_center", "branches", "verdict", "words"),
    [
        # 21.06 (CUDA 11.3.1): 450.80.02 and newer on any brand, 465.19.01 in full
        ("450.80.02", "11.3.1", False, None, "yes", "minor-version"),
        ("465.19.01", "11.3.1", False, None, "yes", "in full"),
        ("450.51.06", "11.3.1", False, None, "no", "too old"),
        # 22.12 (CUDA 11.8): 450.80.02 minor, 520.61.05 full
        ("450.80.02", "11.8", None, COMPAT_22_12, "yes", "minor-version"),
        ("520.61.05", "11.8", None, COMPAT_22_12, "yes", "in full"),
        # 23.09 (CUDA 12.2.1): 525.60.13 minor, 535.86.10 full; 470 and 450 only data-center GPUs with the compat package
        ("525.60.13", "12.2.1", False, COMPAT_23_09, "yes", "minor-version"),
        ("535.86.10", "12.2.1", False, COMPAT_23_09, "yes", "in full"),
        ("470.82.01", "12.2.1", True, COMPAT_23_09, "yes", "compat package"),
        ("450.80.02", "12.2.1", True, COMPAT_23_09, "yes", "compat package"),
        ("470.82.01", "12.2.1", False, COMPAT_23_09, "no", "too old"),
        ("470.82.01", "12.2.1", None, COMPAT_23_09, "unknown", "only on a data-center GPU"),
        ("470.42.01", "12.2.1", True, COMPAT_23_09, "no", "also with"),  # older than the branch's floor
        ("460.91.03", "12.2.1", True, COMPAT_23_09, "no", "also with"),  # R460 is excluded by name
        ("470.82.01", "12.2.1", True, None, "no", "too old"),  # no compat package
        ("470.82.01", "12.2.1", True, [], "unknown", "not known"),
        # before CUDA 11 nothing but the driver of that CUDA
        ("440.33.01", "10.2", False, None, "yes", "in full"),
        ("418.87", "10.2", False, None, "no", "440.33.01"),
        # CUDA 13 images: 580 for all, 535 and 550 on data-center GPUs, whatever list the page still carries
        ("580.159.04", "13.0", False, None, "yes", "in full"),
        ("580.159.04", "13.1", False, None, "yes", "minor-version"),
        ("550.54.15", "13.0", True, [], "yes", "compat package"),
        ("470.82.01", "13.0", True, ["470.57"], "no", "also with"),
        ("550.54.15", "13.0", False, [], "no", "too old"),
        ("999.1", "15.0", False, None, "unknown", "not in the facts"),
    ],
)
def test_driver_rule(driver: str, cuda: str, data_center: bool | None, branches: list[str] | None, verdict: str, words: str) -> None:
    answer = driver_check(driver, cuda, data_center, branches)
    assert answer.verdict == verdict
    assert words in answer.reason


def test_a_refusal_names_the_lowest_driver_that_would_do() -> None:
    assert driver_check("460.1", "12.8", False).reason == "driver 460.1 is too old for CUDA 12.8: it needs 525.60.13 or newer"


@pytest.mark.parametrize(
    ("name", "data_center"),
    [
        ("NVIDIA H200", True),
        ("Tesla T4", True),
        ("NVIDIA A100-SXM4-80GB", True),
        ("NVIDIA L40S", True),
        ("GRID V100D-32Q", True),
        ("NVIDIA GeForce RTX 3090", False),
        ("NVIDIA TITAN V", False),
        ("NVIDIA RTX A6000", None),
        ("Quadro RTX 8000", None),
        ("NVIDIA RTX A500 Laptop GPU", None),
        ("Orin (nvgpu)", None),
    ],
)
def test_brand_by_name(name: str, data_center: bool | None) -> None:
    assert is_data_center(name) is data_center


def test_every_image_of_the_facts_has_a_known_cuda() -> None:
    for row in load("ngc_tensorrt")["releases"]:
        floors = support.minimum_driver(row["cuda"])
        assert floors["full"] is not None, row["tag"]
        # the page's number and the table's agree in the driver branch
        if row["tag"] != "20.06-py3":  # built with a release candidate of 11.0
            assert floors["full"].split(".")[0] == row["driver_min"].split(".")[0], row["tag"]
