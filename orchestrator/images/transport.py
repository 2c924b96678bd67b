"""HTTP to registries: TLS, authentication, bounds and retries. What is read is small (manifests, image configurations): at most 4 MiB.

Written on ``requests``, which the Docker SDK brings: the clients of registries for Python give their errors as texts, and here each fault
must be told apart (status, Retry-After, platform, certificate) and credentials must be kept out of every message.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import REGISTRY_ANSWER
from orchestrator.images import faults
from orchestrator.images.credentials import Credentials, Login
from orchestrator.images.faults import Fault, Fetch
from orchestrator.images.reference import DEFAULT_REGISTRY

if TYPE_CHECKING:
    import requests

MAX_BYTES = 4 << 20
CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0
TOTAL_SECONDS = 120.0
_CHUNK = 1 << 16
_CERTIFICATES = (Path("/etc/docker/certs.d"), Path.home() / ".docker" / "certs.d")
_CHALLENGE = re.compile(r'([a-zA-Z_]+)="([^"]*)"')
_NOT_TLS = re.compile(r"wrong.version.number|record.layer.failure|packet.length.too.long|http.request", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """``headers`` ignore case."""

    body: bytes
    headers: Mapping[str, str]


@dataclass
class _Host:
    """What is known of one registry: its scheme, and the Authorization header by repository."""

    session: requests.Session
    base: str
    verify: str | bool
    plain_allowed: bool
    authorization: dict[str, str] = field(default_factory=dict, repr=False)


class Transport:
    """Asks registries. ``ca_files``: registry -> PEM file of the authority to trust besides Docker's certs.d and the system's."""

    def __init__(self, credentials: Credentials, ca_files: Mapping[str, Path] | None = None) -> None:
        self._credentials = credentials
        self._ca_files = dict(ca_files or {})
        self._hosts: dict[str, _Host] = {}
        self._lock = threading.Lock()

    def login(self, registry: str) -> Login | None:
        return self._credentials.lookup(registry)

    def get(self, fetch: Fetch, path: str, accept: Iterable[str]) -> Answer:
        """GET ``/v2/<repository>/<path>``, authenticated as the registry asks. Raises Fault; transient ones only after retries."""
        return faults.retrying(lambda: self._get(fetch, path, ", ".join(accept)))

    def _get(self, fetch: Fetch, path: str, accept: str) -> Answer:
        host = self._host(fetch.registry)
        repository = fetch.source.repository
        for renewed in (False, True):
            url = f"{host.base}/v2/{repository}/{path}"
            with self._send(fetch, host, url, host.authorization.get(repository), accept) as response:
                if response.status_code == 401 and not renewed:
                    challenge = response.headers.get("WWW-Authenticate", "")
                    authorization = self._authorize(fetch, host, challenge)
                    if authorization is not None:
                        host.authorization[repository] = authorization
                        continue
                body = _read(fetch, response)
                if response.status_code != 200:
                    host.authorization.pop(repository, None)
                    raise faults.from_status(fetch, response.status_code, response.headers, _messages(body))
                return Answer(body, response.headers)
        raise RuntimeError("unreachable: the second answer returns or raises")

    def _host(self, registry: str) -> _Host:
        with self._lock:
            if registry not in self._hosts:
                import requests

                name = "registry-1.docker.io" if registry == DEFAULT_REGISTRY else registry
                session = requests.Session()
                session.max_redirects = 5
                loopback = _is_loopback(name)
                # a proxy of the environment is not for this machine's own registries
                session.trust_env = not loopback
                self._hosts[registry] = _Host(session, f"https://{name}", self._verify(registry), loopback)
            return self._hosts[registry]

    def _verify(self, registry: str) -> str | bool:
        given = self._ca_files.get(registry)
        if given is not None:
            return str(given)
        found = next((path for folder in _CERTIFICATES if (path := folder / registry / "ca.crt").is_file()), None)
        return str(found) if found is not None else True

    def _send(self, fetch: Fetch, host: _Host, url: str, authorization: str | None, accept: str) -> requests.Response:
        import requests

        def send(address: str) -> requests.Response:
            return host.session.get(
                address,
                headers={"Accept": accept, "User-Agent": "enginefarm"},
                # a callable also keeps requests from reading ~/.netrc
                auth=_with(authorization),
                timeout=(CONNECT_SECONDS, READ_SECONDS),
                verify=host.verify,
                stream=True,
            )

        try:
            try:
                return send(url)
            except requests.exceptions.SSLError as error:
                # as Docker does it: a registry on loopback may speak plain HTTP; one with a bad certificate may not
                if not (host.plain_allowed and url.startswith(host.base) and _NOT_TLS.search(str(error))):
                    raise
                plain = host.base.replace("https://", "http://", 1)
                url, host.base = url.replace(host.base, plain, 1), plain
                return send(url)
        except requests.exceptions.RequestException as error:
            raise _from_exception(fetch, error) from None
        except OSError as error:
            # a CA file that is missing or unreadable
            raise faults.bad_certificate(fetch, str(error)) from None

    def _authorize(self, fetch: Fetch, host: _Host, challenge: str) -> str | None:
        """The Authorization header that answers a challenge; None when there is nothing to answer with."""
        scheme = challenge.partition(" ")[0].lower()
        if scheme == "basic":
            return _basic(fetch.login) if fetch.login and fetch.login.username else None
        if scheme == "bearer":
            return f"Bearer {self._token(fetch, host, dict(_CHALLENGE.findall(challenge)))}"
        return None

    def _token(self, fetch: Fetch, host: _Host, challenge: dict[str, str]) -> str:
        realm = challenge.get("realm", "")
        if not realm.startswith("https://") and not (realm.startswith("http://") and host.base.startswith("http://")):
            raise faults.bad_answer(fetch, f"it sends logins to {realm[:100] or 'nowhere'}, which is not https")
        scope = challenge.get("scope") or f"repository:{fetch.source.repository}:pull"
        query = {"service": challenge.get("service", ""), "scope": scope}
        with self._ask_for_token(fetch, host, realm, query) as response:
            body = _read(fetch, response)
            if response.status_code != 200:
                raise faults.from_status(fetch, response.status_code, response.headers, _messages(body))
        try:
            read = json.loads(body)
            token = read.get("token") or read.get("access_token")
        except (ValueError, AttributeError):
            token = None
        if not isinstance(token, str) or not token or not token.isascii() or not token.isprintable():
            raise faults.bad_answer(fetch, f"{realm} gave no token")
        return token

    def _ask_for_token(self, fetch: Fetch, host: _Host, realm: str, query: dict[str, str]) -> requests.Response:
        import requests

        login = fetch.login
        limits: dict[str, Any] = {"timeout": (CONNECT_SECONDS, READ_SECONDS), "verify": host.verify, "stream": True}
        try:
            if login is not None and login.identity_token:
                form = query | {"grant_type": "refresh_token", "client_id": "enginefarm", "refresh_token": login.identity_token}
                return host.session.post(realm, data=form, auth=_with(None), **limits)
            basic = _basic(login) if login is not None else None
            return host.session.get(realm, params=query, auth=_with(basic), **limits)
        except requests.exceptions.RequestException as error:
            raise _from_exception(fetch, error) from None


def _with(authorization: str | None) -> Callable[[requests.PreparedRequest], requests.PreparedRequest]:
    def sign(request: requests.PreparedRequest) -> requests.PreparedRequest:
        if authorization is not None:
            request.headers["Authorization"] = authorization
        return request

    return sign


def _basic(login: Login) -> str:
    return "Basic " + base64.b64encode(f"{login.username}:{login.password}".encode()).decode()


def _is_loopback(host: str) -> bool:
    name = re.sub(r":\d+$", "", host).strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _read(fetch: Fetch, response: requests.Response) -> bytes:
    """The whole body, bounded in bytes and in time."""
    import requests

    body = bytearray()
    end = time.monotonic() + TOTAL_SECONDS
    try:
        for chunk in response.iter_content(_CHUNK):
            body += chunk
            if len(body) > MAX_BYTES:
                raise faults.bad_answer(fetch, f"it is larger than {MAX_BYTES >> 20} MiB")
            if time.monotonic() > end:
                raise faults.unreachable(fetch, f"timed out: the answer took more than {TOTAL_SECONDS:.0f} s")
    except requests.exceptions.RequestException as error:
        raise _from_exception(fetch, error) from None
    return bytes(body)


def _from_exception(fetch: Fetch, error: Exception) -> Fault:
    """``requests`` wraps the cause in its own words, with the address as repr; the cause's text decides."""
    import requests

    text = str(error)
    reason = re.search(r"\(Caused by \w+\((.*)\)\)$", text, re.DOTALL)
    said = re.sub(r"^[\"']?<?[\w.]+(?:\(host=.*?\)|[^:]*object at 0x[0-9a-f]+>): ", "", reason[1]).strip("\"'()") if reason else text
    if isinstance(error, requests.exceptions.SSLError):
        return faults.bad_certificate(fetch, said)
    if isinstance(error, (requests.exceptions.ConnectTimeout, requests.exceptions.ReadTimeout)):
        return faults.unreachable(fetch, f"timed out: {said}")
    if isinstance(error, requests.exceptions.TooManyRedirects):
        return faults.bad_answer(fetch, "it redirects without end")
    fault = faults.from_text(fetch, said)
    known = isinstance(error, (requests.exceptions.ConnectionError, requests.exceptions.ChunkedEncodingError))
    return faults.unreachable(fetch, said) if known and fault.kind is REGISTRY_ANSWER else fault


def _messages(body: bytes) -> str:
    """The messages of an error answer (``{"errors": [{"code", "message"}]}``), or the start of its text."""
    try:
        entries = json.loads(body)["errors"]
        said = [f"{entry['code']}: {entry['message']}" for entry in entries if isinstance(entry, dict)]
        return "; ".join(said)[:1000]
    except (ValueError, KeyError, TypeError):
        text = re.sub(r"<[^>]*>", " ", body[:1000].decode("utf-8", "replace"))
        return " ".join(text.split())[:200]
