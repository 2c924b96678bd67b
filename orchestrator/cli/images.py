"""``enginefarm images``: derived images with a team's plugins or packages, and bundles for labs without a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.image_options import Allow, Host, Mirror, ShowProgress, connected, policy_of, project_lock
from orchestrator.cli.targets import Selectors, project_matrix

if TYPE_CHECKING:
    import docker

    from orchestrator.images.bundle import Bundled
    from orchestrator.images.lock import Entry, Lock
    from orchestrator.images.policy import Policy
    from orchestrator.images.templates import Recipe

app = typer.Typer(no_args_is_help=True, help="Derive images from locked ones; carry locked images to machines without a network.")

Template = Annotated[str, typer.Argument(help="plugins, packages, or a template file (Dockerfile in Jinja2).")]
Base = Annotated[str, typer.Option("--base", help="Image to start from: one that targets.lock holds, or with @sha256:...")]
Plugins = Annotated[list[Path] | None, typer.Option("--plugin", help="TensorRT plugin library (.so). Repeatable.", show_default=False)]
Packages = Annotated[list[str] | None, typer.Option("--package", help="Python package, NAME==VERSION. Repeatable.", show_default=False)]
Wheels = Annotated[
    list[Path] | None, typer.Option("--wheel", help="Install from these wheels alone, without a network. Repeatable.", show_default=False)
]
Labels = Annotated[list[str] | None, typer.Option("--label", help="NAME=VALUE. Repeatable.", show_default=False)]
User = Annotated[str, typer.Option("--user", help="User and group that the image runs as, in numbers.")]
Title = Annotated[str, typer.Option("--title", help="What the image is, for people.")]
Platform = Annotated[str, typer.Option("--platform", help="linux/amd64 or linux/arm64.")]


@app.command("render")
def render_command(
    template: Template,
    base: Base,
    plugins: Plugins = None,
    packages: Packages = None,
    wheels: Wheels = None,
    labels: Labels = None,
    user: User = "1000:1000",
    title: Title = "derived image",
    platform: Platform = "linux/amd64",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write a build folder instead of printing the Dockerfile.")] = None,
) -> None:
    """Print the Dockerfile of a derived image, or write it with the files it needs into a folder."""
    from orchestrator.images.derive import write_folder
    from orchestrator.images.templates import render

    recipe = _recipe(template, _base_entry(base, platform), plugins, packages, wheels, labels, user, title)
    if output is None:
        typer.echo(render(recipe), nl=False)
    else:
        write_folder(recipe, output)
        typer.echo(f"wrote {output}: docker build {output}")


@app.command("build")
def build_command(
    template: Template,
    base: Base,
    tag: Annotated[str, typer.Option("--tag", "-t", help="Name of the new image: registry.example/team/tensorrt:23.09-plugins")],
    plugins: Plugins = None,
    packages: Packages = None,
    wheels: Wheels = None,
    labels: Labels = None,
    user: User = "1000:1000",
    title: Title = "derived image",
    platform: Platform = "linux/amd64",
    host: Host = None,
    allow: Allow = None,
    mirror: Mirror = None,
) -> None:
    """Build a derived image on an engine. Push it to a registry of yours, name it in a target, and lock it."""
    from orchestrator.images.derive import build
    from orchestrator.images.reference import parse
    from orchestrator.images.templates import render

    entry = _base_entry(base, platform)
    recipe = _recipe(template, entry, plugins, packages, wheels, labels, user, title)
    render(recipe)  # everything that is wrong with it is said before an engine is asked
    name = str(parse(tag))
    policy = policy_of(allow, mirror)
    with connected(host) as client:
        base_image = _ensure(client, entry, policy, offline=False)
        image = build(client, recipe, name, base_image, platform, lambda line: typer.echo(line, err=True))
    typer.echo(f"built {name} ({image[:19]})")


@app.command("save")
def save_command(
    folder: Annotated[Path, typer.Argument(help="New folder to write.")],
    selectors: Selectors = None,
    host: Host = None,
    offline: Annotated[bool, typer.Option("--offline", help="Pull nothing: take what the engine has.")] = False,
    allow: Allow = None,
    mirror: Mirror = None,
) -> None:
    """Write the locked images of targets into a folder that can be carried to an engine without a network."""
    from orchestrator.errors import EMPTY_SELECTION, FILE_EXISTS, EnginefarmError, Where
    from orchestrator.images.bundle import save

    if folder.exists():
        raise EnginefarmError(FILE_EXISTS, f"{folder} exists", where=Where(file=str(folder)), fix="name a folder that does not exist")
    _, lock = project_lock()
    entries = _locked(lock, selectors)
    if not entries:
        raise EnginefarmError(EMPTY_SELECTION, "none of these targets has an image", fix="see them with: enginefarm targets list")
    policy = policy_of(allow, mirror)
    with connected(host) as client:
        images = [(entry, _ensure(client, entry, policy, offline)) for entry in entries]
        items = save(client, images, folder, _tell)
    total = sum({item.file: item.size for item in items}.values())
    typer.echo(f"{len(items)} image{'s' if len(items) > 1 else ''} in {folder}, {total / 1e9:.2f} GB: enginefarm images load {folder.name}")


@app.command("load")
def load_command(folder: Annotated[Path, typer.Argument(help="Folder that `images save` wrote.")], host: Host = None) -> None:
    """Check the images of a folder against targets.lock and put them into an engine; then build with --offline."""
    from orchestrator.images.bundle import load

    _, lock = project_lock()
    with connected(host) as client:
        items = load(client, folder, lock, _tell)
    typer.echo(f"{len(items)} image{'s' if len(items) > 1 else ''} loaded")


def _tell(item: Bundled) -> None:
    typer.echo(f"{item.reference} ({item.platform}): {item.size / 1e9:.2f} GB", err=True)


def _ensure(client: docker.DockerClient, entry: Entry, policy: Policy, offline: bool) -> str:
    from orchestrator.images.credentials import Credentials
    from orchestrator.images.pull import ensure

    return ensure(
        client,
        entry.pinned,
        entry.platform,
        policy=policy,
        credentials=Credentials(),
        offline=offline,
        on_progress=ShowProgress(entry.reference),
        image_id=entry.image_id or None,
    )


def _locked(lock: Lock, selectors: list[str] | None) -> list[Entry]:
    """The locked images of the selected targets, each once. Raises EnginefarmError(IMAGE_NOT_LOCKED) for each that is missing."""
    from orchestrator.errors import IMAGE_NOT_LOCKED, EnginefarmError, Where, raise_all
    from orchestrator.images.lock import unlocked, wanted

    targets = [effective.target for effective in project_matrix().select(selectors or [])]
    fix = "lock it: enginefarm targets lock"
    raise_all(
        EnginefarmError(IMAGE_NOT_LOCKED, f"{image} ({platform}) is not locked", where=Where(target=name), fix=fix)
        for name, image, platform in unlocked(lock, targets)
    )
    found = [lock.find(target.image, platform) for target in targets if target.image for platform in wanted(target)]
    return list({entry.key: entry for entry in found if entry is not None}.values())


def _base_entry(base: str, platform: str) -> Entry:
    """The image to start from: the locked one, or one that is named by its digest."""
    from orchestrator.cli.values import check_choice
    from orchestrator.errors import IMAGE_NOT_LOCKED, EnginefarmError
    from orchestrator.images.lock import PLATFORMS, Entry
    from orchestrator.images.reference import parse

    check_choice("--platform", platform, PLATFORMS)
    reference = parse(base)
    if reference.digest is not None:
        return Entry(str(reference), platform, reference.digest, image_id="", size_bytes=0, locked_at="")
    path, lock = project_lock()
    entry = lock.find(base, platform)
    if entry is None:
        fix = "lock the target that uses it: enginefarm targets lock; or write it with @sha256:..."
        raise EnginefarmError(IMAGE_NOT_LOCKED, f"{reference} ({platform}) is not in {path.name}", fix=fix)
    return entry


def _recipe(
    template: str,
    entry: Entry,
    plugins: list[Path] | None,
    packages: list[str] | None,
    wheels: list[Path] | None,
    labels: list[str] | None,
    user: str,
    title: str,
) -> Recipe:
    from dataclasses import replace

    from orchestrator.errors import USAGE, EnginefarmError
    from orchestrator.images.reference import parse
    from orchestrator.images.templates import Recipe

    pairs = {}
    for text in labels or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise EnginefarmError(USAGE, f"--label {text!r} has no value", fix="write --label NAME=VALUE")
        pairs[name] = value
    base = replace(parse(entry.reference), digest=entry.digest)
    return Recipe(template, base, title, tuple(plugins or ()), tuple(packages or ()), tuple(wheels or ()), pairs, user)
