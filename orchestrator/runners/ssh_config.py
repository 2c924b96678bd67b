"""A ``type: process`` entry of ``runners.yaml`` with ``ssh``: a Python on another machine.

::

    runners:
      xavier:
        type: process
        ssh: nvidia@xavier-1:22           # [user@]host[:port]; host may be a name of ~/.ssh/config
        python: /usr/bin/python3          # there; default: python3
        identity: keys/farm               # private key, relative to this file; default: what ssh finds
        known_hosts: known_hosts          # the only file of known hosts, relative to this file; default: ssh's
        workdir: /mnt/nvme/enginefarm     # there; default: ~/.cache/enginefarm
        slots: 1                          # steps at a time; default: 1
        labels: [edge]
        overrides: {...}                  # as of a Docker runner: gpus, driver, cuda, jetson
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from orchestrator.errors import EnginefarmError, Where
from orchestrator.matrix.binder import Binder
from orchestrator.matrix.schema import Label
from orchestrator.matrix.yaml_reader import Mapping
from orchestrator.matrix.yaml_syntax import short
from orchestrator.runners.docker_config import Expand, OverridesConfig, Reader, Strict, overrides_of, without_gpus

if TYPE_CHECKING:
    from orchestrator.runners.ssh import SshRunner

# No word can be taken for an option, and no character means something to a shell or to ssh.
_ADDRESS = re.compile(
    r"^(?:ssh://)?(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9_.+-]*)@)?"
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%[A-Za-z0-9_.-]+)?)\]|(?P<host>[A-Za-z0-9_][A-Za-z0-9_.-]*))(?::(?P<port>\d{1,5}))?/?$"
)
_PYTHON = re.compile(r"^[A-Za-z0-9_/][A-Za-z0-9_/.+-]*$")
_WORKDIR = re.compile(r"^(~|)/[^\0\n]*$")
_MOST_PORT = 65535


class SshConfig(Strict):
    """One entry of ``runners:`` with ``ssh``."""

    type: Literal["process"] = "process"
    ssh: str
    python: str | None = None
    identity: str | None = None
    known_hosts: str | None = None
    workdir: str | None = None
    slots: int | None = None
    labels: tuple[Label, ...] = ()
    overrides: OverridesConfig | None = None


def ssh_runner(
    name: str, where: Where, node: Mapping, folder: Path, expand: Expand, most_slots: int, problems: list[EnginefarmError]
) -> SshRunner | None:
    """The runner of one entry; None when ``problems`` got longer. ``folder`` is where the file lies."""
    from orchestrator.runners.ssh import SshRunner
    from orchestrator.runners.ssh_errors import Destination

    before = len(problems)
    binder = Binder()
    plain, gpu_node = without_gpus(node)
    bound = binder.fields(plain, SshConfig, f"runners.{name}.")
    problems += binder.problems
    reader = Reader(name, bound, where, folder, expand, problems)
    user, host, port = _address(reader)
    python = _checked(reader, "python", _PYTHON, "the path or name of a Python on that host", "/usr/bin/python3")
    workdir = _checked(reader, "workdir", _WORKDIR, "an absolute folder on that host", "/mnt/nvme/enginefarm or ~/enginefarm")
    identity, known_hosts = _file(reader, "identity"), _file(reader, "known_hosts")
    overrides = overrides_of(reader, gpu_node, f"runners.{name}.overrides.gpus")
    slots = reader.value("slots")
    if slots is not None and not 1 <= slots <= most_slots:
        reader.wrong("slots", f"slots is between 1 and {most_slots}, not {slots}")
    if len(problems) > before:
        return None
    given = {"python": python, "workdir": workdir}
    to = Destination(host, user, port, identity=identity, known_hosts=known_hosts, **{k: v for k, v in given.items() if v})
    return SshRunner(name, to, slots=slots or 1, labels=tuple(reader.value("labels", ())), overrides=overrides)


def _address(reader: Reader) -> tuple[str | None, str, int | None]:
    """User, host and port; an empty host when something is wrong."""
    text = reader.text("ssh")
    if text is None:
        if reader.value("ssh") is None:
            reader.wrong("ssh", "ssh names no host", "write ssh: user@host:22")
        return None, "", None
    found = _ADDRESS.fullmatch(text)
    if not found:
        reader.wrong("ssh", f'"{short(text)}" is no address for ssh', "write ssh: user@host:22, or a name of ~/.ssh/config")
        return None, "", None
    port = int(found["port"]) if found["port"] else None
    if port is not None and not 1 <= port <= _MOST_PORT:
        reader.wrong("ssh", f"a port is between 1 and {_MOST_PORT}, not {port}")
    return found["user"], found["v6"] or found["host"], port


def _checked(reader: Reader, field: str, pattern: re.Pattern[str], what: str, example: str) -> str | None:
    text = reader.text(field)
    if text is not None and not pattern.fullmatch(text):
        reader.wrong(field, f'{field} is {what}, not "{short(text)}"', f"write {field}: {example}")
    return text


def _file(reader: Reader, field: str) -> Path | None:
    path = reader.file(field)
    if path is not None and re.search(r'["\n]|\$\{', path):
        reader.wrong(field, f"ssh cannot read a file of this name: {short(path)}", "give it a name without quotes and ${")
    return Path(path) if path else None
