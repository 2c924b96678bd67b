"""Ways to an engine: TLS, ssh, contexts; and what is said when one does not work."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import errors
from orchestrator.errors import EnginefarmError
from orchestrator.runners.base import Cancel, Cancelled
from orchestrator.runners.docker import DockerRunner
from orchestrator.runners.docker_engine import Address, Tls

pytestmark = pytest.mark.engine
TRICK_IMAGE = "enginefarm-test/trick:1"


@pytest.fixture(scope="module")
def tls_engine(
    engines: Callable[..., Any], put_image: Callable[..., None], certificates: Path, load_script: Callable[[str], Any]
) -> Iterator[tuple[Any, str]]:
    access = load_script("tests/docker/access.py")
    address = f"tcp://127.0.0.1:{access.free_port()}"
    started = engines("tls", listen=(address,), flags=access.tls_flags(certificates))
    put_image(started, TRICK_IMAGE)
    yield started, address
    started.stop()


def tls(folder: Path, ca: str = "ca", name: str = "client") -> Tls:
    return Tls(str(folder / f"{ca}.pem"), str(folder / f"{name}.pem"), str(folder / f"{name}.key"))


def test_a_step_runs_over_tls(
    tls_engine: tuple[Any, str], certificates: Path, make_runner: Callable[..., DockerRunner], steps: Any, tmp_path: Path
) -> None:
    _, address = tls_engine
    runner = make_runner(Address(address, tls(certificates)))
    events: list[Any] = []
    # the environment of the caller is about other connections
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REQUESTS_CA_BUNDLE", "/nothing")
        patch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
        code = "import sys\nfor n in range(300): sys.stderr.write('line %d of the log\\n' % n)\nraise ImportError('no')"
        answer = runner.run(steps.trick(code), tmp_path / "step", events.append, Cancel())
    assert answer.result["error"]["kind"] == "backend-missing"
    assert answer.log.read_text().count("of the log") == 300
    assert {"event": "phase", "phase": "optimising"} not in events


def test_a_step_over_tls_can_be_cancelled(
    tls_engine: tuple[Any, str],
    certificates: Path,
    make_runner: Callable[..., DockerRunner],
    steps: Any,
    tmp_path: Path,
    background: Callable[..., Any],
) -> None:
    engine, address = tls_engine
    job = background(make_runner(Address(address, tls(certificates))), steps.trick("import time; time.sleep(600)"), tmp_path / "step")
    job.wait_for("sending")
    job.cancel.set()
    assert isinstance(job.end(10).error, Cancelled)
    assert engine.containers() == []


@pytest.mark.parametrize("case", ["no tls", "no client", "stranger's client", "stranger's ca"])
def test_certificates_that_do_not_fit_are_named(
    tls_engine: tuple[Any, str], certificates: Path, make_runner: Callable[..., DockerRunner], case: str
) -> None:
    files = {
        "no tls": None,
        "no client": Tls(str(certificates / "ca.pem")),
        "stranger's client": tls(certificates, name="other"),
        "stranger's ca": tls(certificates, ca="stranger"),
    }[case]
    with pytest.raises(EnginefarmError) as caught:
        make_runner(Address(tls_engine[1], files)).host()
    assert caught.value.kind is errors.ENGINE_TLS
    assert caught.value.fix


@pytest.fixture
def ssh_path(ssh: tuple[int, Path], monkeypatch: pytest.MonkeyPatch) -> tuple[int, Path]:
    monkeypatch.setenv("PATH", f"{ssh[1]}/bin:{os.environ['PATH']}")
    return ssh


def test_a_step_runs_over_ssh(
    engine: Any, ssh_path: tuple[int, Path], make_runner: Callable[..., DockerRunner], steps: Any, tmp_path: Path
) -> None:
    address = f"ssh://{getpass.getuser()}@127.0.0.1:{ssh_path[0]}{engine.folder}/sock"
    runner = make_runner(Address(address))
    built = runner.run(steps.build(), tmp_path / "step", lambda _: None, Cancel())
    assert built.result["ok"]
    assert runner.host()["engine"]["address"] == address
    assert engine.containers() == []
    tunnel = runner.engine()._tunnel
    assert tunnel is not None
    runner.close()
    assert tunnel._process.poll() is not None
    assert not Path(tunnel._folder).exists()


def test_a_line_that_breaks_is_the_engines_fault(
    engine: Any,
    ssh_path: tuple[int, Path],
    make_runner: Callable[..., DockerRunner],
    steps: Any,
    tmp_path: Path,
    background: Callable[..., Any],
) -> None:
    runner = make_runner(Address(f"ssh://{getpass.getuser()}@127.0.0.1:{ssh_path[0]}{engine.folder}/sock"))
    job = background(runner, steps.endless(), tmp_path / "lost")
    job.wait_for("soak")
    tunnel = runner.engine()._tunnel
    assert tunnel is not None
    tunnel._process.kill()
    error = job.end().error
    assert isinstance(error, EnginefarmError)
    assert error.kind is errors.ENGINE_LOST
    answer = runner.run(steps.build(), tmp_path / "again", lambda _: None, Cancel())  # over a new line, which sweeps the lost container
    assert answer.result["ok"]
    assert engine.containers() == []


def test_ssh_that_is_refused_says_what_ssh_said(ssh_path: tuple[int, Path], make_runner: Callable[..., DockerRunner]) -> None:
    (ssh_path[1] / "known").rename(ssh_path[1] / "known.away")
    try:
        with pytest.raises(EnginefarmError) as caught:
            make_runner(Address(f"ssh://127.0.0.1:{ssh_path[0]}")).host()
    finally:
        (ssh_path[1] / "known.away").rename(ssh_path[1] / "known")
    assert caught.value.kind is errors.ENGINE_UNREACHABLE
    assert "Host key verification failed" in (caught.value.why or "")


def test_a_docker_context_is_an_engine(
    engine: Any, make_runner: Callable[..., DockerRunner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {**os.environ, "DOCKER_CONFIG": str(tmp_path), "HOME": str(tmp_path)}
    command = ["docker", "context", "create", "lab", "--docker", f"host={engine.url}"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert make_runner(Address("lab")).host()["engine"]["name"] == "one"
    with pytest.raises(EnginefarmError, match="no docker context lap"):
        make_runner(Address("lap")).host()


@pytest.mark.parametrize("address", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:9", "ssh://-oProxyCommand=touch"])
def test_an_engine_that_is_not_there_is_named(make_runner: Callable[..., DockerRunner], address: str) -> None:
    with pytest.raises(EnginefarmError) as caught:
        make_runner(Address(address)).host()
    assert caught.value.kind is errors.ENGINE_UNREACHABLE
    assert caught.value.fix


def test_the_default_engine_is_used_when_it_answers(
    engine: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from orchestrator.runners.load import load_runners

    monkeypatch.setenv("DOCKER_HOST", engine.url)
    found = load_runners()
    assert [runner.name for runner in found] == ["docker", "local"]
    assert found[0].host()["engine"]["name"] == "one"
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert [runner.name for runner in load_runners()] == ["local"]


def test_three_engines_are_three(engines: Callable[..., Any], engine: Any, tls_engine: tuple[Any, str], tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from orchestrator.cli.main import make_app

    third = engines("three")
    text = "".join(
        f"  {name}: {{type: docker, engine: '{where.url}'}}\n" for name, where in (("a", engine), ("b", tls_engine[0]), ("c", third))
    )
    (tmp_path / "runners.yaml").write_text("runners:\n" + text)
    done = CliRunner().invoke(make_app(), ["runners", "list", "--json", "--runners", str(tmp_path / "runners.yaml")])
    found = json.loads(done.stdout)["runners"]
    assert len({row["host"]["engine"]["id"] for row in found}) == 3
    third.stop()
