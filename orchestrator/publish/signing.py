"""Signing of manifests: Ed25519 keys as PEM files, signatures beside what they sign.

Verifying is portable/runtime/signature.py, because services do it too; this side makes keys and signatures and needs ``cryptography``
(the extra ``sign``). A key's text is never in a message.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.artifacts.files import disk_errors, read_regular, sha256_bytes, write_new
from orchestrator.errors import (
    CONFIG_VALUE,
    DIGEST_MISMATCH,
    FILE_EXISTS,
    USAGE,
    EnginefarmError,
    Where,
    raise_all,
)
from orchestrator.portable.runtime.errors import LoadError, Refusal
from orchestrator.portable.runtime.files import Expected, check, inside
from orchestrator.portable.runtime.manifest import Opened, engines_with_file, open_manifest
from orchestrator.portable.runtime.signature import (
    MAX_BYTES,
    SIGNATURE_SCHEMA,
    SUFFIX,
    key_id,
    read_public_key,
    read_signatures,
    verify,
)
from orchestrator.portable.worker.files import write_whole
from orchestrator.publish.loader_errors import as_problem

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PASSPHRASE = "ENGINEFARM_KEY_PASSPHRASE"  # noqa: S105  (the name of a variable)


@dataclass(frozen=True)
class SigningKey:
    """``open_to_others``: whether other users can read the file."""

    key_id: str
    private: Ed25519PrivateKey
    open_to_others: bool


@dataclass(frozen=True)
class Checked:
    """A manifest whose files were held against it: those that are here and right, and those that are not here."""

    opened: Opened
    files: tuple[str, ...]
    absent: tuple[str, ...]


def new_key(path: Path) -> tuple[str, Path]:
    """Make a key pair: the private key in ``path`` (mode 0600), the public one in ``<path>.pub``; gives the key's id and the latter.

    Raises EnginefarmError: FILE_EXISTS (nothing is ever overwritten), DISK, USAGE (no ``cryptography``).
    """
    _cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    public_path = path.with_name(path.name + ".pub")
    for taken in (path, public_path):
        if os.path.lexists(taken):
            why = "a key that is lost cannot sign again, so none is overwritten"
            raise EnginefarmError(FILE_EXISTS, "the file exists", where=Where(file=str(taken)), why=why, fix="choose another name")
    private = Ed25519PrivateKey.generate()
    public = private.public_key()
    with disk_errors("write the key"):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            file.flush()
            os.fsync(file.fileno())
        write_new(public_path, public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
        public_path.chmod(0o644)
    return key_id(public.public_bytes_raw()), public_path


def read_signing_key(path: Path) -> SigningKey:
    """A private key file (PEM), with the passphrase in ENGINEFARM_KEY_PASSPHRASE when it has one. Raises EnginefarmError (CONFIG_VALUE)."""
    _cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    def unusable(why: str, fix: str = "make one with: enginefarm keygen release.key") -> EnginefarmError:
        return EnginefarmError(CONFIG_VALUE, "the signing key cannot be used", where=Where(file=str(path)), why=why, fix=fix)

    passphrase = os.environ.get(PASSPHRASE)
    try:
        mode = path.stat().st_mode
        private = load_pem_private_key(read_regular(path, MAX_BYTES), passphrase.encode() if passphrase else None)
    except OSError as error:
        raise unusable(error.strerror or str(error), "name the file of the private key") from error
    except TypeError as error:  # a passphrase that is missing, or given for a key without one
        if passphrase:
            raise unusable("it has no passphrase, and one is given", f"unset {PASSPHRASE}") from error
        raise unusable("it is encrypted", f"put its passphrase into {PASSPHRASE}") from error
    except Exception as error:
        raise unusable("it is no private key in PEM form, or the passphrase is another") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise unusable("it is no Ed25519 key")
    return SigningKey(key_id(private.public_key().public_bytes_raw()), private, bool(stat.S_IMODE(mode) & 0o077))


def opened_manifest(path: Path) -> Opened:
    """A manifest as the loader reads it. Raises EnginefarmError (MANIFEST_UNREADABLE)."""
    try:
        return open_manifest(str(path))
    except LoadError as error:
        raise as_problem(error, path) from error


def check_files(path: Path) -> Checked:
    """Open a manifest (or what ``latest.json`` or a folder names) and hold every file of it that is here against its digest.

    Raises EnginefarmError: MANIFEST_UNREADABLE, DIGEST_MISMATCH for every file that is not the one that was checked.
    """
    opened = opened_manifest(path)
    here: list[str] = []
    absent: list[str] = []
    problems: list[EnginefarmError] = []
    for name, digest, size in _files(opened.content):
        file = Path(opened.folder, name)
        if not os.path.lexists(file):
            absent.append(name)
            continue
        try:
            check(Expected(inside(opened.folder, name), digest, size))
        except Refusal as refusal:
            what, fix = f"{name} is not the one that was checked", refusal.fix or None
            problems.append(EnginefarmError(DIGEST_MISMATCH, what, where=Where(file=str(file)), why=refusal.why, fix=fix))
        else:
            here.append(name)
    raise_all(problems)
    return Checked(opened, tuple(here), tuple(absent))


def _files(content: dict[str, Any]) -> Iterator[tuple[str, str, int | None]]:
    """Name, digest and size of everything that the manifest describes, each once."""
    seen: set[str] = set()
    described = [(record["file"], record["digest"], record["size_bytes"]) for record in engines_with_file(content)]
    described += [(name, str(digest), None) for record in content["engines"] for name, digest in sorted(record.get("plugins", {}).items())]
    if content.get("fallback"):
        described.append((content["fallback"]["file"], content["fallback"]["digest"], None))
    for name, digest, size in described:
        base = str(name).replace("\\", "/").rsplit("/", 1)[-1]
        if base not in seen:
            seen.add(base)
            yield base, digest, size


def sign(opened: Opened, key: SigningKey) -> Path:
    """Write the signature of a manifest beside it and give its path. Signatures of other keys over the same bytes stay.

    The signature of an earlier revision moves to that revision's place in ``manifests/``, where it still is good. Raises EnginefarmError.
    """
    digest = sha256_bytes(opened.raw)
    path = Path(opened.path + SUFFIX)
    signatures: dict[str, bytes] = {}
    with disk_errors(f"write {path}"):
        try:
            before = read_signatures(str(path))
        except (FileNotFoundError, ValueError):  # a damaged one is worth nothing
            before = None
        if before is not None and before["digest"] == digest:
            signatures = before["signatures"]
        elif before is not None:
            archived = Path(opened.folder, "manifests", before["digest"].removeprefix("sha256:") + ".json")
            if archived.is_file():
                path.replace(archived.with_name(archived.name + SUFFIX))
        signatures[key.key_id] = key.private.sign(opened.raw)
        write_whole(str(path), [_signature_file(opened, digest, signatures)])
        path.chmod(0o644)
    return path


def _signature_file(opened: Opened, digest: str, signatures: dict[str, bytes]) -> bytes:
    listed = [{"key": name, "signature": base64.b64encode(value).decode()} for name, value in sorted(signatures.items())]
    content = {"schema": SIGNATURE_SCHEMA, "manifest": Path(opened.path).name, "digest": digest, "signatures": listed}
    return json.dumps(content, indent=2).encode() + b"\n"


def signed_by(opened: Opened, keys: Sequence[Path]) -> tuple[str, Path]:
    """Id and file of the trusted key that signed the manifest. Raises EnginefarmError: SIGNATURE_REFUSED, USAGE (a bad key)."""
    try:
        trusted = {key.key_id: key for key in (read_public_key(str(path)) for path in keys)}
        name = verify(opened, list(trusted.values()))
    except LoadError as error:
        raise as_problem(error, Path(opened.path)) from error
    return name, Path(trusted[name].path)


def _cryptography() -> None:
    try:
        import cryptography.hazmat.primitives.asymmetric.ed25519  # noqa: F401
    except ImportError as error:
        what = "signing needs the package cryptography"
        fix = f"install it beside enginefarm: {shlex.quote(sys.executable)} -m pip install cryptography"
        raise EnginefarmError(USAGE, what, why=str(error), fix=fix) from error
