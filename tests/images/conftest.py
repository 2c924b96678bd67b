"""Real registries on loopback (Debian's docker-registry), a gate before one that injects faults, and a Docker Engine of our own.

Images are made here byte by byte and put into a registry over its API, so that no test needs an engine to have an image.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.client
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests
import stamina

from orchestrator.images.credentials import Credentials
from orchestrator.images.policy import Policy, policy

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
NO_CONFIG = Path("/nonexistent/config.json")


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for(ready: Callable[[], bool], what: str, process: subprocess.Popen[bytes] | None = None) -> None:
    for _ in range(300):
        if ready():
            return
        assert process is None or process.poll() is None, f"{what} ended with {process and process.returncode}"
        time.sleep(0.1)
    pytest.fail(f"{what} did not come up in 30 s")


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def layer(files: dict[str, bytes]) -> tuple[bytes, str]:
    """A gzipped layer, and the digest of its tar."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o755
            tar.addfile(info, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=0), digest_of(raw.getvalue())


@dataclass
class RegistryServer:
    """One docker-registry process; ``host`` is ``127.0.0.1:PORT``."""

    host: str
    scheme: str = "http"
    ca: Path | None = None
    login: tuple[str, str] | None = None
    session: requests.Session = field(default_factory=requests.Session)

    def call(self, method: str, path: str, **options: Any) -> requests.Response:
        url = path if path.startswith("http") else f"{self.scheme}://{self.host}{path}"
        verify = str(self.ca) if self.ca else True
        answer = self.session.request(method, url, auth=self.login, verify=verify, timeout=30, **options)
        answer.raise_for_status()
        return answer

    def put_blob(self, repository: str, data: bytes) -> dict[str, Any]:
        place = self.call("POST", f"/v2/{repository}/blobs/uploads/").headers["Location"]
        self.call("PUT", place + ("&" if "?" in place else "?") + f"digest={digest_of(data)}", data=data)
        return {"digest": digest_of(data), "size": len(data)}

    def put_manifest(self, repository: str, tag: str | None, manifest: dict[str, Any]) -> str:
        body = json.dumps(manifest).encode()
        name = tag or digest_of(body)
        self.call("PUT", f"/v2/{repository}/manifests/{name}", data=body, headers={"Content-Type": manifest["mediaType"]})
        return digest_of(body)

    def put_image(
        self,
        repository: str,
        tag: str | None = None,
        *,
        platform: str = "linux/amd64",
        env: dict[str, str] | None = None,
        files: dict[str, bytes] | None = None,
        cmd: list[str] | None = None,
    ) -> str:
        """Put a small image; its manifest's digest."""
        blob, diff_id = layer(files or {"hello": b"hello\n"})
        os_name, architecture = platform.split("/")
        config = {
            "os": os_name,
            "architecture": architecture,
            "config": {"Env": [f"{name}={value}" for name, value in (env or {}).items()], "Cmd": cmd or ["/hello"]},
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
            "history": [{"created_by": "test"}],
        }
        described = self.put_blob(repository, json.dumps(config).encode())
        layers = [self.put_blob(repository, blob) | {"mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip"}]
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": described | {"mediaType": "application/vnd.docker.container.image.v1+json"},
            "layers": layers,
        }
        return self.put_manifest(repository, tag, manifest)

    def put_list(self, repository: str, tag: str, platforms: dict[str, str]) -> str:
        """Put a list of manifests: platform -> digest."""
        entries = []
        for platform, digest in platforms.items():
            os_name, architecture, *variant = platform.split("/")
            described = {"os": os_name, "architecture": architecture} | ({"variant": variant[0]} if variant else {})
            size = int(self.call("HEAD", f"/v2/{repository}/manifests/{digest}", headers={"Accept": MANIFEST}).headers["Content-Length"])
            entries.append({"mediaType": MANIFEST, "digest": digest, "size": size, "platform": described})
        return self.put_manifest(repository, tag, {"schemaVersion": 2, "mediaType": LIST, "manifests": entries})


Start = Callable[..., RegistryServer]


@pytest.fixture(scope="session")
def start_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts registries that live as long as the session: ``start_registry(login=("user", "password"), tls=True)``."""
    if shutil.which("docker-registry") is None:
        pytest.skip("docker-registry is not installed")
    processes: list[subprocess.Popen[bytes]] = []

    def start(login: tuple[str, str] | None = None, tls: bool = False, names: str = "IP:127.0.0.1") -> RegistryServer:
        folder = tmp_path_factory.mktemp("registry")
        port = free_port()
        config: dict[str, Any] = {
            "version": 0.1,
            "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
            "http": {"addr": f"127.0.0.1:{port}"},
        }
        if login:
            line = subprocess.run(["htpasswd", "-Bbn", *login], check=True, capture_output=True).stdout
            (folder / "htpasswd").write_bytes(line)
            config["auth"] = {"htpasswd": {"realm": "test", "path": str(folder / "htpasswd")}}
        if tls:
            make_certificate(folder, names)
            config["http"]["tls"] = {"certificate": str(folder / "server.crt"), "key": str(folder / "server.key")}
        (folder / "config.yml").write_text(json.dumps(config))
        log = (folder / "log").open("wb")
        process = subprocess.Popen(["docker-registry", "serve", str(folder / "config.yml")], stdout=log, stderr=log)
        processes.append(process)
        wait_for(lambda: answers(port), "docker-registry", process)
        return RegistryServer(f"127.0.0.1:{port}", "https" if tls else "http", folder / "ca.crt" if tls else None, login)

    yield start
    for process in processes:
        process.terminate()
        process.wait(10)


def make_certificate(folder: Path, names: str) -> None:
    """ca.crt, server.crt and server.key for ``IP:127.0.0.1`` or ``DNS:name``."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)

    new = ("req", "-newkey", "rsa:2048", "-nodes", "-keyout")
    openssl(*new, "ca.key", "-x509", "-days", "2", "-subj", "/CN=test authority", "-out", "ca.crt")
    openssl(*new, "server.key", "-subj", "/CN=registry", "-out", "server.csr")
    (folder / "names").write_text(f"subjectAltName={names}\n")
    openssl(
        "x509",
        "-req",
        "-in",
        "server.csr",
        "-CA",
        "ca.crt",
        "-CAkey",
        "ca.key",
        "-CAcreateserial",
        "-days",
        "2",
        "-extfile",
        "names",
        "-out",
        "server.crt",
    )


@pytest.fixture(scope="session")
def registry(start_registry: Start) -> RegistryServer:
    """A registry without login or TLS."""
    return start_registry()


@dataclass
class Gate:
    """A front before a registry. ``faults`` are used up one per request that matches ``only``: a function may answer in its stead.

    ``bearer``: wants ``(user, password)`` at its token endpoint and then the token.
    """

    host: str
    faults: list[Callable[[BaseHTTPRequestHandler], bool]] = field(default_factory=list)
    only: str = "/manifests/"
    bearer: tuple[str, str] | None = None
    realm: str = ""
    seen: list[tuple[str, str]] = field(default_factory=list)
    change: Callable[[str, bytes], bytes] | None = None

    @property
    def asked(self) -> list[str]:
        return [path for path, _ in self.seen]


def answer(status: int, body: bytes = b"", **headers: str) -> Callable[[BaseHTTPRequestHandler], bool]:
    def send(handler: BaseHTTPRequestHandler) -> bool:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)
        return True

    return send


def hang_up(handler: BaseHTTPRequestHandler) -> bool:
    handler.connection.shutdown(socket.SHUT_RDWR)
    return True


class _GateHandler(BaseHTTPRequestHandler):
    """Serves one :class:`Gate`; ``server`` carries it, and the registry behind."""

    server: _GateServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        state, authorization = self.server.gate, self.headers.get("Authorization", "")
        state.seen.append((self.path, authorization))
        if self.path.startswith("/token"):
            self._token(state, authorization)
        elif state.bearer and authorization != "Bearer open-sesame":
            realm = state.realm or f"http://{state.host}/token"
            answer(401, b"{}", WWW_Authenticate=f'Bearer realm="{realm}",service="gate",scope="repository:x:pull"')(self)
        elif not (state.only in self.path and state.faults and state.faults.pop(0)(self)):
            self._forward(state)

    do_HEAD = do_GET  # noqa: N815

    def _token(self, state: Gate, authorization: str) -> None:
        wanted = "Basic " + base64.b64encode(":".join(state.bearer or ()).encode()).decode()
        if authorization == wanted:
            answer(200, b'{"token": "open-sesame"}')(self)
        else:
            answer(401, b'{"errors": [{"code": "UNAUTHORIZED", "message": "who are you?"}]}')(self)

    def _forward(self, state: Gate) -> None:
        host, number = self.server.behind.split(":")
        connection = http.client.HTTPConnection(host, int(number), timeout=30)
        kept = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "authorization")}
        connection.request(self.command, self.path, headers=kept)
        got = connection.getresponse()
        body = got.read()
        changed = state.change(self.path, body) if state.change else body
        # a registry that lies would not give the true digest along
        dropped = {"content-length", "transfer-encoding"} | (set() if changed == body else {"docker-content-digest"})
        self.send_response(got.status)
        for name, value in got.getheaders():
            if name.lower() not in dropped:
                self.send_header(name, value)
        size = got.getheader("Content-Length") if self.command == "HEAD" else str(len(changed))
        self.send_header("Content-Length", size or "0")
        self.end_headers()
        self.wfile.write(changed)
        connection.close()


class _GateServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, gate: Gate, behind: str) -> None:
        super().__init__(("127.0.0.1", int(gate.host.split(":")[1])), _GateHandler)
        self.gate, self.behind = gate, behind


@pytest.fixture
def gate(registry: RegistryServer) -> Iterator[Gate]:
    """A gate before :func:`registry`."""
    state = Gate(f"127.0.0.1:{free_port()}")
    server = _GateServer(state, registry.host)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


def mirrored(server: RegistryServer | Gate) -> Policy:
    """nvcr.io fetched from a registry on loopback."""
    return policy(mirrors={"nvcr.io/": f"{server.host}/nvcr/"})


def nobody(**environment: str) -> Credentials:
    return Credentials(NO_CONFIG, environment)


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """Retries without the waits between them; the number of attempts stays."""
    stamina.set_testing(True, attempts=4)
    yield
    stamina.set_testing(False)


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Docker Engine of our own, in namespaces of its own, ended as by a power cut."""
    client, process = start_engine(tmp_path_factory.mktemp("engine"))
    yield client
    stop_engine(client, process)


def start_engine(folder: Path, *more: str) -> tuple[Any, subprocess.Popen[bytes]]:
    dockerd = shutil.which("dockerd") or shutil.which("dockerd", path="/usr/sbin:/usr/bin")
    if dockerd is None or os.geteuid() != 0:
        pytest.skip("dockerd as root is needed")
    import docker

    (folder / "etc").mkdir()
    place = {"data-root": folder / "data", "exec-root": folder / "exec", "pidfile": folder / "pid"}
    words = [dockerd, *(f"--{name}={value}" for name, value in place.items()), f"--host=unix://{folder}/sock"]
    words += ["--bridge=none", "--iptables=false", "--ip6tables=false", *more]
    script = f'mount --bind {folder}/etc /etc/docker; exec "$@"'
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--propagation", "slave"]
    Path("/etc/docker").mkdir(exist_ok=True)
    log = (folder / "log").open("wb")
    process = subprocess.Popen([*unshare, "sh", "-c", script, "sh", *words], stdout=log, stderr=log, start_new_session=True)
    client = None
    try:
        wait_for(lambda: (folder / "sock").exists() and _pings(folder), "dockerd", process)
        client = docker.DockerClient(f"unix://{folder}/sock", timeout=60)
    except BaseException:
        stop_engine(client, process)
        raise
    return client, process


def _pings(folder: Path) -> bool:
    import docker
    import docker.errors

    try:
        client = docker.DockerClient(f"unix://{folder}/sock", timeout=5)
        client.ping()
        client.close()
    except (docker.errors.DockerException, requests.exceptions.RequestException):
        return False
    return True


def stop_engine(client: Any, process: subprocess.Popen[bytes]) -> None:
    if client is not None:
        client.close()
    process.send_signal(signal.SIGKILL)
    process.wait(10)
