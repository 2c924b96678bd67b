"""A runner on a Docker engine: every step in a fresh, locked-down container of the target's image."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchestrator import errors
from orchestrator.errors import EnginefarmError
from orchestrator.portable.worker.main import EXIT_WRITTEN
from orchestrator.portable.worker.protocol import HOST_SCHEMA, REQUEST_SCHEMA
from orchestrator.runners import clean, docker_gpu
from orchestrator.runners import docker_labels as marks
from orchestrator.runners.base import Cancel, Host, Step, StepResult, WorkerEvent
from orchestrator.runners.bundle import worker_pyz
from orchestrator.runners.docker_end import raise_for_end, settle_files
from orchestrator.runners.docker_engine import Address, Engine
from orchestrator.runners.docker_errors import engine_errors
from orchestrator.runners.docker_gpu import GpuAccess, GpuOptions
from orchestrator.runners.docker_host import Overrides, base_host, gpu_problem, with_overrides, with_probe
from orchestrator.runners.docker_step import ContainerStep, Limits
from orchestrator.runners.lease import Lease, acquire
from orchestrator.runners.process import MOST_SLOTS, PROBE_SECONDS, ProcessRunner

DEFAULT_UID = 10001  # in no image's user list
_MEMORY_SHARE = 0.9  # of the engine's memory, for a step without a limit of its own
_STEP_MARGIN_SECONDS = 900.0  # what sending and bringing back may take, before anybody may remove the container

EnsureImage = Callable[[Any, str, str, Callable[[WorkerEvent], None], Cancel], str]
"""``(docker client, reference, platform, on_progress, cancel) -> image id``; pulls it when it is not on the engine."""


def image_on_engine(client: Any, image: str, _platform: str, _on_progress: Callable[[WorkerEvent], None], _cancel: Cancel) -> str:
    """The id of an image that is on the engine already. Raises EnginefarmError IMAGE_OFFLINE."""
    import docker.errors

    try:
        return str(client.api.inspect_image(image)["Id"])
    except docker.errors.NotFound:
        fix = f"docker pull {image}"
        raise EnginefarmError(errors.IMAGE_OFFLINE, f"the image {image} is not on the engine", fix=fix) from None


class DockerRunner:
    """Runs steps in containers of one engine. ``run_id`` goes into the labels of everything it makes.

    ``slots``: steps at a time, by default one per CPU of the engine, at most 8; steps that need a GPU also wait for its lease.
    """

    kind = "docker"

    def __init__(
        self,
        name: str,
        address: Address | None = None,
        *,
        gpu: GpuAccess | None = None,
        uid: int = DEFAULT_UID,
        slots: int | None = None,
        labels: tuple[str, ...] = (),
        probe_image: str | None = None,
        overrides: Overrides | None = None,
        project: str = marks.DEFAULT_PROJECT,
        ensure_image: EnsureImage = image_on_engine,
    ) -> None:
        self.name = name
        self.address = address or Address()
        self.gpu_access = gpu or GpuAccess()
        self.uid = uid
        self.labels = labels
        self.probe_image = probe_image
        self.overrides = overrides or Overrides()
        self.project = project
        self.ensure_image = ensure_image
        self.run_id = ""
        self._slots = slots
        self._lock = threading.RLock()
        self._engine: Engine | None = None
        self._abandoned: list[Engine] = []
        self._host: Host | None = None

    @property
    def slots(self) -> int:
        """Steps at a time; 1 as long as the engine does not answer."""
        if self._slots is None:
            try:
                self._slots = max(1, min(int(self.engine().info.get("NCPU") or 1), MOST_SLOTS))
            except EnginefarmError:
                return 1
        return self._slots

    @slots.setter
    def slots(self, slots: int) -> None:
        self._slots = slots

    def engine(self) -> Engine:
        """The connection, opened when first asked for; leftovers of dead processes are removed then. Raises EnginefarmError."""
        with self._lock:
            if self._engine is None:
                engine = Engine(self.address, self.name)
                self.gpu_access = docker_gpu.settle(self.gpu_access, engine.info)
                with engine_errors(self.name, "remove what dead runs left"):
                    clean.sweep(engine)
                self._engine = engine
            return self._engine

    def close(self) -> None:
        """Close the connections; the next call opens a new one."""
        with self._lock:
            for engine in (*self._abandoned, *([self._engine] if self._engine else [])):
                engine.close()
            self._abandoned, self._engine = [], None

    def host(self) -> Host:
        """The host description of portable/worker/probe.py, found once, then remembered, with ``engine`` (docker_host.py) beside it.

        GPUs come from a probe in a container of ``probe_image``, else from this machine when the engine is on it, else from ``overrides``,
        which always win. ``gpu_problem`` is there when nothing could be found out. Raises EnginefarmError when the engine does not answer.
        """
        with self._lock:
            if self._host is None:
                engine = self.engine()
                found = base_host(engine, self.gpu_access)
                if self.gpu_access.mode != "none" or self.probe_image:
                    found = self._probed(engine, found)
                elif self.overrides.gpus is None:
                    found["gpu_problem"] = {"what": "the engine has neither the runtime nvidia nor CDI devices, and no gpu.mode is set"}
                self._host = with_overrides(found, self.overrides, self.name)
            return self._host

    def _probed(self, engine: Engine, found: dict[str, Any]) -> dict[str, Any]:
        try:
            if self.probe_image:
                return with_probe(found, self.probe(self.probe_image), in_image=True)
            if engine.is_local:
                return with_probe(found, ProcessRunner(self.name).host(), in_image=False)
        except EnginefarmError as error:
            return found | gpu_problem(error)
        why = "this engine is not on this machine, and the runner has no probe_image"
        fix = "set probe_image to an image that is on the engine, or declare the GPUs under overrides"
        return found | gpu_problem(EnginefarmError(errors.GPU_ACCESS, "the GPUs of the engine are not known", why=why, fix=fix))

    def probe(self, image: str, platform: str = "any") -> Host:
        """The host as seen from a container of ``image`` with every GPU: its backends are those of the image. Raises EnginefarmError."""
        with tempfile.TemporaryDirectory(prefix="enginefarm-probe-") as place:
            step = Step(request={"step": "probe"}, image=image, platform=platform, timeout_seconds=PROBE_SECONDS)
            result = self._run(step, Path(place), lambda _: None, Cancel(), every_gpu=True).result
        host = result.get("host")
        if not result["ok"] or not isinstance(host, dict) or host.get("schema") != HOST_SCHEMA:
            told = (result.get("error") or {}).get("message", "it described no host")
            raise EnginefarmError(errors.RUNNER_BROKEN, f"runner {self.name} cannot be probed with {image}: {told}")
        return host

    def run(self, step: Step, folder: Path, on_event: Callable[[WorkerEvent], None], cancel: Cancel) -> StepResult:
        """Run ``step`` in a new container and bring its files into ``folder``. Raises what runners/base.py says, and errors.EF42x."""
        return self._run(step, folder, on_event, cancel)

    def _run(
        self, step: Step, folder: Path, on_event: Callable[[WorkerEvent], None], cancel: Cancel, *, every_gpu: bool = False
    ) -> StepResult:
        if step.image is None:
            raise EnginefarmError(
                errors.RUNNER_BROKEN, f"runner {self.name} starts containers, and the step names no image", fix="give the target an image"
            )
        folder.mkdir(parents=True, exist_ok=True)
        engine = self.engine()
        try:
            image_id, environment = self._image(engine, step, on_event, cancel)
            if every_gpu:
                wanted = None if self.gpu_access.mode != "none" else ()
                return self._container(engine, step, folder, on_event, cancel, image_id, environment, wanted, None)
            if not step.compute_capability:
                return self._container(engine, step, folder, on_event, cancel, image_id, environment, (), None)
            gpus = self._gpus(step)
            with acquire(engine, gpus, image_id, self._marks, cancel, lambda text: on_event({"event": "phase", "phase": text})) as lease:
                return self._container(engine, step, folder, on_event, cancel, image_id, environment, (lease.gpu,), lease)
        except EnginefarmError as error:
            if error.kind in (errors.ENGINE_LOST, errors.ENGINE_UNREACHABLE):
                self._abandon(engine)
            raise

    def _abandon(self, engine: Engine) -> None:
        """The next step connects anew; other steps may still be on the old connection."""
        with self._lock:
            if self._engine is engine:
                self._engine = None
                self._abandoned.append(engine)

    def _marks(self, kind: str, ttl: float) -> dict[str, str]:
        return marks.labels(kind, project=self.project, run=self.run_id, ttl=ttl)

    def _image(self, engine: Engine, step: Step, on_event: Callable[[WorkerEvent], None], cancel: Cancel) -> tuple[str, dict[str, str]]:
        """Id and environment of the step's image, which is pulled when it is not there. Raises EnginefarmError."""
        assert step.image is not None  # noqa: S101  (checked by _run)
        with engine_errors(self.name, f"find the image {step.image}"):
            found = _on_engine(engine, step.image)
            image_id = self.ensure_image(engine.client, step.image, step.platform, on_event, cancel)
            if found is None:
                clean.remember_pulled(engine, image_id, self._marks("pulled", 0))
            if found is None or found["Id"] != image_id:
                found = engine.api.inspect_image(image_id)
        platform = f"{found.get('Os')}/{found.get('Architecture')}"
        wanted = engine.platform if step.platform == "any" else step.platform
        if platform != wanted or (step.compute_capability and platform != engine.platform):
            why = f"the engine is {engine.platform}, and GPUs cannot be used through emulation" if step.compute_capability else None
            raise EnginefarmError(
                errors.IMAGE_PLATFORM, f"the image {step.image} is for {platform}; the step on runner {self.name} needs {wanted}", why=why
            )
        pairs = (line.partition("=") for line in (found.get("Config") or {}).get("Env") or [])
        return image_id, {name: value for name, _, value in pairs}

    def _gpus(self, step: Step) -> list[Mapping[str, Any]]:
        """The host's GPUs that the step can use, each with a uuid to lease it by."""
        host = self.host()
        fitting = [gpu for gpu in host["gpus"] if gpu.get("compute_capability") in step.compute_capability]
        if not fitting:
            wanted = " or ".join(step.compute_capability)
            problem = host.get("gpu_problem") or {}
            raise EnginefarmError(
                errors.GPU_ACCESS,
                f"runner {self.name} has no GPU of compute capability {wanted}",
                why=problem.get("what"),
                fix=problem.get("fix"),
            )
        return [gpu if gpu.get("uuid") else {**gpu, "uuid": f"index-{gpu['index']}", "declared_uuid": True} for gpu in fitting]

    def _container(
        self,
        engine: Engine,
        step: Step,
        folder: Path,
        on_event: Callable[[WorkerEvent], None],
        cancel: Cancel,
        image: str,
        environment: Mapping[str, str],
        gpus: tuple[Mapping[str, Any], ...] | None,
        lease: Lease | None,
    ) -> StepResult:
        jetson = bool((self.overrides.jetson or (self._host or {}).get("jetson")) and (gpus is None or gpus))
        options = docker_gpu.options(self.gpu_access, gpus, jetson=jetson)
        if gpus and docker_gpu.needs_compat(step.image or "", environment, self.host(), gpus[0]):
            options.libraries.insert(0, docker_gpu.COMPAT_FOLDER)
        memory = step.memory_bytes or int(_MEMORY_SHARE * int(engine.info.get("MemTotal") or 0)) or (8 << 30)
        nonce = secrets.token_hex(16)
        request = {**step.request, "schema": REQUEST_SCHEMA, "nonce": nonce, "limits": {"memory_bytes": step.memory_bytes}}
        own_marks = self._marks("step", step.timeout_seconds + _STEP_MARGIN_SECONDS)
        job = ContainerStep(
            engine=engine,
            image=image,
            step=step,
            request=request,
            nonce=nonce,
            limits=Limits(memory, self.uid),
            gpu=options,
            environment=_environment(environment, options),
            labels=own_marks | ({marks.GPU: str(lease.gpu["uuid"])} if lease else {}),
            make_labels=self._marks,
            worker=worker_pyz(),
            on_event=on_event,
            cancel=cancel,
            lost_lease=(lambda: lease.lost) if lease else (lambda: False),
        )
        incoming, log = folder / ".incoming", folder / "worker.log"
        log.touch()
        try:
            ended, state = job.run(incoming, log)
            if ended.stopped is not None or ended.code != EXIT_WRITTEN:
                raise_for_end(engine, ended, state, step, memory, log)
            result = settle_files(incoming, folder, job.received, request, log, self.name)
        finally:
            shutil.rmtree(incoming, ignore_errors=True)
        return StepResult(result=result, folder=folder, log=log, seconds=ended.seconds)


def _on_engine(engine: Engine, image: str) -> Mapping[str, Any] | None:
    """What the engine says of an image; None when it is not there."""
    import docker.errors

    try:
        found: Mapping[str, Any] = engine.api.inspect_image(image)
    except docker.errors.NotFound:
        return None
    return found


def _environment(image: Mapping[str, str], options: GpuOptions) -> dict[str, str]:
    """What the runner sets over the image's environment; nothing of this process's environment is passed."""
    own = {
        "HOME": "/tmp",  # noqa: S108  (the container's tmpfs, the only place besides its volume that can be written)
        "TMPDIR": "/tmp",  # noqa: S108
        "CUDA_CACHE_PATH": "/tmp/cuda-cache",  # noqa: S108
        "PYTHONDONTWRITEBYTECODE": "1",
        "LANG": "C.UTF-8",
    }
    if options.libraries:
        own["LD_LIBRARY_PATH"] = os.pathsep.join([*options.libraries, *filter(None, [image.get("LD_LIBRARY_PATH")])])
    return own | options.environment
