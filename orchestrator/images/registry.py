"""What a registry says of an image, without a pull: the digest for one platform, and what the image's configuration tells.

Follows the OCI distribution and image specifications and Docker's schema 2. Everything is held to its digest: what was read is what the
digest names, whoever served it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.errors import Where
from orchestrator.images import faults
from orchestrator.images.credentials import Credentials
from orchestrator.images.faults import Fetch
from orchestrator.images.policy import Policy
from orchestrator.images.reference import Reference, is_digest
from orchestrator.images.transport import Transport

INDEX_TYPES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFEST_TYPES = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")

_LEADING_VERSION = re.compile(r"^\d+(?:\.\d+)+")
_REQUIRED_CUDA = re.compile(r"\bcuda>=(\d+\.\d+)")
_REQUIRE = "NVIDIA_REQUIRE_"


@dataclass(frozen=True)
class Contents:
    """What an image's configuration says. ``tensorrt`` and ``cuda`` are None where it says nothing.

    ``requires``: ``NVIDIA_REQUIRE_*`` by the part after it in lower case: ``{"cuda": "cuda>=12.2 brand=tesla,driver>=450 ..."}``.
    """

    platform: str
    tensorrt: str | None = None
    cuda: str | None = None
    requires: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Resolved:
    """One platform's image. ``digest``: of its manifest; ``image_id``: of its configuration, the id that an engine gives it;
    ``size_bytes``: of the compressed layers together."""

    digest: str
    image_id: str
    size_bytes: int
    contents: Contents


def contents_of(config: Mapping[str, Any]) -> Contents:
    """Read an image configuration (OCI ``application/vnd.oci.image.config.v1+json``, or an engine's ``attrs``): TRT_VERSION, CUDA_VERSION,
    NVIDIA_REQUIRE_*. Where CUDA_VERSION is not set, the CUDA that NVIDIA_REQUIRE_CUDA asks the driver for counts."""
    inner = config.get("config") or config.get("Config") or {}
    lines = inner.get("Env") if isinstance(inner, Mapping) else None
    pairs = [line.partition("=") for line in (lines if isinstance(lines, list) else []) if isinstance(line, str)]
    env = {name: value for name, _, value in pairs}
    requires = {name[len(_REQUIRE) :].lower(): value for name, value in sorted(env.items()) if name.startswith(_REQUIRE) and value}
    cuda = _version(env.get("CUDA_VERSION", ""))
    required = _REQUIRED_CUDA.search(requires.get("cuda", ""))
    os = config.get("os") or config.get("Os") or "unknown"
    architecture = config.get("architecture") or config.get("Architecture") or "unknown"
    return Contents(f"{os}/{architecture}", _version(env.get("TRT_VERSION", "")), cuda or (required[1] if required else None), requires)


def _version(text: str) -> str | None:
    """``8.5.3.1+cuda11.8.0.065`` -> ``8.5.3.1``."""
    match = _LEADING_VERSION.match(text.strip())
    return match[0] if match else None


class Registry:
    """Reads images from registries, through the mirrors of ``policy`` and only for images that it allows."""

    def __init__(self, policy: Policy, credentials: Credentials, ca_files: Mapping[str, Path] | None = None) -> None:
        self._policy = policy
        self._transport = Transport(credentials, ca_files)

    def resolve(self, reference: Reference, platform: str, where: Where | None = None) -> Resolved:
        """The image behind a tag or digest for a platform (``linux/amd64``). ``where`` is told with any problem.

        Raises EnginefarmError(IMAGE_NOT_ALLOWED) before any network use, and a Fault of its own kind for each fault.
        """
        self._policy.check(reference, where)
        source = self._policy.fetched_from(reference)
        fetch = Fetch(reference, source, platform, self._transport.login(source.registry), where=where)
        manifest, digest = self._manifest(fetch, reference.digest or reference.tag or "latest", reference.digest)
        if _media_type(manifest) in INDEX_TYPES or "manifests" in manifest:
            chosen = _choose(fetch, manifest)
            manifest, digest = self._manifest(fetch, chosen, chosen)
        if _media_type(manifest) not in MANIFEST_TYPES or "config" not in manifest:
            raise faults.bad_answer(fetch, f"the manifest is of the type {_media_type(manifest)[:100]!r}, which is not an image's")
        image_id, config = self._config(fetch, manifest)
        contents = contents_of(config)
        if contents.platform != _base(platform):
            raise faults.no_platform(fetch, contents.platform)
        return Resolved(digest, image_id, _layers_size(fetch, manifest), contents)

    def _manifest(self, fetch: Fetch, name: str, expected: str | None) -> tuple[dict[str, Any], str]:
        answer = self._transport.get(fetch, f"manifests/{name}", (*INDEX_TYPES, *MANIFEST_TYPES))
        digest = _digest(answer.body)
        claimed = answer.headers.get("Docker-Content-Digest", digest)
        for wanted in (expected or digest, claimed):
            if wanted != digest:
                raise faults.wrong_digest(fetch, f"the manifest has the digest {digest}, not {wanted}")
        manifest = _object(fetch, answer.body, "manifest")
        manifest.setdefault("mediaType", answer.headers.get("Content-Type", "").partition(";")[0].strip())
        return manifest, digest

    def _config(self, fetch: Fetch, manifest: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        descriptor = manifest["config"]
        wanted = descriptor.get("digest") if isinstance(descriptor, Mapping) else None
        if not (isinstance(wanted, str) and is_digest(wanted)):
            raise faults.bad_answer(fetch, "the manifest names no configuration by a sha256 digest")
        body = self._transport.get(fetch, f"blobs/{wanted}", ("application/octet-stream", "*/*")).body
        if _digest(body) != wanted:
            raise faults.wrong_digest(fetch, f"the configuration has the digest {_digest(body)}, not {wanted}")
        return wanted, _object(fetch, body, "configuration")


def _digest(body: bytes) -> str:
    return "sha256:" + hashlib.sha256(body).hexdigest()


def _object(fetch: Fetch, body: bytes, called: str) -> dict[str, Any]:
    try:
        read = json.loads(body)
    except (ValueError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise faults.bad_answer(fetch, f"the {called} is not a JSON object")
    return read


def _media_type(manifest: Mapping[str, Any]) -> str:
    return str(manifest.get("mediaType", ""))


def _base(platform: str) -> str:
    """``linux/arm64/v8`` -> ``linux/arm64``."""
    return "/".join(platform.split("/")[:2])


def _choose(fetch: Fetch, index: Mapping[str, Any]) -> str:
    """The digest of the platform's manifest in a list."""
    entries = index.get("manifests")
    found: dict[str, str] = {}
    for entry in entries if isinstance(entries, list) else []:
        described = entry.get("platform") if isinstance(entry, dict) else None
        digest = entry.get("digest") if isinstance(entry, dict) else None
        if isinstance(described, dict) and isinstance(digest, str) and is_digest(digest):
            variant = f"/{described['variant']}" if described.get("variant") else ""
            found.setdefault(f"{described.get('os')}/{described.get('architecture')}{variant}", digest)
    wanted = fetch.platform
    names = (wanted, f"{wanted}/v8") if _base(wanted) == "linux/arm64" else (wanted,)
    chosen = next((found[name] for name in names if name in found), None)
    if chosen is None:
        # attestations are listed as unknown/unknown
        raise faults.no_platform(fetch, ", ".join(name for name in found if not name.startswith("unknown")) or None)
    return chosen


def _layers_size(fetch: Fetch, manifest: Mapping[str, Any]) -> int:
    layers = manifest.get("layers")
    sizes = [layer.get("size") if isinstance(layer, dict) else None for layer in (layers if isinstance(layers, list) else [])]
    if not sizes or not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise faults.bad_answer(fetch, "the manifest gives no sizes of layers")
    return sum(size for size in sizes if isinstance(size, int))
