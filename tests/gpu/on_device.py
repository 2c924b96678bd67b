"""The GPU machine's side of kit.py: keeps the pieces, puts them together, starts docker_h200.py. Standard library only.

    python3 tests/gpu/on_device.py keep .gpu/kit.json .gpu/kit.00    # once for each piece, in any order
    python3 tests/gpu/on_device.py go --out FOLDER [--rehearse] [words for docker_h200.py]

``--kit`` names the place for it all (default: /tmp/enginefarm-kit). ``--rehearse`` takes ONNX Runtime for CPUs from .gpu/rehearse.
Everything `go` made before is made again, so that it can be repeated; the pieces stay.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
PLACE = Path("/tmp/enginefarm-kit")


def say(text: str) -> None:
    sys.stdout.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stdout.flush()


def keep(place: Path, files: list[Path]) -> None:
    """Copy files of the kit to where later calls find them; says which pieces are missing still."""
    place.mkdir(parents=True, exist_ok=True)
    for file in files:
        shutil.copy(file, place / file.name)
    described = json.loads((place / "kit.json").read_bytes())
    missing = [piece["file"] for piece in described["pieces"] if not _is_good(place, piece)]
    say(f"kept {', '.join(file.name for file in files)}; missing: {', '.join(missing) or 'nothing'}")
    base, free = getattr(sys, "_base_executable", sys.executable), shutil.disk_usage(place).free
    driver = "there" if Path("/usr/local/nvidia/lib64/libcuda.so.1").exists() else "not in /usr/local/nvidia"
    say(f"Python {sys.version.split()[0]} at {base}, {free / 1e9:.0f} GB free at {place}, driver {driver}")


def _is_good(place: Path, piece: dict[str, str]) -> bool:
    path = place / piece["file"]
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == piece["sha256"]


class Pieces:
    """The pieces as one file to read from start to end."""

    def __init__(self, paths: list[Path]) -> None:
        self._data = self._all(paths)
        self._left = b""

    @staticmethod
    def _all(paths: list[Path]) -> Iterator[bytes]:
        for path in paths:
            with path.open("rb") as file:
                while data := file.read(1 << 20):
                    yield data

    def read(self, size: int) -> bytes:
        while len(self._left) < size and (more := next(self._data, b"")):
            self._left += more
        found, self._left = self._left[:size], self._left[size:]
        return found


def unpack(place: Path) -> None:
    """``engine/`` and ``wheels/`` below ``place``."""
    described = json.loads((place / "kit.json").read_bytes())
    bad = [piece["file"] for piece in described["pieces"] if not _is_good(place, piece)]
    if bad:
        raise SystemExit(f"missing or damaged: {', '.join(bad)}; carry them again: on_device.py keep")
    for name in ("engine", "wheels", "venv"):
        shutil.rmtree(place / name, ignore_errors=True)
    pieces = Pieces([place / piece["file"] for piece in described["pieces"]])
    with tarfile.open(fileobj=pieces, mode="r|") as tar:  # type: ignore[call-overload]
        tar.extractall(place, filter="data")
    with tarfile.open(place / "engine.tar.xz") as tar:
        tar.extractall(place, filter="data")


def make_venv(place: Path, wheels: list[Path]) -> Path:
    """An environment with exactly these wheels; gives its interpreter. Wheels are unpacked: the machine's pip need not work."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--clear", place / "venv"], check=True)
    python = place / "venv/bin/python"
    asked = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, text=True, check=True
    )
    target = Path(asked.stdout.strip())
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            odd = [name for name in archive.namelist() if ".data/purelib" in name or ".data/platlib" in name]
            if odd:
                raise SystemExit(f"{wheel.name} has to be installed by pip: {odd[0]}")
            archive.extractall(target)
    return python


def go(place: Path, out: Path, rehearse: bool, words: list[str]) -> int:
    say("unpacking the kit")
    unpack(place)
    wheels = sorted((place / "wheels").glob("*.whl"))
    if rehearse:
        wheels = [wheel for wheel in wheels if not wheel.name.startswith("onnxruntime_gpu")]
        wheels += sorted((HERE.parents[1] / ".gpu/rehearse").glob("*.whl"))
    say("installing wheels")
    python = make_venv(place, wheels)
    out.mkdir(parents=True, exist_ok=True)
    name = "rehearsal_docker.json" if rehearse else "h200_docker.json"
    command = [str(python), str(HERE / "docker_h200.py"), "--engine", str(place / "engine"), "--out", str(out / name), *words]
    say("starting the proof")
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(HERE.parents[1])}
    return subprocess.run([*command, *(["--rehearse"] if rehearse else [])], env=environment, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kit", type=Path, default=PLACE)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("keep").add_argument("files", type=Path, nargs="+")
    start = commands.add_parser("go")
    start.add_argument("--out", type=Path, required=True)
    start.add_argument("--rehearse", action="store_true")
    given, words = parser.parse_known_args()
    if given.command == "keep":
        keep(given.kit, given.files)
        return 0
    return go(given.kit, given.out, given.rehearse, words)


if __name__ == "__main__":
    sys.exit(main())
