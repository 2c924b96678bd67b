"""What holds for every test: no network, no settings of the caller's environment, and marks that may not be skipped.

ENGINEFARM_REQUIRE=rtx,interpreters (set by .ci/run) turns a skip of a test with one of these marks into a failure, and
so the skip of a whole file: where CI has what a test needs, "not run" must not look like "passed".
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
REQUIRED = frozenset(filter(None, os.environ.get("ENGINEFARM_REQUIRE", "").replace(" ", "").split(",")))
LOOPBACK = ("127.", "::1", "localhost")
FROM_CI = ("CI", "GITHUB_ACTIONS", "GITLAB_CI", "GITHUB_STEP_SUMMARY", "NO_COLOR", "FORCE_COLOR", "COLUMNS")
OTHER_PYTHONS = ("3.6", "3.7", "3.8", "3.9", "3.10", "3.12", "3.13", "3.14")
FROM_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS")


def pytest_configure(config: pytest.Config) -> None:
    known = {line.split(":")[0] for line in config.getini("markers")}
    if unknown := REQUIRED - known:
        raise pytest.UsageError(f"ENGINEFARM_REQUIRE names no mark of this project: {', '.join(sorted(unknown))}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("rtx") and importlib.util.find_spec("tensorrt_rtx_bindings") is None:
        pytest.skip("TensorRT-RTX is not installed (make test fetches it on Linux x86_64)")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with the argument ``other_python`` runs once with each other interpreter of this machine."""
    if "other_python" in metafunc.fixturenames:
        none = pytest.param("", marks=pytest.mark.skip(reason="no other Python here: name some in ENGINEFARM_PYTHONS"))
        metafunc.parametrize("other_python", other_pythons() or [none])


@functools.lru_cache(maxsize=1)
def other_pythons() -> list[str]:
    """ENGINEFARM_PYTHONS (colon-separated) as given, else one that runs of each version on PATH or kept by pyenv."""
    given = os.environ.get("ENGINEFARM_PYTHONS")
    if given:
        return given.split(":")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = []
    for version in OTHER_PYTHONS:
        candidates = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"{version}.*/bin/python3")))]
        found += [path for path in candidates if path and is_python(path, version)][:1]
    return found


def is_python(path: str, version: str) -> bool:
    """Whether ``path`` runs and is that version: a shim of pyenv is on PATH for versions that are switched off."""
    question = "import sys; sys.stdout.write('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-I", "-c", question], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout == version


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    marks = sorted(REQUIRED & {mark.name for mark in item.iter_markers()})
    if report.skipped and marks and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid}: ENGINEFARM_REQUIRE={','.join(marks)} does not allow a skip. {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    report = yield
    if report.skipped and REQUIRED:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid}: a whole file may not be skipped under ENGINEFARM_REQUIRE. {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        settings = name.startswith(("ENGINEFARM_", "EF_")) and name != "ENGINEFARM_PYTHON36"  # where tests find an old Python
        if settings or name in FROM_CI + FROM_MAKE:
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """Connections of this process leave the machine by mistake only, and then the test should say so."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        host = address[0] if isinstance(address, tuple) else ""
        if self.family in (socket.AF_INET, socket.AF_INET6) and not str(host).startswith(LOOPBACK):
            raise AssertionError(f"a test opened a connection to {host}")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", guarded)
        yield


@pytest.fixture(scope="session")
def load_script() -> Callable[[str], ModuleType]:
    """Imports a script of the project that is in no package: ``load_script("tools/lock.py")``."""

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"script_{Path(name).stem}", ROOT / name)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
