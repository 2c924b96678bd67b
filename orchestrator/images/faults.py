"""Every fault of a registry as its own error: from its HTTP answers, from exceptions, and from the text of a Docker Engine that pulled.

Texts are those of docs/images.md (Docker Engine 20.10 and its registry) and of nvcr.io as users report them. Transient
faults are tried again by :func:`retrying`, the others never.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TypeVar

from orchestrator import errors
from orchestrator.errors import EnginefarmError, Kind, Where
from orchestrator.images.credentials import NGC, Login
from orchestrator.images.nearest import nearest_tags
from orchestrator.images.reference import Reference
from orchestrator.portable.facts.support import image_problem

T = TypeVar("T")

ATTEMPTS = 4
MAX_RETRY_AFTER = 60.0  # seconds; a registry that asks for more is not waited for
_MAX_TEXT = 300

# stamina logs each retry as a warning, which Python prints to standard error when nobody configured logging
logging.getLogger("stamina").addHandler(logging.NullHandler())


class Fault(EnginefarmError):  # noqa: N818  (what a registry has; an error is what we raise)
    """``transient``: it may be gone on the next try; ``retry_after``: seconds that the registry asked to wait."""

    def __init__(
        self,
        kind: Kind,
        what: str,
        *,
        where: Where | None = None,
        why: str | None = None,
        fix: str | None = None,
        transient: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(kind, what, where=where, why=why, fix=fix)
        self.transient = transient
        self.retry_after = retry_after


@dataclass(frozen=True)
class Fetch:
    """What is being fetched: ``source`` is the place asked, a mirror's or ``reference`` itself; ``engine`` pulls it, or nobody does."""

    reference: Reference
    source: Reference
    platform: str
    login: Login | None = None
    engine: str | None = None
    where: Where | None = None

    @property
    def registry(self) -> str:
        return self.source.registry

    @property
    def shown(self) -> str:
        mirrored = "" if self.source == self.reference else f" (through {self.source.name})"
        return f"{self.reference}{mirrored}"

    def text(self, text: str) -> str:
        """What a registry or an engine said, fit to be shown: one line, no secrets."""
        hidden = self.login.hide(text) if self.login else text
        line = " ".join(hidden.split())
        return line if len(line) <= _MAX_TEXT else line[: _MAX_TEXT - 1] + "…"


def missing(fetch: Fetch, why: str) -> Fault:
    reference = fetch.reference
    problem = image_problem(str(reference))
    near = nearest_tags(reference.repository, reference.tag) if reference.tag else []
    if problem:
        fix = problem[1]
    elif near:
        fix = f"known tags near it: {', '.join(near)}"
    elif reference.digest:
        fix = "registries delete old images: lock again with: enginefarm targets lock --upgrade"
    else:
        fix = "check the repository and the tag"
    return Fault(errors.IMAGE_MISSING, f"{fetch.shown} does not exist", where=fetch.where, why=fetch.text(why), fix=fix)


def unauthorized(fetch: Fetch, why: str) -> Fault:
    way = "set NGC_API_KEY to a key of https://org.ngc.nvidia.com/setup, or " if fetch.registry == NGC else ""
    said = f"the login of user {fetch.login.username or '(token)'} was refused" if fetch.login else "no login for it is configured here"
    fix = f"{way}log in: docker login {fetch.registry}"
    what = f"{fetch.registry} asks for other credentials for {fetch.shown}" if fetch.login else f"{fetch.registry} asks for credentials"
    return Fault(errors.REGISTRY_UNAUTHORIZED, what, where=fetch.where, why=f"{said}: {fetch.text(why)}", fix=fix)


def denied(fetch: Fetch, why: str) -> Fault:
    who = "anyone without a login" if fetch.login is None else f"user {fetch.login.username or '(token)'}"
    if fetch.registry == NGC:
        page = "https://catalog.ngc.nvidia.com"
        fix = f"accept the image's licence on {page} with the account of the key, and check that its organisation may see the image"
    else:
        fix = f"ask for read access to {fetch.source.name}, or log in as somebody else: docker login {fetch.registry}"
    what = f"{fetch.registry} denies {fetch.shown} to {who}"
    return Fault(errors.REGISTRY_DENIED, what, where=fetch.where, why=f"it says: {fetch.text(why)}", fix=fix)


def rate_limited(fetch: Fetch, why: str, retry_after: float | None) -> Fault:
    again = f"try again in {retry_after:.0f} s" if retry_after is not None else "try again later"
    fix = again if fetch.login else f"{again}, or log in for a higher limit: docker login {fetch.registry}"
    return Fault(
        errors.REGISTRY_RATE_LIMIT,
        f"{fetch.registry} limits how often it is asked",
        where=fetch.where,
        why=fetch.text(why),
        fix=fix,
        transient=retry_after is None or retry_after <= MAX_RETRY_AFTER,
        retry_after=retry_after,
    )


def no_platform(fetch: Fetch, has: str | None) -> Fault:
    """``has``: what the image is for instead, as far as it is known."""
    why = f"it is published for {has}" if has else "its list of platforms has none for this one"
    fix = "take another image, or correct the target's platform"
    return Fault(errors.IMAGE_PLATFORM, f"{fetch.shown} has no {fetch.platform} variant", where=fetch.where, why=why, fix=fix)


def wrong_digest(fetch: Fetch, why: str) -> Fault:
    fix = "do not use this image; ask whoever runs the registry"
    what = f"{fetch.registry} gave something else than the digest of {fetch.shown} says"
    return Fault(errors.IMAGE_DIGEST, what, where=fetch.where, why=fetch.text(why), fix=fix)


def disk_full(fetch: Fetch, why: str) -> Fault:
    what = f"no space for {fetch.shown} on {fetch.engine or 'the engine'}"
    fix = "free some space there: enginefarm runners clean --images, or docker image prune"
    return Fault(errors.DISK, what, where=fetch.where, why=fetch.text(why), fix=fix)


def bad_answer(fetch: Fetch, why: str, transient: bool = False) -> Fault:
    what = f"{fetch.registry} gave an answer that cannot be used for {fetch.shown}"
    fix = "try again; if it stays so, ask whoever runs it" if transient else "check that it is a container registry (its API is under /v2/)"
    return Fault(errors.REGISTRY_ANSWER, what, where=fetch.where, why=fetch.text(why), fix=fix, transient=transient)


def bad_certificate(fetch: Fetch, why: str) -> Fault:
    folder = f"/etc/docker/certs.d/{fetch.registry}"
    place = f" on {fetch.engine}" if fetch.engine else " here"
    fix = f"put the certificate of its authority into {folder}/ca.crt{place}"
    what = f"the certificate of {fetch.registry} is not trusted{place}"
    return Fault(errors.REGISTRY_CERTIFICATE, what, where=fetch.where, why=fetch.text(why), fix=fix)


def unknown_name(fetch: Fetch, why: str) -> Fault:
    what = f"the name {fetch.registry.rpartition(':')[0] or fetch.registry} cannot be resolved"
    fix = "check its spelling, the DNS of this machine and of the engine's, and a proxy if one is needed (HTTPS_PROXY)"
    again = re.search(r"temporary failure|server misbehaving|timeout|try again", why, re.IGNORECASE) is not None
    return Fault(errors.REGISTRY_NAME, what, where=fetch.where, why=fetch.text(why), fix=fix, transient=again)


def unreachable(fetch: Fetch, why: str) -> Fault:
    said = fetch.text(why)
    if "connection reset" in why.lower() and fetch.registry.startswith(("127.", "localhost")):
        said += " (an engine that gets no login for a TLS registry on loopback says this too)"
    what = f"{fetch.registry} does not answer"
    fix = "check that it runs and that a firewall or proxy lets this through; on a machine without network: enginefarm images load"
    return Fault(errors.REGISTRY_UNREACHABLE, what, where=fetch.where, why=said, fix=fix, transient=True)


def _rate_limited(fetch: Fetch, why: str) -> Fault:
    return rate_limited(fetch, why, None)


def _no_platform(fetch: Fetch, _why: str) -> Fault:
    return no_platform(fetch, None)


def _transient_answer(fetch: Fetch, why: str) -> Fault:
    return bad_answer(fetch, why, transient=True)


_CONNECTION = (
    *("connection refused", "unreachable", "no route to host", "time(?:d )?out", "deadline exceeded", "connection reset", r"\bEOF\b"),
    *("broken pipe", "closed connection", "connection aborted", "ended prematurely", "incompleteread", "connection broken"),
)
# the first pattern that is found in a text decides
_TEXTS: tuple[tuple[re.Pattern[str], Callable[[Fetch, str], Fault]], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), make)
    for pattern, make in (
        (r"no space left on device|disk quota exceeded", disk_full),
        (r"toomanyrequests|too many requests|rate limit", _rate_limited),
        (
            r"no matching manifest for|no match for platform|does not match the specified platform",
            lambda fetch, _: no_platform(fetch, None),
        ),
        (r"x509:|certificate[ _]verify[ _]failed|certificate signed by|hostname mismatch", bad_certificate),
        (r"verification failed for digest|digest mismatch|does not match digest|failed size validation|unexpected digest", wrong_digest),
        (r"no basic auth credentials|\bunauthorized\b|authentication required|authorization required", unauthorized),
        (r"\bdenied\b|payment required|\bforbidden\b", denied),
        (r"manifest unknown|name unknown|name not known|manifest_unknown|name_unknown|not found", missing),
        (r"no such host|\blookup\b|name or service not known|name resolution|nodename nor servname|failed to resolve", unknown_name),
        (r"unexpected (?:http )?status.*\b5\d\d\b|internal server error|service unavailable|bad gateway|gateway time", _transient_answer),
        (
            "|".join(_CONNECTION),
            unreachable,
        ),
    )
)


def from_text(fetch: Fetch, text: str) -> Fault:
    """The fault that an engine's or a client's text means; a text that is not known becomes REGISTRY_ANSWER with the text as its reason."""
    for pattern, make in _TEXTS:
        if pattern.search(text):
            return make(fetch, text)
    return bad_answer(fetch, text)


def from_status(fetch: Fetch, status: int, headers: Mapping[str, str], body: str) -> Fault:
    """The fault of an HTTP answer other than 200; ``body``: the messages of its errors, or its text."""
    said = f"HTTP {status}" + (f": {body}" if body else "")
    if status == 429:
        return rate_limited(fetch, said, retry_after(headers.get("Retry-After")))
    if status in (401, 407):
        return unauthorized(fetch, said)
    if status in (402, 403):
        return denied(fetch, said)
    if status == 404:
        return missing(fetch, said)
    return bad_answer(fetch, said, transient=status >= 500 or status == 408)


def retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header, which is a number or an HTTP date; None when it is neither."""
    if not value:
        return None
    if value.strip().isdigit():
        return float(value.strip()[:9])
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError):
        return None


def retrying(call: Callable[[], T], *, pause: Callable[[float], None] = time.sleep, on_retry: Callable[[Fault], None] | None = None) -> T:
    """``call()``, again after a transient fault: up to 4 times, with growing waits of at most 4 s between them.

    Where the registry said how long to wait, ``pause`` waits the rest of that; it may raise to give up.
    """
    import stamina

    previous: Fault | None = None
    waiting_since = 0.0
    attempts = stamina.retry_context(
        on=lambda error: isinstance(error, Fault) and error.transient,
        attempts=ATTEMPTS,
        timeout=None,
        wait_initial=0.5,
        wait_max=4.0,
        wait_jitter=0.5,
    )
    for attempt in attempts:
        with attempt:
            if previous is not None:
                if on_retry is not None:
                    on_retry(previous)
                pause(max(0.0, (previous.retry_after or 0.0) - (time.monotonic() - waiting_since)))
            try:
                return call()
            except Fault as fault:
                previous, waiting_since = fault, time.monotonic()
                raise
    raise RuntimeError("unreachable: the last attempt returns or raises")
