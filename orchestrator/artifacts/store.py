"""Writing a release: engines under their names, then the manifest, then ``latest.json``, as one step that a kill cannot leave half done.

::

    artifacts/lane/.lock                        held while one run commits
    artifacts/lane/latest.json                  the version that services take
    artifacts/lane/v3/lane_v3.json              the manifest; its revision rises with every commit
    artifacts/lane/v3/lane_v3_ampere.engine
    artifacts/lane/v3/libours.so                what engines need beside them: plugins, the fallback
    artifacts/lane/v3/manifests/<sha256>.json   manifests of earlier revisions
    artifacts/lane/v3/quarantine/<tag>/         a failed engine with the evidence, until one of that tag comes that has no problem
    artifacts/lane/v3/.stage-*/                 a commit in the making; thrown away if its run dies
    artifacts/lane/v3/.commit/                  a commit that is decided; whoever takes the lock next finishes it if its run dies

Renaming ``.stage-*`` to ``.commit`` is the moment of commit. What follows is a list of renames that can be repeated from any point.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from orchestrator.artifacts.files import copy_new, disk_errors, member, sha256_bytes, sync_folder, write_new
from orchestrator.artifacts.latest import LATEST, LATEST_SCHEMA, decide, follow_latest, latest_bytes, read_latest
from orchestrator.artifacts.manifest import EngineRecord, Manifest, Verdict, parse_manifest, read_manifest
from orchestrator.artifacts.merge import merge_engines, statuses
from orchestrator.artifacts.names import check_model_name, manifest_file
from orchestrator.errors import DIGEST_MISMATCH, LOCKED, NAME_TAKEN, EnginefarmError, Where

__all__ = [
    "LATEST",
    "LATEST_SCHEMA",
    "Placed",
    "Release",
    "finish_interrupted",
    "follow_latest",
    "merge_engines",
    "read_latest",
    "read_manifest",
]

COMMIT = ".commit"
STAGE = ".stage-"
JOURNAL = "journal.json"
QUARANTINE = "quarantine"


class Placed(NamedTuple):
    """``digest`` is ``sha256:...`` of the bytes that were copied, ``status`` that of the copy when they were."""

    digest: str
    size_bytes: int
    status: os.stat_result


@contextlib.contextmanager
def _lock(folder: Path, timeout: float, on_wait: Callable[[str], None] | None) -> Iterator[None]:
    """Hold ``folder/.lock``; the system frees it when the process dies."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if on_wait is not None:
            on_wait(f"waiting for another run that writes to {folder}")
        try:
            lock.acquire(timeout=timeout)
        except Timeout as error:
            raise EnginefarmError(
                LOCKED,
                f"another run still writes to {folder} after {timeout:g} s",
                where=Where(file=str(folder / ".lock")),
                fix="wait for it to end, or stop it, and run again",
            ) from error
    try:
        yield
    finally:
        lock.release()


def _apply(version_folder: Path) -> None:
    """Carry out ``.commit``: every step may have been done before."""
    commit = version_folder / COMMIT
    journal = commit / JOURNAL
    if journal.exists():
        plan = json.loads(journal.read_bytes())
        for name in plan["moves"]:
            source = member(commit, name)
            if source.exists():
                source.replace(member(version_folder, name))
        sync_folder(version_folder)
        for name in plan["removes"]:
            member(version_folder, name).unlink(missing_ok=True)
        _release_from_quarantine(version_folder / QUARANTINE, plan.get("released", ()))
        latest = commit / LATEST
        if latest.exists():
            latest.replace(version_folder.parent / LATEST)
        sync_folder(version_folder.parent)
        sync_folder(version_folder)
        journal.unlink()
    shutil.rmtree(commit)


def _release_from_quarantine(quarantine: Path, tags: Sequence[str]) -> None:
    for tag in tags:
        kept = member(quarantine, tag)
        if kept.exists():
            shutil.rmtree(kept)
    with contextlib.suppress(OSError):
        quarantine.rmdir()  # only when nothing is in it


def _settle(model_folder: Path) -> None:
    """Under the lock: finish decided commits, throw away undecided ones."""
    for commit in sorted(model_folder.glob(f"v*/{COMMIT}")):
        _apply(commit.parent)
    for stage in model_folder.glob(f"v*/{STAGE}*"):
        shutil.rmtree(stage)


def finish_interrupted(output: Path, name: str, *, timeout: float = 600.0) -> None:
    """Finish a commit of ``name`` whose run was killed half way; does nothing and takes no lock when there is none."""
    folder = output / check_model_name(name)
    if any(folder.glob(f"v*/{COMMIT}")):
        with disk_errors("finish an interrupted commit"), _lock(folder, timeout, None):
            _settle(folder)


def is_latest(model_folder: Path, manifest: Manifest, path: Path) -> bool:
    """Whether ``latest.json`` names this manifest, whose file is ``path``, as it is: then nothing has to be written, under no lock."""
    latest = read_latest(model_folder)
    if latest is None:
        return False
    with contextlib.suppress(OSError):
        return (model_folder / LATEST).read_bytes() == latest_bytes(manifest, path.read_bytes(), statuses(manifest.engines))
    return False


class Release:
    """Commits one run's engines of one model version. The lock is held inside ``with``, so do nothing slow there but copying::

        with Release(output, "lane", 3, on_wait=tell) as release:
            placed = release.place(built, "lane_v3_ampere.engine")
            path = release.commit(manifest, move_latest=True)

    Attributes: ``previous``, the newest manifest of this version; after ``commit``, ``manifest`` (as written: merged, with its revision),
    ``latest_moved``, ``latest_note`` (why ``latest.json`` moved or stayed) and ``notes`` (what else there is to say).

    Raises EnginefarmError: LOCKED, DISK, MANIFEST_UNREADABLE.
    """

    def __init__(
        self, output: Path, name: str, version: int, *, timeout: float = 600.0, on_wait: Callable[[str], None] | None = None
    ) -> None:
        self.name = check_model_name(name)
        self.version = version
        self.model_folder = output / self.name
        self.folder = self.model_folder / f"v{version}"
        self.previous: Manifest | None = None
        self.manifest: Manifest | None = None
        self.latest_moved = False
        self.latest_note = ""
        self.notes: tuple[str, ...] = ()
        self._staged: dict[str, Placed] = {}
        self._attached: list[str] = []
        self._wait = (timeout, on_wait)
        self._stack = contextlib.ExitStack()
        self._previous_bytes: bytes | None = None

    def __enter__(self) -> Release:
        with contextlib.ExitStack() as stack, disk_errors(f"write to {self.folder}"):
            self.model_folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_lock(self.model_folder, *self._wait))
            _settle(self.model_folder)
            self.folder.mkdir(exist_ok=True)
            self._stage = Path(tempfile.mkdtemp(prefix=STAGE, dir=self.folder))
            stack.callback(self._discard)
            current = self.folder / manifest_file(self.name, self.version)
            if current.exists():
                self.previous = read_manifest(current)
                self._previous_bytes = current.read_bytes()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, trace)

    def _discard(self) -> None:
        shutil.rmtree(self._stage, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()  # only when nothing is in it

    def place(self, source: Path, file_name: str, *, digest: str | None = None) -> Placed:
        """Copy an engine in, to be named ``file_name`` by ``commit``; raises DIGEST_MISMATCH when it is not what ``digest`` says."""
        path = member(self._stage, file_name)
        with disk_errors(f"write {self.folder / file_name}"):
            path.unlink(missing_ok=True)
            placed = Placed(*copy_new(source, path))
            path.chmod(0o644)
        if digest is not None and digest != placed.digest:
            raise EnginefarmError(
                DIGEST_MISMATCH,
                f"{source.name} changed after it was built",
                where=Where(file=str(source)),
                why=f"it was {digest[:19]}..., it is {placed.digest[:19]}...",
                fix="build it again",
            )
        self._staged[file_name] = placed
        return placed

    @property
    def written(self) -> tuple[tuple[Path, Placed], ...]:
        """The files of this run, where they are after ``commit``."""
        return tuple((self.folder / name, placed) for name, placed in self._staged.items())

    def attach(self, source: Path, file_name: str) -> Placed:
        """Copy in a file that engines need beside them (a plugin library, a fallback), to be there after ``commit``."""
        placed = self.place(source, file_name)
        self._attached.append(file_name)
        return placed

    def quarantine(self, tag: str, source: Path | None, evidence: Mapping[str, bytes | Path]) -> Path:
        """Keep a failed engine and what shows that it failed in ``quarantine/<tag>/``, in place of what was there; returns that folder.

        It stays until a later run commits an engine with this tag that has no problem.
        """
        kept = member(self.folder / QUARANTINE, tag)
        with disk_errors(f"write {kept}"):
            fresh = Path(tempfile.mkdtemp(prefix=STAGE, dir=self.folder))
            fresh.chmod(0o755)
            if source is not None:
                copy_new(source, member(fresh, source.name))
            for name, content in evidence.items():
                path = member(fresh, name)
                if isinstance(content, Path):
                    copy_new(content, path)
                else:
                    write_new(path, content)
            kept.parent.mkdir(exist_ok=True)
            if kept.exists():
                old = self._stage / f"quarantine-{tag}"
                kept.replace(old)
                shutil.rmtree(old)
            fresh.replace(kept)
            sync_folder(kept.parent)
        return kept

    def commit(self, manifest: Manifest, *, move_latest: bool) -> Path:
        """Write this run's records, merged with those of ``previous``, as the next revision; returns the manifest's path.

        ``manifest.engines`` holds the records of this run only; each with a ``file`` was placed, or is the same engine as in ``previous``.
        One that is neither (another run replaced the engine meanwhile) counts as skipped, with a line in ``notes``.
        The revision is counted here, under the lock. ``move_latest``: the run ended with exit code 0.
        """
        self._check_model(manifest)
        own = {record.tag for record in manifest.engines}
        engines = merge_engines(self.previous, self._available(manifest.engines), folder=self.folder)
        revision = self.previous.revision + 1 if self.previous else 1
        manifest = manifest.model_copy(update={"engines": engines, "revision": revision})
        data = manifest.as_json()
        name = manifest_file(self.name, self.version)
        parse_manifest(data, self.folder / name)  # what is written can be read
        moves = [*dict.fromkeys((*self._moves(engines), *self._attached)), name]
        after = {record.file: record.digest for record in engines if record.file is not None}
        before = {record.file: record.digest for record in self.previous.engines if record.file is not None} if self.previous else {}
        removes = sorted(before.keys() - after.keys())
        released = [record.tag for record in engines if record.tag in own and record.file is not None and record.problem is None]
        changed = any(after.get(file) != digest for file, digest in before.items())
        with disk_errors(f"write {self.folder / name}"):
            self._stage_latest(manifest, data, good=move_latest, changed=changed)
            self._keep_previous()
            write_new(self._stage / name, data)
            write_new(self._stage / JOURNAL, json.dumps({"moves": moves, "removes": removes, "released": released}).encode())
            sync_folder(self._stage)
            self._stage.replace(self.folder / COMMIT)
            sync_folder(self.folder)
            _apply(self.folder)
        self.manifest = manifest
        return self.folder / name

    def follow(self, move_latest: bool) -> None:
        """Only decide about ``latest.json``, for a run that found everything up to date; does nothing without a committed manifest."""
        if self.previous is None or self._previous_bytes is None:
            return
        self.manifest = self.previous
        with disk_errors(f"write {self.model_folder / LATEST}"):
            if self._stage_latest(self.previous, self._previous_bytes, good=move_latest, changed=False):
                (self._stage / LATEST).replace(self.model_folder / LATEST)
                sync_folder(self.model_folder)

    def _stage_latest(self, manifest: Manifest, data: bytes, *, good: bool, changed: bool) -> bool:
        """Write the next ``latest.json`` into the stage; False when it stays as it is."""
        current = self.model_folder / LATEST
        found = decide(self.model_folder, self.version, manifest.engines, good=good, changed=changed)
        self.latest_moved, self.latest_note = found.moved, found.note
        if found.targets is None:
            return False
        content = latest_bytes(manifest, data, found.targets)
        if current.exists() and read_latest(self.model_folder) is None:
            self.notes += (f"{current} was damaged, or not ours: it is written anew",)
        elif current.exists() and current.read_bytes() == content:
            self.latest_moved = False
            self.latest_note = "it names this revision already"
            return False
        write_new(self._stage / LATEST, content)
        return True

    def _available(self, records: Sequence[EngineRecord]) -> tuple[EngineRecord, ...]:
        """This run's records; one whose file holds other bytes by now, or is taken by another record, has no engine any more."""
        held = {record.file: record.digest for record in self.previous.engines} if self.previous else {}
        before = {record.target: record for record in self.previous.engines} if self.previous else {}
        available: list[EngineRecord] = []
        taken: set[str] = set()
        for record in records:
            name = record.file
            digest = self._staged[name].digest if name in self._staged else held.get(name)
            if name is None or record.verdict.status in ("failed", "skipped") or (digest == record.digest and name not in taken):
                available.append(record)
                taken |= {name} if name is not None else set()
                continue
            self.notes += (f"{record.target}: {name} was replaced meanwhile, so this run's result of it is left out",)
            verdict = Verdict(status="skipped", reason=f"{name} was replaced by another build while this run used it")
            problem = before[record.target].problem if record.target in before else None
            gone = {"file": None, "digest": None, "size_bytes": None, "verdict": verdict, "problem": problem}
            available.append(record.model_copy(update=gone))
        return tuple(available)

    def _check_model(self, manifest: Manifest) -> None:
        if (manifest.model.name, manifest.model.version) != (self.name, self.version):
            raise ValueError(f"a manifest of {manifest.model.name} v{manifest.model.version} in a release of {self.name} v{self.version}")
        if self.previous is not None and self.previous.model.digest != manifest.model.digest:
            raise EnginefarmError(
                NAME_TAKEN,
                f"{self.name} v{self.version} became another model while this run was building",
                where=Where(file=str(self.folder)),
                why="another run took the number first",
                fix="run again: it gets the next number",
            )

    def _moves(self, engines: Sequence[EngineRecord]) -> list[str]:
        """The placed files that the merged records are about; a placed file whose record lost against the previous one stays out."""
        staged = {(name, placed.digest) for name, placed in self._staged.items()}
        return [record.file for record in engines if record.file is not None and (record.file, record.digest) in staged]

    def _keep_previous(self) -> None:
        if self._previous_bytes is None:
            return
        archive = self.folder / "manifests"
        archive.mkdir(exist_ok=True)
        kept = archive / f"{sha256_bytes(self._previous_bytes).removeprefix('sha256:')}.json"
        if not kept.exists():
            staged = self._stage / "previous.json"
            write_new(staged, self._previous_bytes)
            staged.replace(kept)
            sync_folder(archive)
