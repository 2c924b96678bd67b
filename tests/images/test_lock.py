from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from orchestrator import errors
from orchestrator.cli.targets_lock import lock_command
from orchestrator.errors import EnginefarmError, Where, flatten
from orchestrator.images.lock import Entry, Lock, entry_for, lock_file, lock_text, pinned, read_lock, unlocked, write_lock
from orchestrator.images.registry import Registry
from orchestrator.images.update import changes, lock
from orchestrator.matrix.load import load_matrix
from orchestrator.matrix.schema import Target

from .conftest import Gate, RegistryServer, mirrored, nobody

MORNING = datetime(2026, 1, 31, 8, 0, 0, tzinfo=timezone.utc)
EVENING = datetime(2026, 1, 31, 20, 0, 0, tzinfo=timezone.utc)
IMAGE = "nvcr.io/nvidia/tensorrt:23.09-py3"
MINE = f"""\
name: mine
tag: mine
backend: tensorrt
image: {IMAGE}
tensorrt: "8.6.1"
cuda: "12.2"
compute_capability: "8.0"
platform: linux/amd64
"""


def entry(reference: str = IMAGE, platform: str = "linux/amd64", fill: str = "a", **more: Any) -> Entry:
    values: dict[str, Any] = {"tensorrt": "8.6.1.6", "cuda": "12.2.1", "size_bytes": 3_300_000_000, "locked_at": "2026-01-31T08:00:00Z"}
    return Entry(reference, platform, digest="sha256:" + fill * 64, image_id="sha256:" + "c" * 64, **values | more)


def of(*entries: Entry) -> Lock:
    return Lock({item.key: item for item in entries})


def target(text: str = MINE) -> Target:
    return Target.model_validate(yaml.safe_load(text) | {"compute_capability": ("8.0",)})


def test_a_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    whole = of(entry(), entry(platform="linux/arm64", requires={"cuda": 'cuda>=12.2 "x"', "jetpack": "csv-mounts=all"}, tensorrt=None))
    path = lock_file(tmp_path)
    write_lock(path, whole)
    assert read_lock(path) == whole
    assert [item["platform"] for item in yaml.safe_load(path.read_text())["images"]] == ["linux/amd64", "linux/arm64"]
    assert list(path.parent.iterdir()) == [path]


def test_the_order_of_entries_does_not_matter_to_the_file() -> None:
    first, second = entry(), entry("nvcr.io/nvidia/l4t-base:r32.4.3", "linux/arm64")
    assert lock_text(of(first, second)) == lock_text(of(second, first))
    assert lock_text(Lock()).endswith("images: []\n")


def test_no_file_and_an_empty_one_lock_nothing(tmp_path: Path) -> None:
    path = tmp_path / "targets.lock"
    assert read_lock(path) == Lock()
    write_lock(path, Lock())
    assert read_lock(path) == Lock()


def test_a_file_that_cannot_be_written_is_left_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "targets.lock"
    write_lock(path, of(entry()))
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(EnginefarmError) as caught:
        write_lock(path, Lock())
    assert caught.value.kind is errors.DISK
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_every_wrong_line_is_told_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "targets.lock"
    good = lock_text(of(entry(), entry(platform="linux/arm64")))
    wrong = good.replace("sha256:" + "a" * 64, "sha256:short", 1).replace("size_bytes: 3300000000", "size: 1", 1)
    path.write_text(wrong.replace("linux/arm64", "linux/riscv") + "  - just text\n")
    with pytest.raises(EnginefarmError) as caught:
        read_lock(path)
    found = {(problem.where.line if problem.where else None, problem.what.split(" ")[0]) for problem in flatten(caught.value)}
    lines = path.read_text().splitlines()
    assert found == {
        (lines.index("    digest: sha256:short") + 1, "digest"),
        (lines.index("    size: 1") + 1, "a"),
        (lines.index(f"  - reference: {IMAGE}") + 1, "size_bytes"),
        (lines.index("    platform: linux/riscv") + 1, "platform"),
        (len(lines), "an"),
    }
    assert all("targets lock" in (problem.fix or "") for problem in flatten(caught.value))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "schema: other/1\n",
        "schema: enginefarm.lock/1\nimages: 5\n",
        "schema: enginefarm.lock/1\nimages: [{reference: [x]}]\n",
        "schema: enginefarm.lock/1\n",
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "targets.lock"
    path.write_text(text)
    with pytest.raises(EnginefarmError) as caught:
        read_lock(path)
    assert caught.value.exit == 2


def test_an_image_locked_twice_is_told(tmp_path: Path) -> None:
    path = tmp_path / "targets.lock"
    once = lock_text(of(entry()))
    path.write_text(once + once.partition("images:\n")[2])
    with pytest.raises(EnginefarmError, match="locked twice"):
        read_lock(path)


def test_a_target_finds_its_pinned_image() -> None:
    known = of(entry(), entry(platform="linux/arm64", fill="b"))
    mine = target()
    assert pinned(known, mine) == "nvcr.io/nvidia/tensorrt@sha256:" + "a" * 64
    anywhere = mine.model_copy(update={"platform": "any"})
    assert pinned(known, anywhere, "linux/arm64") == "nvcr.io/nvidia/tensorrt@sha256:" + "b" * 64
    assert pinned(known, mine.model_copy(update={"image": None})) is None
    assert pinned(Lock(), mine) is None
    assert unlocked(Lock(), [mine]) == [("mine", IMAGE, "linux/amd64")]
    assert unlocked(known, [mine, anywhere]) == []


def test_a_diff_shows_versions_and_short_digests() -> None:
    before = of(entry(), entry("nvcr.io/a:1"), entry("nvcr.io/b:1", tensorrt=None))
    moved = entry(fill="b", tensorrt="8.6.3", requires={"cuda": "cuda>=12.2"})
    after = of(moved, entry("nvcr.io/b:1", fill="b", tensorrt=None), entry("nvcr.io/c:1", "linux/arm64", cuda=None))
    versions = "TensorRT 8.6.1.6 -> 8.6.3, NVIDIA_REQUIRE_CUDA unknown -> cuda>=12.2"
    assert [str(change) for change in changes(before, after)] == [
        "removed nvcr.io/a:1 (linux/amd64): TensorRT 8.6.1.6, CUDA 12.2.1, 3.30 GB, sha256:aaaaaaaaaaaa",
        "changed nvcr.io/b:1 (linux/amd64): same versions; sha256:aaaaaaaaaaaa -> sha256:bbbbbbbbbbbb",
        "added   nvcr.io/c:1 (linux/arm64): TensorRT 8.6.1.6, 3.30 GB, sha256:aaaaaaaaaaaa",
        f"changed {IMAGE} (linux/amd64): {versions}; sha256:aaaaaaaaaaaa -> sha256:bbbbbbbbbbbb",
    ]


# ---- against a real registry, through a mirror rule ----


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "targets").mkdir()
    (tmp_path / "targets" / "mine.yaml").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(registry: RegistryServer, tensorrt: str | None = "8.6.1.6", cuda: str = "12.2.1", tag: str = "23.09-py3") -> str:
    env = {"CUDA_VERSION": cuda} | ({"TRT_VERSION": tensorrt} if tensorrt else {})
    return registry.put_image("nvcr/nvidia/tensorrt", tag, env=env)


def run(project: Path, server: RegistryServer | Gate, *names: str, current: Lock | None = None, **options: Any) -> Lock:
    chosen = load_matrix(project).select(list(names) or ["mine"])
    return lock(chosen, current or Lock(), Registry(mirrored(server), nobody()), now=options.pop("now", MORNING), **options)


@pytest.mark.engine
def test_digests_and_versions_come_from_the_registry(project: Path, registry: RegistryServer) -> None:
    digest = put(registry)
    (found,) = run(project, registry).entries.values()
    assert (found.reference, found.platform, found.digest) == (IMAGE, "linux/amd64", digest)
    assert (found.tensorrt, found.cuda, found.locked_at) == ("8.6.1.6", "12.2.1", "2026-01-31T08:00:00Z")
    assert found.pinned == f"nvcr.io/nvidia/tensorrt@{digest}"


@pytest.mark.engine
def test_what_is_locked_is_read_again_only_to_upgrade(project: Path, registry: RegistryServer, gate: Gate) -> None:
    first = run(project, registry) if put(registry) else Lock()
    moved = put(registry, tensorrt="8.6.1.9")
    assert run(project, gate, current=first, now=EVENING) == first
    assert gate.seen == []
    (change,) = changes(first, run(project, gate, current=first, upgrade=True, now=EVENING))
    assert change.after is not None
    assert (change.after.digest, change.after.locked_at) == (moved, "2026-01-31T20:00:00Z")
    assert "TensorRT 8.6.1.6 -> 8.6.1.9" in str(change)


@pytest.mark.engine
def test_an_image_that_did_not_change_keeps_its_entry(project: Path, registry: RegistryServer) -> None:
    first = run(project, registry) if put(registry) else Lock()
    assert run(project, registry, current=first, upgrade=True, now=EVENING) == first


@pytest.mark.engine
def test_two_targets_with_one_image_read_it_once(project: Path, registry: RegistryServer, gate: Gate) -> None:
    put(registry)
    assert len(run(project, gate, "mine", "ampere-cu122", "hopper-cu122").entries) == 1
    assert len([path for path in gate.asked if path.endswith("/23.09-py3")]) == 1


@pytest.mark.engine
def test_an_image_that_contradicts_the_target_is_refused_at_the_line(project: Path, registry: RegistryServer) -> None:
    put(registry, tensorrt="8.5.3.1", cuda="11.8.0")
    with pytest.raises(EnginefarmError) as caught:
        run(project, registry)
    told = {(problem.what, problem.where.line if problem.where else 0) for problem in flatten(caught.value)}
    assert told == {(f"{IMAGE} holds TensorRT 8.5.3.1, not 8.6.1", 5), (f"{IMAGE} holds CUDA 11.8.0, not 12.2", 6)}
    assert {problem.kind for problem in flatten(caught.value)} == {errors.TARGET_CONFLICT}


@pytest.mark.engine
def test_what_an_image_does_not_say_is_filled_from_what_is_known(project: Path, registry: RegistryServer) -> None:
    put(registry, tensorrt=None)
    (found,) = run(project, registry).entries.values()
    assert found.tensorrt == "8.6.1.6"  # docs/facts/ngc_tensorrt.yaml


@pytest.mark.engine
def test_every_image_s_problem_is_told_and_nothing_is_locked(project: Path, registry: RegistryServer) -> None:
    for name in ("x", "y"):
        text = MINE.replace("mine", name).replace("23.09-py3", f"{name}-py3")
        (project / "targets" / f"{name}.yaml").write_text(text)
    with pytest.raises(EnginefarmError) as caught:
        run(project, registry, "x", "y")
    assert [problem.kind for problem in flatten(caught.value)] == [errors.IMAGE_MISSING] * 2
    assert [problem.where for problem in flatten(caught.value)] == [Where(f"targets/{name}.yaml", 4, 8, name) for name in "xy"]


@pytest.mark.engine
@pytest.mark.usefixtures("no_waiting")
def test_a_registry_that_is_down_is_asked_for_one_image_only(project: Path, gate: Gate) -> None:
    from .conftest import hang_up

    gate.faults = [hang_up] * 99
    with pytest.raises(EnginefarmError) as caught:
        run(project, gate, "ampere-cu122", "turing-cu118", "ada-cu12")
    assert [problem.kind for problem in flatten(caught.value)] == [errors.REGISTRY_UNREACHABLE]


@pytest.mark.engine
def test_a_target_for_any_platform_is_locked_for_those_that_there_are(project: Path, registry: RegistryServer) -> None:
    text = "name: mine\ntag: mine\nbackend: onnxruntime\nprovider: cpu\nimage: nvcr.io/own/cpu:1\nplatform: any\n"
    (project / "targets" / "mine.yaml").write_text(text)
    amd64 = registry.put_image("nvcr/own/cpu", "1")
    only = run(project, registry)
    assert [key[1] for key in only.entries] == ["linux/amd64"]
    arm64 = registry.put_image("nvcr/own/cpu", platform="linux/arm64")
    registry.put_list("nvcr/own/cpu", "1", {"linux/amd64": amd64, "linux/arm64": arm64})
    both = run(project, registry)
    mine = load_matrix(project).targets["mine"].target
    assert pinned(both, mine, "linux/arm64") == f"nvcr.io/own/cpu@{arm64}"
    assert entry_for(both, mine, "linux/amd64") == only.find("nvcr.io/own/cpu:1", "linux/amd64")


# ---- the command ----

Call = Callable[..., tuple[str, EnginefarmError | None]]


@pytest.fixture
def call(project: Path, registry: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.setenv("DOCKER_CONFIG", str(project))
    monkeypatch.setenv("ENGINEFARM_MIRROR", f"nvcr.io/={registry.host}/nvcr/")
    app = typer.Typer()
    app.command("lock")(lock_command)

    def run_it(*arguments: str) -> tuple[str, EnginefarmError | None]:
        result = CliRunner().invoke(app, list(arguments))
        if isinstance(result.exception, EnginefarmError):
            return result.stdout, result.exception
        assert result.exit_code == 0, result.output
        return result.stdout, None

    return run_it


@pytest.mark.engine
def test_the_command_locks_shows_and_checks(call: Call, project: Path, registry: RegistryServer) -> None:
    _, problem = call("mine", "--check")
    assert problem is not None
    assert (problem.kind, problem.exit) == (errors.GENERATED_STALE, 5)
    assert f"it lacks {IMAGE} (linux/amd64)" in (problem.why or "")

    put(registry)
    text, problem = call("mine")
    assert problem is None
    assert text.startswith(f"added   {IMAGE} (linux/amd64): TensorRT 8.6.1.6, CUDA 12.2.1")
    assert text.endswith("1 image changed in targets/targets.lock\n")
    assert call("mine", "--check") == ("targets/targets.lock is current\n", None)
    assert call("mine") == ("targets/targets.lock is current\n", None)

    before = lock_file(project).read_bytes()
    put(registry, tensorrt="8.6.1.9")
    text, problem = call("mine", "--upgrade", "--check", "--json")
    assert problem is not None
    assert problem.exit == 5
    shown = json.loads(text)
    assert (shown["stale"], shown["changes"][0]["after"]["tensorrt"]) == (True, "8.6.1.9")
    assert lock_file(project).read_bytes() == before
    assert "TensorRT 8.6.1.6 -> 8.6.1.9" in call("--upgrade", "mine")[0]


@pytest.mark.engine
def test_check_sees_a_target_that_changed_and_images_of_no_target(call: Call, project: Path, registry: RegistryServer) -> None:
    put(registry)
    call("mine")
    (project / "targets" / "mine.yaml").write_text(MINE.replace('"12.2"', '"12.1"').replace("23.09", "23.07").replace("8.6.1", "8.6.1"))
    write_lock(lock_file(project), of(entry("nvcr.io/nvidia/tensorrt:23.07-py3"), entry("nvcr.io/old/one:1")))
    _, problem = call("mine", "--check")
    assert problem is not None
    assert problem.kind is errors.TARGET_CONFLICT
    assert "holds CUDA 12.2.1, not 12.1" in problem.what
    _, problem = call("--check")
    assert problem is not None
    assert any("no target uses nvcr.io/old/one:1 (linux/amd64)" in (one.why or "") for one in flatten(problem))


@pytest.mark.engine
def test_a_registry_off_the_allow_list_is_exit_6(call: Call) -> None:
    _, problem = call("mine", "--allow", "ghcr.io")
    assert problem is not None
    assert (problem.kind, problem.exit) == (errors.IMAGE_NOT_ALLOWED, 6)
    assert problem.where == Where("targets/mine.yaml", 4, 8, "mine")
