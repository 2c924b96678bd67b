"""Dockerfiles of derived images: a locked image with a team's plugins or Python packages.

What goes in is checked, so that no value can add a line or a word to the Dockerfile; what comes out starts from images by digest and ends
as a user other than root. Nothing secret has a place in it: no build arguments, no package index with a login.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.errors import CONFIG_VALUE, USAGE, EnginefarmError, Where, raise_all
from orchestrator.images.reference import Reference

SUFFIX = ".Dockerfile.j2"
_TITLE = re.compile(r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,99}\Z")
_PACKAGE = re.compile(r"^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:\[[A-Za-z0-9,._-]+\])?==[A-Za-z0-9.!+_-]+\Z")
_PLUGIN = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*\.so(?:\.[0-9]+)*\Z")
_WHEEL = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.+!-]*\.whl\Z")
_LABEL = re.compile(r"^[a-z0-9]+(?:[._-][a-z0-9]+)*\Z")
_USER = re.compile(r"^[0-9]{1,9}(?::[0-9]{1,9})?\Z")
_BY_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}\Z")


@dataclass(frozen=True)
class Recipe:
    """A derived image. ``base`` has a digest; ``template``: ``plugins``, ``packages``, or the path of a template of one's own;
    ``packages``: ``name==version`` each; ``user``: numeric, not root."""

    template: str
    base: Reference
    title: str
    plugins: tuple[Path, ...] = ()
    packages: tuple[str, ...] = ()
    wheels: tuple[Path, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    user: str = "1000:1000"


def builtin_templates() -> Path:
    """Folder of the templates that come with the program (``_data/dockerfiles`` in a wheel, ``dockerfiles/`` in a checkout)."""
    package = Path(__file__).resolve().parents[1]
    shipped = package / "_data" / "dockerfiles"
    return shipped if shipped.is_dir() else package.parent / "dockerfiles"


def names() -> list[str]:
    return sorted(path.name.removesuffix(SUFFIX) for path in builtin_templates().glob(f"*{SUFFIX}"))


def render(recipe: Recipe) -> str:
    """The Dockerfile. Raises EnginefarmError (USAGE, CONFIG_VALUE) with everything that is wrong in the recipe, or in a template."""
    import jinja2

    raise_all(_problems(recipe))
    path = _template_file(recipe.template)
    environment = _environment(path.parent)
    values = {
        "title": recipe.title,
        "reference": f"{recipe.base.name}:{recipe.base.tag}" if recipe.base.tag else recipe.base.name,
        "base": str(recipe.base.pinned(recipe.base.digest or "")),
        "plugins": sorted(plugin.name for plugin in recipe.plugins),
        "packages": sorted(recipe.packages),
        "wheels": sorted(wheel.name for wheel in recipe.wheels),
        "labels": _labels(recipe),
        "user": recipe.user,
    }
    try:
        text = environment.get_template(path.name).render(values)
    except jinja2.TemplateSyntaxError as error:
        where = Where(file=str(path.parent / error.name) if error.name else str(path), line=error.lineno)
        raise EnginefarmError(CONFIG_VALUE, "the template cannot be read", where=where, why=error.message) from None
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        raise EnginefarmError(CONFIG_VALUE, "the template cannot be rendered", where=Where(file=str(path)), why=str(error)) from None
    except OSError as error:
        raise EnginefarmError(USAGE, f"{path} cannot be read: {error.strerror}", where=Where(file=str(path))) from None
    text = re.sub(r"\n{2,}", "\n", text).strip() + "\n"
    raise_all(_dockerfile_problems(text, path))
    return text


def _environment(folder: Path) -> Any:
    import jinja2
    import jinja2.sandbox

    loader = jinja2.FileSystemLoader([folder, builtin_templates()])
    environment = jinja2.sandbox.SandboxedEnvironment(
        loader=loader, undefined=jinja2.StrictUndefined, autoescape=jinja2.select_autoescape([]), keep_trailing_newline=True
    )
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters["quoted"] = quoted
    return environment


def quoted(value: str) -> str:
    """A value of LABEL or ENV in double quotes, in which nothing is expanded. Raises ValueError for control characters."""
    if not value.isprintable():
        raise ValueError(f"{value!r} holds a character that cannot be written into a Dockerfile")
    return '"' + re.sub(r'(["\\$])', r"\\\1", value) + '"'


def _labels(recipe: Recipe) -> dict[str, str]:
    own = {
        "org.opencontainers.image.title": recipe.title,
        "org.opencontainers.image.base.name": f"{recipe.base.name}:{recipe.base.tag}" if recipe.base.tag else recipe.base.name,
        "org.opencontainers.image.base.digest": recipe.base.digest or "",
        "enginefarm.template": Path(recipe.template).name.removesuffix(SUFFIX),
    }
    return own | dict(sorted(recipe.labels.items()))


def _template_file(template: str) -> Path:
    if template in names():
        return builtin_templates() / f"{template}{SUFFIX}"
    path = Path(template)
    if path.is_file():
        return path.absolute()
    close = difflib.get_close_matches(template, names(), n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    fix = f"{hint}choose from {', '.join(names())}, or name a template file of yours"
    raise EnginefarmError(USAGE, f'there is no template "{template}"', fix=fix)


def _problems(recipe: Recipe) -> list[EnginefarmError]:
    """Everything in the recipe that cannot go into a Dockerfile."""
    found: list[tuple[str, str]] = []
    if recipe.base.digest is None:
        found.append((f"{recipe.base} has no digest", "lock it: enginefarm targets lock"))
    if not _TITLE.match(recipe.title):
        found.append((f"{recipe.title[:100]!r} cannot be a title", "use letters, digits, spaces and . _ -"))
    if not _USER.match(recipe.user) or int(recipe.user.split(":")[0]) == 0:
        found.append((f"{recipe.user[:40]!r} cannot be the user", "give a number other than 0: 1000:1000"))
    unpinned = [package for package in recipe.packages if not _PACKAGE.match(package)]
    found += [(f"{package[:100]!r} is not one version of a package", "write NAME==VERSION") for package in unpinned]
    found += _file_problems("plugin", recipe.plugins, _PLUGIN, "a shared library: libmine.so")
    found += _file_problems("wheel", recipe.wheels, _WHEEL, "a wheel: mine-1.0-py3-none-any.whl")
    for name, value in recipe.labels.items():
        if not _LABEL.match(name) or name.startswith(("enginefarm.", "org.opencontainers.image.base.")):
            found.append((f"{name[:100]!r} cannot be a label", "use lower-case letters and digits with . _ - between them"))
        if not value.isprintable() or len(value) > 1000:
            found.append((f"the value of label {name[:100]!r} cannot be written", "use one line of printable characters"))
    needs = {"plugins": (recipe.plugins, "--plugin libmine.so"), "packages": (recipe.packages, "--package NAME==VERSION")}
    if recipe.template in needs and not needs[recipe.template][0]:
        found.append((f"the template {recipe.template} got none", f"add {needs[recipe.template][1]}"))
    return [EnginefarmError(USAGE, what, fix=fix) for what, fix in found]


def _file_problems(kind: str, files: Iterable[Path], pattern: re.Pattern[str], means: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    seen: set[str] = set()
    for path in files:
        if not pattern.match(path.name):
            found.append((f"{path.name[:100]!r} cannot be a {kind}", f"name {means}"))
        elif not path.is_file():
            found.append((f"the {kind} {path} is not there", "check the path"))
        elif path.name in seen:
            found.append((f"two files are called {path.name}", "rename one"))
        seen.add(path.name)
    return found


def _dockerfile_problems(text: str, path: Path) -> list[EnginefarmError]:
    """What a template of one's own may not do: start from an image without digest, end as root."""
    where = Where(file=str(path))
    found = []
    user, stages = "", {"${BASE}", "$BASE", "scratch"}
    for instruction in re.sub(r"\\\n", " ", text).splitlines():
        word, _, rest = instruction.strip().partition(" ")
        if word.upper() == "FROM":
            parts = [part for part in rest.split() if not part.startswith("--")]
            source = parts[0] if parts else ""
            if source not in stages and not _BY_DIGEST.search(source):
                what = f'it starts from "{source[:100]}", which is not a digest'
                found.append(EnginefarmError(CONFIG_VALUE, what, where=where, fix="write FROM ${BASE}, or a name with @sha256:..."))
            stages.update(parts[2:3])
            user = ""
        elif word.upper() == "USER":
            user = rest.strip()
    if user.split(":")[0] in ("", "0", "root"):
        found.append(EnginefarmError(CONFIG_VALUE, "it ends as root", where=where, fix="end it with USER {{ user }}"))
    return found
