"""Reads loads_grid.yaml: full host descriptions and engines out of the short form."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

GRID = Path(__file__).with_name("loads_grid.yaml")
ENGINE = {
    "platform": "linux/amd64",
    "hardware_compatibility": "none",
    "version_compatible": False,
    "plugins": {},
    "size_bytes": 100_000_000,
}
NOT_INSTALLED = {"error": "not installed"}
IN_IMAGE = {"error": "comes with the image"}
BACKENDS = {"tensorrt": "tensorrt", "rtx": "tensorrt-rtx", "ort": "onnxruntime"}


def host(short: dict[str, Any]) -> dict[str, Any]:
    """The description ("enginefarm.host/1") of a host in short form."""
    if short.get("empty"):
        return {}
    gpus = [{"name": name, "compute_capability": cc, "memory_bytes": gib << 30} for name, cc, gib in short["gpus"]]
    in_image = short.get("backends") == "in-image"
    usual = IN_IMAGE if in_image else NOT_INSTALLED
    backends: dict[str, Any] = {} if short.get("backends") == {} else dict.fromkeys(BACKENDS.values(), usual)
    for key, name in BACKENDS.items():
        if key in short:
            version, cuda = short[key]
            backends[name] = {"version": version} | ({"cuda": cuda} if cuda else {})
    if "providers" in short:
        backends["onnxruntime"]["providers"] = short["providers"]
    return {
        "schema": "enginefarm.host/1",
        "platform": short.get("platform", "linux/amd64"),
        "gpus": gpus,
        "driver": {"version": short["driver"], "cuda": None} if "driver" in short else None,
        "jetson": short.get("jetson"),
        "container": in_image or "image" in short,
        "backends": backends,
        **({"image": short["image"]} if "image" in short else {}),
        **({"plugins": short["plugins"]} if "plugins" in short else {}),
        **({"gpu_problem": {"what": short["gpu_problem"]}} if "gpu_problem" in short else {}),
    }


@cache
def grid() -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]], dict[str, dict[str, str]]]:
    """Hosts and engines by name, and the answer per engine and host."""
    table = yaml.safe_load(GRID.read_text(encoding="utf-8"))
    hosts = {name: host(short) for name, short in table["hosts"].items()}
    engines = {name: ENGINE | row["engine"] for name, row in table["engines"].items()}
    answers = {}
    words = {"loads": "loads", "warning": "loads-with-warning", "unknown": "unknown"}
    for name, row in table["engines"].items():
        said = {place: word for key, word in words.items() for place in row.get(key, ())}
        assert said.keys() <= hosts.keys(), f"{name} names hosts that are not there: {said.keys() - hosts.keys()}"
        assert len(said) == sum(len(row.get(key, ())) for key in words), f"{name} answers twice for one host"
        answers[name] = {place: said.get(place, "does-not-load") for place in hosts}
    return hosts, engines, answers
