"""Signatures of manifests: Ed25519 over the manifest's bytes, in the file ``<manifest>.sig`` (docs/artifacts.md).

A manifest holds the digest of every engine, plugin and fallback, so its signature covers all that is loaded. Verifying needs the package
``cryptography``, or a caller's own function; whatever is missing or goes wrong, a required signature is refused.
"""

import base64
import binascii
import hashlib
import json
import os
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Union

from .errors import LoadError
from .files import open_regular
from .manifest import Opened, Verifier

SIGNATURE_SCHEMA = "enginefarm.signature/1"
SUFFIX = ".sig"
MAX_BYTES = 1 << 20  # of a signature or a key: both are a few hundred bytes

# SubjectPublicKeyInfo of an Ed25519 key (RFC 8410): these bytes, then the 32 bytes of the key
_SPKI = bytes(bytearray.fromhex("302a300506032b6570032100"))
_BEGIN, _END = "-----BEGIN PUBLIC KEY-----", "-----END PUBLIC KEY-----"

TrustedKey = NamedTuple("TrustedKey", [("key_id", str), ("public", bytes), ("path", str)])
"""``key_id`` is ``ed25519:`` and 32 hexadecimal digits, ``public`` the 32 bytes of the key, ``path`` its file."""


def key_id(public: bytes) -> str:
    """The name of a key: the first 16 bytes of the SHA-256 of its 32 bytes."""
    return "ed25519:" + hashlib.sha256(public).hexdigest()[:32]


def read_public_key(path: str) -> TrustedKey:
    """A public key file (PEM, as ``enginefarm keygen`` and ``openssl pkey -pubout`` write it). LoadError (kind usage) for anything else."""
    fix = "name the .pub file that enginefarm keygen wrote"
    try:
        with open_regular(os.fspath(path)) as file:
            text = file.read(MAX_BYTES).decode("ascii", "replace")
    except OSError as error:
        raise LoadError("trusted key cannot be read", "{}: {}".format(path, error.strerror or error), fix, kind="usage") from error
    if "PRIVATE KEY" in text:
        raise LoadError(
            "trusted key cannot be used", "{} is a private key, which belongs to the signer only".format(path), fix, kind="usage"
        )
    try:
        body = text.split(_BEGIN, 1)[1].split(_END, 1)[0]
        found = base64.b64decode("".join(body.split()), validate=True)
    except (IndexError, ValueError):
        found = b""
    if len(found) != len(_SPKI) + 32 or not found.startswith(_SPKI):
        raise LoadError("trusted key cannot be used", "{} is no Ed25519 public key (PEM)".format(path), fix, kind="usage")
    public = found[len(_SPKI) :]
    return TrustedKey(key_id(public), public, os.fspath(path))


def check_signature(opened: Opened, by: Union[bool, Verifier], trusted: Sequence[str]) -> str:
    """Who signed the manifest. LoadError (kind signature) for everything but a clear yes.

    ``by``: a function of (path, bytes of the manifest) that gives the signer; without one, one of the public key files ``trusted`` has to
    have signed.
    """
    if isinstance(trusted, (str, os.PathLike)):
        trusted = [os.fspath(trusted)]
    if callable(by):
        return _asked(opened, by)
    keys = [read_public_key(path) for path in trusted]
    if not keys:
        text = "{}: a signature is required and no trusted key is named".format(opened.path)
        raise LoadError("manifest is not trusted", text, 'name public keys: trusted=["release.pub"]', kind="signature")
    return verify(opened, keys)


def _asked(opened: Opened, ask: Verifier) -> str:
    try:
        signer = ask(opened.path, opened.raw)
    except Exception as error:  # any failure means: not verified
        raise _refused(opened, "{}: {}".format(type(error).__name__, error)) from error
    if not isinstance(signer, str) or not signer:
        raise _refused(opened, "the verifier named no signer")
    return signer


def verify(opened: Opened, keys: Sequence[TrustedKey]) -> str:
    """The id of the trusted key that signed these very bytes. LoadError (kind signature) when none did."""
    signatures = _signatures(opened)
    check = _checker()
    known = {key.key_id: key for key in keys}
    wrong: List[str] = []
    for name, signature in signatures.items():
        if name not in known:
            continue
        if check(known[name].public, signature, opened.raw):
            return name
        wrong.append(name)
    if wrong:
        raise _refused(opened, "the signature of key {} is not of this manifest".format(" and ".join(wrong)))
    named = " and ".join(signatures) or "no key"
    raise _refused(opened, "it is signed with {}; trusted is {}".format(named, " and ".join(known)))


def signature_files(opened: Opened) -> List[str]:
    """Where the manifest's signature may lie: beside it; for one that was archived since, also where it was when it was signed."""
    model = opened.content["model"]
    home = os.path.join(opened.folder, "{}_v{}.json".format(model["name"], model["version"]))
    paths = [opened.path + SUFFIX, home + SUFFIX]
    return paths if os.path.abspath(paths[0]) != os.path.abspath(paths[1]) else paths[:1]


def read_signatures(path: str) -> Dict[str, Any]:
    """A signature file as ``{"digest": str, "signatures": {key id: 64 bytes}}``. ValueError when it is none, OSError when unreadable."""
    with open_regular(path) as file:
        raw = file.read(MAX_BYTES + 1)
    try:
        content = json.loads(raw.decode("utf-8"))
        if content["schema"] != SIGNATURE_SCHEMA or not isinstance(content["digest"], str):
            raise ValueError("schema")
        found = {str(item["key"]): base64.b64decode(item["signature"], validate=True) for item in content["signatures"]}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise ValueError("{} is no {}".format(os.path.basename(path), SIGNATURE_SCHEMA)) from error
    return {"digest": content["digest"], "signatures": found}


def _signatures(opened: Opened) -> Dict[str, bytes]:
    """The signatures that say that they are of this manifest, by key."""
    digest = "sha256:" + hashlib.sha256(opened.raw).hexdigest()
    why = "it is not signed: there is no {}".format(os.path.basename(opened.path) + SUFFIX)
    for path in signature_files(opened):
        try:
            found = read_signatures(path)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            why = str(getattr(error, "strerror", None) or error)
            continue
        if found["digest"] == digest:
            signatures: Dict[str, bytes] = found["signatures"]
            return signatures
        why = "{} is of another revision of it ({}...); this one was written or changed later".format(
            os.path.basename(path), found["digest"][:19]
        )
    raise _refused(opened, why)


def _checker() -> Callable[[bytes, bytes, bytes], bool]:
    """Whether a signature (64 bytes) by a public key (32 bytes) is of a message."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except Exception as error:  # a broken installation is none
        text = "a signature is required and nothing here can verify one ({}: {})".format(type(error).__name__, error)
        fix = "pip install cryptography, or give require_signature a function of (path, manifest bytes) that returns the signer"
        raise LoadError("manifest is not trusted", text, fix, kind="signature") from error

    def check(public: bytes, signature: bytes, message: bytes) -> bool:
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True

    return check


def _refused(opened: Opened, why: str) -> LoadError:
    fix = "take it from where it was signed, or sign it: enginefarm sign"
    return LoadError("manifest is not trusted", "{}: {}".format(opened.path, why), fix, kind="signature")
