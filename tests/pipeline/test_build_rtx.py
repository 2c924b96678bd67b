"""Builds of TensorRT-RTX engines, as a user runs them."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Net, Project


@pytest.mark.rtx
class TestRtx:
    def test_multi_capability_engines_are_built_without_a_gpu(self, project: Project, net: Net) -> None:
        net()
        answer = project.build("net.onnx", "--target", "rtx-*", "--allow-unvalidated", "-j", "2")
        assert answer.code == 0, answer.err
        assert {build["status"] for build in answer.builds.values()} == {"unvalidated"}
        assert "no runner with compute capability 8.9" in answer.builds["rtx-ada"]["reason"]
        ampere = project.record("rtx-ampere")
        assert ampere["compute_capability"] == ["8.0", "8.6"]
        assert ampere["file"] == "net_v1_rtx-ampere.unvalidated.engine"
        assert ampere["backend_version"].startswith("1.7.1")
        head = (project.folder / "artifacts/net/v1" / ampere["file"]).read_bytes()[:64]
        assert head[:4] == b"vtrt"
        assert int.from_bytes(head[32:36], "little") == 2 | 4

    def test_unvalidated_engines_fail_the_run_unless_allowed(self, project: Project, net: Net) -> None:
        net()
        assert project.build("net.onnx", "--target", "rtx-ada").code == 3

    def test_turing_refuses_fp32_matrix_products_and_takes_fp16(self, project: Project, net: Net) -> None:
        net(product=True)
        answer = project.build("net.onnx", "--target", "rtx-turing", "--precision", "fp32", "--allow-unvalidated")
        assert answer.code == 1
        problem = answer.builds["rtx-turing"]["problem"]
        assert problem["code"] == "EF301"
        assert "7.5" in problem["what"]
        half = project.build("net.onnx", "--target", "rtx-turing", "--allow-unvalidated")
        assert half.code == 0, half.err
        assert half.builds["rtx-turing"]["precision"] == "fp16"

    def test_one_failure_does_not_stop_the_others_unless_asked(self, project: Project, net: Net) -> None:
        net(product=True)
        words = ("net.onnx", "-t", "rtx-turing", "-t", "cpu", "--precision", "fp32", "--allow-unvalidated")
        both = project.build(*words)
        assert both.code == 1
        assert both.builds["cpu"]["status"] == "passed"
        assert "latest.json" not in {path.name for path in (project.folder / "artifacts/net").iterdir()}

    def test_a_precision_that_the_hardware_lacks_is_said_before_building(self, project: Project, net: Net) -> None:
        net()
        answer = project.build("net.onnx", "--target", "rtx-turing", "--precision", "bf16")
        assert answer.code == 2
        assert "bf16" in answer.err

    def test_the_recorded_command_builds_the_engine_again(self, project: Project, net: Net) -> None:
        import shlex

        net()
        project.build("net.onnx", "--target", "rtx-ada", "--allow-unvalidated")
        first: dict[str, Any] = project.record("rtx-ada")
        words = shlex.split(project.run("repro", "artifacts/net/v1/net_v1.json", "rtx-ada").out)
        assert words[:2] == ["enginefarm", "build"]
        assert project.run(*words[1:]).code == 0
        second = project.record("rtx-ada")
        assert second["build_key"] == first["build_key"]
        assert second["built_at"] >= first["built_at"]
        assert project.manifest()["revision"] == 2
