from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import REGISTRY_UNAUTHORIZED, EnginefarmError
from orchestrator.images.credentials import Credentials, Login

SECRET = "hunter2-very-secret"


def auth(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def look(tmp_path: Path, config: Any, registry: str, **environment: str) -> Login | None:
    (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return Credentials(environment={"DOCKER_CONFIG": str(tmp_path), "PATH": os.environ["PATH"], **environment}).lookup(registry)


def helper(tmp_path: Path, name: str, script: str) -> str:
    """A credential helper program; the PATH that finds it."""
    path = tmp_path / f"docker-credential-{name}"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return f"{tmp_path}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("config", "registry"),
    [
        ({"auths": {"nvcr.io": auth("u", "p:w")}}, "nvcr.io"),
        ({"auths": {"https://nvcr.io/v2/": auth("u", "p:w")}}, "nvcr.io"),
        ({"auths": {"https://index.docker.io/v1/": auth("u", "p:w")}}, "docker.io"),
        ({"auths": {"127.0.0.1:5000": {"username": "u", "password": "p:w"}}}, "127.0.0.1:5000"),
    ],
)
def test_docker_s_configuration_is_read(tmp_path: Path, config: Any, registry: str) -> None:
    assert look(tmp_path, config, registry) == Login("u", "p:w")


def test_another_port_is_another_registry(tmp_path: Path) -> None:
    assert look(tmp_path, {"auths": {"host:5000": auth("u", "p")}}, "host:5001") is None


def test_no_configuration_is_no_login(tmp_path: Path) -> None:
    assert Credentials(environment={"DOCKER_CONFIG": str(tmp_path)}).lookup("nvcr.io") is None


def test_an_identity_token_is_one(tmp_path: Path) -> None:
    login = look(tmp_path, {"auths": {"a.example": {"identitytoken": SECRET}}}, "a.example")
    assert login is not None
    assert login.identity_token == SECRET
    assert login.as_engine_auth("a.example") == {"identitytoken": SECRET, "serveraddress": "a.example"}


def test_the_key_of_ngc_is_for_its_registry_alone(tmp_path: Path) -> None:
    config = {"auths": {"nvcr.io": auth("u", "p"), "mirror.example": auth("m", "q")}}
    assert look(tmp_path, config, "nvcr.io", NGC_API_KEY=SECRET) == Login("$oauthtoken", SECRET)
    assert look(tmp_path, config, "mirror.example", NGC_API_KEY=SECRET) == Login("m", "q")
    assert look(tmp_path, {}, "nvcr.io.evil.example", NGC_API_KEY=SECRET) is None


def test_helpers_go_before_what_is_stored_in_the_file(tmp_path: Path) -> None:
    path = helper(tmp_path, "mine", 'read host; test "$1" = get; echo "{\\"Username\\": \\"of-$host\\", \\"Secret\\": \\"s\\"}"')
    config = {"credsStore": "absent", "credHelpers": {"nvcr.io": "mine"}, "auths": {"nvcr.io": auth("u", "p")}}
    assert look(tmp_path, config, "nvcr.io", PATH=path) == Login("of-nvcr.io", "s")
    assert look(tmp_path, {"credsStore": "mine"}, "docker.io", PATH=path) == Login("of-https://index.docker.io/v1/", "s")


def test_a_helper_that_knows_nothing_leaves_the_file(tmp_path: Path) -> None:
    path = helper(tmp_path, "mine", "echo credentials not found in native keychain; exit 1")
    assert look(tmp_path, {"credsStore": "mine", "auths": {"a.example": auth("u", "p")}}, "a.example", PATH=path) == Login("u", "p")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (f"echo {SECRET}; exit 3", "exit code 3"),
        (f"echo {SECRET}", "not the JSON"),
        (f'echo \'{{"Username": "u", "Secret": ["{SECRET}"]}}\'', "not the JSON"),
    ],
)
def test_a_helper_that_fails_is_told_without_its_output(tmp_path: Path, script: str, why: str) -> None:
    with pytest.raises(EnginefarmError) as caught:
        look(tmp_path, {"credsStore": "mine"}, "a.example", PATH=helper(tmp_path, "mine", script))
    assert caught.value.kind is REGISTRY_UNAUTHORIZED
    assert why in (caught.value.why or "")
    assert SECRET not in json.dumps(caught.value.as_dict())
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("name", ["absent", "../bin/sh", "a b", ""])
def test_a_helper_that_is_not_there_or_not_one(tmp_path: Path, name: str) -> None:
    config = {"credHelpers": {"a.example": name}}
    if not name:
        assert look(tmp_path, config, "a.example") is None
        return
    with pytest.raises(EnginefarmError) as caught:
        look(tmp_path, config, "a.example")
    assert name in caught.value.what + (caught.value.why or "")


@pytest.mark.parametrize("config", ["{", "[]", {"auths": {"a.example": {"auth": "***"}}}, {"auths": {"a.example": {"auth": "bm9uZQ=="}}}])
def test_a_damaged_configuration_names_the_file(tmp_path: Path, config: Any) -> None:
    with pytest.raises(EnginefarmError) as caught:
        look(tmp_path, config, "a.example")
    assert str(tmp_path / "config.json") in str(caught.value.where)


def test_a_login_never_shows_its_secret() -> None:
    login = Login("u", SECRET, identity_token="t-" + SECRET)
    assert SECRET not in repr(login)
    pair = base64.b64encode(f"u:{SECRET}".encode()).decode()
    assert login.hide(f"bad login u {SECRET}, Basic {pair}") == "bad login u ***, Basic ***"
