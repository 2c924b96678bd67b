"""Makes derived images of recipes: a build folder for ``docker build``, or an image on an engine."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from orchestrator.artifacts.files import disk_errors, write_new
from orchestrator.errors import ENGINE_UNREACHABLE, FILE_EXISTS, IMAGE_BUILD_FAILED, EnginefarmError, Where
from orchestrator.images.templates import Recipe, render

if TYPE_CHECKING:
    import docker

_LAST_LINES = 8


def _files(recipe: Recipe, dockerfile: str) -> Iterator[tuple[str, int, bytes | Path]]:
    """Name, mode and content of each file of the build context, sorted."""
    yield "Dockerfile", 0o644, dockerfile.encode()
    for folder, mode, paths in (("plugins", 0o755, recipe.plugins), ("wheels", 0o644, recipe.wheels)):
        yield from ((f"{folder}/{path.name}", mode, path) for path in sorted(paths, key=lambda path: path.name))
    yield "requirements.txt", 0o644, "".join(f"{package}\n" for package in sorted(recipe.packages)).encode()


def write_folder(recipe: Recipe, folder: Path) -> None:
    """The build context as a new folder, whole or not at all. Raises EnginefarmError (FILE_EXISTS, DISK, and as ``render``)."""
    dockerfile = render(recipe)
    if folder.exists():
        raise EnginefarmError(FILE_EXISTS, f"{folder} exists", where=Where(file=str(folder)), fix="name a folder that does not exist")
    with disk_errors(f"write {folder}"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            for name, mode, content in _files(recipe, dockerfile):
                place = work / name
                place.parent.mkdir(exist_ok=True)
                if isinstance(content, bytes):
                    write_new(place, content)
                else:
                    shutil.copyfile(content, place)
                place.chmod(mode)
            work.chmod(0o755)
            work.rename(folder)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise


def write_context(recipe: Recipe, dockerfile: str, file: IO[bytes]) -> None:
    """The build context as a tar: the same bytes for the same input, streamed."""
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, mode, content in _files(recipe, dockerfile):
            info = tarfile.TarInfo(name)
            info.mode = mode
            if isinstance(content, bytes):
                info.size = len(content)
                tar.addfile(info, BytesIO(content))
                continue
            with disk_errors(f"read {content}"), content.open("rb") as stream:
                info.size = content.stat().st_size
                tar.addfile(info, stream)


def build(
    client: docker.DockerClient,
    recipe: Recipe,
    tag: str,
    base_image: str,
    platform: str,
    on_line: Callable[[str], None] | None = None,
) -> str:
    """Build the recipe on an engine and give it the tag; the id of the image. ``base_image``: the base's id there, as ``ensure`` gives it.

    Without wheels the template ``packages`` lets pip use the network; every other build has none. Raises EnginefarmError
    (IMAGE_BUILD_FAILED with the last lines, ENGINE_UNREACHABLE).
    """
    import docker.errors
    import requests
    import urllib3

    dockerfile = render(recipe)
    network = None if recipe.packages and not recipe.wheels else "none"
    lines: list[str] = []
    image = ""
    try:
        with tempfile.TemporaryFile() as context:
            write_context(recipe, dockerfile, context)
            context.seek(0)
            events = client.api.build(
                fileobj=context,
                custom_context=True,
                tag=tag,
                buildargs={"BASE": base_image},
                platform=platform,
                network_mode=network,
                rm=True,
                forcerm=True,
                decode=True,
            )
            for event in events:
                image = _take(event, lines, on_line) or image
    except docker.errors.APIError as error:
        raise _failed(recipe, str(error.explanation or error), lines) from None
    except (docker.errors.DockerException, requests.exceptions.RequestException, urllib3.exceptions.HTTPError) as error:
        fix = "check the engine: enginefarm runners"
        raise EnginefarmError(ENGINE_UNREACHABLE, "the engine went away in the build", why=str(error)[:300], fix=fix) from None
    except _BuildError as error:
        raise _failed(recipe, str(error), lines) from None
    if not image:
        raise _failed(recipe, "the engine named no image at the end", lines)
    return image


class _BuildError(Exception):
    """An ``error`` event of the build."""


def _take(event: Mapping[str, Any], lines: list[str], on_line: Callable[[str], None] | None) -> str | None:
    """One event; the image's id when it names it."""
    if "error" in event:
        raise _BuildError(str(event["error"]))
    for line in str(event.get("stream") or "").splitlines():
        if line.strip():
            lines.append(line)
            if on_line is not None:
                on_line(line)
    aux = event.get("aux")
    return str(aux["ID"]) if isinstance(aux, dict) and "ID" in aux else None


def _failed(recipe: Recipe, said: str, lines: list[str]) -> EnginefarmError:
    why = "\n".join([*lines[-_LAST_LINES:], said[:500]])
    fix = f"see the Dockerfile: enginefarm images render {recipe.template} ..."
    return EnginefarmError(IMAGE_BUILD_FAILED, f"{recipe.title} did not build on {recipe.base.name}", why=why, fix=fix)
