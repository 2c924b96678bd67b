"""The loader as a package of its own: exported, as a wheel, under old and new Pythons."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from orchestrator.portable.runtime.package import PACKAGE, package_files, write_package

from .conftest import interpreters

ROOT = Path(__file__).resolve().parents[3]
INTERPRETERS = interpreters()
SAY = """
import json, sys
import enginefarm_runtime
from enginefarm_runtime import LoadError, load, select
before = sorted(name for name in ("numpy", "onnxruntime", "ctypes", "torch", "tensorrt") if name in sys.modules)
try:
    model = load(sys.argv[1], isolate="isolate" in sys.argv)
    said = dict(model.choice.as_dict(), metrics=model.metrics_text())
except LoadError as error:
    said = dict(error.choice.as_dict(), error=str(error))
print(json.dumps(dict(said, before=before, version=enginefarm_runtime.__version__, python=sys.version_info[:2])))
"""


def says(run_code: Any, *arguments: object, **options: Any) -> dict[str, Any]:
    done = run_code(SAY, *arguments, **options)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.interpreters
@pytest.mark.parametrize("python", INTERPRETERS or [""])
@pytest.mark.parametrize("isolate", [False, True])
def test_other_pythons_load_through_a_double(run_code: Any, folder: Any, python: str, isolate: bool) -> None:
    if not python:
        pytest.skip("no other Python here: name some in ENGINEFARM_PYTHONS, or put python3.6 and others on PATH")
    folder.add("bad", b"refuse")
    folder.add("good", b"fine")

    said = says(run_code, folder.write(), *(["isolate"] if isolate else []), python=python, double=True)

    assert said["chosen"]["target"] == "good"
    assert said["chosen"]["backend_version"] == "0.0.double"
    assert "Protobuf parsing failed" in said["refused"][0]["why"]
    assert 'enginefarm_model_degraded{model="lane",version="3"} 1' in said["metrics"]
    assert said["version"] == "1.2.3"


@pytest.mark.interpreters
@pytest.mark.parametrize("python", INTERPRETERS or [""])
def test_other_pythons_refuse_with_the_whole_list(run_code: Any, folder: Any, python: str) -> None:
    if not python:
        pytest.skip("no other Python here: name some in ENGINEFARM_PYTHONS, or put python3.6 and others on PATH")
    folder.add("ampere", b"plan", backend="tensorrt", backend_version="10.11.0.33", compute_capability=("8.6",), platform="linux/arm64")
    engine = folder.add("cpu", b"fine")
    manifest = folder.write()
    engine.write_bytes(b"\r\nfine")

    said = says(run_code, manifest, python=python, double=True)

    assert [refused["stage"] for refused in said["refused"]] == ["rules", "file"]
    assert "built for linux/arm64" in said["error"]
    assert "the one that was checked has" in said["error"]


def test_importing_it_imports_no_backend(run_code: Any, folder: Any) -> None:
    folder.add("good", b"fine")

    assert says(run_code, folder.write(), double=True)["before"] == []


def test_the_package_is_all_of_portable_and_replaces_an_older_copy(tmp_path: Path) -> None:
    path = Path(write_package(str(tmp_path), "1"))
    (path / "stale.py").write_text("")
    write_package(str(tmp_path), "2")

    portable = ROOT / "orchestrator" / "portable"
    wanted = {name.relative_to(portable).as_posix() for suffix in ("*.py", "*.json") for name in portable.rglob(suffix)}
    found = {name.relative_to(path).as_posix() for name in path.rglob("*") if name.is_file()}
    assert found == wanted | {"py.typed"}
    assert '__version__ = "2"' in (path / "__init__.py").read_text()
    assert [name.name for name in tmp_path.iterdir()] == [PACKAGE]


def test_a_foreign_folder_of_that_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / PACKAGE).mkdir()
    (tmp_path / PACKAGE / "mine.py").write_text("")

    with pytest.raises(FileExistsError):
        write_package(str(tmp_path), "1")
    assert (tmp_path / PACKAGE / "mine.py").exists()


def test_the_wheel_holds_the_package_for_every_python_from_3_6(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT / "runtime", capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr

    (wheel,) = tmp_path.glob("*.whl")
    version = orchestrator.__version__
    assert wheel.name == f"enginefarm_runtime-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        for name, content in package_files(version):
            assert archive.read(f"{PACKAGE}/{name}") == content
        metadata = archive.read(f"enginefarm_runtime-{version}.dist-info/METADATA").decode()
    assert "Requires-Python: >=3.6" in metadata
    assert "Metadata-Version: 2.1" in metadata
    assert "Requires-Dist" not in metadata
