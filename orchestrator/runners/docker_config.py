"""A ``type: docker`` entry of ``runners.yaml``: its fields, and every problem of them at its line.

::

    runners:
      lab:
        type: docker
        engine: ssh://ci@lab-3            # unix://, tcp://, ssh:// or the name of a docker context; default: what `docker` uses here
        tls: {ca: ca.pem, cert: cert.pem, key: key.pem}              # for tcp://; relative to this file
        gpu: {mode: devices, devices: [/dev/nvidia0, /dev/nvidiactl, /dev/nvidia-uvm], driver_folder: /usr/local/nvidia}
        uid: 10001                        # user of the containers; never 0
        slots: 2
        labels: [fast]
        probe_image: nvcr.io/nvidia/tensorrt:23.09-py3@sha256:...
        overrides:                        # wins over what a probe finds
          gpus: [{name: NVIDIA A100-SXM4-80GB, compute_capability: "8.0", memory: 80 GiB}]
          driver: "535.104.05"
          cuda: "12.2"
          jetson: {l4t: "32.7.1", jetpack: "4.6.1"}
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from orchestrator.errors import CONFIG_VALUE, EnginefarmError, Where
from orchestrator.matrix.binder import Binder, Bound
from orchestrator.matrix.schema import Bytes, Capability, Label
from orchestrator.matrix.yaml_reader import Mapping, Node, Sequence
from orchestrator.matrix.yaml_syntax import short

if TYPE_CHECKING:
    from orchestrator.runners.docker import DockerRunner
    from orchestrator.runners.docker_engine import Address
    from orchestrator.runners.docker_gpu import GpuAccess
    from orchestrator.runners.docker_host import DeclaredGpu, Overrides

_SCHEMES = ("unix", "tcp", "ssh")
_VERSION = re.compile(r"^\d{1,5}(\.\d{1,5}){0,3}$")
_MOST_UID = 2**31 - 1

Expand = Callable[[str, Where], str]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Tls(Strict):
    ca: str | None = None
    cert: str | None = None
    key: str | None = None


class _Gpu(Strict):
    mode: Literal["auto", "request", "cdi", "runtime", "devices", "none"] = "auto"
    devices: tuple[str, ...] = ()
    driver_folder: str | None = None


class _Jetson(Strict):
    l4t: str | None = None
    jetpack: str | None = None
    model: str | None = None


class _DeclaredGpu(Strict):
    name: str
    compute_capability: Capability
    memory: Bytes | None = None
    uuid: str | None = None


class OverridesConfig(Strict):
    gpus: tuple[str, ...] | None = None  # mappings: read by _declared_gpus
    driver: str | None = None
    cuda: str | None = None
    jetson: _Jetson | None = None


class DockerConfig(Strict):
    """One entry of ``runners:`` with ``type: docker``."""

    type: Literal["docker"]
    engine: str | None = None
    tls: _Tls | None = None
    gpu: _Gpu | None = None
    uid: int | None = None
    slots: int | None = None
    labels: tuple[Label, ...] = ()
    probe_image: str | None = None
    overrides: OverridesConfig | None = None


class Reader:
    """Values of one entry, with ``${env:X}`` replaced; everything wrong is collected."""

    def __init__(
        self, name: str, bound: dict[str, Bound], where: Where, folder: Path, expand: Expand, problems: list[EnginefarmError]
    ) -> None:
        prefix = f"runners.{name}."
        self._bound = {field.removeprefix(prefix): item for field, item in bound.items()}
        self._where = where
        self._folder = folder
        self._expand = expand
        self.problems = problems

    def value(self, field: str, default: Any = None) -> Any:
        item = self._bound.get(field)
        return default if item is None or item.value is None else item.value

    def where(self, field: str) -> Where:
        item = self._bound.get(field)
        return item.where if item else self._where

    def wrong(self, field: str, what: str, fix: str | None = None) -> None:
        self.problems.append(EnginefarmError(CONFIG_VALUE, what, where=self.where(field), fix=fix))

    def text(self, field: str) -> str | None:
        value = self.value(field)
        if value is None:
            return None
        try:
            return self._expand(value, self.where(field))
        except EnginefarmError as error:
            self.problems.append(error)
            return None

    def file(self, field: str) -> str | None:
        """A file that must exist, relative to the configuration's folder."""
        text = self.text(field)
        if text is None:
            return None
        path = self._folder / Path(text).expanduser()
        if not path.is_file():
            self.wrong(field, f"{short(text)} is not a file")
        return str(path.absolute())

    def version(self, field: str) -> str | None:
        text = self.text(field)
        if text is not None and not _VERSION.match(text):
            self.wrong(field, f'{field} is a version, not "{short(text)}"', f'write it like {field.split(".")[-1]}: "535.104.05"')
        return text


def docker_runner(
    name: str, where: Where, node: Mapping, folder: Path, expand: Expand, most_slots: int, problems: list[EnginefarmError]
) -> DockerRunner | None:
    """The runner of one entry; None when ``problems`` got longer. ``folder`` is where the file lies."""
    before = len(problems)
    binder = Binder()
    plain, gpu_node = without_gpus(node)
    bound = binder.fields(plain, DockerConfig, f"runners.{name}.")
    problems += binder.problems
    reader = Reader(name, bound, where, folder, expand, problems)
    address = _address(reader)
    access = _gpu_access(reader)
    overrides = overrides_of(reader, gpu_node, f"runners.{name}.overrides.gpus")
    slots, uid = reader.value("slots"), reader.value("uid")
    if slots is not None and not 1 <= slots <= most_slots:
        reader.wrong("slots", f"slots is between 1 and {most_slots}, not {slots}")
    if uid is not None and not 1 <= uid <= _MOST_UID:
        reader.wrong("uid", f"uid is between 1 and {_MOST_UID}, not {uid}", "containers do not run as root; leave uid out, or name a user")
    probe_image = reader.text("probe_image")
    if len(problems) > before:
        return None
    from orchestrator.runners.docker import DEFAULT_UID, DockerRunner

    return DockerRunner(
        name,
        address,
        gpu=access,
        uid=uid or DEFAULT_UID,
        slots=slots,
        labels=tuple(reader.value("labels", ())),
        probe_image=probe_image,
        overrides=overrides,
    )


def _address(reader: Reader) -> Address:
    from orchestrator.runners.docker_engine import Address, Tls

    text = reader.text("engine")
    scheme = text.split("://", 1)[0] if text and "://" in text else None
    if scheme is not None and scheme not in _SCHEMES:
        close = difflib.get_close_matches(scheme, _SCHEMES, n=1)
        fix = f"did you mean {close[0]}://?" if close else "write unix://, tcp:// or ssh://, or the name of a docker context"
        reader.wrong("engine", f"an engine is not reached by {short(scheme)}://", fix)
    files = {part: reader.file(f"tls.{part}") for part in ("ca", "cert", "key")}
    if not any(files.values()):
        return Address(text)
    if scheme != "tcp":
        reader.wrong("tls.ca", "tls belongs to an engine at tcp://", "remove the tls lines; ssh:// and unix:// need none")
    if bool(files["cert"]) != bool(files["key"]):
        reader.wrong("tls.cert" if files["cert"] else "tls.key", "tls needs cert and key together, or neither")
    return Address(text, Tls(**files))


def _gpu_access(reader: Reader) -> GpuAccess:
    from orchestrator.runners.docker_gpu import GpuAccess

    mode = reader.value("gpu.mode", "auto")
    devices = tuple(reader.value("gpu.devices", ()))
    folder = reader.text("gpu.driver_folder")
    for field, given in (("gpu.devices", devices), ("gpu.driver_folder", folder)):
        if given and mode != "devices":
            reader.wrong(field, f"{field} belongs to gpu.mode devices, and the mode is {mode}", "write mode: devices")
    for device in devices:
        if not device.startswith("/dev/"):
            reader.wrong("gpu.devices", f"{short(device)} is no device node", "write it like /dev/nvidia0")
    if folder and not folder.startswith("/"):
        reader.wrong("gpu.driver_folder", f"{short(folder)} is not an absolute path", "it is a folder of the engine's host")
    return GpuAccess(mode, devices, folder)


def overrides_of(reader: Reader, gpus: Node | None, prefix: str) -> Overrides:
    from orchestrator.runners.docker_host import Overrides

    jetson = {part: reader.text(f"overrides.jetson.{part}") for part in ("l4t", "jetpack", "model")}
    return Overrides(
        gpus=None if gpus is None else _declared_gpus(gpus, prefix, reader),
        driver=reader.version("overrides.driver"),
        cuda=reader.version("overrides.cuda"),
        jetson=jetson if any(jetson.values()) else None,
    )


def without_gpus(node: Mapping) -> tuple[Mapping, Node | None]:
    """The entry without ``overrides.gpus``, a list of mappings that the binder does not know, and that list."""
    overrides = node.entries.get("overrides")
    if not isinstance(overrides, Mapping) or "gpus" not in overrides.entries:
        return node, None
    left = {key: child for key, child in overrides.entries.items() if key != "gpus"}
    plain = Mapping(left, {key: overrides.keys[key] for key in left}, overrides.where)
    return Mapping({**node.entries, "overrides": plain}, node.keys, node.where), overrides.entries["gpus"]


def _declared_gpus(node: Node, prefix: str, reader: Reader) -> tuple[DeclaredGpu, ...]:
    from orchestrator.runners.docker_host import DeclaredGpu

    found = []
    for child in node.items if isinstance(node, Sequence) else (node,):
        if not isinstance(child, Mapping):
            fix = 'write gpus: [{name: NVIDIA A100, compute_capability: "8.0"}]'
            reader.problems.append(EnginefarmError(CONFIG_VALUE, f"{prefix} is a list of GPUs", where=child.where, fix=fix))
            continue
        binder = Binder()
        values = {field.removeprefix(f"{prefix}."): item.value for field, item in binder.fields(child, _DeclaredGpu, f"{prefix}.").items()}
        reader.problems += binder.problems
        missing = [field for field in ("name", "compute_capability") if field not in child.entries]
        if missing:
            what = f"{prefix}: {' and '.join(missing)} missing"
            reader.problems.append(EnginefarmError(CONFIG_VALUE, what, where=child.where))
        elif not binder.problems:
            found.append(DeclaredGpu(values["name"], values["compute_capability"], values.get("memory"), values.get("uuid")))
    return tuple(found)
