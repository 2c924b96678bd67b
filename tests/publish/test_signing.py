from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from orchestrator.artifacts.files import sha256_bytes
from orchestrator.artifacts.manifest import EngineRecord, Manifest, ModelRecord, Verdict
from orchestrator.errors import DIGEST_MISMATCH, FILE_EXISTS, SIGNATURE_REFUSED, USAGE, EnginefarmError, flatten
from orchestrator.portable.runtime.manifest import open_manifest
from orchestrator.publish.signing import PASSPHRASE, check_files, new_key, read_signing_key, sign, signed_by

FILES = {"lane_v3_ampere.engine": b"plan", "lane_v3_cpu.onnx": b"onnx", "libours.so": b"plugin", "lane.pt": b"torch"}


def pem(key: Any, encryption: Any = None) -> bytes:
    data: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())
    return data


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A manifest of two engines, a plugin and a fallback."""
    folder = tmp_path / "lane" / "v3"
    folder.mkdir(parents=True)
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
    records = []
    for target, file, plugins in (
        ("ampere", "lane_v3_ampere.engine", {"x/libours.so": sha256_bytes(b"plugin")}),
        ("cpu", "lane_v3_cpu.onnx", {}),
    ):
        described = {"file": file, "digest": sha256_bytes(FILES[file]), "size_bytes": 4, "plugins": plugins}
        common = {"tag": target, "backend": "tensorrt", "platform": "linux/amd64", "precision": "fp32"}
        verdict = Verdict(status="passed", reason="said", reference="supplied")
        records.append(EngineRecord.model_validate({"target": target, "verdict": verdict, **common, **described}))
    model = ModelRecord(name="lane", version=3, digest=sha256_bytes(b""), source="lane.onnx", inputs=(), outputs=())
    fallback = {"file": "lane.pt", "digest": sha256_bytes(b"torch")}
    made: dict[str, Any] = {"revision": 1, "run": "r", "created_at": "t", "enginefarm": "0"}
    path = folder / "lane_v3.json"
    path.write_bytes(Manifest(model=model, engines=tuple(records), fallback=fallback, **made).as_json())
    return path


def test_a_new_key_is_for_its_owner_only_and_nothing_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "release.key"
    name, public = new_key(path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(public.stat().st_mode) == 0o644
    assert read_signing_key(path).key_id == name
    before = path.read_bytes(), public.read_bytes()
    for taken in (path, public):
        with pytest.raises(EnginefarmError) as caught:
            new_key(path)
        assert caught.value.kind is FILE_EXISTS
        taken.rename(tmp_path / "kept")
        with pytest.raises(EnginefarmError):  # the other half is still there
            new_key(path)
        (tmp_path / "kept").rename(taken)
    assert (path.read_bytes(), public.read_bytes()) == before


def test_a_key_with_a_passphrase_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "release.key"
    path.write_bytes(pem(Ed25519PrivateKey.generate(), BestAvailableEncryption(b"hidden words")))
    monkeypatch.delenv(PASSPHRASE, raising=False)
    with pytest.raises(EnginefarmError, match="cannot be used") as caught:
        read_signing_key(path)
    assert PASSPHRASE in str(caught.value.fix)

    monkeypatch.setenv(PASSPHRASE, "other words")
    with pytest.raises(EnginefarmError) as caught:
        read_signing_key(path)
    assert "other words" not in f"{caught.value.why}{caught.value.fix}"

    monkeypatch.setenv(PASSPHRASE, "hidden words")
    assert read_signing_key(path).key_id.startswith("ed25519:")


def test_what_is_no_ed25519_private_key_is_refused_without_showing_it(tmp_path: Path) -> None:
    path = tmp_path / "release.key"
    other = pem(ec.generate_private_key(ec.SECP256R1()))
    cut = pem(Ed25519PrivateKey.generate())[:-40]
    for content in (b"", other, cut, b"not a key"):
        path.write_bytes(content)
        with pytest.raises(EnginefarmError, match="the signing key cannot be used") as caught:
            read_signing_key(path)
        said = "".join(str(part) for part in (caught.value.what, caught.value.why, caught.value.fix))
        assert not any(line and line in said for line in content.decode().splitlines())
    with pytest.raises(EnginefarmError, match="cannot be used"):
        read_signing_key(tmp_path / "gone.key")


def test_a_key_that_others_can_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "release.key"
    new_key(path)
    assert not read_signing_key(path).open_to_others
    path.chmod(0o644)
    assert read_signing_key(path).open_to_others


def test_a_signed_manifest_is_verified_with_the_key_that_signed(release: Path, tmp_path: Path) -> None:
    name, public = new_key(tmp_path / "a.key")
    _, other = new_key(tmp_path / "b.key")
    opened = open_manifest(str(release))
    path = sign(opened, read_signing_key(tmp_path / "a.key"))

    assert path == release.with_name("lane_v3.json.sig")
    assert signed_by(opened, [other, public]) == (name, public)
    with pytest.raises(EnginefarmError) as caught:
        signed_by(opened, [other])
    assert caught.value.kind is SIGNATURE_REFUSED
    assert "PRIVATE" not in path.read_text()


def test_signing_leaves_no_other_file_behind(release: Path, tmp_path: Path) -> None:
    new_key(tmp_path / "a.key")
    before = {path.name for path in release.parent.iterdir()}
    sign(open_manifest(str(release)), read_signing_key(tmp_path / "a.key"))

    assert {path.name for path in release.parent.iterdir()} == before | {"lane_v3.json.sig"}


@pytest.mark.parametrize("name", FILES)
def test_every_file_that_the_manifest_describes_is_held_against_it(release: Path, name: str) -> None:
    assert sorted(check_files(release).files) == sorted(FILES)

    (release.parent / name).write_bytes(b"evil")
    with pytest.raises(EnginefarmError) as caught:
        check_files(release)
    assert caught.value.kind is DIGEST_MISMATCH
    assert name in caught.value.what

    (release.parent / name).unlink()
    assert check_files(release).absent == (name,)


def test_all_changed_files_are_told_at_once(release: Path) -> None:
    for name in FILES:
        (release.parent / name).write_bytes(b"evil")

    with pytest.raises(EnginefarmError) as caught:
        check_files(release)
    assert len(flatten(caught.value)) == len(FILES)


def test_without_cryptography_there_is_no_signing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)

    for call in (new_key, read_signing_key):
        with pytest.raises(EnginefarmError) as caught:
            call(tmp_path / "a.key")
        assert caught.value.kind is USAGE
        assert "-m pip install cryptography" in str(caught.value.fix)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_openssl_reads_the_keys_and_verifies_the_signature(release: Path, tmp_path: Path) -> None:
    import base64

    _, public = new_key(tmp_path / "a.key")
    path = sign(open_manifest(str(release)), read_signing_key(tmp_path / "a.key"))
    raw = tmp_path / "raw.sig"
    raw.write_bytes(base64.b64decode(json.loads(path.read_bytes())["signatures"][0]["signature"]))
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", str(public), "-rawin", "-sigfile", str(raw), "-in"]

    assert subprocess.run([*command, str(release)], capture_output=True, check=False).returncode == 0
    assert subprocess.run([*command, str(release.parent / "lane.pt")], capture_output=True, check=False).returncode != 0
