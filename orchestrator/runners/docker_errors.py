"""What engines and the SDK say when something fails, in our words. Texts as dockerd 20.10 and the SDK 7.2 give them (tests/docker)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from orchestrator import errors
from orchestrator.errors import EnginefarmError, Kind
from orchestrator.portable.worker.errors import kind_of_text

_TEXTS: tuple[tuple[str, Kind, str, str], ...] = (
    # (pattern, kind, what, fix)
    (
        r'could not select device driver \\?"cdi',
        errors.GPU_ACCESS,
        "the engine of runner {runner} has no CDI",
        "CDI is in Docker 25 and newer, switched on with `features: {cdi: true}` in its daemon.json; or set another gpu.mode",
    ),
    (
        r"could not select device driver",
        errors.GPU_ACCESS,
        "runner {runner} has no driver for GPU requests",
        "install the NVIDIA Container Toolkit on that host and restart its engine, or set gpu.mode to cdi, runtime or devices",
    ),
    (
        r"unknown or invalid runtime name|[Uu]nknown runtime specified",
        errors.GPU_ACCESS,
        "the engine of runner {runner} does not know the runtime nvidia",
        "`nvidia-ctk runtime configure --runtime=docker` on that host, then restart its engine; or set another gpu.mode",
    ),
    (
        r"CDI device|unresolvable CDI|cdi.*(not found|unresolv)",
        errors.GPU_ACCESS,
        "the engine of runner {runner} does not find the GPU's CDI device",
        "`nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` on that host, and switch on CDI in its engine",
    ),
    (
        r"adding custom device|stat /dev/\S+: no such file",
        errors.GPU_DEVICE,
        "a device node of gpu.devices does not exist on the host of runner {runner}",
        "`nvidia-modprobe -u -c=0` on that host makes them; or mend gpu.devices",
    ),
    (
        r"nvidia-container-cli|requirement error",
        errors.GPU_ACCESS,
        "NVIDIA's container runtime refused on runner {runner}",
        "see what it says about the driver; a newer driver, or an older image",
    ),
    (
        r"container-init binary not found",
        errors.ENGINE_REFUSED,
        "Podman on runner {runner} has no init program for its containers",
        "`apt-get install catatonit` (or tini) on that host",
    ),
    (
        r"(exec|stat)[^\n]*(no such file or directory|executable file not found)|executable file not found",
        errors.IMAGE_UNFIT,
        "the image has no python3 on its PATH",
        "take an image with Python 3.6 or newer: every TensorRT image of NVIDIA has one",
    ),
    (
        r"exec format error",
        errors.IMAGE_PLATFORM,
        "the image is made for another CPU than that of runner {runner}",
        "name the image of the engine's platform",
    ),
    (
        r"No such container",
        errors.ENGINE_LOST,
        "somebody removed the step's container on runner {runner}",
        "`enginefarm runners` shows who uses its GPUs",
    ),
    (r"No such image", errors.IMAGE_OFFLINE, "the image is not on the engine of runner {runner}", "pull it there first"),
)


def explain(error: BaseException, runner: str, doing: str, lost: Kind = errors.ENGINE_LOST) -> EnginefarmError:
    """An exception of the SDK, requests, urllib3 or the operating system as an error for a person.

    ``doing`` completes "could not"; ``lost`` is the kind for an engine that does not answer.
    """
    import docker.errors

    text = _text(error)
    if kind_of_text(text) == "disk-full":
        return EnginefarmError(
            errors.DISK,
            f"the disk of runner {runner} is full: could not {doing}",
            why=text,
            fix="`enginefarm runners clean --images --volumes` removes what enginefarm left there",
        )
    if isinstance(error, docker.errors.APIError):
        for pattern, kind, what, fix in _TEXTS:
            if re.search(pattern, text):
                return EnginefarmError(kind, what.format(runner=runner), why=text, fix=fix)
        if "HTTP request to an HTTPS server" in text:
            return EnginefarmError(errors.ENGINE_TLS, f"the engine of runner {runner} wants TLS", why=text, fix="give the runner `tls:`")
        return EnginefarmError(errors.ENGINE_REFUSED, f"the engine of runner {runner} could not {doing}", why=text)
    if re.search(r"HTTP request to an HTTPS server|SSL|CERTIFICATE|certificate|TLS", text):
        fix = "check ca, cert and key under `tls:` against the engine's; its certificate must name the host that is connected to"
        return EnginefarmError(errors.ENGINE_TLS, f"could not {doing} (runner {runner})", why=text, fix=fix)
    if lost is errors.ENGINE_UNREACHABLE:
        fix = "check that the engine runs and that this user may use its socket: `docker -H ADDRESS version`"
        return EnginefarmError(lost, f"could not {doing} (runner {runner})", why=text, fix=fix)
    return EnginefarmError(lost, f"the engine of runner {runner} does not answer any more: could not {doing}", why=text)


@contextlib.contextmanager
def engine_errors(runner: str, doing: str, lost: Kind = errors.ENGINE_LOST) -> Iterator[None]:
    """Turns what the SDK raises inside into EnginefarmError."""
    import docker.errors
    import requests
    import urllib3

    try:
        yield
    except (docker.errors.DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        raise explain(error, runner, doing, lost) from error


def _text(error: BaseException) -> str:
    """The engine's own sentence, without the SDK's wrapping."""
    said = getattr(error, "explanation", None) or str(error)
    said = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    reason = re.search(r"(?:Caused by \w+\(|ConnectionError\(|\('Connection aborted\.', )(.+)", said)
    text = reason[1] if reason else said
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:600]
