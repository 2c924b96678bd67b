from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator import errors
from orchestrator.errors import EnginefarmError, Kind
from orchestrator.images.credentials import Credentials, Login
from orchestrator.images.engine import json_events
from orchestrator.images.faults import Fault, Fetch, from_text
from orchestrator.images.policy import policy
from orchestrator.images.pull import LayerCounts, PullCancelled, PullProgress, ensure
from orchestrator.images.reference import parse

from .conftest import Gate, RegistryServer, Start, answer, free_port, mirrored, nobody, start_engine, stop_engine

SECRET = "hunter2-very-secret"
IMAGE = "nvcr.io/nvidia/tensorrt"
ABSENT = "sha256:" + "ab" * 32


class Flag:
    def __init__(self) -> None:
        self.event = threading.Event()

    def is_set(self) -> bool:
        return self.event.is_set()


def pull(client: Any, server: RegistryServer | Gate, digest: str, platform: str = "linux/amd64", **options: Any) -> str:
    options.setdefault("credentials", nobody())
    return ensure(client, f"{IMAGE}@{digest}", platform, policy=mirrored(server), **options)


def fault(*arguments: Any, **options: Any) -> EnginefarmError:
    with pytest.raises(EnginefarmError) as caught:
        pull(*arguments, **options)
    assert SECRET not in json.dumps(caught.value.as_dict())
    assert caught.value.fix
    return caught.value


def some_bytes(size: int) -> bytes:
    return os.urandom(size)


@pytest.mark.engine
def test_an_image_is_pulled_through_the_mirror_and_then_known(engine: Any, registry: RegistryServer, gate: Gate) -> None:
    digest = registry.put_image("nvcr/nvidia/tensorrt", files={"weights": some_bytes(3 << 20)})
    seen: list[PullProgress] = []
    image = pull(engine, gate, digest, on_progress=seen.append)
    assert engine.images.get(image).attrs["RepoDigests"] == [f"{gate.host}/nvcr/nvidia/tensorrt@{digest}"]
    last = seen[-1]
    assert (last.layers, last.layers_done) == (1, 1)
    assert last.downloaded == last.total > 3 << 20
    assert [progress.downloaded for progress in seen] == sorted(progress.downloaded for progress in seen)

    asked = len(gate.seen)
    assert pull(engine, gate, digest, offline=True) == image
    assert len(gate.seen) == asked


@pytest.mark.engine
def test_an_image_that_is_there_under_its_own_name_is_not_pulled(engine: Any, registry: RegistryServer) -> None:
    digest = registry.put_image("nvidia/own", files={"a": some_bytes(10)})
    reference = f"{registry.host}/nvidia/own"
    image = engine.api.pull(reference, tag=digest) and engine.images.get(f"{reference}@{digest}").id
    rules = policy([registry.host], {registry.host: f"127.0.0.1:{free_port()}"})
    assert ensure(engine, f"{reference}@{digest}", "linux/amd64", policy=rules, credentials=nobody()) == image


@pytest.mark.engine
def test_offline_and_absent(engine: Any, gate: Gate) -> None:
    found = fault(engine, gate, ABSENT, offline=True)
    assert (found.kind, found.exit) == (errors.IMAGE_OFFLINE, 4)
    assert "images load" in (found.fix or "")
    assert gate.seen == []


def test_an_image_without_digest_or_off_the_list_never_reaches_the_engine() -> None:
    with pytest.raises(EnginefarmError) as caught:
        ensure(None, f"{IMAGE}:23.09-py3", "linux/amd64", policy=policy(), credentials=nobody())  # type: ignore[arg-type]
    assert (caught.value.kind, caught.value.exit) == (errors.IMAGE_NOT_LOCKED, 5)
    with pytest.raises(EnginefarmError) as caught:
        ensure(None, f"evil.example/x@{ABSENT}", "linux/amd64", policy=policy(), credentials=nobody())  # type: ignore[arg-type]
    assert (caught.value.kind, caught.value.exit) == (errors.IMAGE_NOT_ALLOWED, 6)


@pytest.mark.engine
def test_an_absent_digest(engine: Any, registry: RegistryServer) -> None:
    assert fault(engine, registry, ABSENT).kind is errors.IMAGE_MISSING


@pytest.mark.engine
def test_a_single_manifest_of_another_platform_is_refused_and_not_kept(engine: Any, registry: RegistryServer) -> None:
    digest = registry.put_image("nvcr/nvidia/tensorrt", platform="linux/amd64", files={"a": some_bytes(10)})
    before = {image.id for image in engine.images.list()}
    found = fault(engine, registry, digest, platform="linux/arm64")
    assert found.kind is errors.IMAGE_PLATFORM
    assert "linux/amd64" in (found.why or "")
    assert {image.id for image in engine.images.list()} == before


@pytest.mark.engine
def test_a_list_without_the_platform(engine: Any, registry: RegistryServer) -> None:
    arm = registry.put_image("nvcr/nvidia/tensorrt", platform="linux/arm64")
    digest = registry.put_list("nvcr/nvidia/tensorrt", "arm-only", {"linux/arm64": arm})
    assert fault(engine, registry, digest).kind is errors.IMAGE_PLATFORM


@pytest.mark.engine
def test_logins_of_the_configuration_reach_the_engine(engine: Any, start_registry: Start, tmp_path: Path) -> None:
    server = start_registry(login=("builder", SECRET))
    digest = server.put_image("nvcr/nvidia/tensorrt", files={"a": some_bytes(10)})
    config = tmp_path / "config.json"
    assert fault(engine, server, digest).kind is errors.REGISTRY_UNAUTHORIZED
    config.write_text(json.dumps({"auths": {server.host: {"username": "builder", "password": SECRET + "x"}}}))
    found = fault(engine, server, digest, credentials=Credentials(config, {}))
    assert found.kind is errors.REGISTRY_UNAUTHORIZED
    assert "builder" in (found.why or "")
    config.write_text(json.dumps({"auths": {server.host: {"username": "builder", "password": SECRET}}}))
    assert pull(engine, server, digest, credentials=Credentials(config, {}))


@pytest.mark.engine
def test_an_engine_pulls_over_tls(engine: Any, start_registry: Start) -> None:
    # dockerd trusts all of loopback: its words for a certificate that it does not trust are in WORDS
    server = start_registry(tls=True)
    digest = server.put_image("nvcr/nvidia/tensorrt", files={"a": some_bytes(10)})
    assert pull(engine, server, digest)


@pytest.mark.engine
@pytest.mark.usefixtures("no_waiting")
def test_transient_faults_are_tried_again_and_told(engine: Any, registry: RegistryServer, gate: Gate) -> None:
    digest = registry.put_image("nvcr/nvidia/tensorrt", files={"a": some_bytes(10)})
    gate.only = digest
    gate.faults = [answer(503)] * 2
    told: list[Fault] = []
    assert pull(engine, gate, digest, on_retry=told.append)
    assert {fault.kind for fault in told} == {errors.REGISTRY_ANSWER}


@pytest.mark.engine
@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (429, b'{"errors": [{"code": "TOOMANYREQUESTS", "message": "slow down"}]}', errors.REGISTRY_RATE_LIMIT),
        (403, b'{"errors": [{"code": "DENIED", "message": "Access Denied"}]}', errors.REGISTRY_DENIED),
    ],
)
def test_what_a_registry_refuses(engine: Any, gate: Gate, status: int, body: bytes, kind: Kind) -> None:
    gate.faults = [answer(status, body)] * 99
    assert fault(engine, gate, ABSENT).kind is kind


@pytest.mark.engine
@pytest.mark.usefixtures("no_waiting")
def test_a_registry_that_is_down(engine: Any) -> None:
    assert fault(engine, Gate(f"127.0.0.1:{free_port()}"), ABSENT).kind is errors.REGISTRY_UNREACHABLE


@pytest.mark.engine
def test_a_layer_that_is_not_what_its_digest_says(engine: Any, registry: RegistryServer, gate: Gate) -> None:
    digest = registry.put_image("nvcr/nvidia/tensorrt", files={"a": some_bytes(100_000)})
    gate.change = lambda path, body: body[:-1] + b"\1" if "/blobs/" in path and len(body) > 50_000 else body
    found = fault(engine, gate, digest)
    assert (found.kind, found.exit) == (errors.IMAGE_DIGEST, 6)


@pytest.mark.engine
def test_too_little_space_is_seen_before_the_pull(engine: Any, registry: RegistryServer, gate: Gate) -> None:
    digest = registry.put_image("nvcr/nvidia/tensorrt", files={"a": some_bytes(10)})
    found = fault(engine, gate, digest, free_bytes=2_900_000_000, size_bytes=1_000_000_000)
    assert found.kind is errors.DISK
    assert found.why == "2.9 GB are free; it is 1.0 GB compressed and takes about 3.0 GB"
    assert gate.seen == []
    assert pull(engine, gate, digest, free_bytes=3_000_000_000, size_bytes=1_000_000_000)


@pytest.mark.engine
def test_a_disk_that_fills_up(registry: RegistryServer, tmp_path: Path) -> None:
    digest = registry.put_image("nvcr/nvidia/tensorrt", files={"a": some_bytes(60 << 20)})
    (tmp_path / "data").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "none", str(tmp_path / "data")], check=True)
    try:
        client, process = start_engine(tmp_path)
        try:
            found = fault(client, registry, digest, engine="the little engine")
        finally:
            stop_engine(client, process)
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path / "data")], check=True)
    assert found.kind is errors.DISK
    assert "the little engine" in found.what


@pytest.mark.engine
def test_threads_that_want_one_image_share_one_pull(engine: Any, registry: RegistryServer, gate: Gate) -> None:
    digest = registry.put_image("nvcr/nvidia/tensorrt", files={"a": some_bytes(1000)})
    open_gate, found = threading.Event(), []

    def hold(_: Any) -> bool:
        open_gate.wait(20)
        return False

    gate.only, gate.faults = "/blobs/", [hold]
    threads = [threading.Thread(target=lambda: found.append(pull(engine, gate, digest))) for _ in range(4)]
    for thread in threads:
        thread.start()
    while not any("/blobs/" in path for path in gate.asked):
        time.sleep(0.01)
    open_gate.set()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    blobs = [path for path in gate.asked if "/blobs/" in path]
    assert len(blobs) == len(set(blobs)) == 2  # configuration and layer


@pytest.mark.engine
def test_a_pull_that_hangs_is_cancelled_on_the_engine_too(engine: Any, registry: RegistryServer, gate: Gate) -> None:
    digest = registry.put_image("nvcr/nvidia/tensorrt", files={"a": some_bytes(1000)})
    open_gate, flag, waiter_flag = threading.Event(), Flag(), Flag()
    ended: list[BaseException] = []

    def hold(_: Any) -> bool:
        flag.event.set()
        open_gate.wait(20)
        return False

    gate.only, gate.faults = "/blobs/", [hold] * 2
    with pytest.raises(PullCancelled):
        pull(engine, gate, digest, cancel=flag)
    assert not open_gate.is_set()
    open_gate.set()

    def wait() -> None:
        try:
            pull(engine, gate, digest, cancel=waiter_flag)
        except PullCancelled as error:
            ended.append(error)

    waiter_flag.event.set()
    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(5)
    assert [type(error) for error in ended] == [PullCancelled]
    assert pull(engine, gate, digest)


@pytest.mark.engine
def test_who_waits_for_a_cancelled_pull_pulls_itself(engine: Any, registry: RegistryServer, gate: Gate) -> None:
    digest = registry.put_image("nvcr/nvidia/tensorrt", files={"a": some_bytes(1000)})
    first, flag, found = threading.Event(), Flag(), []

    def hold(_: Any) -> bool:
        first.set()
        flag.event.wait(20)
        return False

    gate.only, gate.faults = "/blobs/", [hold]

    def lead() -> None:
        with pytest.raises(PullCancelled):
            pull(engine, gate, digest, cancel=flag)
        found.append("cancelled")

    leader = threading.Thread(target=lead)
    leader.start()
    assert first.wait(20)
    follower = threading.Thread(target=lambda: found.append(pull(engine, gate, digest)))
    follower.start()
    time.sleep(0.3)
    flag.event.set()
    leader.join(20)
    follower.join(20)
    assert found[0] == "cancelled"
    assert found[1].startswith("sha256:")


@pytest.mark.engine
@pytest.mark.usefixtures("no_waiting")
def test_an_engine_that_loses_power_in_a_pull(registry: RegistryServer, gate: Gate, tmp_path: Path) -> None:
    digest = registry.put_image("nvcr/nvidia/tensorrt", files={"a": some_bytes(1000)})
    client, process = start_engine(tmp_path)

    def cut(_: Any) -> bool:
        stop_engine(None, process)
        return True

    gate.only, gate.faults = "/blobs/", [cut]
    found = fault(client, gate, digest, engine="the dead engine")
    client.close()
    assert found.kind is errors.ENGINE_UNREACHABLE
    assert "the dead engine" in found.what


WORDS = [
    ("manifest for nvcr.io/a:1 not found: manifest unknown: manifest unknown", errors.IMAGE_MISSING, False),
    ("name unknown: repository name not known to registry", errors.IMAGE_MISSING, False),
    ('Get "http://127.0.0.1:5999/v2/": dial tcp 127.0.0.1:5999: connect: connection refused', errors.REGISTRY_UNREACHABLE, True),
    ('Head "https://h/v2/a/manifests/1": no basic auth credentials', errors.REGISTRY_UNAUTHORIZED, False),
    ("read tcp 127.0.0.1:1->127.0.0.1:2: read: connection reset by peer", errors.REGISTRY_UNREACHABLE, True),
    ("unauthorized: authentication required", errors.REGISTRY_UNAUTHORIZED, False),
    ('Get "https://h/v2/": x509: certificate signed by unknown authority', errors.REGISTRY_CERTIFICATE, False),
    ("dial tcp 10.0.0.1:443: connect: network is unreachable", errors.REGISTRY_UNREACHABLE, True),
    ("dial tcp: lookup nvcr.example on 10.0.0.1:53: no such host", errors.REGISTRY_NAME, False),
    ("dial tcp: lookup nvcr.example: Temporary failure in name resolution", errors.REGISTRY_NAME, True),
    ("no matching manifest for linux/amd64 in the manifest list entries", errors.IMAGE_PLATFORM, False),
    ("failed to register layer: write /x: no space left on device", errors.DISK, False),
    ("filesystem layer verification failed for digest sha256:ab", errors.IMAGE_DIGEST, False),
    (
        'Head "https://nvcr.io/v2/a/manifests/1": denied: {"errors": [{"code": "DENIED", "message": "Access Denied"}]}',
        errors.REGISTRY_DENIED,
        False,
    ),
    ("pull access denied for a, repository does not exist or may require 'docker login': denied: x", errors.REGISTRY_DENIED, False),
    ("toomanyrequests: You have reached your pull rate limit.", errors.REGISTRY_RATE_LIMIT, True),
    ("received unexpected HTTP status: 503 Service Unavailable", errors.REGISTRY_ANSWER, True),
    ("net/http: TLS handshake timeout", errors.REGISTRY_UNREACHABLE, True),
    ("unexpected EOF", errors.REGISTRY_UNREACHABLE, True),
    ("something that nobody has seen", errors.REGISTRY_ANSWER, False),
]


@pytest.mark.parametrize(("text", "kind", "transient"), WORDS)
def test_the_engine_s_words(text: str, kind: Kind, transient: bool) -> None:
    image = parse("nvcr.io/nvidia/tensorrt:23.09-py3")
    found = from_text(Fetch(image, image, "linux/amd64", Login("u", SECRET), "the engine"), f"{text} {SECRET}")
    assert (found.kind, found.transient) == (kind, transient)
    assert SECRET not in json.dumps(found.as_dict())


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_events_are_read_however_they_are_cut(size: int) -> None:
    text = b'{"a": 1}\r\n{"b": "\xc3\xa9"}\n\n{"c": 3}'
    chunks = (text[start : start + size] for start in range(0, len(text), size))
    assert list(json_events(chunks)) == [{"a": 1}, {"b": "é"}, {"c": 3}]


@pytest.mark.parametrize("text", [b"<html>\n", b"[1]\n", b"{", b"\xff\n"])
def test_what_is_no_event_is_the_engine_s_fault(text: bytes) -> None:
    with pytest.raises(ConnectionError):
        list(json_events(iter([text])))


def test_progress_adds_up_layers() -> None:
    counts = LayerCounts()
    events = [
        {"status": "Pulling from nvcr/x", "id": "sha256:ab"},
        {"status": "Pulling fs layer", "id": "a", "progressDetail": {}},
        {"status": "Already exists", "id": "b", "progressDetail": {}},
        {"status": "Downloading", "id": "a", "progressDetail": {"current": 10, "total": 100}},
        {"status": "Downloading", "id": "a", "progressDetail": {"current": 10, "total": 100}},
        {"status": "Download complete", "id": "a", "progressDetail": {}},
        {"status": "Extracting", "id": "a", "progressDetail": {"current": 50, "total": 100}},
        {"status": "Pull complete", "id": "a", "progressDetail": {}},
        {"status": "Digest: sha256:ab"},
    ]
    assert [counts.take(event) for event in events] == [
        None,
        PullProgress(0, 0, 1, 0),
        PullProgress(0, 0, 2, 1),
        PullProgress(10, 100, 2, 1),
        None,
        PullProgress(100, 100, 2, 1),
        None,
        PullProgress(100, 100, 2, 2),
        None,
    ]
