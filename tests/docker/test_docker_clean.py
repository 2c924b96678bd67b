"""What `enginefarm runners clean` removes, and what it never does; leases of other machines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import make_app
from orchestrator.errors import EnginefarmError
from orchestrator.runners import docker_labels as marks
from orchestrator.runners import lease
from orchestrator.runners.base import Cancel
from orchestrator.runners.clean import clean, remember_pulled
from orchestrator.runners.docker import DockerRunner

pytestmark = pytest.mark.engine
TRICK_IMAGE = "enginefarm-test/trick:1"
GPU = {"uuid": "GPU-1234", "name": "NVIDIA L4"}


def elsewhere(kind: str, ttl: float) -> dict[str, str]:
    """Labels of a process of another machine."""
    owner = {**json.loads(marks.this_owner()), "boot": "another", "host": "far", "pid": 1}
    return marks.labels(kind, project="enginefarm", run="r", ttl=ttl) | {marks.OWNER: json.dumps(owner)}


def leave(runner: DockerRunner, labels: dict[str, str], name: str | None = None) -> str:
    made = runner.engine().api.create_container(TRICK_IMAGE, ["x"], entrypoint=[], labels=labels, name=name)
    return str(made["Id"])


def names(engine: Any) -> set[str]:
    return {container["Id"] for container in engine.containers()}


@pytest.fixture
def lab(engine: Any, make_runner: Callable[..., DockerRunner]) -> DockerRunner:
    runner = make_runner(engine)
    runner.engine()
    return runner


def test_leftovers_go_and_everything_else_stays(engine: Any, lab: DockerRunner) -> None:
    foreign = leave(lab, {"com.example": "1"})
    expired = leave(lab, elsewhere("step", 0))
    other_machine = leave(lab, elsewhere("step", 900))
    mine = leave(lab, marks.labels("step", project="p", run="r", ttl=900))
    dead = {**json.loads(marks.this_owner()), "start": "1"}
    killed = leave(lab, {**marks.labels("step", project="p", run="r", ttl=900), marks.OWNER: json.dumps(dead)})
    try:
        done = clean(lab.engine())
        assert len(done.containers) == 2
        assert names(engine) == {foreign, other_machine, mine}
        assert expired not in names(engine)
        assert killed not in names(engine)
    finally:
        for container in names(engine):
            lab.engine().api.remove_container(container, force=True)


def test_volumes_and_images_go_only_when_asked_and_only_ours(engine: Any, lab: DockerRunner, steps: Any, tmp_path: Path) -> None:
    api = lab.engine().api
    lab.run(steps.build(shared_inputs={"model": "sha256:" + "77" * 32}), tmp_path / "step", lambda _: None, Cancel())
    api.create_volume("somebody-elses")
    for number in (1, 2):
        api.tag(TRICK_IMAGE, "enginefarm-test/pulled", str(number))
    remember_pulled(lab.engine(), "enginefarm-test/pulled:1", marks.labels("pulled", project="p", run="r", ttl=0))

    def volumes() -> set[str]:
        return {volume["Name"] for volume in api.volumes()["Volumes"]}

    def tags() -> set[str]:
        return {tag for image in api.images() for tag in image["RepoTags"] or ()}

    try:
        assert clean(lab.engine()).volumes == []
        assert "enginefarm-inputs-" + "77" * 32 in volumes()
        assert clean(lab.engine(), volumes=True, keep_bytes=1 << 40).volumes == []
        done = clean(lab.engine(), volumes=True)
        assert "enginefarm-inputs-" + "77" * 32 in done.volumes
        assert "somebody-elses" in volumes()
        assert "enginefarm-test/pulled:1" in tags()
        assert clean(lab.engine(), images=True).images == ["enginefarm-test/pulled:1"]
        assert "enginefarm-test/pulled:1" not in tags()
        assert {"enginefarm-test/pulled:2", TRICK_IMAGE} <= tags()
        assert not any("pulled" in name for name in volumes())
    finally:
        api.remove_volume("somebody-elses")
        api.remove_image("enginefarm-test/pulled:2")


def test_what_a_live_step_uses_stays(engine: Any, lab: DockerRunner, steps: Any, tmp_path: Path, background: Callable[..., Any]) -> None:
    job = background(lab, steps.trick("import time; time.sleep(600)", shared_inputs={"model": "sha256:" + "55" * 32}), tmp_path / "step")
    job.wait_for("sending 0.0 MB")
    while not any(container["State"] == "running" for container in engine.containers()):
        pass
    (tmp_path / "runners.yaml").write_text(f"runners:\n  lab: {{type: docker, engine: '{engine.url}'}}\n")
    done = CliRunner().invoke(
        make_app(), ["runners", "clean", "--volumes", "--images", "--json", "--runners", str(tmp_path / "runners.yaml")]
    )
    (row,) = json.loads(done.stdout)["runners"]
    assert row["removed"]["containers"] == []
    assert "enginefarm-inputs-" + "55" * 32 not in row["removed"]["volumes"]
    assert len(engine.containers()) == 1
    job.cancel.set()
    job.end(10)


def held(lab: DockerRunner, cancel: Cancel, said: list[str]) -> lease.Lease:
    return lease.acquire(lab.engine(), [GPU], TRICK_IMAGE, lab._marks, cancel, said.append)


def test_a_lease_of_another_machine_counts_until_it_runs_out(engine: Any, lab: DockerRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    far = leave(lab, {**elsewhere("lease", 60), marks.GPU: GPU["uuid"]}, lease.lease_name(GPU["uuid"]))
    assert lease.holders(lab.engine()) == {GPU["uuid"]: "process 1 on far"}
    said: list[str] = []
    cancel = Cancel()
    monkeypatch.setattr(lease, "_AGE_SECONDS", 0.1)

    def stop(text: str) -> None:
        said.append(text)
        lab.engine().api.put_archive(far, "/", lease._note(0.0))  # its owner never renewed it again

    with lease.acquire(lab.engine(), [GPU], TRICK_IMAGE, lab._marks, cancel, stop) as mine:
        assert not mine.lost
        assert far not in names(engine)
        assert said == ["waiting for NVIDIA L4: held by process 1 on far"]
    assert engine.containers() == []


def test_a_lease_that_was_renewed_is_not_taken(engine: Any, lab: DockerRunner) -> None:
    far = leave(lab, {**elsewhere("lease", 60), marks.GPU: GPU["uuid"]}, lease.lease_name(GPU["uuid"]))
    try:
        lab.engine().api.put_archive(far, "/", lease._note(3600.0))
        assert not lease.is_stale(lab.engine(), lab.engine().api.inspect_container(far))
        assert far not in clean(lab.engine()).containers
        assert far in names(engine)
    finally:
        lab.engine().api.remove_container(far)


def test_taking_over_ends_the_steps_of_the_dead_owner(engine: Any, lab: DockerRunner) -> None:
    dead = {**json.loads(marks.this_owner()), "start": "1"}
    owner = {marks.OWNER: json.dumps(dead), marks.GPU: GPU["uuid"]}
    leave(lab, {**elsewhere("lease", 60), **owner}, lease.lease_name(GPU["uuid"]))
    leave(lab, {**elsewhere("step", 900), **owner})
    other_gpu = leave(lab, {**elsewhere("step", 900), **owner, marks.GPU: "GPU-other"})
    with held(lab, Cancel(), []):
        assert other_gpu in names(engine)
        assert len(names(engine)) == 2  # the other GPU's step and our lease
    lab.engine().api.remove_container(other_gpu)


def test_a_lease_that_was_taken_away_is_noticed(engine: Any, lab: DockerRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.1)
    with held(lab, Cancel(), []) as mine:
        lab.engine().api.remove_container(mine._container, force=True)
        while not mine.lost:
            pass
        assert mine._gone.is_set()
    assert engine.containers() == []


def test_an_image_that_a_step_pulled_is_ours_to_remove(
    engine: Any, make_runner: Callable[..., DockerRunner], put_image: Callable[..., None], steps: Any, tmp_path: Path
) -> None:
    pulled: list[str] = []

    def ensure(client: Any, image: str, platform: str, on_progress: Any, cancel: Cancel) -> str:
        if not pulled:
            put_image(engine, "enginefarm-test/empty:late")
            pulled.append(image)
        return str(client.api.inspect_image(image)["Id"])

    runner = make_runner(engine, ensure_image=ensure)
    step = steps.build(image="enginefarm-test/empty:late")
    for folder in ("first", "second"):
        with pytest.raises(EnginefarmError, match="python3"):
            runner.run(step, tmp_path / folder, lambda _: None, Cancel())
    done = clean(runner.engine(), images=True)
    assert len(done.images) == 1
    assert not [image for image in runner.engine().api.images() if "enginefarm-test/empty:late" in (image["RepoTags"] or ())]
    assert clean(runner.engine(), images=True).images == []


def test_the_command_keeps_the_newest_and_what_is_not_ours(
    engine: Any, lab: DockerRunner, put_image: Callable[..., None], steps: Any, tmp_path: Path
) -> None:
    api = lab.engine().api
    clean(lab.engine(), volumes=True, images=True)
    foreign = leave(lab, {"com.example": "1"})
    api.create_volume("somebody-elses", labels={"com.example": "1"})
    weights = tmp_path / "weights.bin"
    for digit, size in (("1", 3 << 20), ("2", 2 << 20)):
        with weights.open("wb") as file:
            file.truncate(size)
        step = steps.trick("raise ImportError('no')", shared_inputs={"model": "sha256:" + digit * 64})
        step.inputs["model/weights.bin"] = weights
        lab.run(step, tmp_path / digit, lambda _: None, Cancel())
        if digit == "1":
            time.sleep(1.1)  # an engine knows the age of a volume in seconds
    older, newer = ("enginefarm-inputs-" + digit * 64 for digit in "12")
    images = {image["Id"] for image in api.images()}
    (tmp_path / "runners.yaml").write_text(f"runners:\n  lab: {{type: docker, engine: '{engine.url}'}}\n")

    def command(*words: str) -> dict[str, Any]:
        done = CliRunner().invoke(make_app(), ["runners", "clean", *words, "--json", "--runners", str(tmp_path / "runners.yaml")])
        assert done.exit_code == 0, done.output
        (row,) = json.loads(done.stdout)["runners"]
        return dict(row)

    try:
        assert command()["removed"] == {"containers": [], "volumes": [], "images": []}
        assert command("--volumes", "--images", "--keep", "1 GiB")["removed"]["volumes"] == []
        kept = command("--volumes", "--keep", "2.5 MiB")
        assert kept["removed"]["volumes"] == [older]
        assert kept["bytes"] >= 3 << 20
        assert command("--volumes", "--images")["removed"] == {"containers": [], "volumes": [newer], "images": []}
        assert names(engine) == {foreign}
        assert "somebody-elses" in {volume["Name"] for volume in api.volumes()["Volumes"]}
        assert {image["Id"] for image in api.images()} == images
    finally:
        api.remove_container(foreign)
        api.remove_volume("somebody-elses")
