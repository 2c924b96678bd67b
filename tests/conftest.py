"""What holds for every test: no network, no settings of the caller's environment, and marks that may not be skipped.

ENGINEFARM_REQUIRE=rtx,interpreters (set by .ci/run) turns a skip of a test with one of these marks into a failure, and
so the skip of a whole file: where CI has what a test needs, "not run" must not look like "passed".
"""

from __future__ import annotations

import importlib.util
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
REQUIRED = frozenset(filter(None, os.environ.get("ENGINEFARM_REQUIRE", "").replace(" ", "").split(",")))
LOOPBACK = ("127.", "::1", "localhost")
FROM_CI = ("CI", "GITHUB_ACTIONS", "GITLAB_CI", "GITHUB_STEP_SUMMARY", "NO_COLOR", "FORCE_COLOR", "COLUMNS")
FROM_MAKE = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS")


def pytest_configure(config: pytest.Config) -> None:
    known = {line.split(":")[0] for line in config.getini("markers")}
    if unknown := REQUIRED - known:
        raise pytest.UsageError(f"ENGINEFARM_REQUIRE names no mark of this project: {', '.join(sorted(unknown))}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("rtx") and importlib.util.find_spec("tensorrt_rtx_bindings") is None:
        pytest.skip("TensorRT-RTX is not installed (make test fetches it on Linux x86_64)")


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
