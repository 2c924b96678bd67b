"""What a build says of its engine: the references and samples that it is held against, and what is not green."""

from __future__ import annotations

import numpy as np

from .conftest import Net, Project


def test_no_validate_is_unvalidated_and_not_green(project: Project, net: Net) -> None:
    net()
    answer = project.build("net.onnx", "--target", "cpu", "--no-validate")
    assert answer.code == 3
    assert answer.builds["cpu"]["status"] == "unvalidated"
    assert project.engines() == ["net_v1_cpu.unvalidated.onnx"]
    validated = project.build("net.onnx", "--target", "cpu")
    assert validated.code == 0
    assert project.engines() == ["net_v1_cpu.onnx"]
    assert project.record("cpu")["verdict"]["status"] == "passed"


def test_supplied_outputs_are_the_reference(project: Project, net: Net) -> None:
    net(dims=(1, 3, 8, 8))
    (project.folder / "samples").mkdir()
    inputs = np.zeros((1, 3, 8, 8), np.float32)
    np.savez(project.folder / "samples/a.npz", x=inputs, y=np.zeros((1, 4, 8, 8), np.float32))
    (project.folder / "net.yaml").write_text("samples: [samples/*.npz]\n")
    answer = project.build("net.onnx", "--target", "cpu")
    assert answer.code == 0, answer.err
    assert project.record("cpu")["verdict"]["reference"] == "supplied"


def test_a_wrong_reference_fails_the_build_and_leaves_no_tagged_engine(project: Project, net: Net) -> None:
    net(dims=(1, 3, 8, 8))
    wrong = np.full((1, 4, 8, 8), 5, np.float32)
    np.savez(project.folder / "a.npz", x=np.zeros((1, 3, 8, 8), np.float32), y=wrong)
    (project.folder / "net.yaml").write_text("samples: [a.npz]\n")
    answer = project.build("net.onnx", "--target", "cpu")
    assert answer.code == 1
    assert answer.builds["cpu"]["status"] == "failed"
    assert "256 of 256 values differ" in answer.builds["cpu"]["reason"]
    assert project.engines() == []
    quarantine = project.folder / "artifacts/net/v1/quarantine/cpu"
    assert {path.name for path in quarantine.iterdir()} >= {"engine.onnx", "record.json", "problem.json"}
    assert not (project.folder / "artifacts/net/latest.json").exists()


def test_without_reference_it_is_self_consistent_and_not_green(project: Project, net: Net) -> None:
    net(dims=(1, 3, 8, 8))
    (project.folder / "targets").mkdir()
    (project.folder / "targets/cpu.yaml").write_text("validation: {reference_budget: 0.01}\n")
    answer = project.build("net.onnx", "--target", "cpu")
    assert answer.code == 3
    assert answer.builds["cpu"]["status"] == "self-consistent"
    assert project.record("cpu")["verdict"]["reference"] == "same-runtime"
    assert project.engines() == ["net_v1_cpu.unvalidated.onnx"]
    assert project.build("net.onnx", "--target", "cpu", "--allow-unvalidated").code == 0


def test_wrong_samples_are_found_before_anything_is_built(project: Project, net: Net) -> None:
    net()
    (project.folder / "net.yaml").write_text("samples: [missing.npz]\n")
    answer = project.build("net.onnx", "--target", "cpu")
    assert answer.code == 2
    assert "missing.npz" in answer.err
    assert "build on" not in answer.err
    assert not (project.folder / "artifacts").exists()


def test_random_outputs_are_not_compared(project: Project) -> None:
    import onnx
    from onnx import TensorProto, helper

    shape = [1, 4]
    graph = helper.make_graph(
        [helper.make_node("RandomNormalLike", ["x"], ["r"]), helper.make_node("Add", ["x", "r"], ["y"])],
        "random",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7), project.folder / "net.onnx")
    answer = project.build("net.onnx", "--target", "cpu")
    assert answer.code == 3
    assert answer.builds["cpu"]["status"] == "unvalidated"
    assert "RandomNormalLike" in answer.builds["cpu"]["reason"]


def test_a_wrong_supplied_output_fails_also_beside_samples_without_outputs(project: Project, net: Net) -> None:
    net(dims=(1, 3, 8, 8))
    image = np.zeros((1, 3, 8, 8), np.float32)
    np.savez(project.folder / "a.npz", x=image, y=np.full((1, 4, 8, 8), 777, np.float32))
    np.savez(project.folder / "b.npz", x=image)
    (project.folder / "net.yaml").write_text("samples: [a.npz, b.npz]\n")
    answer = project.build("net.onnx", "--target", "cpu")
    assert answer.code == 1
    assert answer.builds["cpu"]["status"] == "failed"


def test_samples_that_are_no_files_are_refused_without_reading_them(project: Project, net: Net) -> None:
    net()
    for named in ("/dev/zero", "**x", "n" * 300):
        (project.folder / "net.yaml").write_text(f'samples: ["{named}"]\n')
        answer = project.build("net.onnx", "--target", "cpu")
        assert answer.code == 2, (named, answer.err)
        assert "EF210" in answer.err
