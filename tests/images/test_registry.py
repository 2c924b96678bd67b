from __future__ import annotations

import json
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from orchestrator import errors
from orchestrator.errors import EnginefarmError, Kind, Where
from orchestrator.images.credentials import Credentials
from orchestrator.images.faults import Fault, retry_after, retrying
from orchestrator.images.policy import Policy, policy
from orchestrator.images.reference import parse
from orchestrator.images.registry import Registry, contents_of

from .conftest import NO_CONFIG, Gate, RegistryServer, Start, answer, free_port, hang_up, mirrored, nobody

TENSORRT = {
    "TRT_VERSION": "8.6.1.6+cuda12.0.1.011",
    "CUDA_VERSION": "12.2.1.006",
    "NVIDIA_REQUIRE_CUDA": "cuda>=9.0",
    "NVIDIA_REQUIRE_EMPTY": "",
}
IMAGE = parse("nvcr.io/nvidia/tensorrt:23.09-py3")
SECRET = "hunter2-very-secret"

pytestmark = pytest.mark.engine


@pytest.fixture
def both(registry: RegistryServer) -> dict[str, str]:
    """The image of the tests for two platforms; digest by platform."""
    digests = {
        "linux/amd64": registry.put_image("nvcr/nvidia/tensorrt", env=TENSORRT),
        "linux/arm64/v8": registry.put_image("nvcr/nvidia/tensorrt", platform="linux/arm64", env=TENSORRT | {"TRT_VERSION": "8.5.3.1"}),
    }
    return digests | {"list": registry.put_list("nvcr/nvidia/tensorrt", "23.09-py3", digests)}


def fault(
    rules: Policy, credentials: Credentials | None = None, platform: str = "linux/amd64", image: Any = IMAGE, **options: Any
) -> Fault:
    """What reading the image ends with; nothing it says holds the secret."""
    with pytest.raises(EnginefarmError) as caught:
        Registry(rules, credentials or nobody(), **options).resolve(image, "linux/amd64", Where(target="t"))
    assert SECRET not in json.dumps(caught.value.as_dict())
    assert isinstance(caught.value, Fault)
    assert caught.value.where == Where(target="t")
    assert caught.value.fix
    return caught.value


def test_an_index_gives_the_digest_of_the_platform(registry: RegistryServer, both: dict[str, str]) -> None:
    source = Registry(mirrored(registry), nobody())
    amd64, arm64 = source.resolve(IMAGE, "linux/amd64"), source.resolve(IMAGE, "linux/arm64")
    assert amd64.digest == both["linux/amd64"]
    assert arm64.digest == both["linux/arm64/v8"]
    assert (amd64.contents.tensorrt, amd64.contents.cuda) == ("8.6.1.6", "12.2.1.006")
    assert amd64.contents.requires == {"cuda": "cuda>=9.0"}
    assert arm64.contents.tensorrt == "8.5.3.1"
    assert amd64.size_bytes > 0
    assert amd64.image_id.startswith("sha256:")
    assert amd64.image_id != amd64.digest


def test_the_digest_of_a_list_gives_that_of_the_platform(registry: RegistryServer, both: dict[str, str]) -> None:
    image = parse(f"nvcr.io/nvidia/tensorrt:gone@{both['list']}")
    assert Registry(mirrored(registry), nobody()).resolve(image, "linux/amd64").digest == both["linux/amd64"]


def test_a_single_manifest_is_taken_for_its_own_platform_only(registry: RegistryServer) -> None:
    digest = registry.put_image("nvcr/nvidia/single", "1", platform="linux/arm64")
    image = parse("nvcr.io/nvidia/single:1")
    assert Registry(mirrored(registry), nobody()).resolve(image, "linux/arm64").digest == digest
    found = fault(mirrored(registry), image=image)
    assert found.kind is errors.IMAGE_PLATFORM
    assert "published for linux/arm64" in (found.why or "")


def test_a_list_without_the_platform_says_what_it_has(registry: RegistryServer, both: dict[str, str]) -> None:
    registry.put_list("nvcr/nvidia/tensorrt", "arm", {"linux/arm64/v8": both["linux/arm64/v8"], "unknown/unknown": both["linux/amd64"]})
    found = fault(mirrored(registry), image=parse("nvcr.io/nvidia/tensorrt:arm"))
    assert found.kind is errors.IMAGE_PLATFORM
    assert found.why == "it is published for linux/arm64/v8"


@pytest.mark.parametrize(
    ("image", "fix"),
    [
        ("nvcr.io/nvidia/tensorrt:23.13-py3", "23.12-py3, 24.01-py3"),
        ("nvcr.io/nvidia/tensorrt:99.01-py3", "known tags near it"),
        ("nvcr.io/nvidia/l4t-tensorrt:r8.2.2-runtime", "r8.2.1-runtime"),
        ("nvcr.io/nvidia/tensorrt:21.06-py3-jetpack", "l4t"),
        ("nvcr.io/nvidia/nothing:1", "check the repository and the tag"),
        ("nvcr.io/nvidia/tensorrt@sha256:" + "ab" * 32, "targets lock --upgrade"),
    ],
)
def test_an_absent_tag_names_the_nearest_known_ones(registry: RegistryServer, both: dict[str, str], image: str, fix: str) -> None:
    found = fault(mirrored(registry), image=parse(image))
    assert (found.kind, found.exit) == (errors.IMAGE_MISSING, 2)
    assert fix in (found.fix or "")


def test_an_image_off_the_allow_list_is_refused_before_the_network(gate: Gate) -> None:
    with pytest.raises(EnginefarmError) as caught:
        Registry(policy(["ghcr.io"], {"nvcr.io": f"{gate.host}/nvcr"}), nobody()).resolve(IMAGE, "linux/amd64")
    assert caught.value.kind is errors.IMAGE_NOT_ALLOWED
    assert gate.seen == []


def test_a_login_is_used_where_the_registry_wants_one(start_registry: Start, tmp_path: Path) -> None:
    server = start_registry(login=("builder", SECRET))
    digest = server.put_image("nvcr/nvidia/tensorrt", "23.09-py3", env=TENSORRT)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"auths": {server.host: {"username": "builder", "password": SECRET}}}))
    assert Registry(mirrored(server), Credentials(config, {})).resolve(IMAGE, "linux/amd64").digest == digest

    found = fault(mirrored(server))
    assert found.kind is errors.REGISTRY_UNAUTHORIZED
    assert "no login" in (found.why or "")
    config.write_text(json.dumps({"auths": {server.host: {"username": "builder", "password": "x" + SECRET}}}))
    found = fault(mirrored(server), Credentials(config, {}))
    assert found.kind is errors.REGISTRY_UNAUTHORIZED
    assert "user builder was refused" in (found.why or "")


def test_a_certificate_is_checked_against_the_given_authority(start_registry: Start, tmp_path: Path) -> None:
    server = start_registry(tls=True)
    digest = server.put_image("nvcr/nvidia/tensorrt", "23.09-py3")
    assert server.ca is not None
    trusted = Registry(mirrored(server), nobody(), ca_files={server.host: server.ca})
    assert trusted.resolve(IMAGE, "linux/amd64").digest == digest

    found = fault(mirrored(server))
    assert found.kind is errors.REGISTRY_CERTIFICATE
    assert f"/etc/docker/certs.d/{server.host}/ca.crt" in (found.fix or "")
    assert fault(mirrored(server), ca_files={server.host: tmp_path / "absent"}).kind is errors.REGISTRY_CERTIFICATE


def test_a_certificate_for_another_name_is_not_taken(start_registry: Start) -> None:
    server = start_registry(tls=True, names="DNS:elsewhere.example")
    assert server.ca is not None
    assert fault(mirrored(server), ca_files={server.host: server.ca}).kind is errors.REGISTRY_CERTIFICATE


def test_a_token_is_fetched_once_and_used(gate: Gate, both: dict[str, str], tmp_path: Path) -> None:
    gate.bearer = ("builder", SECRET)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"auths": {gate.host: {"username": "builder", "password": SECRET}}}))
    source = Registry(mirrored(gate), Credentials(config, {}))
    assert source.resolve(IMAGE, "linux/amd64").digest == both["linux/amd64"]
    tokens = [path for path in gate.asked if path.startswith("/token")]
    assert len(tokens) == 1
    assert "service=gate" in tokens[0]
    assert "scope=repository%3Ax%3Apull" in tokens[0]
    assert fault(mirrored(gate)).kind is errors.REGISTRY_UNAUTHORIZED


def test_a_login_is_not_sent_on_without_tls(gate: Gate, tmp_path: Path) -> None:
    gate.bearer, gate.realm = ("builder", SECRET), "ftp://evil.example/token"
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"auths": {gate.host: {"username": "builder", "password": SECRET}}}))
    found = fault(mirrored(gate), Credentials(config, {}))
    assert found.kind is errors.REGISTRY_ANSWER
    assert "not https" in (found.why or "")
    assert not any(authorization for _, authorization in gate.seen)


def test_netrc_is_not_read(gate: Gate, both: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".netrc").write_text(f"machine 127.0.0.1 login u password {SECRET}\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    Registry(mirrored(gate), nobody()).resolve(IMAGE, "linux/amd64")
    assert {authorization for _, authorization in gate.seen} == {""}


DENIED = b'{"errors": [{"code": "DENIED", "message": "Access Denied"}]}'


@pytest.mark.parametrize(
    ("status", "body", "kind", "says"),
    [
        (403, DENIED, errors.REGISTRY_DENIED, "DENIED: Access Denied"),
        (402, b"Payment Required", errors.REGISTRY_DENIED, "Payment Required"),
        (401, b"<html><b>Nope</b></html>", errors.REGISTRY_UNAUTHORIZED, "Nope"),
        (400, b"", errors.REGISTRY_ANSWER, "HTTP 400"),
    ],
)
def test_deterministic_faults_are_not_tried_again(gate: Gate, both: Any, status: int, body: bytes, kind: Kind, says: str) -> None:
    gate.faults = [answer(status, body)] * 9
    found = fault(mirrored(gate))
    assert found.kind is kind
    assert says in (found.why or "")
    assert len(gate.seen) == 1


def test_a_denied_image_of_ngc_asks_to_accept_its_licence(gate: Gate) -> None:
    from orchestrator.images.faults import Fetch, denied

    found = denied(Fetch(IMAGE, IMAGE, "linux/amd64"), "Access Denied")
    assert "licence on https://catalog.ngc.nvidia.com" in (found.fix or "")


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("trouble", [answer(503), answer(500, b"oops"), answer(429, Retry_After="0"), hang_up])
def test_transient_faults_are_tried_again(gate: Gate, both: dict[str, str], trouble: Any) -> None:
    gate.faults = [trouble] * 3
    assert Registry(mirrored(gate), nobody()).resolve(IMAGE, "linux/amd64").digest == both["linux/amd64"]
    assert gate.faults == []


TROUBLES = ((answer(503), errors.REGISTRY_ANSWER), (answer(429), errors.REGISTRY_RATE_LIMIT), (hang_up, errors.REGISTRY_UNREACHABLE))


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize(("trouble", "kind"), TROUBLES)
def test_but_not_forever(gate: Gate, trouble: Any, kind: Kind) -> None:
    gate.faults = [trouble] * 9
    assert fault(mirrored(gate)).kind is kind
    assert len(gate.seen) == 4


def test_a_long_rate_limit_is_not_waited_for(gate: Gate) -> None:
    gate.faults = [answer(429, b'{"errors": [{"code": "TOOMANYREQUESTS", "message": "slow down"}]}', Retry_After="3600")] * 9
    found = fault(mirrored(gate))
    assert found.kind is errors.REGISTRY_RATE_LIMIT
    assert "try again in 3600 s" in (found.fix or "")
    assert len(gate.seen) == 1


@pytest.mark.usefixtures("no_waiting")
def test_the_wait_that_the_registry_asks_for_is_kept() -> None:
    waits: list[float] = []
    tries = iter([Fault(errors.REGISTRY_RATE_LIMIT, "x", transient=True, retry_after=7.0), None])

    def call() -> str:
        fault = next(tries)
        if fault is not None:
            raise fault
        return "done"

    assert retrying(call, pause=waits.append) == "done"
    assert waits == [pytest.approx(7.0, abs=1.0)]


def test_retry_after_is_seconds_or_a_date() -> None:
    assert retry_after("120") == 120.0
    assert retry_after(formatdate(time.time() + 60, usegmt=True)) == pytest.approx(60, abs=5)
    assert retry_after(formatdate(time.time() - 60, usegmt=True)) == 0.0
    assert [retry_after(text) for text in (None, "", "soon")] == [None, None, None]


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("path", ["/manifests/", "/blobs/"])
def test_what_does_not_fit_its_digest_is_refused(gate: Gate, both: dict[str, str], path: str) -> None:
    gate.change = lambda asked, body: body.replace(b" ", b"\t", 1) if path in asked and "23.09" not in asked else body
    found = fault(mirrored(gate))
    assert (found.kind, found.exit) == (errors.IMAGE_DIGEST, 6)
    assert gate.asked.count(gate.asked[-1]) == 1


def test_a_registry_must_give_the_digest_it_was_asked_for(gate: Gate, both: dict[str, str]) -> None:
    gate.change = lambda asked, body: body + b"\n" if both["list"] in asked else body
    assert fault(mirrored(gate), image=IMAGE.pinned(both["list"])).kind is errors.IMAGE_DIGEST


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"<html>", b"{}", b'{"manifests": 5}', b'{"mediaType": "x"}', b'{"manifests": [1, {"platform": 2}]}', b" " * (5 << 20)],
)
def test_junk_is_an_answer_that_cannot_be_used(gate: Gate, body: bytes) -> None:
    gate.faults = [answer(200, body)] * 9
    assert fault(mirrored(gate)).kind in (errors.REGISTRY_ANSWER, errors.IMAGE_PLATFORM)


@pytest.mark.usefixtures("no_waiting")
def test_a_registry_that_is_not_there() -> None:
    found = fault(policy(mirrors={"nvcr.io": f"127.0.0.1:{free_port()}"}))
    assert found.kind is errors.REGISTRY_UNREACHABLE
    assert "Connection refused" in (found.why or "")
    assert "object at 0x" not in (found.why or "")


def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    def resolve(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    found = fault(policy(mirrors={"nvcr.io": "registry.invalid/nvcr"}))
    assert found.kind is errors.REGISTRY_NAME
    assert "registry.invalid" in found.what
    assert not found.transient


@pytest.mark.parametrize(
    ("environment", "tensorrt", "cuda"),
    [
        ({"TRT_VERSION": "7.1.3", "CUDA_VERSION": "11.0.3"}, "7.1.3", "11.0.3"),
        ({"NVIDIA_REQUIRE_CUDA": "cuda>=12.2 brand=tesla,driver>=450,driver<451"}, None, "12.2"),
        ({"TRT_VERSION": "latest", "CUDA_VERSION": ""}, None, None),
    ],
)
def test_contents_are_read_from_the_environment(environment: dict[str, str], tensorrt: str | None, cuda: str | None) -> None:
    lines = [f"{name}={value}" for name, value in environment.items()]
    for config in (
        {"os": "linux", "architecture": "arm64", "config": {"Env": lines}},
        {"Os": "linux", "Architecture": "arm64", "Config": {"Env": lines}},
    ):
        contents = contents_of(config)
        assert (contents.platform, contents.tensorrt, contents.cuda) == ("linux/arm64", tensorrt, cuda)
    assert contents_of({"config": None}).platform == "unknown/unknown"


def test_credentials_are_not_in_representations() -> None:
    credentials = Credentials(NO_CONFIG, {"NGC_API_KEY": SECRET})
    assert SECRET not in repr(Registry(Policy(), credentials)) + repr(credentials) + repr(credentials.lookup("nvcr.io"))
