"""What code in a container can do: an image whose onnxruntime is look.py, and what of its answer must not be."""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path
from typing import IO, Any

from gpu_image import site_folder


def context(image: str) -> IO[bytes]:
    """A build context: ``image`` with an onnxruntime that runs the step's look.py."""
    file = tempfile.TemporaryFile()  # noqa: SIM115  (the caller reads it)
    code = "exec(open('look.py').read())\n"
    recipe = f"FROM {image}\nCOPY trick.py {site_folder()}/onnxruntime/__init__.py\n"
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, text in (("Dockerfile", recipe), ("trick.py", code)):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    file.seek(0)
    return file


def problems(found: dict[str, Any], devices: list[str], rehearse: bool) -> list[str]:
    """What the code could do and should not."""
    refused = {"Read-only file system", "Permission denied", "Operation not permitted"}
    wrong = [f"{path} could be written or replaced" for path, end in found["write"].items() if end not in refused]
    wrong += [f"{what}: {found[what]}" for what in ("mknod", "mount", "chroot", "setuid") if found[what] not in refused]
    wrong += [] if found["interfaces"] == ["lo"] else [f"network interfaces {found['interfaces']}"]
    wrong += [f"{what} worked" for what in ("connect", "resolve") if found[what] == "it worked"]
    rights = dict(line.split(":\t") for line in found["status"])
    wrong += [f"{name} is {rights[name]}" for name in ("CapEff", "CapPrm", "CapBnd", "CapInh") if int(rights[name], 16)]
    wrong += [] if rights["NoNewPrivs"] == "1" else ["it can get new privileges"]
    wrong += [] if found["uid"][0] > 0 and found["uid"][1] > 0 else [f"it runs as {found['uid']}"]
    wrong += ["this machine's environment is visible"] * any("secret" in value.lower() for value in found["environment"].values())
    wrong += ["an engine's socket is there"] * found["socket"]
    wrong += [f"{len(found['processes'])} processes are visible"] * (len(found["processes"]) != 2)
    wrong += [f"devices {found['nvidia']}"] * (not rehearse and set(found["nvidia"]) - {Path(node).name for node in devices} != set())
    wrong += [f"the GPU does not work there: {found['gpus']}"] * (found["gpus"] != 1)
    return wrong
