"""What a loader does about signatures: a clear yes from a trusted key over these very bytes, or no load."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.portable.runtime.api import LoadError, load, select
from orchestrator.portable.runtime.manifest import open_manifest
from orchestrator.publish.signing import new_key, read_signing_key, sign

from .conftest import interpreters

INTERPRETERS = interpreters()


class Signed:
    """A release with one engine, signed with ``key``; ``other`` is a key that signed nothing."""

    def __init__(self, folder: Any, root: Path, data: bytes) -> None:
        self.folder = folder
        self.engine = folder.add("cpu", data)
        self.manifest = folder.write()
        self.key, self.other = root / "release.key", root / "other.key"
        self.name, public = new_key(self.key)
        _, other = new_key(self.other)
        self.public, self.wrong = str(public), str(other)
        self.signature = self.sign(self.manifest)

    def sign(self, path: Path, key: Path | None = None) -> Path:
        return sign(open_manifest(str(path)), read_signing_key(key or self.key))

    def refusal(self, **options: Any) -> str:
        with pytest.raises(LoadError) as caught:
            load(str(self.manifest), **{"trusted": [self.public], **options})
        assert caught.value.kind == "signature"
        return str(caught.value)


@pytest.fixture
def signed(folder: Any, tmp_path: Path, doubling: bytes) -> Signed:
    return Signed(folder, tmp_path, doubling)


@pytest.mark.parametrize("options", [{}, {"require_signature": True}])
def test_a_manifest_signed_by_a_trusted_key_loads(signed: Signed, options: dict[str, Any]) -> None:
    for given in (signed.manifest, signed.folder.model, signed.folder.model / "latest.json"):
        with load(str(given), trusted=[signed.wrong, signed.public], **options) as model:
            assert model.signer == signed.name


def test_one_trusted_key_may_be_given_without_a_list(signed: Signed) -> None:
    assert select(str(signed.manifest), trusted=signed.public).chosen is not None


def test_a_manifest_that_was_changed_after_signing_is_refused(signed: Signed) -> None:
    raw = signed.manifest.read_bytes()
    signed.manifest.write_bytes(raw.replace(b'"revision": 2', b'"revision": 3'))

    assert "lane_v3.json.sig is of another revision of it" in signed.refusal()


def test_a_signature_file_that_lies_about_its_digest_is_refused(signed: Signed) -> None:
    before = open_manifest(str(signed.manifest)).raw
    signed.manifest.write_bytes(before.replace(b'"passed"', b'"passed" '))
    content = json.loads(signed.signature.read_bytes())
    from orchestrator.artifacts.files import sha256_bytes

    signed.signature.write_text(json.dumps({**content, "digest": sha256_bytes(signed.manifest.read_bytes())}))

    assert f"the signature of key {signed.name} is not of this manifest" in signed.refusal()


def test_another_key_is_named_and_refused(signed: Signed) -> None:
    text = signed.refusal(trusted=[signed.wrong])

    assert f"it is signed with {signed.name}; trusted is ed25519:" in text


def test_an_unsigned_manifest_is_refused(signed: Signed) -> None:
    signed.signature.unlink()

    assert "it is not signed: there is no lane_v3.json.sig" in signed.refusal()


@pytest.mark.parametrize("changed", ["manifest", "engine"])
def test_an_engine_that_was_swapped_is_refused_signed_or_not(signed: Signed, tripling: bytes, changed: str) -> None:
    signed.engine.write_bytes(tripling)
    if changed == "manifest":  # who swaps the engine writes its digest into the manifest too
        signed.folder.records.clear()
        signed.folder.add("cpu", tripling)
        signed.folder.write()

    with pytest.raises(LoadError) as caught:
        load(str(signed.manifest), trusted=[signed.public])
    assert caught.value.kind == ("signature" if changed == "manifest" else "engine")


def test_a_new_revision_needs_a_new_signature_and_the_archived_one_keeps_its_own(signed: Signed) -> None:
    raw = signed.manifest.read_bytes()
    digest = json.loads((signed.folder.model / "latest.json").read_bytes())["digest"]
    archived = signed.folder.path / "manifests" / f"{digest.removeprefix('sha256:')}.json"
    archived.parent.mkdir()
    archived.write_bytes(raw)
    signed.manifest.write_bytes(raw.replace(b'"revision": 2', b'"revision": 3'))

    signed.refusal()
    with load(str(signed.folder.model), trusted=[signed.public]) as model:  # latest.json names the archived revision
        assert model.choice.revision == 2

    signed.sign(signed.manifest)
    assert archived.with_name(f"{archived.name}.sig").is_file()
    for given, revision in ((signed.manifest, 3), (signed.folder.model, 2)):
        with load(str(given), trusted=[signed.public]) as model:
            assert model.choice.revision == revision


def test_a_manifest_may_be_signed_by_several_keys(signed: Signed) -> None:
    signed.sign(signed.manifest, signed.other)
    signed.sign(signed.manifest)

    for public in (signed.public, signed.wrong):
        load(str(signed.manifest), trusted=[public]).close()
    assert len(json.loads(signed.signature.read_bytes())["signatures"]) == 2


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"schema": "enginefarm.signature/1", "digest": "x", "signatures": [{"key": "k"}]}',
     b'{"schema": "enginefarm.signature/1", "digest": "x", "signatures": [{"key": "k", "signature": "?"}]}'],
)  # fmt: skip
def test_a_damaged_signature_file_is_refused(signed: Signed, content: bytes) -> None:
    signed.signature.write_bytes(content)

    assert "lane_v3.json.sig is no enginefarm.signature/1" in signed.refusal()


@pytest.mark.parametrize("length", [0, 63, 65])
def test_a_signature_of_another_length_is_refused(signed: Signed, length: int) -> None:
    import base64

    content = json.loads(signed.signature.read_bytes())
    content["signatures"][0]["signature"] = base64.b64encode(b"x" * length).decode()
    signed.signature.write_text(json.dumps(content))

    assert "is not of this manifest" in signed.refusal()


def test_pipes_in_the_place_of_manifest_or_signature_do_not_hang_the_loader(signed: Signed) -> None:
    signed.signature.unlink()
    os.mkfifo(signed.signature)
    assert "it is not a regular file" in signed.refusal()

    signed.manifest.unlink()
    os.mkfifo(signed.manifest)
    for given in (signed.manifest, signed.folder.model):
        with pytest.raises(LoadError, match=r"not a regular file|is not the one that"):
            load(str(given))
    latest = signed.folder.model / "latest.json"
    latest.unlink()
    os.mkfifo(latest)
    with pytest.raises(LoadError, match="it is not a regular file"):
        load(str(signed.folder.model))


def test_without_a_trusted_key_a_required_signature_is_refused(signed: Signed) -> None:
    cases: list[dict[str, Any]] = [
        {"trusted": [], "require_signature": True},
        {"trusted": []},
        {"trusted": None, "require_signature": True},
    ]
    for options in cases:
        assert "a signature is required and no trusted key is named" in signed.refusal(**options)


def test_without_cryptography_a_required_signature_is_refused(signed: Signed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)

    text = signed.refusal()
    assert "a signature is required and nothing here can verify one" in text
    assert "pip install cryptography" in text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "trusted key cannot be read"),
        ("", "is no Ed25519 public key"),
        ("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "is no Ed25519 public key"),
        ("-----BEGIN PUBLIC KEY-----\n????\n-----END PUBLIC KEY-----\n", "is no Ed25519 public key"),
    ],
)
def test_a_trusted_key_that_is_none_is_an_error_of_the_caller(signed: Signed, tmp_path: Path, content: str | None, text: str) -> None:
    path = tmp_path / "some.pub"
    if content is not None:
        path.write_text(content)

    with pytest.raises(LoadError, match=text) as caught:
        load(str(signed.manifest), trusted=[str(path)])
    assert caught.value.kind == "usage"


def test_a_private_key_is_refused_as_a_trusted_one_and_not_shown(signed: Signed) -> None:
    with pytest.raises(LoadError, match="is a private key, which belongs to the signer only") as caught:
        load(str(signed.manifest), trusted=[str(signed.key)])
    secret = signed.key.read_text().splitlines()[1]
    assert secret not in str(caught.value)


VERIFY = """
import json, sys
from enginefarm_runtime import LoadError, load
try:
    load(sys.argv[1], trusted=[sys.argv[2]])
    print("loaded")
except LoadError as error:
    print(error)
"""


@pytest.mark.interpreters
@pytest.mark.parametrize("python", INTERPRETERS or [""])
def test_other_pythons_without_cryptography_fail_closed(signed: Signed, run_code: Callable[..., Any], python: str) -> None:
    if not python:
        pytest.skip("no other Python here: name some in ENGINEFARM_PYTHONS, or put python3.6 and others on PATH")

    done = run_code("import sys; sys.modules['cryptography'] = None\n" + VERIFY, signed.manifest, signed.public, python=python, double=True)
    assert done.returncode == 0, done.stderr
    assert "nothing here can verify one" in done.stdout
