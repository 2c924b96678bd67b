"""On a machine with an NVIDIA GPU, without Docker and without network: probe, lease and the whole way of ``ort-cuda`` in containers.

    PYTHONPATH=. python tests/gpu/docker_h200.py --engine FOLDER --out OUT.json [--rehearse]

Started as root by on_device.py, in an environment with the project's dependencies and onnxruntime-gpu. FOLDER holds Debian's dockerd
(kit.py). Every step is the project's own command on a runner with explicit devices; what it left is written as JSON, a step that breaks
stops no other one, and the exit code is 1 when anything is not as it must be. ``--rehearse``: no GPU; the image's CUDA provider is a
named double (cuda_double.py) and the device nodes are /dev/zero and /dev/full; the rest is the same.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

import cuda_double
import escapes
import gpu_image
from kit_engine import KitEngine, Watcher, loose, overlaps

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
IMAGE, TRICK_IMAGE = "enginefarm-gpu/ort:1", "enginefarm-gpu/look:1"
TARGET = "ort-cuda"
CAPABILITY = "9.0"
SOAK_SECONDS = 20  # a second run must have come as far as the lease by then
_NODES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_WAITING = re.compile(r"waiting for .+: held by .+")


class Proof:
    """What the checks share."""

    def __init__(self, engine: KitEngine, place: Path, rehearse: bool) -> None:
        self.engine, self.place, self.rehearse = engine, place, rehearse
        self.devices = ["/dev/zero", "/dev/full"] if rehearse else [node for node in _NODES if Path(node).is_char_device()]
        self.driver = gpu_image.driver_folder(place)
        self.watcher: Watcher | None = None
        self.runners = place / "runners.yaml"

    # --- the command as a user runs it ---

    def start(self, folder: Path, *words: str) -> subprocess.Popen[str]:
        hidden = ("CI", "PYTHONPATH", "LD_LIBRARY_PATH", "DOCKER_HOST")
        environment = {name: value for name, value in os.environ.items() if name not in hidden and not name.startswith("ENGINEFARM_")}
        environment |= {"PYTHONPATH": str(ROOT), "ENGINEFARM_RUNNERS": str(self.runners)}
        command = [sys.executable, "-m", "orchestrator", *words]
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(self, folder: Path, *words: str) -> tuple[int, str, str]:
        process = self.start(folder, *words)
        try:
            out, err = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        return process.returncode, out, err

    def project(self, name: str, soak: int = 0) -> Path:
        """A folder with the example model; ``soak``: seconds that its validation keeps the GPU."""
        folder = self.place / name
        (folder / "targets").mkdir(parents=True)
        for file in ("lane.onnx", "lane.yaml"):
            shutil.copy(ROOT / "examples" / file, folder)
        if soak:
            (folder / f"targets/{TARGET}.yaml").write_text(f"name: {TARGET}\nvalidation: {{soak: {soak}}}\n")
        return folder

    def steps(self, since: float) -> list[dict[str, Any]]:
        """The containers of steps since then, each with what is too loose about it; those that hold a GPU's lease name the GPU.

        A run starts with a probe, which holds no lease: it asks NVML, and makes no GPU context.
        """
        assert self.watcher is not None
        found = self.watcher.containers(since)
        for step in found:
            step["too_loose"] = loose(step["locked_down"], self.devices) if "locked_down" in step else ["it was not seen"]
        return found

    # --- the checks ---

    def machine(self) -> dict[str, Any]:
        smi = shutil.which("nvidia-smi") or str(self.driver.parent / "bin/nvidia-smi") if self.driver else "nvidia-smi"
        return {
            "kernel": platform.release(),
            "os": platform.freedesktop_os_release().get("PRETTY_NAME"),
            "python": platform.python_version(),
            "libc": " ".join(platform.libc_ver()),
            "cpus": os.cpu_count(),
            "nvidia_smi": _said([smi, "--query-gpu=name,uuid,driver_version,memory.total,compute_cap,mig.mode.current", "--format=csv"]),
            "devices": self.devices,
            "driver_folder": str(self.driver) if self.driver else None,
            "ok": self.rehearse or len(self.devices) >= 3,
        }

    def docker(self) -> dict[str, Any]:
        started = time.monotonic()
        self.engine.start()
        seconds = time.monotonic() - started
        client = self.engine.client()
        info = client.info()
        client.close()
        self.watcher = Watcher(self.engine)
        names = (
            "ServerVersion",
            "Driver",
            "CgroupVersion",
            "CgroupDriver",
            "KernelVersion",
            "OperatingSystem",
            "Runtimes",
            "DefaultRuntime",
        )
        found = {name: sorted(info[name]) if name == "Runtimes" else info.get(name) for name in names}
        return {**found, "warnings": info.get("Warnings"), "up_seconds": round(seconds, 2), "ok": "nvidia" not in info["Runtimes"]}

    def image(self) -> dict[str, Any]:
        """The images: one of this machine's own Python, onnxruntime and CUDA libraries; one over it whose onnxruntime looks around."""
        started = time.monotonic()
        own = Path(sysconfig.get_path("purelib"))
        replaced = cuda_double.files(gpu_image.site_folder(), own) if self.rehearse else {}
        roots = [own, Path(_said(["python3", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]))]
        cuda = gpu_image.cuda_folders(dict.fromkeys(roots))
        contents = gpu_image.Contents(cuda, self.driver / "lib64" if self.driver else None, replaced)
        client = self.engine.client()
        double = [f"ENV DOUBLE_CAPABILITY={CAPABILITY}"] if self.rehearse else []
        gpu_image.import_image(client.api, contents, IMAGE, double)
        client.images.build(fileobj=escapes.context(IMAGE), custom_context=True, tag=TRICK_IMAGE)
        shown = client.images.get(IMAGE)
        client.close()
        self._write_runners()
        return {
            "id": shown.id,
            "size_bytes": shown.attrs["Size"],
            "files": len(contents.files),
            "cuda_libraries": sorted(contents.cuda),
            "not_found": contents.missing,
            "seconds": round(time.monotonic() - started, 1),
            "ok": not contents.missing and (self.rehearse or bool(contents.cuda)),
        }

    def _write_runners(self) -> None:
        folder = self.driver or self.place / "no-driver"
        (folder / "lib64").mkdir(parents=True, exist_ok=True)
        gpu = f"{{mode: devices, devices: [{', '.join(self.devices)}], driver_folder: {folder}}}"
        lines = ["runners:", "  gpu:", "    type: docker", f"    engine: {self.engine.url}", f"    gpu: {gpu}", "    slots: 2"]
        self.runners.write_text("\n".join([*lines, f"    probe_image: {IMAGE}", ""]))

    def probe(self) -> dict[str, Any]:
        """``runners probe`` looks through a locked-down container."""
        since = time.time()
        code, out, err = self.run(self.place, "runners", "probe", "--json")
        (row,) = json.loads(out)["runners"]
        host = row["host"]
        gpus, steps = host["gpus"], self.steps(since)
        named = [gpu for gpu in gpus if gpu["compute_capability"] == CAPABILITY and gpu["uuid"] and gpu["memory_bytes"]]
        return {
            "exit_code": code,
            "gpus": gpus,
            "mig": host["mig"],
            "driver": host["driver"],
            "onnxruntime": host["backends"]["onnxruntime"],
            "gpu_problem": host.get("gpu_problem"),
            "gpu_access": host["engine"]["gpu_access"],
            "containers": steps,
            "stderr": err[-2000:],
            "ok": code == 0 and len(named) == 1 and bool(host["driver"]) and len(steps) == 1 and not steps[0]["too_loose"],
        }

    def whole_way(self) -> dict[str, Any]:
        """Built in one container, validated in a fresh one against onnx.reference, committed as passed."""
        since = time.time()
        folder = self.project("whole")
        answer = self._build(folder)
        held, steps = _record(folder), self.steps(since)
        if held is None:
            return {**answer, "containers": steps, "ok": False}
        verdict, on_gpu = held["verdict"], [step for step in steps if step["gpu"]]
        return {
            **answer,
            "verdict": verdict,
            "built_on": held["built_on"],
            "file": held["file"],
            "backend_version": held["backend_version"],
            "containers": steps,
            "ok": answer["exit_code"] == 0
            and (verdict["status"], verdict["reference"]) == ("passed", "onnx.reference")
            and CAPABILITY in verdict["device"]
            and len({step["id"] for step in on_gpu}) == len(on_gpu) == 2
            and all(step["exit_code"] == 0 and not step["too_loose"] for step in steps)
            and on_gpu[0]["die"] < on_gpu[1]["start"],
        }

    def lease(self) -> dict[str, Any]:
        """A second job that starts while the first one validates waits, says so, and passes; their GPU steps never overlap."""
        assert self.watcher is not None
        watcher, since = self.watcher, time.time()
        first = self.start(self.project("first", soak=SOAK_SECONDS), *_words("json"))
        validates = watcher.wait_for(
            120, lambda: sum("start" in step for step in _on_gpu(watcher, since)) >= 2, while_=lambda: first.poll() is None
        )
        second_started = time.time()
        second = self.start(self.project("second"), *_words("json"))
        shown = self.run(self.place, "runners", "--json")[1]
        held = json.loads(shown)["runners"][0]["held"] if shown else {}
        ends = [process.communicate(timeout=240) for process in (first, second)]
        said = [_waits(err) for _, err in ends]
        owners = [f"process {process.pid} on {platform.node()}" for process in (first, second)]
        steps = _on_gpu(watcher, since)
        mine, theirs = ([step for step in steps if step["owner"] == owner] for owner in owners)
        records = [_record(self.place / name) for name in ("first", "second")]
        statuses = [record["verdict"]["status"] if record else None for record in records]
        return {
            "exit_codes": [first.returncode, second.returncode],
            "statuses": statuses,
            "second_started": second_started,
            "held_meanwhile": held,
            "said": {"first": said[0], "second": said[1]},
            "first": mine,
            "second": theirs,
            "leases": watcher.containers(since, "lease"),
            "overlaps": overlaps(steps),
            "seconds_waited": round(theirs[0]["start"] - second_started, 2) if theirs else None,
            "stderr": [err[-3000:] for _, err in ends],
            "ok": validates
            and (len(mine), len(theirs)) == (2, 2)
            and [first.returncode, second.returncode] == [0, 0]
            and statuses == ["passed", "passed"]
            and not said[0]
            and any(owners[0] in line["phase"] and line["at"] < mine[1]["die"] for line in said[1])
            and owners[0] in held.values()
            and second_started < mine[1]["die"] < theirs[0]["start"]
            and not overlaps(steps),
        }

    def wrong(self) -> dict[str, Any]:
        """An injected wrong output fails, the engine is withdrawn and kept with the evidence."""
        import numpy as np

        folder = self.place / "whole"
        image = np.zeros((1, 3, 160, 320), np.float32)
        np.savez(folder / "wrong.npz", image=image, lanes=np.full((1, 4, 160, 320), 7, np.float32))
        (folder / "lane.yaml").write_text((folder / "lane.yaml").read_text() + "\nsamples: [wrong.npz]\n")
        answer = self._build(folder, "--force")
        place = folder / "artifacts/lane/v1"
        left = sorted(path.name for path in place.glob(f"*{TARGET}*"))
        evidence = sorted(path.name for path in place.glob(f"quarantine/{TARGET}/*"))
        return {
            **answer,
            "engines_left": left,
            "quarantine": evidence,
            "ok": answer["exit_code"] == 1 and answer["status"] == "failed" and not left and "engine.onnx" in evidence,
        }

    def escape(self) -> dict[str, Any]:
        """What code in such a container, with the GPU in it, can do."""
        from orchestrator.runners.base import Cancel, Step
        from orchestrator.runners.load import load_runners

        folder = self.place / "look"
        folder.mkdir()
        (runner,) = load_runners(self.runners)
        request = {"step": "build", "backend": "onnxruntime", "model": "lane.onnx", "engine": "e.onnx", "options": {"provider": "cuda"}}
        inputs = {"lane.onnx": ROOT / "examples/lane.onnx", "look.py": HERE / "look.py"}
        step = Step(request=request, inputs=inputs, image=TRICK_IMAGE, compute_capability=(CAPABILITY,), timeout_seconds=120)
        os.environ["HOST_SECRET"] = "host-secret"
        answer = runner.run(step, folder, lambda _: None, Cancel())
        runner.close()  # type: ignore[attr-defined]
        lines = [line for line in answer.log.read_text().splitlines() if line.startswith("FOUND ")]
        if not lines:
            return {"log": answer.log.read_text()[-2000:], "ok": False}
        found = json.loads(lines[-1].removeprefix("FOUND "))
        problems = escapes.problems(found, self.devices, self.rehearse)
        return {"found": found, "problems": problems, "ok": not problems}

    def clean(self) -> dict[str, Any]:
        """``runners clean`` removes what is left of ours, and nothing is: no container, no volume, no lease."""
        code, out, err = self.run(self.place, "runners", "clean", "--volumes", "--json")
        held = json.loads(self.run(self.place, "runners", "list", "--json")[1])["runners"][0]["held"]
        client = self.engine.client()
        containers = [item["Names"] for item in client.api.containers(all=True)]
        volumes = [item["Name"] for item in client.api.volumes()["Volumes"] or []]
        images = sorted(tag for image in client.images.list() for tag in image.tags)
        client.close()
        return {
            "exit_code": code,
            "removed": json.loads(out)["runners"] if out else None,
            "containers_left": containers,
            "watcher_ended": self.watcher.ended if self.watcher else None,
            "volumes_left": volumes,
            "images_that_are_not_ours_to_remove": images,
            "leases_left": held,
            "stderr": err[-2000:],
            "ok": code == 0
            and not containers
            and not volumes
            and not held
            and images == sorted([IMAGE, TRICK_IMAGE])
            and self.watcher is not None
            and self.watcher.ended is None,
        }

    def _build(self, folder: Path, *more: str) -> dict[str, Any]:
        code, out, err = self.run(folder, *_words(), *more)
        answer = json.loads(out) if out.startswith("{") else {"models": []}
        entries = [entry for model in answer["models"] for entry in model["builds"]]
        entry = entries[0] if entries else {}
        return {"exit_code": code, "status": entry.get("status"), "reason": entry.get("reason"), "stderr": err[-2000:]}


def _on_gpu(watcher: Watcher, since: float) -> list[dict[str, Any]]:
    return [step for step in watcher.containers(since) if step["gpu"]]


def _words(progress: str = "plain") -> tuple[str, ...]:
    return ("build", "lane.onnx", "--target", TARGET, "--json", "--progress", progress, "--verbose")


def _waits(stderr: str) -> list[dict[str, Any]]:
    """When a run said that it waits for a GPU, and for whom, out of its events."""
    events = [json.loads(line) for line in stderr.splitlines() if line.startswith("{")]
    return [{"at": event["at"], "phase": event["phase"]} for event in events if _WAITING.search(event.get("phase") or "")]


def _record(folder: Path) -> dict[str, Any] | None:
    """The engine's entry in the manifest; None when there is none."""
    try:
        manifest = json.loads((folder / "artifacts/lane/v1/lane_v1.json").read_bytes())
    except OSError:
        return None
    return next((entry for entry in manifest["engines"] if entry["target"] == TARGET), None)


def _said(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout.strip()
    except OSError as error:
        return str(error)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--place", type=Path, help="where images and projects go; needs some 10 GB")
    parser.add_argument("--rehearse", action="store_true")
    given = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="enginefarm-gpu-", dir=given.place))
    engine = KitEngine(given.engine.resolve(), place / "docker")
    proof = Proof(engine, place, given.rehearse)
    mode = "rehearsal: no GPU; ONNX Runtime's CUDA provider and libcuda are doubles" if given.rehearse else "hardware"
    seen: dict[str, Any] = {"schema": "enginefarm.gpu-docker-proof/1", "mode": mode}
    checks = (proof.machine, proof.docker, proof.image, proof.probe, proof.whole_way, proof.lease, proof.wrong, proof.escape, proof.clean)
    try:
        for check in checks:
            started = time.monotonic()
            try:
                seen[check.__name__] = check()
            except Exception as error:  # noqa: BLE001  (a broken check is a finding, not the end of the report)
                seen[check.__name__] = {"ok": False, "error": f"{type(error).__name__}: {error}"}
            took, part = time.monotonic() - started, seen[check.__name__]
            sys.stdout.write(f"{check.__name__}: {'ok' if part['ok'] else 'NOT OK'}, {took:.1f} s {part.get('error', '')}\n")
            seen["ok"] = all(part["ok"] for part in seen.values() if isinstance(part, dict))
            given.out.write_text(json.dumps(seen, indent=1) + "\n")  # as far as it came, should the machine go away
    finally:
        if proof.watcher is not None:
            proof.watcher.close()
        if not seen["ok"] and (engine.place / "log").exists():
            shutil.copy(engine.place / "log", given.out.with_suffix(".dockerd.log"))
        engine.stop()
        shutil.rmtree(place, ignore_errors=True)
    return 0 if seen["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
