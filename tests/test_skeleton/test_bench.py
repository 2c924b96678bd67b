from __future__ import annotations

import hashlib
import json
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
EVERY = sorted((ROOT / "bench/results").glob("*.json"))
RESULTS = [path for path in EVERY if json.loads(path.read_text())["schema"] == "enginefarm.bench/1"]  # those of `make bench`


@pytest.fixture
def fetch(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("bench/fetch.py")


@pytest.fixture
def docs(load_script: Callable[[str], ModuleType]) -> ModuleType:
    return load_script("tools/generate_bench_docs.py")


def test_every_model_comes_from_a_pinned_wheel(fetch: ModuleType) -> None:
    pinned = dict(re.findall(r"^(\S+==\S+) --hash=sha256:([0-9a-f]{64})$", (ROOT / "bench/packages.txt").read_text(), re.MULTILINE))
    rows = fetch.models()
    assert len({row["name"] for row in rows}) == len(rows) >= 5
    assert {row["package"] for row in rows} == set(pinned)
    assert all(re.fullmatch(r"[0-9a-f]{64}", row["sha256"]) for row in rows)


def test_every_model_has_a_result_for_all_rtx_targets_and_cpu(fetch: ModuleType) -> None:
    assert [path.stem for path in RESULTS] == sorted(row["name"] for row in fetch.models())
    for path in RESULTS:
        result = json.loads(path.read_text())
        assert result["schema"] == "enginefarm.bench/1"
        targets = {build["target"] for build in result["result"]["models"][0]["builds"]}
        assert targets == {"cpu", *(p.stem for p in (ROOT / "targets").glob("rtx-*.yaml"))}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_results_name_no_place_of_the_machine(path: Path) -> None:
    assert re.findall(r'"/[^"]*"|/home/|/root/|/tmp/', path.read_text()) == []


@pytest.mark.parametrize(
    ("spec", "low", "high"),
    [
        ({"dtype": "float32", "min": [1, 4], "opt": [2, 50], "max": [9, 50], "uniform": [-1, 1]}, -1.0, 1.0),
        ({"dtype": "int32", "shape": [300], "integers": [0, 256]}, 0, 255),
        ({"dtype": "int64", "shape": [], "value": 16000}, 16000, 16000),
    ],
)
def test_samples_have_the_shape_type_and_range_asked_for(fetch: ModuleType, spec: dict[str, Any], low: float, high: float) -> None:
    made = [fetch.sample(spec, np.random.RandomState(1)) for _ in range(2)]
    assert made[0].shape == tuple(spec.get("opt", spec.get("shape")))
    assert made[0].dtype == spec["dtype"]
    assert low <= made[0].min() <= made[0].max() <= high
    np.testing.assert_array_equal(made[0], made[1])


def wheel(folder: Path, content: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(folder / "some_models-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("some/net.onnx", content)
    inputs = {"x": {"dtype": "float32", "min": [1, 2], "opt": [1, 2], "max": [4, 2], "uniform": [0, 1]}}
    digest = hashlib.sha256(b"model").hexdigest()
    return {"name": "net", "package": "some-models==1.0", "file": "some/net.onnx", "sha256": digest, "inputs": inputs}


def test_a_model_is_laid_out_with_its_yaml_and_sample(fetch: ModuleType, tmp_path: Path) -> None:
    row = wheel(tmp_path, b"model")
    path = fetch.lay_out(row, tmp_path, tmp_path / "models")
    assert path.read_bytes() == b"model"
    config = yaml.safe_load(path.with_suffix(".yaml").read_text())
    assert config == {"name": "net", "samples": ["net.npz"], "shapes": {"x": {"min": [1, 2], "opt": [1, 2], "max": [4, 2]}}}
    assert np.load(path.with_suffix(".npz"))["x"].shape == (1, 2)


def test_a_model_that_is_not_the_pinned_one_is_refused(fetch: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is not the file that models"):
        fetch.lay_out(wheel(tmp_path, b"another"), tmp_path, tmp_path / "models")


def test_a_stale_page_is_reported_and_not_written(
    docs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "bench.md"
    page.write_text("old")
    monkeypatch.setattr(docs, "DOCUMENT", page)
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["generate_bench_docs.py", "--check"])
    assert docs.main() == 5
    assert page.read_text() == "old"
    assert "stale: bench.md" in capsys.readouterr().err
