"""The connection to one Docker engine (or Podman's compatible socket): unix, tcp with TLS, ssh, or a docker context.

An ssh engine is reached through one ``ssh`` process that forwards the engine's socket to a private one here. The SDK's own
ssh transport starts a process per connection and knows no timeouts, so a frozen engine or a dead line would block it for ever.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestrator import errors
from orchestrator.errors import EnginefarmError
from orchestrator.images.engine import is_podman
from orchestrator.runners.docker_errors import engine_errors

DEFAULT_SOCKET = "/var/run/docker.sock"
CONNECT_SECONDS = 20.0
TRANSFER_SECONDS = 120.0  # silence of the engine that is taken for its end while files are on their way
CONTROL_SECONDS = 4.0  # the same for short calls: stopping a step must be done within 5 s
_POOL = 32  # connections kept per client
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Tls:
    """Files of a TLS connection; without ``cert`` and ``key`` the engine does not ask who we are."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None


@dataclass(frozen=True)
class Address:
    """Where an engine is: ``unix://``, ``tcp://``, ``ssh://``, the name of a docker context; None: what the docker command would use."""

    text: str | None = None
    tls: Tls | None = None

    def __str__(self) -> str:
        return self.text or "default engine"


class Engine:
    """An open connection. ``client`` carries files and waits; ``control`` answers or gives up within seconds."""

    def __init__(self, address: Address, runner: str) -> None:
        """Connect. Raises EnginefarmError (ENGINE_UNREACHABLE, ENGINE_TLS)."""
        self.address = address
        self.runner = runner
        self._tunnel: _Tunnel | None = None
        with engine_errors(runner, f"reach the engine at {address}", errors.ENGINE_UNREACHABLE):
            url, tls = _resolve(address)
            if url.startswith("ssh://"):
                self._tunnel = _Tunnel(url)
                url = self._tunnel.url
            try:
                self.url = url
                self.client = _client(url, tls, None, TRANSFER_SECONDS)
                self.api = self.client.api
                self.control = _client(url, tls, self.api.api_version, CONTROL_SECONDS).api
                self.info: dict[str, Any] = self.client.info()
                self.version: dict[str, Any] = self.api.version()
            except BaseException:
                self.close()
                raise

    @property
    def id(self) -> str:
        """What tells this engine from every other one, however it was reached."""
        if is_podman(self.version):
            return f"podman {self.info.get('Name')} {self.info.get('DockerRootDir')}"
        return str(self.info.get("ID") or self.address)

    @property
    def platform(self) -> str:
        machine = str(self.info.get("Architecture", ""))
        return f"{self.info.get('OSType', 'linux')}/{_MACHINES.get(machine, machine)}"

    @property
    def is_local(self) -> bool:
        """Whether the engine seems to share this machine's kernel (a socket may be forwarded, or lead into a virtual machine)."""
        here = os.uname()
        same = self.info.get("KernelVersion") == here.release and self.info.get("Architecture") == here.machine
        return self._tunnel is None and self.url.startswith("unix://") and same

    def close(self) -> None:
        for name in ("client", "control"):
            if hasattr(self, name):
                getattr(self, name).close()
        if self._tunnel is not None:
            self._tunnel.close()


def _client(url: str, tls: Any, version: str | None, seconds: float) -> Any:
    """A DockerClient that takes nothing from the environment: proxies and CA bundles there are not meant for engines."""
    import docker
    from docker.constants import DEFAULT_DOCKER_API_VERSION, MINIMUM_DOCKER_API_VERSION

    options: dict[str, Any] = {"base_url": url, "tls": tls or False, "timeout": seconds, "max_pool_size": _POOL}
    if version is None:
        first = docker.DockerClient(version=MINIMUM_DOCKER_API_VERSION, **{**options, "timeout": CONNECT_SECONDS})
        first.api.trust_env = False
        try:
            theirs = str(first.api.version(api_version=False)["ApiVersion"])
        finally:
            first.close()
        version = min(theirs, DEFAULT_DOCKER_API_VERSION, key=lambda text: [int(part) for part in text.split(".")])
    client = docker.DockerClient(version=version, **options)
    client.api.trust_env = False
    return client


def _resolve(address: Address) -> tuple[str, Any]:
    """URL and TLS configuration. Raises EnginefarmError for a context that does not exist."""
    from docker.tls import TLSConfig

    if address.text and "://" in address.text:
        url, tls = address.text, address.tls
    else:
        url, tls = find_context(address.text)
    if tls is None:
        return url, None
    pair = (tls.cert, tls.key) if tls.cert and tls.key else None
    return url, TLSConfig(client_cert=pair, ca_cert=tls.ca, verify=True)


def find_context(name: str | None) -> tuple[str, Tls | None]:
    """What the docker command would connect to: DOCKER_HOST, the context ``name``, or the current one, or the usual socket.

    Read here, not by the SDK, which finds no context as long as there is no config.json. Raises EnginefarmError when it does not exist.
    """
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    if name is None and os.environ.get("DOCKER_HOST"):
        place = Path(os.environ.get("DOCKER_CERT_PATH") or folder)
        return os.environ["DOCKER_HOST"], _tls_files(place) if os.environ.get("DOCKER_TLS_VERIFY") else None
    name = name or os.environ.get("DOCKER_CONTEXT") or _current_context(folder) or "default"
    if name == "default":
        return f"unix://{DEFAULT_SOCKET}", None
    number = hashlib.sha256(name.encode()).hexdigest()
    try:
        meta = json.loads((folder / "contexts" / "meta" / number / "meta.json").read_bytes())
        return str(meta["Endpoints"]["docker"]["Host"]), _tls_files(folder / "contexts" / "tls" / number / "docker")
    except (OSError, ValueError, KeyError, TypeError):
        fix = "`docker context ls` lists them; or write unix://, tcp:// or ssh://"
        raise EnginefarmError(errors.ENGINE_UNREACHABLE, f"there is no docker context {name}", fix=fix) from None


def _current_context(folder: Path) -> str | None:
    try:
        return json.loads((folder / "config.json").read_bytes()).get("currentContext") or None
    except (OSError, ValueError, AttributeError):
        return None


def _tls_files(folder: Path) -> Tls | None:
    files = {name: str(folder / f"{name}.pem") for name in ("ca", "cert", "key") if (folder / f"{name}.pem").is_file()}
    return Tls(**files) if files else None


def default_is_configured() -> bool:
    """Whether the docker command was told of an engine, or one has its usual socket here; none is asked."""
    try:
        url, _ = find_context(None)
    except EnginefarmError:
        return False
    return url != f"unix://{DEFAULT_SOCKET}" or Path(DEFAULT_SOCKET).exists()


class _Tunnel:
    """``ssh`` that forwards the engine's socket. It ends with this process: its remote command reads from our pipe."""

    def __init__(self, url: str) -> None:
        """Raises EnginefarmError ENGINE_UNREACHABLE with what ssh said."""
        parts = urlsplit(url)
        if not parts.hostname or parts.hostname.startswith("-"):
            raise EnginefarmError(errors.ENGINE_UNREACHABLE, f"{url} names no host", fix="write ssh://USER@HOST")
        self._folder = tempfile.mkdtemp(prefix="enginefarm-ssh-")
        socket = f"{self._folder}/s"
        self.url = f"unix://{socket}"
        options = ("BatchMode=yes", "ExitOnForwardFailure=yes", "ServerAliveInterval=5", "ServerAliveCountMax=3", "ControlPath=none")
        command = ["ssh", "-T", "-o", f"ConnectTimeout={CONNECT_SECONDS:.0f}"]
        command += [word for option in options for word in ("-o", option)]
        command += ["-L", f"{socket}:{parts.path if parts.path not in ('', '/') else DEFAULT_SOCKET}"]
        command += ["-p", str(parts.port)] if parts.port else []
        command += ["-l", parts.username] if parts.username else []
        self._errors = Path(self._folder) / "stderr"
        with self._errors.open("wb") as errors_file:
            self._process = subprocess.Popen(
                [*command, "--", parts.hostname, "echo ready; exec cat"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors_file,
                start_new_session=True,  # Ctrl-C must not end it before the steps are cleaned up
            )
        timer = threading.Timer(CONNECT_SECONDS + 5, self._process.kill)
        timer.start()
        try:
            assert self._process.stdout is not None  # noqa: S101  (PIPE above)
            ready = self._process.stdout.readline().strip() == b"ready"
        finally:
            timer.cancel()
        if not ready:
            said = self._errors.read_text("utf-8", "replace").strip().splitlines()
            self.close()
            raise EnginefarmError(
                errors.ENGINE_UNREACHABLE,
                f"ssh does not reach {parts.hostname}",
                why=said[-1] if said else None,
                fix=f"`ssh {parts.hostname} docker version` must work without a question: key, agent and known_hosts set up",
            )

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.terminate()
        try:
            self._process.wait(2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
