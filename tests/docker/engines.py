"""Docker engines of the tests' own: each in its own PID, UTS and mount namespace, so that killing its first process is a power loss."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import docker

UP_SECONDS = 60


class LocalEngine:
    """A ``dockerd`` with a socket of its own, and more addresses when ``listen`` names them. ``data``: its disk, by default a folder."""

    def __init__(self, name: str, listen: tuple[str, ...] = (), flags: tuple[str, ...] = (), data: Path | None = None) -> None:
        self.name = name
        self.folder = Path(tempfile.mkdtemp(prefix=f"ef-{name}-"))
        self.url = f"unix://{self.folder}/sock"
        self._listen, self._flags = listen, flags
        self._data = data or self.folder / "data"
        for place in (self.folder / "etc", self._data, self.folder / "exec"):
            place.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> LocalEngine:
        place = self.folder
        shutil.rmtree(place / "exec", ignore_errors=True)  # /run of a machine that was switched off
        (place / "exec").mkdir()
        (place / "pid").unlink(missing_ok=True)
        daemon = ["dockerd", "--data-root", str(self._data), "--exec-root", f"{place}/exec", "--pidfile", f"{place}/pid", "-H", self.url]
        daemon += [word for address in self._listen for word in ("-H", address)]
        daemon += ["--bridge=none", "--iptables=false", "--ip6tables=false", "--shutdown-timeout=2", *self._flags]
        # an own /etc/docker: the engine's ID lies there
        inside = 'hostname "$0"; mount --bind "$1" /etc/docker; shift; exec "$@"'
        namespaces = ["--uts", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", "--propagation", "slave"]
        Path("/etc/docker").mkdir(exist_ok=True)
        with (place / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["unshare", *namespaces, "sh", "-c", inside, self.name, f"{place}/etc", *daemon],
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

    def daemon_pid(self) -> int:
        assert self._process is not None
        pid = self._process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def freeze(self) -> None:
        os.kill(self.daemon_pid(), signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.daemon_pid(), signal.SIGCONT)

    def cut_power(self) -> None:
        """The engine, its shims and its containers are gone at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def containers(self) -> list[dict[str, Any]]:
        client = self.client()
        try:
            found: list[dict[str, Any]] = client.api.containers(all=True)
            return found
        finally:
            client.close()

    def stop(self) -> None:
        self.cut_power()
        for _attempt in range(20):
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                return
            time.sleep(0.1)
