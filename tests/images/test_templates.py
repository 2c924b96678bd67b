from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import errors
from orchestrator.errors import EnginefarmError, flatten
from orchestrator.images import derive, templates
from orchestrator.images.reference import parse
from orchestrator.images.templates import Recipe, quoted, render

from .conftest import RegistryServer

DIGEST = "sha256:" + "ab" * 32
BASE = parse(f"nvcr.io/nvidia/tensorrt:23.09-py3@{DIGEST}")
PACKAGES = Recipe("packages", BASE, "Lane tools", packages=("numpy==1.26.4", "lane[gpu]==2.0"))
HADOLINT = Path(sys.executable).with_name("hadolint")
REQUIREMENTS = b"lane[gpu]==2.0\nnumpy==1.26.4\n"


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "libmine.so.1"
    path.write_bytes(b"\x7fELF")
    return path


@pytest.fixture
def plugins(plugin: Path) -> Recipe:
    return Recipe("plugins", BASE, "Lane plugins", plugins=(plugin,), labels={"team": 'per"ception $HOME \\'})


def instructions(text: str) -> list[tuple[str, str]]:
    lines = text.replace("\\\n", " ").splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines) if not word.startswith("#")]


def test_a_derived_image_starts_from_the_digest_and_ends_without_root(plugins: Recipe) -> None:
    for recipe in (plugins, PACKAGES, replace(PACKAGES, user="4242")):
        told = instructions(render(recipe))
        assert told[0] == ("ARG", f"BASE=nvcr.io/nvidia/tensorrt@{DIGEST}")
        assert told[1] == ("FROM", "${BASE}")
        assert told[-1] == ("USER", recipe.user)
        assert [word for word, _ in told].count("FROM") == 1


def test_labels_say_what_it_was_made_of(plugins: Recipe) -> None:
    label = dict(instructions(render(plugins)))["LABEL"]
    assert f'org.opencontainers.image.base.digest="{DIGEST}"' in label
    assert 'org.opencontainers.image.base.name="nvcr.io/nvidia/tensorrt:23.09-py3"' in label
    assert 'org.opencontainers.image.title="Lane plugins"' in label
    assert 'team="per\\"ception \\$HOME \\\\"' in label


def test_the_same_recipe_gives_the_same_bytes(plugins: Recipe) -> None:
    shuffled = replace(PACKAGES, packages=PACKAGES.packages[::-1])
    assert render(shuffled) == render(PACKAGES)
    first, second = BytesIO(), BytesIO()
    derive.write_context(plugins, render(plugins), first)
    derive.write_context(plugins, render(plugins), second)
    assert first.getvalue() == second.getvalue()


@pytest.mark.skipif(not HADOLINT.exists(), reason="hadolint is not installed")
def test_hadolint_finds_nothing(plugins: Recipe, tmp_path: Path) -> None:
    wheel = tmp_path / "lane-2.0-py3-none-any.whl"
    wheel.write_bytes(b"")
    # its parser does not know an escaped backslash before a quote, which Docker does
    simple = replace(plugins, labels={"team": 'per"ception $HOME'})
    for recipe in (simple, PACKAGES, replace(PACKAGES, wheels=(wheel,))):
        done = subprocess.run([HADOLINT, "--no-color", "-"], input=render(recipe).encode(), capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (0, b"")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"base": parse("nvcr.io/nvidia/tensorrt:23.09-py3")}, "no digest"),
        ({"title": "x\nRUN evil"}, "cannot be a title"),
        ({"title": ""}, "cannot be a title"),
        ({"user": "0"}, "cannot be the user"),
        ({"user": "00:5"}, "cannot be the user"),
        ({"user": "root"}, "cannot be the user"),
        ({"user": "1000\nRUN evil"}, "cannot be the user"),
        ({"packages": ("numpy",)}, "not one version"),
        ({"packages": ("numpy==1.0 --index-url=http://u:p@evil",)}, "not one version"),
        ({"packages": ("numpy==1.0\nevil==1",)}, "not one version"),
        ({"packages": ("git+https://evil/x==1",)}, "not one version"),
        ({"packages": ()}, "got none"),
        ({"labels": {"a b": "x"}}, "cannot be a label"),
        ({"labels": {"org.opencontainers.image.base.digest": "x"}}, "cannot be a label"),
        ({"labels": {"a": "x\ny"}}, "cannot be written"),
        ({"plugins": (Path("/nonexistent/lib.so"),)}, "is not there"),
        ({"plugins": (Path("lib so.txt"),)}, "cannot be a plugin"),
        ({"wheels": (Path("x.tar.gz"),)}, "cannot be a wheel"),
    ],
)
def test_nothing_can_be_slipped_into_the_dockerfile(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(EnginefarmError) as caught:
        render(replace(PACKAGES, **changed))
    assert caught.value.kind is errors.USAGE
    assert says in caught.value.what
    assert caught.value.fix


def test_everything_wrong_is_told_at_once() -> None:
    with pytest.raises(EnginefarmError) as caught:
        render(replace(PACKAGES, title="", user="0", packages=("a", "b")))
    assert len(flatten(caught.value)) == 4


def test_two_plugins_of_one_name_are_told(plugins: Recipe, plugin: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    twin = tmp_path / "other" / plugin.name
    twin.write_bytes(b"")
    with pytest.raises(EnginefarmError, match="two files are called"):
        render(replace(plugins, plugins=(plugin, twin)))


@given(st.text())
def test_a_quoted_value_is_one_word_or_refused(value: str) -> None:
    try:
        text = quoted(value)
    except ValueError:
        assert not value.isprintable()
        return
    inner = text[1:-1]
    assert "\n" not in text
    assert inner.replace("\\\\", "").replace('\\"', "").replace("\\$", "").count('"') == 0
    assert inner.replace("\\\\", "\0").replace('\\"', '"').replace("\\$", "$").replace("\0", "\\") == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("FROM ${BASE}\nUSER {{ user }}\nLABEL a={{ nothing }}\n", "'nothing' is undefined"),
        ("FROM ${BASE}\n{% if %}\n", "line 2"),
        ("FROM ${BASE}\n", "ends as root"),
        ("FROM ${BASE}\nUSER 5\nUSER root\n", "ends as root"),
        ("FROM ${BASE}\nUSER 5\nFROM $BASE\n", "ends as root"),
        ("FROM python:3.12 AS x\nFROM x\nUSER 5\n", 'starts from "python:3.12"'),
        ("FROM --platform=linux/amd64 \\\n  python\nUSER 5\n", 'starts from "python"'),
        ("FROM ${BASE}\nUSER {{ ''.__class__.__mro__ }}\n", "unsafe"),
    ],
)
def test_a_template_of_one_s_own_is_held_to_the_rules(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.Dockerfile.j2"
    path.write_text(text)
    with pytest.raises(EnginefarmError) as caught:
        render(replace(PACKAGES, template=str(path)))
    error = flatten(caught.value)[0]
    assert error.kind is errors.CONFIG_VALUE
    assert error.where is not None
    assert says in f"{error.what} {error.why} line {error.where.line}"


def test_a_template_of_one_s_own_may_use_ours(tmp_path: Path) -> None:
    path = tmp_path / "mine.Dockerfile.j2"
    path.write_text(
        f'FROM nvcr.io/x@{DIGEST} AS tools\nFROM ${{BASE}}\n{{% include "labels.j2" %}}\nCOPY --from=tools /a /a\nUSER {{{{ user }}}}\n'
    )
    text = render(replace(PACKAGES, template=str(path)))
    assert 'enginefarm.template="mine"' in text
    assert text.endswith("USER 1000:1000\n")


def test_a_misspelt_template_gets_a_suggestion() -> None:
    with pytest.raises(EnginefarmError) as caught:
        render(replace(PACKAGES, template="pakages"))
    assert "did you mean packages?" in (caught.value.fix or "")


def test_a_build_folder_holds_all_that_the_dockerfile_copies(plugins: Recipe, tmp_path: Path) -> None:
    derive.write_folder(plugins, tmp_path / "out")
    assert (tmp_path / "out" / "plugins" / "libmine.so.1").read_bytes() == b"\x7fELF"
    assert (tmp_path / "out" / "Dockerfile").read_text() == render(plugins)
    derive.write_folder(PACKAGES, tmp_path / "packages")
    assert (tmp_path / "packages" / "requirements.txt").read_bytes() == REQUIREMENTS
    with pytest.raises(EnginefarmError) as caught:
        derive.write_folder(plugins, tmp_path / "out")
    assert caught.value.kind is errors.FILE_EXISTS


# ---- built for real ----


def make_wheel(folder: Path) -> Path:
    """A wheel with the module ``lane``."""
    path = folder / "lane-2.0-py3-none-any.whl"
    info = "lane-2.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("lane.py", "print('lane', 2)\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: lane\nVersion: 2.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"lane.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


@pytest.mark.engine
def test_plugins_are_built_into_a_real_image(engine: Any, registry: RegistryServer, plugins: Recipe) -> None:
    digest = registry.put_image("plain", env={"LD_LIBRARY_PATH": "/usr/lib/old"})
    engine.api.pull(f"{registry.host}/plain", tag=digest)
    base = engine.images.get(f"{registry.host}/plain@{digest}").id
    recipe = replace(plugins, base=parse(f"{registry.host}/plain@{digest}"))
    lines: list[str] = []
    image = derive.build(engine, recipe, "example.test/lane:plugins", base, "linux/amd64", lines.append)
    attrs = engine.images.get("example.test/lane:plugins").attrs
    assert attrs["Id"] == image
    assert attrs["Config"]["User"] == "1000:1000"
    assert attrs["Config"]["Labels"]["team"] == 'per"ception $HOME \\'
    assert attrs["Config"]["Labels"]["org.opencontainers.image.base.digest"] == digest
    assert "LD_LIBRARY_PATH=/opt/enginefarm/plugins:/usr/lib/old" in attrs["Config"]["Env"]
    assert engine.images.get(base).attrs["RootFS"]["Layers"] == attrs["RootFS"]["Layers"][:1]
    assert any("COPY plugins/" in line for line in lines)


@pytest.mark.engine
def test_packages_are_installed_without_a_network(engine: Any, load_script: Any, tmp_path: Path) -> None:
    images = load_script("tests/docker/images.py")
    bundled = next(Path(images.sysconfig.get_path("stdlib"), "ensurepip", "_bundled").glob("pip-*.whl"))
    with zipfile.ZipFile(bundled) as wheel:
        pip = {f"{images.HOME}/site-packages/{name}": wheel.read(name) for name in wheel.namelist() if not name.endswith("/")}
    images.write_image(tmp_path / "base.tar", files=pip)
    images.import_image(engine.api, tmp_path / "base.tar", "example.test/python:base")
    base = engine.images.get("example.test/python:base").id
    recipe = Recipe("packages", BASE, "Lane tools", packages=("lane==2.0",), wheels=(make_wheel(tmp_path),))
    image = derive.build(engine, recipe, "example.test/lane:tools", base, "linux/amd64")
    output = engine.containers.run(
        image, ["-c", "import os, lane; print(os.getuid())"], entrypoint=["python3"], network_mode="none", remove=True
    )
    assert output.split() == [b"lane", b"2", b"1000"]

    with pytest.raises(EnginefarmError) as caught:
        derive.build(engine, replace(recipe, packages=("lane==3.0",)), "example.test/lane:none", base, "linux/amd64")
    assert (caught.value.kind, caught.value.exit) == (errors.IMAGE_BUILD_FAILED, 1)
    assert "lane==3.0" in (caught.value.why or "")
    assert engine.containers.list(all=True) == []


def test_the_templates_are_listed() -> None:
    assert templates.names() == ["packages", "plugins"]
