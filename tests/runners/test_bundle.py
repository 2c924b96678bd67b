"""The one-file worker and the digests over it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from orchestrator import __version__
from orchestrator.errors import DISK, EnginefarmError
from orchestrator.portable.worker.steps import STEPS
from orchestrator.runners import bundle

ROOT = Path(bundle.__file__).parents[2]


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The portable sources in a folder where they can be changed."""
    folder = tmp_path / "portable"
    shutil.copytree(bundle.PORTABLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(bundle, "PORTABLE", folder)
    forget()
    yield folder
    monkeypatch.undo()
    forget()


def forget() -> None:
    for function in (bundle.worker_version, bundle.step_modules_digest, bundle._pyz_digest):
        function.cache_clear()


def append(path: Path, text: str = "\n# changed\n") -> None:
    with path.open("a") as file:
        file.write(text)


def test_the_bundle_has_the_same_bytes_each_time(copy: Path) -> None:
    first = bundle.pyz_bytes()
    for path in copy.rglob("*.py"):
        path.touch()
    forget()

    assert bundle.pyz_bytes() == first


def test_the_bundle_holds_the_portable_sources_and_nothing_else(tmp_path: Path) -> None:
    bundle.write_pyz(tmp_path / "worker.pyz")

    with zipfile.ZipFile(tmp_path / "worker.pyz") as archive:
        names = archive.namelist()
        assert names == sorted(names)
        assert {name.split("/")[0] for name in names} == {"__main__.py", "_enginefarm_bundle.py", "enginefarm_portable"}
        assert not [name for name in names if "__pycache__" in name]
        main = archive.read("enginefarm_portable/worker/main.py")
        assert main == (bundle.PORTABLE / "worker" / "main.py").read_bytes()
    assert (tmp_path / "worker.pyz").stat().st_mode & 0o777 == 0o644


def test_the_version_names_release_and_contents(copy: Path) -> None:
    before = bundle.worker_version()
    append(copy / "worker" / "main.py")
    forget()

    assert before.startswith(f"{__version__}+")
    assert len(before.split("+")[1]) == 12
    assert bundle.worker_version() != before


def test_a_checkout_keeps_its_worker_in_the_cache_by_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(bundle, "SHIPPED", tmp_path / "none")
    path = bundle.worker_pyz()
    assert path.is_relative_to(tmp_path)
    path.write_bytes(b"damaged")

    assert bundle.worker_pyz() == path
    assert path.read_bytes() == bundle.pyz_bytes()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_an_installed_package_uses_the_file_that_it_ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "worker.pyz").write_bytes(b"shipped")
    monkeypatch.setattr(bundle, "SHIPPED", tmp_path / "worker.pyz")

    assert bundle.worker_pyz() == tmp_path / "worker.pyz"


def changed_digests(copy: Path, module: str) -> set[tuple[str, str]]:
    forget()
    before = {key: bundle.step_modules_digest(*key) for key in STEPS}
    append(copy / module)
    forget()
    return {key for key in STEPS if bundle.step_modules_digest(*key) != before[key]}


@pytest.mark.parametrize(
    ("module", "steps"),
    [
        ("backends/rtx.py", {("build", "tensorrt-rtx")}),
        ("backends/ort.py", {("build", "onnxruntime")}),
        ("backends/trt_network.py", {("build", "tensorrt-rtx"), ("build", "tensorrt")}),
        ("backends/trt_run.py", {("validate", "tensorrt-rtx"), ("validate", "tensorrt")}),
        ("worker/exercise.py", {("validate", "tensorrt-rtx"), ("validate", "tensorrt"), ("validate", "onnxruntime")}),
        ("backends/nvml.py", {("probe", "")}),
        ("worker/protocol.py", set(STEPS)),
        ("worker/__init__.py", set(STEPS)),
        ("facts/version.py", set()),
    ],
)
def test_a_steps_digest_takes_the_modules_that_it_imports_and_no_others(copy: Path, module: str, steps: set[tuple[str, str]]) -> None:
    assert changed_digests(copy, module) == steps


@pytest.mark.parametrize("key", sorted(STEPS))
def test_what_is_imported_is_what_is_in_the_digest(key: tuple[str, str], tmp_path: Path) -> None:
    """Import the step's modules for real and compare with what was found in the sources."""
    import subprocess

    bundle.write_pyz(tmp_path / "worker.pyz")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'worker.pyz')!r})\n"
        "import importlib, enginefarm_portable.worker.main\n"
        f"importlib.import_module('enginefarm_portable.{STEPS[key][0]}')\n"
        "print(*sorted(m for m in sys.modules if m.startswith('enginefarm_portable.')))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    imported = {name.removeprefix("enginefarm_portable.") for name in done.stdout.split()}
    files: set[Path] = set()
    for start in ("worker/main.py", STEPS[key][0].replace(".", "/") + ".py"):
        bundle._follow(bundle.PORTABLE / start, files)
    followed = {path.relative_to(bundle.PORTABLE).with_suffix("").as_posix().replace("/", ".") for path in files}

    assert {name.removesuffix(".__init__") for name in followed} - {"__init__"} == imported


def test_a_step_that_does_not_exist_has_no_digest() -> None:
    with pytest.raises(KeyError):
        bundle.step_modules_digest("train", "tensorrt")


def test_the_wheels_hook_adds_the_worker(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def hook(target: str) -> Any:
        return module.WorkerHook(str(ROOT), {}, None, None, str(tmp_path), target)

    wheel, data = hook("wheel"), {"force_include": {}}
    wheel.initialize("standard", data)
    (source, place), *others = data["force_include"].items()
    assert place == "orchestrator/_data/worker.pyz"
    assert others == []
    assert Path(source).read_bytes() == bundle.pyz_bytes()
    wheel.finalize("standard", data, "")
    assert not Path(source).exists()
    for target, version in (("sdist", "standard"), ("wheel", "editable")):
        untouched: dict[str, Any] = {"force_include": {}}
        hook(target).initialize(version, untouched)
        assert untouched == {"force_include": {}}


def test_a_cache_that_cannot_be_written_is_replaced_by_a_folder_of_the_process(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "tmp").mkdir()
    code = (
        "from pathlib import Path\n"
        "from orchestrator.runners import bundle\n"
        "bundle.SHIPPED = Path('none')\n"
        "path = bundle.worker_pyz()\n"
        "assert bundle.worker_pyz() == path\n"
        "assert path.read_bytes() == bundle.pyz_bytes()\n"
        "print(path)\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "file"), "HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path / "tmp")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).is_relative_to(tmp_path / "tmp")
    assert list((tmp_path / "tmp").iterdir()) == []


def test_no_folder_for_the_worker_is_a_disk_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "file"))
    monkeypatch.setattr(bundle, "SHIPPED", tmp_path / "none")
    monkeypatch.setattr(bundle, "_private", None)
    with pytest.raises(EnginefarmError) as caught:
        bundle.worker_pyz()
    assert caught.value.kind is DISK
    assert str(tmp_path / "file") in caught.value.what


def test_the_digest_of_a_step_can_be_asked_for_from_many_threads_at_once():
    from concurrent.futures import ThreadPoolExecutor

    bundle.step_modules_digest.cache_clear()
    steps = [("build", backend) for backend in ("tensorrt", "tensorrt-rtx", "onnxruntime")] * 8
    with ThreadPoolExecutor(len(steps)) as pool:
        digests = list(pool.map(lambda step: bundle.step_modules_digest(*step), steps))
    assert len(set(digests)) == 3
