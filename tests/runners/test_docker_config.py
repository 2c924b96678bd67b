"""``type: docker`` entries of runners.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import errors
from orchestrator.errors import EnginefarmError, flatten
from orchestrator.runners.docker import DEFAULT_UID, DockerRunner
from orchestrator.runners.docker_engine import Address, Tls
from orchestrator.runners.docker_gpu import GpuAccess
from orchestrator.runners.docker_host import DeclaredGpu
from orchestrator.runners.load import load_runners


def load(tmp_path: Path, text: str) -> DockerRunner:
    path = tmp_path / "runners.yaml"
    path.write_text("runners:\n  lab:\n" + text)
    (runner,) = load_runners(path)
    assert isinstance(runner, DockerRunner)
    return runner


def problems(tmp_path: Path, text: str) -> list[EnginefarmError]:
    with pytest.raises(EnginefarmError) as caught:
        load(tmp_path, text)
    return list(flatten(caught.value))


def test_an_entry_needs_its_type_alone(tmp_path: Path) -> None:
    runner = load(tmp_path, "    type: docker\n")
    assert (runner.name, runner.kind, runner.address, runner.uid) == ("lab", "docker", Address(), DEFAULT_UID)
    assert runner.gpu_access == GpuAccess("auto")
    assert runner.overrides.gpus is None


def test_every_field_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB", "10.0.0.5")
    for name in ("ca", "cert", "key"):
        (tmp_path / f"{name}.pem").write_text("x")
    runner = load(
        tmp_path,
        "    type: docker\n"
        "    engine: tcp://${env:LAB}:2376\n"
        "    tls: {ca: ca.pem, cert: cert.pem, key: key.pem}\n"
        "    gpu: {mode: devices, devices: [/dev/nvidia0, /dev/nvidiactl], driver_folder: /usr/local/nvidia}\n"
        "    uid: 1234\n    slots: 2\n    labels: [fast]\n    probe_image: example.com/probe:1\n"
        "    overrides:\n"
        '      gpus: [{name: NVIDIA A100, compute_capability: "8.0", memory: 80 GiB}, {name: Tesla T4, compute_capability: sm_75}]\n'
        '      driver: "535.104.05"\n      cuda: "12.2"\n      jetson: {l4t: "32.7.1"}\n',
    )
    files = Tls(*(str(tmp_path / f"{name}.pem") for name in ("ca", "cert", "key")))
    assert runner.address == Address("tcp://10.0.0.5:2376", files)
    assert runner.gpu_access == GpuAccess("devices", ("/dev/nvidia0", "/dev/nvidiactl"), "/usr/local/nvidia")
    assert (runner.uid, runner.slots, runner.labels, runner.probe_image) == (1234, 2, ("fast",), "example.com/probe:1")
    assert runner.overrides.gpus == (DeclaredGpu("NVIDIA A100", "8.0", 80 << 30), DeclaredGpu("Tesla T4", "7.5"))
    assert (runner.overrides.driver, runner.overrides.cuda) == ("535.104.05", "12.2")
    assert runner.overrides.jetson == {"l4t": "32.7.1", "jetpack": None, "model": None}


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("    type: docker\n    engine: htp://x\n", 4, "not reached by htp://"),
        ("    type: docker\n    engin: x\n", 4, "is not a field"),
        ("    type: docker\n    uid: 0\n", 4, "uid is between 1"),
        ("    type: docker\n    slots: 999\n", 4, "slots is between 1 and 256"),
        ("    type: docker\n    gpu: {mode: all}\n", 4, 'cannot be "all"'),
        ("    type: docker\n    gpu: {devices: [/dev/nvidia0]}\n", 4, "belongs to gpu.mode devices"),
        ("    type: docker\n    gpu: {mode: devices, devices: [nvidia0]}\n", 4, "no device node"),
        ("    type: docker\n    gpu: {mode: devices, driver_folder: here}\n", 4, "not an absolute path"),
        ("    type: docker\n    engine: tcp://x:1\n    tls: {ca: nothing.pem}\n", 5, "nothing.pem is not a file"),
        ("    type: docker\n    engine: ${env:NOT_SET_ANYWHERE}\n", 4, "NOT_SET_ANYWHERE is not set"),
        ("    type: docker\n    overrides: {gpus: [x]}\n", 4, "is a list of GPUs"),
        ("    type: docker\n    overrides: {gpus: [{name: x}]}\n", 4, "compute_capability missing"),
        ("    type: docker\n    overrides: {gpus: [{name: x, compute_capability: 8_6}]}\n", 4, "YAML reads 8_6"),
        ("    type: docker\n    overrides: {driver: newest}\n", 4, "is a version"),
        ("    type: docker\n    overrides: {gpu: []}\n", 4, "is not a field"),
        ("    engine: unix:///var/run/docker.sock\n", 2, "has an engine and no type"),
        ("    type: docker\n    python: python3\n", 4, "is not a field"),
    ],
)
def test_what_is_wrong_is_named_at_its_line(tmp_path: Path, text: str, line: int, what: str) -> None:
    found = problems(tmp_path, text)
    assert any(what in problem.what and problem.where and problem.where.line == line for problem in found), [str(p) for p in found]
    assert {problem.exit for problem in found} == {errors.Exit.USAGE}


def test_tls_belongs_to_tcp_and_needs_both_halves(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("x")
    found = problems(tmp_path, "    type: docker\n    engine: ssh://x\n    tls: {cert: cert.pem}\n")
    assert {problem.what for problem in found} == {"tls belongs to an engine at tcp://", "tls needs cert and key together, or neither"}


def test_an_engine_that_does_not_answer_is_listed_with_its_reason(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from orchestrator.cli.runners import app

    path = tmp_path / "runners.yaml"
    path.write_text("runners:\n  lab: {type: docker, engine: 'unix:///nowhere/docker.sock'}\n")
    done = CliRunner().invoke(app, ["list", "--runners", str(path)])
    assert "lab  docker  1 slot" in done.stdout
    assert "does not work: could not reach the engine at unix:///nowhere/docker.sock" in done.stdout
    assert isinstance(done.exception, EnginefarmError)
    assert done.exception.kind is errors.ENGINE_UNREACHABLE
    done = CliRunner().invoke(app, ["clean", "lap", "--runners", str(path)])
    assert isinstance(done.exception, EnginefarmError)
    assert done.exception.fix == "did you mean lab?"
    done = CliRunner().invoke(app, ["clean", "--keep", "much", "--runners", str(path)])
    assert isinstance(done.exception, EnginefarmError)
    assert done.exception.exit is errors.Exit.USAGE
