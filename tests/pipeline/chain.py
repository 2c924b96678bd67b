"""Runs of one project, one after the other, each looked at when it has ended or died."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from orchestrator.artifacts.manifest import read_manifest
from orchestrator.store import Store

from .crash import Crashed, Started
from .forked import Fate, Point
from .whole import broken_artifacts, broken_cache, broken_databases, half_files, left_over

SIDE_BY_SIDE = 3
RESUMES = "was cut short: what it finished is taken from the cache"
Engines = dict[str, tuple[str | None, str | None, str]]


def engines(project: Crashed) -> Engines:
    """Target -> build key, digest and verdict, by the manifest."""
    manifest = read_manifest(project.folder / "artifacts/net/v1/net_v1.json")
    return {record.target: (record.build_key, record.digest, record.verdict.status) for record in manifest.engines}


def stored(cache: Path) -> set[Started]:
    """The steps whose results the store has, but for those that were judged to be wrong."""
    store = Store(cache)
    entries = [entry for entry in store.ls() if entry.kind in ("build", "validate")]
    kept = [entry for entry in entries if not (store.get(entry.kind, entry.key) or {}).get("failed")]
    return {Started(entry.kind, *entry.what.partition(":")[0].split()) for entry in kept}


def cut_short(project: Crashed) -> bool:
    """Whether the newest run that got as far as being recorded never said how it ended."""
    path = project.folder / ".enginefarm/history.db"
    if not path.exists():
        return False
    with closing(sqlite3.connect(path)) as history:
        if not history.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchone():
            return False
        row = history.execute("SELECT finished_at FROM runs ORDER BY number DESC LIMIT 1").fetchone()
    return row is not None and row[0] is None


class Chain:
    """``wrong`` collects what should not be. All runs get the same ``words``; at last the project is to hold the engines ``goal``, and the
    run that is let alone ends with ``code``."""

    def __init__(self, project: Crashed, name: str, goal: Engines, words: Sequence[str], *, jobs: int = 1, code: int = 0) -> None:
        self.project = project
        self.name = name
        self.wrong: list[str] = []
        self.killed = self.resumed = 0
        self._goal = goal
        self._digests = {digest for _, digest, _ in goal.values()}
        self.words = (*words, "-j", str(jobs))
        self._jobs = jobs
        self._code = code
        self._last: list[Started] = []

    def killed_at(self, point: Point, later: float = 0.0) -> bool:
        """Whether a run came to the point, and died there or so many seconds later."""
        return self._run(Fate(die_at=point, later=later)) == -signal.SIGKILL

    def end(self) -> None:
        """The run that is let alone."""
        self._run(Fate())

    def _run(self, fate: Fate) -> int:
        project = self.project
        done, before, short = stored(project.cache), project.runs(), cut_short(project)
        code = project.do(*self.words, fate=fate)
        # a worker may note its start after its run was killed
        steps = project.steps(but=before)
        self.say([f"{step} was stored and ran again" for step in steps if step in done])
        self.say([f"{step} ran twice in one run" for step in set(steps) if steps.count(step) > 1])
        repeated = set(steps) & set(self._last)
        # one job's steps follow each other: all but the last had ended when the run before was killed
        finished = repeated - {self._last[-1]} if repeated and self._jobs == 1 else ()
        self.say([f"{repeated} ran again, of {self._last}"] if finished or len(repeated) > self._jobs else [])
        self._last = steps
        self.say(broken_cache(project.cache))
        self.say(broken_databases(project.folder / ".enginefarm"))
        self.say(half_files(project.folder / "artifacts", self._digests))
        if code == -signal.SIGKILL:
            self.killed += 1
        else:
            self._ended(code, short)
        return code

    def _ended(self, code: int, short: bool) -> None:
        folder, said = self.project.folder, self.project.said()
        self.say([f"it ended with {code}: {said}"] if code != self._code else [])
        told = RESUMES in said
        self.say([f"it says that it resumes: {told}, after a run that was cut short: {short}"] if told != short else [])
        self.resumed += told
        self.say(broken_artifacts(folder / "artifacts"))
        self.say(left_over(folder, self.project.cache))
        found = engines(self.project)
        self.say([f"engines {found}"] if found != self._goal else [])
        self.say([] if (folder / "artifacts/net/latest.json").exists() else ["no latest.json"])

    def say(self, found: Collection[str]) -> None:
        self.wrong += [f"{self.name}: {text}" for text in found]


def side_by_side(works: Sequence[Callable[[], list[Chain]]]) -> list[Chain]:
    """All chains that these pieces of work went through; fails with everything that was wrong with any of them."""
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        chains = [chain for found in pool.map(lambda work: work(), works) for chain in found]
    wrong = [text for chain in chains for text in chain.wrong]
    assert not wrong, "\n".join(wrong)
    return chains
