"""runners.yaml with ``ssh``, the ssh command that comes of it, and what ssh's words mean. Nothing is connected to."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import errors
from orchestrator.errors import EnginefarmError, Kind, flatten
from orchestrator.runners.load import load_runners
from orchestrator.runners.ssh import SshRunner, lease_name
from orchestrator.runners.ssh_errors import Destination, explain_start, is_passing
from orchestrator.runners.ssh_link import bootstrap, command_of


def load(tmp_path: Path, text: str) -> SshRunner:
    path = tmp_path / "runners.yaml"
    path.write_text(f"runners:\n  xavier:\n    {text}\n")
    (runner,) = load_runners(path)
    assert isinstance(runner, SshRunner)
    return runner


def problems(tmp_path: Path, text: str) -> str:
    with pytest.raises(EnginefarmError) as caught:
        load(tmp_path, text)
    return "\n".join(f"{problem.where}: {problem.what} / {problem.fix}" for problem in flatten(caught.value))


@pytest.mark.parametrize(
    ("text", "user", "host", "port"),
    [
        ("nvidia@xavier-1", "nvidia", "xavier-1", None),
        ("xavier", None, "xavier", None),
        ("nvidia@10.0.0.7:2222", "nvidia", "10.0.0.7", 2222),
        ("ssh://nvidia@xavier.lab:22/", "nvidia", "xavier.lab", 22),
        ("'ci@[fe80::1%eth0]:2200'", "ci", "fe80::1%eth0", 2200),
    ],
)
def test_an_address_is_read(tmp_path: Path, text: str, user: str | None, host: str, port: int | None) -> None:
    to = load(tmp_path, f"ssh: {text}").to

    assert (to.user, to.host, to.port) == (user, host, port)


def test_an_entry_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").touch()
    (tmp_path / "known").touch()
    monkeypatch.setenv("DEVICE", "xavier-1")
    text = """type: process
    ssh: nvidia@${env:DEVICE}
    python: /usr/bin/python3
    identity: key
    known_hosts: known
    workdir: ~/farm
    slots: 2
    labels: [edge]
    overrides:
      gpus: [{name: Xavier, compute_capability: "7.2", memory: 16 GiB}]
      jetson: {l4t: "32.7.1"}"""
    runner = load(tmp_path, text)

    assert runner.to == Destination("xavier-1", "nvidia", None, "/usr/bin/python3", tmp_path / "key", tmp_path / "known", "~/farm")
    assert (runner.name, runner.kind, runner.slots, runner.labels) == ("xavier", "ssh", 2, ("edge",))
    assert runner.overrides.gpus is not None
    assert runner.overrides.gpus[0].compute_capability == "7.2"
    assert runner.overrides.jetson is not None
    assert runner.overrides.jetson["l4t"] == "32.7.1"


@pytest.mark.parametrize(
    "text",
    [
        "ssh: -oProxyCommand=touch",
        "ssh: 'root@-oProxyCommand=x'",
        "ssh: 'a b'",
        "ssh: 'host;reboot'",
        "ssh: 'host:0'",
        "ssh: 'host:70000'",
        'ssh: "host\\n"',
        "{ssh: host, python: 'python3; reboot'}",
        "{ssh: host, python: -c}",
        "{ssh: host, python: '$(reboot)'}",
        "{ssh: host, workdir: relative}",
        "{ssh: host, slots: 0}",
        "{ssh: host, identity: nowhere}",
        "{ssh: host, identitty: key}",
        "{ssh: host, type: docker}",
        "{ssh: host, engine: tcp}",
        "ssh: null",
        "{ssh: host, overrides: {driver: newest}}",
    ],
)
def test_what_cannot_be_is_said_at_its_line(tmp_path: Path, text: str) -> None:
    assert str(tmp_path / "runners.yaml") + ":3" in problems(tmp_path, text)


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    found = problems(tmp_path, "{ssh: '-x', python: -c, workdir: w, slots: 999, identity: nowhere}")

    assert len(found.splitlines()) == 5


def test_a_key_file_that_ssh_could_not_read_by_its_name(tmp_path: Path) -> None:
    (tmp_path / 'a"b').touch()

    assert "ssh cannot read a file of this name" in problems(tmp_path, "{ssh: host, identity: 'a\"b'}")


def test_the_command_has_one_word_that_is_not_fixed() -> None:
    plain, other = (command_of(Destination("host", python=python)) for python in ("python3", "/opt/my python/bin/python3"))

    assert plain[:-1] == other[:-1]
    assert plain[-3:-1] == ["--", "host"]
    assert shlex.split(other[-1])[:3] == ["exec", "/opt/my python/bin/python3", "-I"]
    assert shlex.split(other[-1])[3:] == shlex.split(plain[-1])[3:]


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh (openssh-client)")
def test_ssh_reads_the_command_as_it_is_meant(tmp_path: Path) -> None:
    folder = tmp_path / "my 100% keys"
    folder.mkdir()
    to = Destination("host", "me", 2222, identity=folder / "key", known_hosts=folder / "known")
    words = command_of(to)
    said = subprocess.run([words[0], "-G", "-F", "none", *words[1:]], capture_output=True, text=True, check=True).stdout
    read = {line.partition(" ")[0]: line.partition(" ")[2] for line in said.splitlines()}

    assert read["stricthostkeychecking"] == "true"
    assert read["updatehostkeys"] == "false"
    assert read["batchmode"] == "yes"
    assert read["identityfile"].replace("%%", "%") == str(folder / "key")
    assert read["userknownhostsfile"].replace("%%", "%") == str(folder / "known")
    assert (read["user"], read["port"], read["hostname"]) == ("me", "2222", "host")


def test_the_remote_end_is_sent_as_one_text_that_compiles() -> None:
    length, _, text = bootstrap().partition(b"\n")

    assert int(length) == len(text) < 64 << 10
    compile(text, "remote", "exec")


@pytest.mark.parametrize(
    ("said", "code", "kind"),
    [
        ("ssh: Could not resolve hostname xavier: Name or service not known", 255, errors.SSH_UNREACHABLE),
        ("ssh: connect to host xavier port 22: Connection timed out", 255, errors.SSH_UNREACHABLE),
        ("ssh: connect to host xavier port 22: No route to host", 255, errors.SSH_UNREACHABLE),
        ("nvidia@xavier: Permission denied (publickey,password).", 255, errors.SSH_LOGIN),
        ("Received disconnect from 10.0.0.7 port 22:2: Too many authentication failures", 255, errors.SSH_LOGIN),
        ("No ED25519 host key is known for xavier and you have requested strict checking.", 255, errors.SSH_HOST_KEY),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.", 255, errors.SSH_HOST_KEY),
        ("something new", 255, errors.SSH_UNREACHABLE),
        ("This account is currently not available.", 1, errors.SSH_PYTHON),
        ("bash: line 1: exec: python3: not found", 127, errors.SSH_PYTHON),
        ("", None, errors.SSH_UNREACHABLE),
    ],
)
def test_what_ssh_says_has_a_kind_and_something_to_do(said: str, code: int | None, kind: Kind) -> None:
    error = explain_start(Destination("xavier", "nvidia"), "lab", code, said)

    assert error.kind is kind
    assert error.fix
    assert "{" not in error.what + error.fix
    assert not said or said.splitlines()[-1] in (error.why or "")


def test_only_a_server_without_a_place_is_asked_again() -> None:
    to = Destination("xavier")
    passing = [
        "kex_exchange_identification: Connection closed by remote host\nConnection closed by 10.0.0.7 port 22",
        "Connection reset by 10.0.0.7 port 22",
    ]
    lasting = ["ssh: connect to host xavier port 22: Connection refused", "Permission denied (publickey)."]

    assert [is_passing(explain_start(to, "lab", 255, said)) for said in passing + lasting] == [True, True, False, False]


def test_a_gpu_without_a_uuid_is_leased_by_its_place() -> None:
    assert lease_name({"index": 0, "uuid": "GPU-1"}) == "GPU-1"
    assert lease_name({"index": 0, "uuid": "declared-lab-0", "declared_uuid": True}) == lease_name({"index": 0, "uuid": None}) == "index-0"


def test_no_ssh_on_this_machine_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnginefarmError, match="there is no ssh on this machine"):
        SshRunner("lab", Destination("host", python=sys.executable)).host()
