"""Who we are to a registry: Docker's own configuration and credential helpers, or ``NGC_API_KEY``.

A secret is in no ``repr``, error or log: :class:`Login` hides it, and texts that come back from a registry go through :meth:`Login.hide`.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.errors import REGISTRY_UNAUTHORIZED, EnginefarmError, Where
from orchestrator.images.reference import DEFAULT_REGISTRY

NGC = "nvcr.io"
NGC_USER = "$oauthtoken"  # the fixed user name of NGC API keys
HELPER_SECONDS = 20.0
_HELPER_NAME = re.compile(r"^[A-Za-z0-9_.-]+\Z")
_HUB_KEY = "https://index.docker.io/v1/"
_TOKEN_USER = "<token>"  # noqa: S105  (the user name by which a helper marks an identity token)


@dataclass(frozen=True)
class Login:
    """A user name with a password, or an identity token."""

    username: str
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    def hide(self, text: str) -> str:
        """``text`` without the secret, also where it stands in base64 as HTTP sends it."""
        pair = base64.b64encode(f"{self.username}:{self.password}".encode()).decode()
        for secret in (pair if self.password else "", self.password, self.identity_token):
            if secret:
                text = text.replace(secret, "***")
        return text

    def as_engine_auth(self, registry: str) -> dict[str, str]:
        """The ``auth_config`` of the Docker Engine's API."""
        if self.identity_token:
            return {"identitytoken": self.identity_token, "serveraddress": registry}
        return {"username": self.username, "password": self.password, "serveraddress": registry}


class Credentials:
    """Looks up logins by registry. ``environment`` and ``config`` are the process's by default; each registry is asked for once."""

    def __init__(self, config: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment
        folder = self._environment.get("DOCKER_CONFIG") or str(Path(self._environment.get("HOME") or "~").expanduser() / ".docker")
        self._config_file = config or Path(folder) / "config.json"
        self._config: dict[str, Any] | None = None
        self._found: dict[str, Login | None] = {}

    def __repr__(self) -> str:
        return f"Credentials({str(self._config_file)!r})"

    def lookup(self, registry: str) -> Login | None:
        """The login for ``nvcr.io`` or ``host:port``; None when there is none.

        ``NGC_API_KEY`` counts for nvcr.io alone, never for a mirror of it, and before the configuration. Raises
        EnginefarmError(REGISTRY_UNAUTHORIZED) for a configuration or a helper that cannot be used.
        """
        if registry not in self._found:
            key = self._environment.get("NGC_API_KEY", "").strip()
            self._found[registry] = Login(NGC_USER, key) if registry == NGC and key else self._configured(registry)
        return self._found[registry]

    def _configured(self, registry: str) -> Login | None:
        config = self._read()
        helpers = config.get("credHelpers")
        helper = helpers.get(registry) if isinstance(helpers, dict) else None
        helper = helper or config.get("credsStore")
        if helper:
            login = self._ask(str(helper), _HUB_KEY if registry == DEFAULT_REGISTRY else registry)
            if login is not None:
                return login
        auths = config.get("auths")
        entries = auths if isinstance(auths, dict) else {}
        entry = next((value for key, value in entries.items() if _host(key) == registry), None)
        return self._entry(registry, entry) if isinstance(entry, dict) and entry else None

    def _read(self) -> dict[str, Any]:
        if self._config is None:
            try:
                raw = self._config_file.read_bytes()
            except FileNotFoundError:
                raw = b"{}"
            except OSError as error:
                raise self._unusable(f"cannot be read: {error.strerror}") from None
            try:
                read = json.loads(raw)
            except ValueError:
                # not chained: the decoder's error holds the file's text
                raise self._unusable("is not JSON") from None
            if not isinstance(read, dict):
                raise self._unusable("does not hold an object")
            self._config = read
        return self._config

    def _entry(self, registry: str, entry: Mapping[str, Any]) -> Login | None:
        token = entry.get("identitytoken")
        if isinstance(token, str) and token:
            return Login("", identity_token=token)
        username, password = entry.get("username"), entry.get("password")
        if isinstance(entry.get("auth"), str) and entry["auth"]:
            try:
                username, colon, password = base64.b64decode(entry["auth"], validate=True).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                colon = ""
            if not colon:
                raise self._unusable(f"holds an auth for {registry} that is not base64 of user:password") from None
        if isinstance(username, str) and isinstance(password, str) and username:
            return Login(username, password.rstrip("\0"))
        return None

    def _ask(self, helper: str, server: str) -> Login | None:
        """Run ``docker-credential-<helper> get``; its output is never shown, for it may hold the secret."""
        if not _HELPER_NAME.match(helper):
            raise self._unusable(f"names a credential helper that cannot be one: {helper[:60]!r}")
        program = f"docker-credential-{helper}"
        try:
            done = subprocess.run(
                [program, "get"],
                input=server.encode(),
                capture_output=True,
                timeout=HELPER_SECONDS,
                check=False,
                env=dict(self._environment),
            )
        except FileNotFoundError:
            raise _helper_failed(program, server, "it is not on PATH") from None
        except subprocess.TimeoutExpired:
            raise _helper_failed(program, server, f"it did not answer in {HELPER_SECONDS:.0f} s") from None
        except OSError as error:
            raise _helper_failed(program, server, str(error.strerror)) from None
        if done.returncode != 0:
            # the text that Docker's own client takes for "nothing stored"
            if b"credentials not found" in (done.stdout + done.stderr).lower():
                return None
            raise _helper_failed(program, server, f"it ended with exit code {done.returncode}")
        try:
            answer = json.loads(done.stdout)
            username, secret = answer["Username"], answer["Secret"]
        except (ValueError, KeyError, TypeError):
            raise _helper_failed(program, server, "its answer is not the JSON of the credential helper protocol") from None
        if not (isinstance(username, str) and isinstance(secret, str)):
            raise _helper_failed(program, server, "its answer is not the JSON of the credential helper protocol")
        return Login("", identity_token=secret) if username == _TOKEN_USER else Login(username, secret)

    def _unusable(self, why: str) -> EnginefarmError:
        name = str(self._config_file)
        fix = "mend it, or write it anew with: docker login REGISTRY"
        return EnginefarmError(REGISTRY_UNAUTHORIZED, f"Docker's configuration {why}", where=Where(file=name), fix=fix)


def _helper_failed(program: str, server: str, why: str) -> EnginefarmError:
    fix = f"try it: echo {server} | {program} get; or take it out of credsStore and credHelpers of Docker's config.json"
    return EnginefarmError(REGISTRY_UNAUTHORIZED, f"{program} gave no credentials for {server}", why=why, fix=fix)


def _host(key: str) -> str:
    """``https://index.docker.io/v1/`` -> ``docker.io``; ``https://host:5000/v2/`` -> ``host:5000``."""
    host = re.sub(r"^https?://", "", key).partition("/")[0]
    return DEFAULT_REGISTRY if host in ("index.docker.io", "registry-1.docker.io") else host
