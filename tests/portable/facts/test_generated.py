from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipapp
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
PORTABLE = ROOT / "orchestrator" / "portable"
CONFIDENCE = {"nvidia_document", "measured", "secondary", "inferred", "unsourced", "unknown"}

SMOKE = """
import json, sys
from portable.facts import capability, file_kind, placement, plan_header, support, version
host = {"platform": "linux/amd64", "gpus": [], "backends": {"tensorrt-rtx": {"version": "1.7.1.116"}}}
rtx = {"backend": "tensorrt-rtx", "tensorrt_rtx": "1.7", "compute_capability": ["8.0", "8.6"], "platform": "linux/amd64"}
plan = b"vtrt" + bytes(20) + bytes(bytearray([1, 7, 1, 116])) + b"vtrt" + b"\\x06" + bytes(200)
print(json.dumps({
    "python": list(sys.version_info[:2]),
    "parsed": capability.parse("sm_86"),
    "driver": support.minimum_driver("12.2"),
    "image": support.image_facts("nvcr.io/nvidia/tensorrt:23.09-py3")["tensorrt"],
    "rtx": support.rtx_capabilities("1.7"),
    "supports": support.tensorrt_supports("8.6.1", "8.0").verdict,
    "satisfies": version.satisfies("4.6.1", ">=4.6.1"),
    "kind": file_kind.sniff(b"", 0)["kind"],
    "capabilities": plan_header.read_bytes(plan, len(plan), plan[-8:])["capabilities"],
    "build": placement.can_build(rtx, host).verdict,
    "validate": placement.can_validate(rtx, host).reasons[0],
}))
"""
EXPECTED = {
    "parsed": "8.6",
    "driver": {"full": "535.54.03", "minor": "525.60.13"},
    "image": "8.6.1.6",
    "rtx": ["7.5", "8.0", "8.6", "8.9", "12.0", "12.1"],
    "supports": "yes",
    "satisfies": True,
    "kind": "empty",
    "capabilities": ["8.0", "8.6"],
    "build": "yes",
    "validate": "no runner with compute capability 8.0 or 8.6",
}


def find_python36() -> str | None:
    """ENGINEFARM_PYTHON36, python3.6 on PATH, or one that pyenv holds; only an interpreter that starts counts."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [os.environ.get("ENGINEFARM_PYTHON36"), shutil.which("python3.6"), *map(str, sorted(pyenv.glob("3.6*/bin/python3")))]
    for candidate in filter(None, candidates):
        try:
            answer = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False)
        except OSError:
            continue
        if answer.returncode == 0 and "3.6" in answer.stdout:
            return candidate
    return None


PYTHON36 = find_python36()


def generate(*arguments: str, script: Path = ROOT / "tools" / "generate_facts.py") -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(script), *arguments], capture_output=True, text=True, check=False)


def copied(tmp_path: Path) -> Path:
    """The generator with its inputs and outputs, apart from the project; returns the script."""
    shutil.copytree(ROOT / "docs" / "facts", tmp_path / "docs" / "facts")
    shutil.copytree(PORTABLE / "facts" / "data", tmp_path / "orchestrator" / "portable" / "facts" / "data")
    (tmp_path / "tools").mkdir()
    return Path(shutil.copy(ROOT / "tools" / "generate_facts.py", tmp_path / "tools"))


def test_the_tables_are_what_the_facts_say() -> None:
    answer = generate("--check")
    assert (answer.returncode, answer.stderr) == (0, "")


def test_check_names_stale_missing_and_left_over_files_and_writes_nothing(tmp_path: Path) -> None:
    script = copied(tmp_path)
    data = tmp_path / "orchestrator" / "portable" / "facts" / "data"
    drivers = data / "drivers.json"
    drivers.write_text(drivers.read_text(encoding="utf-8").replace("535.54.03", "535.54.04"), encoding="utf-8")
    (data / "rtx.json").unlink()
    (data / "gone.json").write_text("{}", encoding="utf-8")
    answer = generate("--check", script=script)
    assert answer.returncode == 5
    assert re.findall(r"data/(\w+)\.json", answer.stderr) == ["drivers", "gone", "rtx"]
    assert "535.54.04" in drivers.read_text(encoding="utf-8")
    assert generate(script=script).returncode == 0
    assert generate("--check", script=script).returncode == 0
    assert not (data / "gone.json").exists()


def test_tables_change_line_by_line(tmp_path: Path) -> None:
    for path in (PORTABLE / "facts" / "data").glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert json.loads(text)
        assert max(map(len, text.splitlines())) < 3000, path.name


def test_every_confidence_is_a_known_word() -> None:
    def walk(value: object, where: str) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                if key == "confidence":
                    words = item.values() if isinstance(item, dict) else [item]
                    for word in words:
                        assert set(re.findall(r"[a-z_]{6,}", str(word))) & CONFIDENCE, (where, word)
                walk(item, where)
        elif isinstance(value, list):
            for item in value:
                walk(item, where)

    for path in (ROOT / "docs" / "facts").glob("*.yaml"):
        walk(yaml.safe_load(path.read_text(encoding="utf-8")), path.name)


def test_no_digest_is_written_that_was_not_read_from_a_registry() -> None:
    for path in (ROOT / "docs" / "facts").glob("*.yaml"):
        assert "sha256:" not in path.read_text(encoding="utf-8"), path.name


def answers(interpreter: str, path: Path) -> dict[str, object]:
    answer = subprocess.run([interpreter, "-S", str(path)], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    found: dict[str, object] = json.loads(answer.stdout)
    return found


def packed(tmp_path: Path) -> Path:
    """The facts in a zip archive, with nothing else of the project beside them."""
    folder = tmp_path / "content"
    shutil.copytree(PORTABLE / "facts", folder / "portable" / "facts", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "portable" / "__init__.py").write_text("", encoding="utf-8")
    (folder / "__main__.py").write_text(SMOKE, encoding="utf-8")
    archive = tmp_path / "facts.pyz"
    zipapp.create_archive(folder, archive)
    shutil.rmtree(folder)
    return archive


def test_facts_work_from_inside_a_zip_archive(tmp_path: Path) -> None:
    found = answers(sys.executable, packed(tmp_path))
    assert {**found, "python": None} == {**EXPECTED, "python": None}


@pytest.mark.interpreters
@pytest.mark.skipif(PYTHON36 is None, reason="no Python 3.6 found (set ENGINEFARM_PYTHON36)")
def test_facts_work_with_python_3_6_from_inside_a_zip_archive(tmp_path: Path) -> None:
    assert PYTHON36 is not None
    assert answers(PYTHON36, packed(tmp_path)) == {**EXPECTED, "python": [3, 6]}
