"""Makes what a GPU machine without network and without Docker needs, in pieces that can be carried there one by one.

    python3.12 tests/gpu/kit.py [FOLDER]       # default: .gpu, which git must not see: echo /.gpu/ >> .git/info/exclude

Runs on Debian where its packages and PyPI can be reached (`apt-get update` first), with the Python of the GPU machine, 3.12, and its pip.
It leaves in FOLDER:

* ``kit.00``, ``kit.01``, ...: one tar file, cut; in it ``engine.tar.xz`` (Debian's dockerd, containerd, runc, tini and the libraries that
  they need besides glibc) and ``wheels/``: what the project needs on Python 3.12, and onnxruntime-gpu;
* ``kit.json``: the pieces and their digests, for on_device.py;
* ``rehearse/``: ONNX Runtime for CPUs, which is not carried.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PIECE_BYTES = 54 << 20
GPU_WHEEL = "onnxruntime-gpu==1.31.1"
CPU_WHEEL = "onnxruntime==1.32.0"
OF_ONNXRUNTIME = ("flatbuffers", "numpy", "packaging", "protobuf")
PYTHON = (3, 12)
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux1_x86_64")
# docker.io without its client, its network helpers and the shims of containerd's first interface: a third of its size
PROGRAMS = {
    "dockerd": "usr/sbin/dockerd",
    "containerd": "usr/bin/containerd",
    "containerd-shim-runc-v2": "usr/bin/containerd-shim-runc-v2",
    "runc": "usr/sbin/runc",
    "docker-init": "usr/bin/tini-static",
}
PACKAGES = (
    "docker.io", "containerd", "runc", "tini", "libdevmapper1.02.1", "libsystemd0", "libseccomp2", "libcap2", "libgcrypt20",
    "libgpg-error0", "liblzma5", "libzstd1", "liblz4-1", "libselinux1", "libudev1", "libpcre2-8-0",
)  # fmt: skip
_GLIBC = re.compile(r"^(?:ld-linux.*|lib(?:c|m|dl|rt|pthread|resolv)\.so\.\d+)$")  # the machine's own: it must fit its kernel's loader


def make_engine(work: Path, archive: Path) -> list[str]:
    """The engine's programs and libraries as ``engine.tar.xz``; gives the packages with their versions."""
    debs, root, engine = work / "debs", work / "root", work / "engine"
    for folder in (debs, root, engine / "bin", engine / "lib"):
        folder.mkdir(parents=True)
    subprocess.run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *PACKAGES], cwd=debs, check=True)
    for deb in sorted(debs.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", deb, root], check=True)
    for name, path in PROGRAMS.items():
        shutil.copy(root / path, engine / "bin" / name)
    places = [path for path in (root / "usr/lib/x86_64-linux-gnu", root / "lib/x86_64-linux-gnu") if path.is_dir()]
    found = subprocess.run(
        ["ldd", *(engine / "bin").iterdir()],
        env={"LD_LIBRARY_PATH": ":".join(map(str, places)), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,  # tini-static is none that ldd can read
    ).stdout
    for name, path in sorted(set(re.findall(r"^\s*(\S+) => (\S+)", found, re.MULTILINE))):
        if _GLIBC.match(name):
            continue
        if not path.startswith(str(root)):
            raise SystemExit(f"{name} comes from no package of this list ({path}): add the one that has it to PACKAGES")
        shutil.copy(path, engine / "lib" / name)
    with tarfile.open(archive, "w:xz", preset=6) as tar:
        tar.add(engine, "engine")
    return sorted(deb.stem for deb in debs.glob("*.deb"))


def download(wanted: tuple[str, ...], target: Path, *more: str) -> None:
    """Wheels for Python 3.12 on linux/amd64."""
    platforms = [word for platform in (*PLATFORMS, "any") for word in ("--platform", platform)]
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:", *platforms, "-d", target, *more, *wanted], check=True
    )


def needed(project: str) -> tuple[str, ...]:
    """What the project and onnxruntime-gpu ask for; onnxruntime itself is the GPU machine's."""
    import tomllib

    asked = tomllib.loads(project)["project"]["dependencies"]
    return (*(name for name in asked if not name.startswith("onnxruntime")), *OF_ONNXRUNTIME)


def constraints(text: str) -> str:
    """The versions of a lock file as constraints; without their hashes, which pip takes for requirements only."""
    lines = [line.split("\\")[0].strip() for line in text.splitlines() if re.match(r"[a-z0-9].*==", line)]
    return "".join(f"{line}\n" for line in lines)


def cut(source: Path, folder: Path, size: int = PIECE_BYTES) -> list[dict[str, object]]:
    """``source`` as ``kit.00``, ``kit.01``, ...; gives name, size and digest of each."""
    pieces: list[dict[str, object]] = []
    with source.open("rb") as file:
        while data := file.read(size):
            name = f"kit.{len(pieces):02d}"
            (folder / name).write_bytes(data)
            pieces.append({"file": name, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    return pieces


def plan(pieces: list[dict[str, object]], folder: str = ".gpu") -> list[str]:
    """The calls that carry the kit to a GPU machine and start the proof: what travels with each, and the command."""
    lines = []
    for number, piece in enumerate(pieces):
        last = number == len(pieces) - 1
        command = f"python3 tests/gpu/on_device.py keep {folder}/kit.json {folder}/{piece['file']}"
        command += " && python3 tests/gpu/on_device.py go --out $OUT" if last else ""
        lines += [f"{number + 1}. carry {folder}/kit.json {folder}/{piece['file']}", f"   {command}"]
    return lines


def main(folder: Path) -> None:
    if sys.version_info[:2] != PYTHON:
        raise SystemExit(f"the wheels are for Python {PYTHON[0]}.{PYTHON[1]}: run this with it")
    folder.mkdir(parents=True, exist_ok=True)
    for old in [*folder.glob("kit.*"), folder / "rehearse"]:
        shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="kit-", dir=folder) as place:
        work = Path(place)
        packages = make_engine(work, work / "engine.tar.xz")
        (work / "constraints").write_text(constraints((ROOT / "requirements/run.txt").read_text()))
        download(needed((ROOT / "pyproject.toml").read_text()), work / "wheels", "--constraint", str(work / "constraints"))
        download((GPU_WHEEL,), work / "wheels", "--no-deps")
        download((CPU_WHEEL,), folder / "rehearse", "--no-deps")
        wheels = sorted(path.name for path in (work / "wheels").iterdir())
        with tarfile.open(work / "kit.tar", "w") as tar:
            for name in ("engine.tar.xz", "wheels"):
                tar.add(work / name, name)
        pieces = cut(work / "kit.tar", folder)
        engine_bytes = (work / "engine.tar.xz").stat().st_size
    described = {"schema": "enginefarm.gpu-kit/1", "pieces": pieces, "packages": packages, "wheels": wheels, "engine_bytes": engine_bytes}
    (folder / "kit.json").write_text(json.dumps(described, indent=1) + "\n")
    total = sum(int(str(piece["size"])) for piece in pieces)
    sys.stdout.write(f"{total / 1e6:.0f} MB, of these the engine {engine_bytes / 1e6:.0f} MB\n" + "\n".join(plan(pieces)) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / ".gpu"))
