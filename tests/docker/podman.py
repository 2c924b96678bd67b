"""Podman's Docker-compatible socket as an engine of the tests' own, in namespaces of its own like those of engines.py."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import docker

UP_SECONDS = 30
# what podman would set by default may be more than this machine lets it
_LIMITS = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}


class LocalPodman:
    """``podman system service`` with storage and socket of its own. ``insecure``: registries that it may ask over plain HTTP."""

    def __init__(self, name: str, insecure: tuple[str, ...] = ()) -> None:
        self.name = name
        self.folder = Path(tempfile.mkdtemp(prefix=f"ef-{name}-"))
        self.url = f"unix://{self.folder}/sock"
        own = {key: min(4096, resource.getrlimit(kind)[1]) for key, kind in _LIMITS.items()}
        limits = ", ".join(f'"{key}={value}:{value}"' for key, value in own.items())
        (self.folder / "containers.conf").write_text(f"[containers]\ndefault_ulimits = [{limits}]\n")
        lines = [f'[[registry]]\nlocation = "{place}"\ninsecure = true\n' for place in insecure]
        (self.folder / "registries.conf").write_text("".join(lines))
        (self.folder / "policy.json").write_text('{"default": [{"type": "insecureAcceptAnything"}]}\n')
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> LocalPodman:
        place = self.folder
        places = [word for name in ("root", "runroot", "tmpdir") for word in (f"--{name}", f"{place}/{name}")]
        podman = [
            "podman",
            *places,
            "--cgroup-manager",
            "cgroupfs",
            "--events-backend",
            "file",
            "system",
            "service",
            "--time",
            "0",
            self.url,
        ]
        namespaces = ["--uts", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--propagation", "slave"]
        settings = {
            f"CONTAINERS_{name}": f"{place}/{file}" for name, file in (("CONF", "containers.conf"), ("REGISTRIES_CONF", "registries.conf"))
        }
        with (place / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["unshare", *namespaces, *podman],
                env={**os.environ, **settings},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._wait_until_up()
        return self

    def _wait_until_up(self) -> None:
        until = time.monotonic() + UP_SECONDS
        while True:
            try:
                client = self.client()
                client.ping()
                client.close()
            except Exception as error:  # noqa: PERF203
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError((self.folder / "log").read_text()[-2000:]) from error
                time.sleep(0.1)
            else:
                return

    def client(self) -> Any:
        return docker.DockerClient(self.url, version="1.41", timeout=30)

    def containers(self) -> list[dict[str, Any]]:
        client = self.client()
        try:
            found: list[dict[str, Any]] = client.api.containers(all=True)
            return found
        finally:
            client.close()

    def cut_power(self) -> None:
        """Podman and its containers are gone at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        self.cut_power()
        for mounted in _mounts_under(self.folder):
            subprocess.run(["umount", "-l", mounted], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def _mounts_under(folder: Path) -> list[str]:
    places = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted((place for place in places if place.startswith(f"{folder}/")), reverse=True)
