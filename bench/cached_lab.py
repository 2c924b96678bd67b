"""What the measurements of plan, cache and reuse stand on: projects of small models and targets, and processes measured from outside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Figures = dict[str, float]
"""One run of a process and of those that it waited for: ``cpu_s`` (user and system), ``wall_s``, ``rss_mb`` (the greatest one's peak)."""

ENGINEFARM = str(Path(sys.executable).with_name("enginefarm"))
# a Docker engine that happens to answer here is no part of any figure
HERE = ["--python", sys.executable]
_KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")  # PYTHONDONTWRITEBYTECODE and settings of ours are not

# A process starts with the peak memory of the one that forked it, so that what measures must be small itself. argv: command
_LAUNCH = """
import json, os, sys, time
begun = time.perf_counter()
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, used = os.wait4(child, 0)
wall = time.perf_counter() - begun
figures = {"cpu_s": used.ru_utime + used.ru_stime, "wall_s": wall, "rss_mb": used.ru_maxrss * 1024 / 1e6}
sys.stderr.write("\\n" + json.dumps([os.waitstatus_to_exitcode(status), figures]))
"""


def environment() -> dict[str, str]:
    """What measured processes see."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ}


def measured(command: Sequence[str], folder: Path) -> Figures:
    """Run a command in ``folder`` with its output thrown away; ends the program when it fails."""
    program = shutil.which(command[0]) or command[0]
    launch = [sys.executable, "-I", "-S", "-c", _LAUNCH, program, *command[1:]]
    done = subprocess.run(
        launch, cwd=folder, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    said, _, last = done.stderr.rpartition("\n")
    code, figures = json.loads(last)
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {code}: {said[-2000:]}")
    return {name: round(value, 4) for name, value in figures.items()}


def output_of(command: Sequence[str], folder: Path) -> str:
    """Standard output of a command that has to succeed, not measured."""
    done = subprocess.run(command, cwd=folder, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


Run = Callable[[], Figures]


def in_turns(runs: Mapping[str, Run], rounds: int) -> dict[str, list[Figures]]:
    """Every run once per round, in an order that turns around, so that what else the machine does falls on all of them alike.

    The first round compiles modules and fills the page cache; it does not count.
    """
    found: dict[str, list[Figures]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        sys.stderr.write(f"   round {number} of {rounds}\n")
        for name in list(runs) if number % 2 else reversed(list(runs)):
            figures = runs[name]()
            if number:
                found[name].append(figures)
    return found


def rows(found: Mapping[str, Sequence[Figures]]) -> dict[str, dict[str, Any]]:
    """Medians by command, peak memory as the most of all runs, and every single run."""
    return {
        name: {
            "cpu_s": _median(every, "cpu_s"),
            "wall_s": _median(every, "wall_s"),
            "least_cpu_s": min(figures["cpu_s"] for figures in every),
            "rss_mb": round(max(figures["rss_mb"] for figures in every), 1),
            "every": list(every),
        }
        for name, every in found.items()
    }


def _median(every: Sequence[Figures], name: str) -> float:
    return round(statistics.median(figures[name] for figures in every), 4)


def ratio(found: Mapping[str, Mapping[str, Any]], of: str, to: str, figure: str = "cpu_s") -> float:
    return round(float(found[of][figure]) / float(found[to][figure]), 3)


def claim(text: str, value: float, *, most: float | None = None, least: float | None = None) -> dict[str, Any]:
    """A figure beside the limit that was set for it before it was measured."""
    met = (most is None or value <= most) and (least is None or value >= least)
    return {"claim": text, "value": value, "most": most, "least": least, "met": met}


def load() -> list[float]:
    """The system's load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


@contextlib.contextmanager
def work_folder(needs_bytes: int) -> Iterator[Path]:
    """A folder that goes with the measurement. Ends the program when its disk has less than ``needs_bytes`` free."""
    folder = Path(tempfile.mkdtemp(prefix="enginefarm-bench-"))
    try:
        free = shutil.disk_usage(folder).free
        if free < needs_bytes:
            raise SystemExit(f"{folder} has {free / 1e9:.1f} GB free; {needs_bytes / 1e9:.1f} GB are needed (set TMPDIR)")
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def make_project(folder: Path, models: int, targets: int) -> Path:
    """``targets`` files of own targets (the CPU with ONNX Runtime, each for another shape, so that each has an engine of its own), and
    ``models`` small models under models/, no two alike."""
    (folder / "targets").mkdir(parents=True)
    (folder / "models").mkdir()
    (folder / "enginefarm.yaml").write_text('targets: ["shape-*"]\n')
    for number in range(targets):
        name = f"shape-{number + 1:03}"
        text = f"name: {name}\ntag: s{number + 1:03}\nextends: cpu\nshapes: {{x: {number + 1}x8}}\n"
        (folder / "targets" / f"{name}.yaml").write_text(text)
    for number in range(models):
        write_model(folder / "models" / f"net-{number:04}.onnx", f"net {number}")
    return folder


def write_model(path: Path, name: str) -> None:
    """relu(x[n,8] @ w); the graph's name is what tells two of them apart."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(np.arange(-32, 32, dtype=np.float32).reshape(8, 8) / 64, "w")
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, ["n", 8]) for end in ("x", "y")]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    graph = helper.make_graph(nodes, name, ends[:1], ends[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def check_reused(project: Path, builds: int) -> dict[str, int]:
    """Run once more and look at the result: every build is there, taken as it is. Returns how many have which status."""
    result = json.loads(output_of([ENGINEFARM, "build", "models", *HERE, "--json"], project))
    found = [build for model in result["models"] for build in model["builds"]]
    if len(found) != builds or not all(build["cached"] for build in found):
        raise SystemExit(f"{sum(build['cached'] for build in found)} of {len(found)} builds were reused, not {builds}")
    return dict(Counter(build["status"] for build in found))


_CALLS = "read,pread64,readv,preadv,preadv2,mmap,sendfile,copy_file_range,splice"
_READ = re.compile(r"(?:p?read(?:64|v|v2)?|sendfile|copy_file_range|splice)\(\d+<(?P<path>/[^>]*)>.* = (?P<bytes>\d+)$")
_SENT = re.compile(r"sendfile\(\d+<[^>]*>, \d+<(?P<path>/[^>]*)>.* = (?P<bytes>\d+)$")
_MAPPED = re.compile(r"mmap\([^,]*, (?P<bytes>\d+), [^,]*, [^,]*, \d+<(?P<path>/[^>]*)>")


def bytes_read(command: Sequence[str], project: Path) -> dict[str, int] | None:
    """Bytes that a command and its children read (or map) of models, engines and blobs, seen by strace; None where there is no strace."""
    if shutil.which("strace") is None:
        return None
    root = str(project.resolve())
    parts = {"models": f"{root}/models/", "engines": f"{root}/artifacts/", "blobs": f"{root}/.enginefarm/cache/blobs/"}
    found = dict.fromkeys(parts, 0)
    with tempfile.TemporaryDirectory() as place:
        # one file per thread: no call is torn apart by another
        output_of(["strace", "-ff", "-y", "-qq", "-s", "0", "-e", f"trace={_CALLS}", "-o", f"{place}/trace", *command], project)
        for trace in Path(place).iterdir():
            for line in trace.read_text(errors="replace").splitlines():
                match = _SENT.match(line) or _READ.match(line) or _MAPPED.match(line)
                for part, start in parts.items() if match else ():
                    # a manifest lies beside its engines
                    if match and match["path"].startswith(start) and not match["path"].endswith(".json"):
                        found[part] += int(match["bytes"])
    return found
