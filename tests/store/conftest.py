"""Stores with something in them, and processes that work on them."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.store import Store
from orchestrator.store.fingerprint import TICK_NS
from orchestrator.store.memo import Memo

SECOND = 1_000_000_000
Keep = Callable[..., str]
Spawn = Callable[..., subprocess.Popen[str]]


def key(number: object) -> str:
    return "sha256:" + hashlib.sha256(str(number).encode()).hexdigest()


def never() -> bool:
    return False


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def store(root: Path) -> Store:
    return Store(root)


@pytest.fixture
def keep(store: Store, tmp_path: Path) -> Keep:
    """Put a result of kind ``build`` under ``key(name)`` with one blob of ``content``; gives the blob's digest."""

    def put(name: object, content: bytes, kind: str = "build") -> str:
        source = tmp_path / "source"
        source.write_bytes(content)
        digest = store.put(source)
        store.put_result(kind, key(name), {"what": f"{name}", "engine": digest}, {digest: len(content)})
        return digest

    return put


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Start Python code in a process of its own with ``sys.argv[1:]`` as given."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: object) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", code, *map(str, arguments)]
        child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


def files(folder: Path) -> list[str]:
    """Every file below ``folder``, but for the memo's and the lock of gc."""
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())
    return sorted(name for name in found if not name.startswith(("memo.db", "gc.lock", "CACHEDIR.TAG")))


def sha256(path: Path) -> str:
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def settled_file(path: Path, content: bytes) -> Path:
    """A file whose last change is more than a tick ago."""
    path.write_bytes(content)
    time.sleep(2 * TICK_NS / SECOND)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "memo.db"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return settled_file(tmp_path / "lane.onnx", b"weights" * 1000)


def reopened(memo: Memo, path: Path) -> Memo:
    memo.close()
    return Memo(path)
