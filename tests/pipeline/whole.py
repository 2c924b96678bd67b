"""What must hold of a project, however its runs ended: nothing is half there, nothing is wrong."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from orchestrator.artifacts.manifest import read_manifest
from orchestrator.store import Store

EVIDENCE = {"record.json", "problem.json"}


def digest(path: Path) -> str:
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def half_files(output: Path, engines: Collection[str | None]) -> list[str]:
    """Files below the folder of the engines that are not whole, at any moment, also while a run commits; ``engines`` are all digests that
    an engine can have."""
    found = []
    for latest in output.glob("*/latest.json"):
        named: dict[str, Any] = json.loads(latest.read_bytes())
        folder = (latest.parent / named["manifest"]).parent
        archived = folder / "manifests" / f"{named['digest'].removeprefix('sha256:')}.json"
        if named["digest"] not in [digest(path) for path in (latest.parent / named["manifest"], archived) if path.exists()]:
            found.append(f"{latest} names a manifest that is not there")
    for folder in output.glob("*/v*"):
        for path in _files(folder):
            if path.suffix == ".json":
                read_manifest(path)
            elif path.suffix == ".onnx" and digest(path) not in engines:
                found.append(f"{path} is half an engine, or another one")
        kept = [kept for kept in folder.glob("quarantine/*") if not {path.name for path in kept.iterdir()} >= EVIDENCE]
        found += [f"{folder} is half there" for folder in kept]
    return found


def _files(folder: Path) -> Iterator[Path]:
    yield from (path for path in folder.iterdir() if path.is_file())
    yield from folder.glob("manifests/*")


def broken_artifacts(output: Path) -> list[str]:
    """What is wrong below the folder of the engines once a run has ended well."""
    found = []
    for latest in sorted(output.glob("*/latest.json")):
        named: dict[str, Any] = json.loads(latest.read_bytes())
        manifest = latest.parent / named["manifest"]
        if digest(manifest) != named["digest"]:
            found.append(f"{latest} names {named['digest']}, {manifest} is {digest(manifest)}")
    for folder in sorted(output.glob("*/v*")):
        path = folder / f"{folder.parent.name}_{folder.name}.json"
        manifests = folder / "manifests"
        expected = {path.name, "manifests", "quarantine"}
        for record in read_manifest(path).engines:
            if record.file is not None:
                expected.add(record.file)
                if digest(folder / record.file) != record.digest:
                    found.append(f"{folder / record.file} is not what {path} says")
        found += [f"{entry} is of nobody" for entry in folder.iterdir() if entry.name not in expected]
        found += [f"{old} is not what its name says" for old in manifests.glob("*") if digest(old) != f"sha256:{old.stem}"]
    return found


def broken_cache(cache: Path) -> list[str]:
    """What is wrong with the store, without mending it."""
    found = [f"{path} is not what its name says" for path in cache.glob("blobs/*/*") if digest(path) != f"sha256:{path.name}"]
    store = Store(cache)
    names = list(cache.glob("results/*/*/*"))
    entries = list(store.ls())
    if len(entries) != len(names):
        found.append(f"{len(names) - len(entries)} results cannot be read")
    found += [f"{entry.what} names a blob that is not there" for entry in entries if store.get(entry.kind, entry.key) is None]
    return found


def broken_databases(state: Path) -> list[str]:
    """Databases of history and cache that are not sound, or that a run gave up."""
    found = [f"{path} was set aside" for path in state.rglob("*.db*") if re.search(r"unusable|damaged|newer", path.name)]
    for path in (state / "history.db", state / "cache/memo.db"):
        if path.exists():
            with closing(sqlite3.connect(path)) as database:
                answer = database.execute("PRAGMA integrity_check").fetchone()[0]
            found += [f"{path}: {answer}"] if answer != "ok" else []
    return found


def left_over(project: Path, cache: Path) -> list[str]:
    """Working files of runs that are gone."""
    found = [*cache.glob("tmp/*"), *project.glob(".enginefarm/runs/*/work"), *project.glob("artifacts/*/v*/.*")]
    return [f"{path} was left behind" for path in found]
