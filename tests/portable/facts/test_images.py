from __future__ import annotations

import pytest

from orchestrator.portable.facts import images, support
from orchestrator.portable.facts.data import load

NGC = "nvcr.io/nvidia/tensorrt:"
L4T = "nvcr.io/nvidia/l4t-tensorrt:"


@pytest.mark.parametrize(
    ("tag", "tensorrt", "cuda", "python", "driver"),
    [
        ("20.03-py3", "7.0.0", "10.2.89", "3.6", "440.33.01"),
        ("21.06-py3", "7.2.3.4", "11.3.1", "3.8", "465.19.01"),
        ("22.08-py3", "8.4.2.4", "11.7.1", "3.8", "515"),
        ("22.12-py3", "8.5.1.7", "11.8.0", "3.8", "520"),
        ("23.09-py3", "8.6.1.6", "12.2.1", "3.10", "535"),
        ("24.08-py3", "10.3.0.26", "12.6.0", "3.10", "560"),
        ("25.06-py3", "10.11.0.33", "12.9.1", "3.12", "575"),
        ("26.06-py3", "11.0.0.114", "13.3.0", "3.12", "610.43"),
        ("26.08-py3", None, "13.4", "3.12", "615.65"),
    ],
)
def test_what_a_tensorrt_image_holds(tag: str, tensorrt: str | None, cuda: str, python: str, driver: str) -> None:
    facts = support.image_facts(NGC + tag)
    assert facts is not None
    assert [facts[name] for name in ("tensorrt", "cuda", "python", "driver_min")] == [tensorrt, cuda, python, driver]
    assert facts["tensorrt_from"] == "image"
    assert "linux/amd64" in facts["platforms"]
    assert set(facts["confidence"]) == {"tensorrt", "cuda", "driver"}


def test_a_digest_or_a_mirror_does_not_hide_the_image() -> None:
    for reference in (NGC + "23.09-py3@sha256:" + "0" * 64, "mirror.example:5000/cache/nvidia/tensorrt:23.09-py3"):
        facts = support.image_facts(reference)
        assert facts is not None
        assert facts["tensorrt"] == "8.6.1.6"


@pytest.mark.parametrize(
    "reference",
    [
        NGC + "99.01-py3",
        NGC + "23.09-py4",
        "nvcr.io/nvidia/tensorrt",
        "ubuntu:22.04",
        L4T + "r9.9.9-runtime",
        "",
        "notnvidia/tensorrt:23.09-py3",
    ],
)
def test_an_image_outside_the_facts_is_unknown(reference: str) -> None:
    assert support.image_facts(reference) is None
    assert support.image_problem(reference) is None
    assert images.image_supports(reference, "8.6").verdict == "unknown"


@pytest.mark.parametrize(
    ("reference", "tensorrt", "origin", "cuda", "jetpack"),
    [
        (L4T + "r8.0.1-runtime", "8.0.1", "image", "10.2.300", "4.6.0"),
        (L4T + "r8.2.1-runtime", "8.2.1", "image", "10.2.300", ">=4.6.1,<5"),
        (L4T + "r8.5.2-runtime", "8.5.2", "image", "11.4", ">=5.1,<6"),
        (L4T + "r10.3.0-runtime", "10.3.0", "image", "12.6", ">=6.1,<7"),
        ("nvcr.io/nvidia/l4t-jetpack:r36.4.0", "10.3.0", "image", "12.6", ">=6.1,<7"),
        ("nvcr.io/nvidia/l4t-base:r32.4.3", None, "host", None, ">=4.4,<5"),
        ("nvcr.io/nvidia/l4t-base:r32.5.0", None, "host", None, ">=4.4,<5"),
        ("nvcr.io/nvidia/l4t-base:r35.3.1", None, "none", None, ">=5"),
    ],
)
def test_what_a_jetson_image_holds(reference: str, tensorrt: str | None, origin: str, cuda: str | None, jetpack: str) -> None:
    facts = support.image_facts(reference)
    assert facts is not None
    assert [facts[name] for name in ("tensorrt", "tensorrt_from", "cuda", "jetpack")] == [tensorrt, origin, cuda, jetpack]
    assert facts["platforms"] == ["linux/arm64"]


def test_the_jetpack_tag_of_june_2021_names_the_right_images() -> None:
    problem = support.image_problem(NGC + "21.06-py3-jetpack")
    assert problem is not None
    what, fix = problem
    assert "does not exist" in what
    assert "l4t-tensorrt:r8.0.1-runtime" in fix
    assert "l4t-base:r32.4.3" in fix
    assert "r8.2.1" not in fix


@pytest.mark.parametrize("month", ["20.03", "22.12", "24.08"])
def test_no_month_has_a_jetpack_tag(month: str) -> None:
    problem = support.image_problem(f"{NGC}{month}-py3-jetpack")
    assert problem is not None
    assert "l4t-tensorrt:r8.2.1-runtime" in problem[1]
    assert "l4t-jetpack:r36.4.0" in problem[1]


def test_months_never_published_name_their_neighbours() -> None:
    assert support.image_problem(NGC + "20.04-py3") == (NGC + "20.04-py3 was never published", "take 20.03-py3 or 20.06-py3")
    assert support.image_problem(NGC + "23.09-py3") is None
    assert support.image_problem(NGC + "24.08-py3-igpu") is None


@pytest.mark.parametrize(
    ("reference", "capability", "verdict"),
    [
        (NGC + "23.09-py3", "8.0", "yes"),
        (NGC + "23.09-py3", "5.2", "no"),
        (NGC + "23.09-py3", "7.2", "no"),
        (NGC + "24.08-py3", "8.7", "unknown"),
        (NGC + "25.08-py3", "11.0", "unknown"),
        (L4T + "r8.2.1-runtime", "7.2", "yes"),
        (L4T + "r8.2.1-runtime", "8.0", "no"),
    ],
)
def test_discrete_images_are_not_for_jetsons_nor_the_reverse(reference: str, capability: str, verdict: str) -> None:
    assert images.image_supports(reference, capability).verdict == verdict


@pytest.mark.parametrize(
    ("version", "l4t", "tensorrt", "cuda"),
    [
        ("4.4", ["32.4.3"], "7.1.3", "10.2.89"),
        ("4.6", ["32.6.1"], "8.0.1.6", "10.2.300"),
        ("4.6.1", ["32.7.1"], "8.2.1.8", "10.2.300"),
        ("5.1.5", ["35.6.1", "35.6.2", "35.6.3"], "8.5.2", "11.4"),
        ("6.0", ["36.3.0"], "8.6.2", "12.2"),
        ("6.1 rev.1", ["36.4.2"], "10.3.0", "12.6"),
        ("7.2", ["39.2.0"], "10.16.2.10", "13.2"),
    ],
)
def test_jetpack_rows(version: str, l4t: list[str], tensorrt: str, cuda: str) -> None:
    row = support.jetpack_facts(version)
    assert row is not None
    assert [row[name] for name in ("l4t", "tensorrt", "cuda")] == [l4t, tensorrt, cuda]


def test_an_unknown_jetpack_is_none() -> None:
    assert support.jetpack_facts("9.9") is None
    assert support.jetpack_facts("orin") is None


@pytest.mark.parametrize(
    ("l4t", "jetpack"), [("32.7.1", "4.6.1"), ("35.6.2", "5.1.5"), ("36.4.7", "6.2.1"), ("38.2.1", "7.0"), ("31.0", None), ("32", None)]
)
def test_jetpack_of_l4t(l4t: str, jetpack: str | None) -> None:
    assert support.jetpack_of_l4t(l4t) == jetpack


def test_every_image_row_refers_to_a_known_jetpack() -> None:
    for row in load("jetson")["images"]:
        if "like" in row:
            assert support.jetpack_facts(row["like"]) is not None, row


def test_answers_cannot_change_the_facts() -> None:
    row = support.jetpack_facts("4.6.1")
    assert row is not None
    row["tensorrt"] = "0"
    again = support.jetpack_facts("4.6.1")
    assert again is not None
    assert again["tensorrt"] == "8.2.1.8"
