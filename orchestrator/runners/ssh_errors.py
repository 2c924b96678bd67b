"""What ssh and the remote end say when something fails, in our words. Texts as OpenSSH 9.2 gives them (tests/runners)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from orchestrator import errors
from orchestrator.errors import EnginefarmError, Kind

TOO_OLD = "enginefarm needs Python 3.6"
_SSH_FAILED = 255  # ssh's own exit code; any other one is that of the remote command


@dataclass(frozen=True)
class Destination:
    """A host as an ssh client is told it. What is None is left to the client's own configuration."""

    host: str
    user: str | None = None
    port: int | None = None
    python: str = "python3"
    identity: Path | None = None
    known_hosts: Path | None = None
    workdir: str = "~/.cache/enginefarm"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (f"{self.user}@" if self.user else "") + host + (f":{self.port}" if self.port else "")

    @property
    def command(self) -> str:
        """What a person types to try it."""
        words = ["ssh", *(["-p", str(self.port)] if self.port else []), *(["-i", str(self.identity)] if self.identity else [])]
        return " ".join([*words, f"{self.user}@{self.host}" if self.user else self.host])


_TEXTS: tuple[tuple[str, Kind, str, str], ...] = (
    # (pattern, kind, what, fix)
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Host key for \S+ has changed|POSSIBLE DNS SPOOFING",
        errors.SSH_HOST_KEY,
        "the key of {to} is not the one in known_hosts",
        "find out why it changed; then `ssh-keygen -R '{place}'{in_file}` forgets the old one",
    ),
    (
        r"Host key verification failed|No \S+ host key is known|Host certificate invalid",
        errors.SSH_HOST_KEY,
        "the key of {to} is not known here",
        "compare the key with the host's (`ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub` there) and put it into {known_hosts}",
    ),
    (
        r"Permission denied|Too many authentication failures|no mutual signature|UNPROTECTED PRIVATE KEY",
        errors.SSH_LOGIN,
        "{to} refuses the login of runner {runner}",
        "`{command}` must work without a question: the key in `identity` or the ssh agent, its public half in authorized_keys there",
    ),
    (
        r"[Cc]ould not resolve hostname",
        errors.SSH_UNREACHABLE,
        "the name of {to} is not known here",
        "check the name, or give the address, or an entry in ~/.ssh/config",
    ),
    (
        r"Connection refused|timed out|No route to host|Network is unreachable|Host is down",
        errors.SSH_UNREACHABLE,
        "{to} does not answer",
        "check that the host is up and that its ssh server listens there: `{command}`",
    ),
)
_BUSY = re.compile(r"kex_exchange_identification|Connection (closed|reset) by|banner exchange")


def explain_start(to: Destination, runner: str, code: int | None, said: str) -> EnginefarmError:
    """Why no connection came about. ``code``: ssh's exit code, None when it had to be ended; ``said``: what it wrote."""
    why = last_lines(said) or None
    place = f"[{to.host}]:{to.port}" if to.port not in (None, 22) else to.host
    names = {
        "to": to,
        "runner": runner,
        "command": to.command,
        "known_hosts": to.known_hosts or "~/.ssh/known_hosts",
        "place": place,
        "in_file": f" -f {to.known_hosts}" if to.known_hosts else "",
    }
    if TOO_OLD in said:
        return EnginefarmError(
            errors.SSH_PYTHON, f"{to.python} on {to} is too old", why=why, fix="set `python:` to one of 3.6 or newer there"
        )
    if code in (126, 127):
        fix = f"set `python:` of runner {runner} to a Python 3.6 or newer on that host"
        return EnginefarmError(errors.SSH_PYTHON, f"{to} has no {to.python} that can be started", why=why, fix=fix)
    if code is None:
        return EnginefarmError(errors.SSH_UNREACHABLE, f"{to} did not answer in time", why=why, fix=f"see what hangs: `{to.command} true`")
    if code == _SSH_FAILED:
        for pattern, kind, what, fix in _TEXTS:
            if re.search(pattern, said):
                return EnginefarmError(kind, what.format(**names), why=why, fix=fix.format(**names))
        return EnginefarmError(
            errors.SSH_UNREACHABLE, f"ssh does not reach {to}", why=why, fix=f"`{to.command} true` must work without a question"
        )
    what = f"{to.python} on {to} did not start: exit code {code}"
    return EnginefarmError(errors.SSH_PYTHON, what, why=why, fix=f"`{to.command} {to.python} --version` must say 3.6 or newer")


def is_passing(error: EnginefarmError) -> bool:
    """Whether a server only had no place for one more connection (MaxStartups, a restart): nothing has begun, so asking again is safe."""
    return error.kind is errors.SSH_UNREACHABLE and bool(_BUSY.search(error.why or ""))


def lost(to: Destination, runner: str, doing: str, why: str | None) -> EnginefarmError:
    """The connection ended while something was under way."""
    return EnginefarmError(errors.SSH_LOST, f"the connection of runner {runner} to {to} broke: could not {doing}", why=why)


def refused(to: Destination, runner: str, doing: str, kind: str, message: str) -> EnginefarmError:
    """An error that the remote end answered."""
    if kind == "disk-full":
        fix = f"`enginefarm runners clean {runner} --volumes` removes the files that enginefarm keeps there; or set `workdir`"
        return EnginefarmError(errors.DISK, f"the disk of runner {runner} is full: could not {doing}", why=message, fix=fix)
    if kind == "folder":
        fix = "set `workdir` to a folder that this user may write there"
        return EnginefarmError(errors.RUNNER_BROKEN, f"runner {runner} cannot use its folder on {to}", why=message, fix=fix)
    return EnginefarmError(errors.RUNNER_BROKEN, f"runner {runner} could not {doing} on {to}", why=message)


def last_lines(text: str, most: int = 4) -> str:
    """The end of what a program said, printable."""
    lines = ["".join(c if c.isprintable() else " " for c in line).strip() for line in text.splitlines()]
    return "\n".join([line for line in lines if line.strip("@ ")][-most:])
