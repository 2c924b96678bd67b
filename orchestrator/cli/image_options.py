"""Options and texts that the commands about images share: where images may come from, and which engine is meant."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import docker

    from orchestrator.images.lock import Lock
    from orchestrator.images.policy import Policy
    from orchestrator.images.pull import PullProgress

Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        envvar="ENGINEFARM_ALLOW",
        metavar="PREFIX",
        help="Registry, or registry and repository, that images may come from. Default: nvcr.io.",
        show_default=False,
    ),
]
Mirror = Annotated[
    list[str] | None,
    typer.Option(
        "--mirror",
        envvar="ENGINEFARM_MIRROR",
        metavar="PREFIX=PREFIX",
        help="Fetch images from a mirror: nvcr.io/=registry.example:5000/nvcr/",
        show_default=False,
    ),
]
Host = Annotated[
    str | None,
    typer.Option("--host", "-H", metavar="URL", help="Docker Engine (unix://, tcp://, ssh://, a context). Default: as the docker command."),
]


def policy_of(allow: Sequence[str] | None, mirrors: Sequence[str] | None) -> Policy:
    """The policy of the options; raises EnginefarmError(USAGE)."""
    from orchestrator.images.policy import DEFAULT_ALLOWED, policy, read_mirror

    return policy(allow or DEFAULT_ALLOWED, dict(read_mirror(text) for text in mirrors or ()))


def project_lock() -> tuple[Path, Lock]:
    """The lock file of the project that the current folder is in, and what it holds; the built-in one where the project has none."""
    from orchestrator.cli.settings import load_settings
    from orchestrator.images.lock import FILE_NAME, lock_file, read_lock
    from orchestrator.resources import builtin_targets

    path = lock_file(load_settings(Path.cwd()).project)
    return path, read_lock(path if path.exists() else builtin_targets() / FILE_NAME)


@contextlib.contextmanager
def connected(host: str | None) -> Iterator[docker.DockerClient]:
    """A client of a Docker Engine that answers. Raises EnginefarmError(ENGINE_UNREACHABLE, ENGINE_TLS)."""
    from orchestrator.runners.docker_engine import Address, Engine

    engine = Engine(Address(host), "the engine")
    try:
        yield engine.client
    finally:
        engine.close()


class ShowProgress:
    """Prints the progress of one pull to standard error, a line each tenth of it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._told = -1

    def __call__(self, progress: PullProgress) -> None:
        tenth = 10 * progress.downloaded // progress.total if progress.total else 0
        if tenth > self._told:
            self._told = tenth
            done, total = progress.downloaded / 1e6, progress.total / 1e6
            layers = f"{progress.layers_done}/{progress.layers} layers"
            typer.echo(f"{self._name}: {done:.0f}/{total:.0f} MB, {layers}", err=True)
