"""Signatures of manifests: an optional module or a caller's own function verifies them. Without either, a required signature fails."""

import importlib
from typing import Any, Callable, Optional, Union

from .errors import LoadError
from .manifest import Opened

MODULE = "enginefarm_signatures"
"""Provides ``verify(path: str, manifest: bytes) -> str``: who signed; raises when the signature is missing or wrong."""

Verifier = Callable[[str, bytes], Any]


def check_signature(opened: Opened, required: Union[bool, Verifier]) -> Optional[str]:
    """Who signed the manifest; None when no signature is required. LoadError for everything but a clear yes."""
    if required is False:
        return None
    verify = required if callable(required) else _installed()
    try:
        signer = verify(opened.path, opened.raw)
    except Exception as error:  # any failure means: not verified
        raise _refused(opened, "{}: {}".format(type(error).__name__, error)) from error
    if not isinstance(signer, str) or not signer:
        raise _refused(opened, "the verifier named no signer")
    return signer


def _installed() -> Verifier:
    try:
        verify: Verifier = importlib.import_module(MODULE).verify
    except Exception as error:  # a broken verifier is no verifier
        text = "a signature is required and nothing here can verify one ({}: {})".format(type(error).__name__, error)
        fix = "install {}, or give require_signature a function of (path, manifest bytes) that returns the signer".format(MODULE)
        raise LoadError("manifest is not trusted", text, fix) from error
    return verify


def _refused(opened: Opened, why: str) -> LoadError:
    return LoadError("manifest is not trusted", "{}: {}".format(opened.path, why), "take it from where it was signed")
