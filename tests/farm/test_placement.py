"""Which runner takes which target, and what is said of those that cannot."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from orchestrator import errors
from orchestrator.errors import EnginefarmError
from orchestrator.farm.images import ImageSource
from orchestrator.farm.local import FAILURES_ALLOWED, Farm, reason
from orchestrator.images.lock import Entry, Lock
from orchestrator.images.policy import Policy
from orchestrator.matrix.load import load_matrix
from orchestrator.matrix.schema import Target
from orchestrator.runners.base import Cancel, Cancelled

Make = Callable[..., Any]
IMAGE, DIGEST = "nvcr.io/nvidia/tensorrt:23.09-py3", "sha256:" + "a" * 64


def target(name: str) -> Target:
    (found,) = load_matrix(None).select((name,))
    return found.target


def locked(platform: str = "linux/amd64", reference: str = IMAGE, tensorrt: str | None = "8.6.1.6") -> ImageSource:
    entry = Entry(reference, platform, DIGEST, "sha256:" + "c" * 64, 3_000_000_000, "2026-01-31T08:00:00Z", tensorrt=tensorrt)
    return ImageSource(Lock({entry.key: entry}), Policy())


def test_a_build_goes_where_the_gpu_fits_and_starts_the_image_by_digest(described: Make) -> None:
    turing, ampere = described("turing", "7.5", "535.104.05"), described("ampere", "8.0", "535.104.05")
    placed = Farm([turing, ampere], locked()).place(target("ampere-cu122"))
    assert [spot.runner.name for spot in placed.build] == [spot.runner.name for spot in placed.validate] == ["ampere"]
    assert placed.build[0].image == f"nvcr.io/nvidia/tensorrt@{DIGEST}"
    assert placed.build[0].backend_version == "8.6.1.6"
    assert placed.build_refused == {}


def test_every_refusal_is_told_per_runner(described: Make) -> None:
    broken = EnginefarmError(errors.ENGINE_UNREACHABLE, "cannot reach the engine at tcp://10.0.0.5:2376")
    farm = Farm(
        [
            described("cpu"),
            described("turing", "7.5"),
            described("old", "8.0", "440.33.01"),
            described("away", problem=broken),
            described("device", "8.0", platform="linux/arm64"),
            described("here", "8.0", kind="process", backends={"tensorrt": {"version": "10.3.0"}}),
        ],
        locked(),
    )
    placed = farm.place(target("ampere-cu122"))
    assert (placed.build, placed.validate) == ((), ())
    refused = placed.build_refused
    assert list(refused) == ["cpu", "turing", "old", "away", "device", "here"]
    assert "no NVIDIA GPU here" in refused["cpu"]
    assert "7.5" in refused["turing"]
    assert "440.33.01" in refused["old"]
    assert refused["away"] == broken.what
    assert "linux/arm64" in refused["device"]
    assert "this host has TensorRT 10.3.0; needs 8.6.1" in refused["here"]
    told = reason(refused)
    assert all(f"{name}: {why}" in told for name, why in refused.items())


def test_nothing_is_asked_about_an_image_that_no_runner_takes(described: Make) -> None:
    class Silent(ImageSource):
        def pin(self, target: Target, platform: str) -> Entry:
            raise AssertionError("a registry was asked")

    farm = Farm([described("turing", "7.5")], Silent(Lock(), Policy()))
    assert farm.place(target("ampere-cu122")).build == ()


def test_a_target_without_image_does_not_go_into_containers(described: Make) -> None:
    runner = described("here", kind="process", backends={"onnxruntime": {"version": "1.20.0", "providers": ["cpu"]}})
    placed = Farm([described("rack"), runner], locked()).place(target("cpu"))
    assert [spot.runner.name for spot in placed.build] == ["here"]
    assert placed.build[0].image is None
    alone = Farm([described("rack")], locked()).place(target("cpu"))
    assert "the target names no image" in reason(alone.build_refused)


def test_a_probe_image_serves_a_target_without_image(described: Make) -> None:
    runner = described("rack", backends={"onnxruntime": {"version": "1.20.0", "providers": ["cpu"]}})
    runner.probe_image = "lane/onnxruntime:1"
    (spot,) = Farm([runner], locked()).place(target("cpu")).build
    assert (spot.image, spot.backend_version) == ("lane/onnxruntime:1", "1.20.0")


def test_a_jetson_is_known_by_what_it_is(described: Make) -> None:
    reference = "nvcr.io/nvidia/l4t-tensorrt:r8.2.1-runtime"
    images = locked("linux/arm64", reference, None)
    right = described("xavier", "7.2", platform="linux/arm64", jetson={"l4t": "32.7.1", "jetpack": "4.6.1"})
    newer = described("newer", "7.2", platform="linux/arm64", jetson={"l4t": "35.4.1", "jetpack": "5.1.2"})
    rack = described("rack", "7.2")
    assert [spot.runner.name for spot in Farm([rack, newer, right], images).place(target("jetson-cu102")).build] == ["xavier"]
    refused = Farm([rack, newer], images).place(target("jetson-cu102")).build_refused
    assert "an engine for a Jetson builds on the Jetson" in refused["rack"]
    assert "this device has JetPack 5.1.2" in refused["newer"]


def spots(farm: Farm) -> tuple[Any, ...]:
    return farm.place(target("ampere-cu122")).build


def test_the_least_busy_runner_is_taken(described: Make) -> None:
    farm = Farm([described("one", "8.0", slots=2), described("two", "8.0", slots=4)], locked())
    found = spots(farm)
    with ExitStack() as slots:
        taken = [slots.enter_context(farm.slot(found, Cancel())).runner.name for _ in range(6)]
    # shares in use before each: 0/2 0/4, 1/2 0/4, 1/2 1/4, 1/2 2/4, 2/2 2/4, 2/2 3/4
    assert taken == ["one", "two", "two", "one", "two", "two"]


def test_a_full_runner_is_waited_for(described: Make) -> None:
    farm = Farm([described("one", "8.0")], locked())
    cancel, order = Cancel(), []
    found = spots(farm)

    def second() -> None:
        with farm.slot(found, cancel):
            order.append("second")

    with farm.slot(found, cancel):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.3)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


def test_a_stopped_run_does_not_wait_for_a_slot(described: Make) -> None:
    farm = Farm([described("one", "8.0")], locked())
    cancel, found = Cancel(), spots(farm)
    with farm.slot(found, cancel):
        cancel.set()
        with pytest.raises(Cancelled), farm.slot(found, cancel):
            pytest.fail("a slot was given")


def test_a_runner_that_failed_once_comes_after_the_others(described: Make) -> None:
    one, two = described("one", "8.0", slots=2), described("two", "8.0", slots=1)
    farm = Farm([one, two], locked())
    found = spots(farm)
    farm.failed(one)
    with farm.slot(found, Cancel()) as first, farm.slot(found, Cancel()) as second:
        assert [first.runner, second.runner] == [two, one]


def test_a_runner_that_failed_twice_is_set_aside_unless_it_is_the_last(described: Make) -> None:
    one, two = described("one", "8.0"), described("two", "8.0")
    farm = Farm([one, two], locked())
    found = spots(farm)
    assert [farm.failed(one) for _ in range(FAILURES_ALLOWED + 1)] == [False, True, False]  # said once
    assert [spot.runner.name for spot in farm.usable(found)] == ["two"]
    with farm.slot(found, Cancel()) as spot:
        assert spot.runner is two
    for _ in range(FAILURES_ALLOWED):
        farm.failed(two)
    assert farm.usable(found) == found
