"""A Docker Engine out of a folder (kit.py makes it), on a machine that has none, and a record of what its containers were."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import docker.errors

from orchestrator.runners import docker_labels as marks

UP_SECONDS = 60
_STOP_SECONDS = 20


class KitEngine:
    """``dockerd`` of ``folder`` (``bin``, ``lib``), with everything that it writes below ``place``."""

    def __init__(self, folder: Path, place: Path) -> None:
        self.folder, self.place = folder, place
        self.url = f"unix://{place}/sock"
        self.storage = ""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> KitEngine:
        """With overlay2 where the disk can carry it, else vfs, which copies an image for every container. Raises RuntimeError."""
        said = []
        for self.storage in ("overlay2", "vfs"):
            self._launch()
            if self._is_up():
                return self
            said.append((self.place / "log").read_text("utf-8", "replace")[-1500:])
            self.stop()
        raise RuntimeError("dockerd does not start: " + "\n---\n".join(said))

    def _launch(self) -> None:
        place = self.place
        (place / "exec").mkdir(parents=True, exist_ok=True)
        (place / "pid").unlink(missing_ok=True)
        command = [self.folder / "bin/dockerd", "--data-root", place / f"data-{self.storage}", "--exec-root", place / "exec"]
        command += ["--pidfile", place / "pid", "-H", self.url, "--storage-driver", self.storage, "--shutdown-timeout=2"]
        command += ["--bridge=none", "--iptables=false", "--ip6tables=false", "--exec-opt", "native.cgroupdriver=cgroupfs"]
        path = f"{self.folder}/bin:{os.environ.get('PATH', '/usr/bin:/bin')}"
        environment = {**os.environ, "PATH": path, "LD_LIBRARY_PATH": str(self.folder / "lib")}
        with (place / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [str(word) for word in command], stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
            )

    def _is_up(self) -> bool:
        until = time.monotonic() + UP_SECONDS
        while self._process is not None and self._process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(Exception):
                client = self.client()
                client.ping()
                client.close()
                return True
            time.sleep(0.1)
        return False

    def client(self) -> Any:
        return docker.DockerClient(self.url, version="1.41", timeout=120)

    def stop(self) -> None:
        """Ends it with its containerd; containers end with it."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        # one that failed to start leaves its data mounted on itself
        subprocess.run(["umount", "--lazy", self.place / f"data-{self.storage}"], stderr=subprocess.DEVNULL, check=False)


class Watcher:
    """Follows the engine's events: for every container of enginefarm what it was, and when it started and ended by the engine's clock."""

    def __init__(self, engine: KitEngine) -> None:
        self._client, self._inspector = engine.client(), engine.client()
        self._seen: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self.ended: str | None = None
        self._events = self._client.api.events(decode=True, filters={"type": "container", "label": marks.KIND})
        threading.Thread(target=self._follow, name="events", daemon=True).start()

    def _follow(self) -> None:
        try:
            for event in self._events:
                self._note(event)
        except Exception as error:  # noqa: BLE001  (also the way in which the stream ends with the engine)
            self.ended = f"{type(error).__name__}: {error}"

    def _note(self, event: dict[str, Any]) -> None:
        action, name = event["Action"], event["Actor"]["ID"]
        if action not in ("create", "start", "die", "destroy"):
            return
        labels = event["Actor"]["Attributes"]
        with self._lock:
            known = self._seen.setdefault(name, {"id": name, "kind": labels.get(marks.KIND), "gpu": labels.get(marks.GPU)})
            known |= {"owner": marks.owner_name(labels.get(marks.OWNER)), action: event["timeNano"] / 1e9}
            if action == "die":
                known["exit_code"] = int(labels.get("exitCode", -1))
        if action == "create":
            with contextlib.suppress(docker.errors.NotFound):  # a lease can be gone by now
                found = self._inspector.api.inspect_container(name)
                with self._lock:
                    self._seen[name]["locked_down"] = lock_down(found)

    def containers(self, since: float = 0.0, kind: str = "step") -> list[dict[str, Any]]:
        """Those created since a time of this machine, oldest first."""
        with self._lock:
            found = [dict(item) for item in self._seen.values() if item["kind"] == kind and item.get("create", 0.0) >= since]
        return sorted(found, key=lambda item: item["create"])

    def wait_for(self, seconds: float, condition: Callable[[], bool], while_: Callable[[], bool]) -> bool:
        """Until ``condition()`` holds; false when it does not in time, or ``while_()`` ends."""
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until or not while_():
                return False
            time.sleep(0.05)
        return True

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._events.close()
        self._client.close()
        self._inspector.close()


def lock_down(found: dict[str, Any]) -> dict[str, Any]:
    """What a container may do, out of what the engine says of it."""
    config, host = found["Config"], found["HostConfig"]
    return {
        "user": config["User"],
        "network": host["NetworkMode"],
        "read_only_root": host["ReadonlyRootfs"],
        "cap_drop": host["CapDrop"],
        "cap_add": host["CapAdd"],
        "security_opt": host["SecurityOpt"],
        "privileged": host["Privileged"],
        "pids": host["PidsLimit"],
        "memory": host["Memory"],
        "memory_and_swap": host["MemorySwap"],
        "shm": host["ShmSize"],
        "init": host.get("Init"),
        "devices": [device["PathOnHost"] for device in host["Devices"] or []],
        "tmpfs": host.get("Tmpfs"),
        "mounts": [[mount["Type"], mount["Destination"], "rw" if mount["RW"] else "ro"] for mount in found["Mounts"]],
        "entrypoint": config["Entrypoint"],
        "environment": sorted(line.split("=")[0] for line in config["Env"]),
    }


def loose(locked: dict[str, Any], devices: list[str]) -> list[str]:
    """What is not as locked down as it must be; ``devices`` are the nodes that a step may have."""
    expected = {
        "network": "none", "read_only_root": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges"], "privileged": False,
        "init": True, "devices": devices,
    }  # fmt: skip
    wrong = [f"{name} is {locked[name]}" for name, value in expected.items() if locked[name] != value]
    wrong += ["capabilities were added"] * bool(locked["cap_add"]) + ["it runs as root"] * locked["user"].startswith(("0", "root"))
    wrong += [f"{name} has no limit" for name in ("pids", "memory") if not locked[name]]
    wrong += [f"{where} can be written" for kind, where, mode in locked["mounts"] if kind == "bind" and mode != "ro"]
    return wrong


def overlaps(steps: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Pairs of containers on one GPU that ran at the same time; one that was not seen to end overlaps with everything after it."""
    ordered = sorted((step for step in steps if "start" in step), key=lambda step: step["start"])
    return [
        (one["id"][:12], other["id"][:12])
        for index, one in enumerate(ordered)
        for other in ordered[index + 1 :]
        if one["gpu"] == other["gpu"] and other["start"] < one.get("die", float("inf"))
    ]
