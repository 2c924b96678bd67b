"""Real TensorRT-RTX plans, built in milliseconds without a GPU."""

from __future__ import annotations

from typing import Any


def build_plan(*capabilities: str) -> bytes:
    """A plan of y = relu(x) for these capabilities ("SM80", ...); none = the builder's default list."""
    import tensorrt_rtx_bindings as trt

    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    x = network.add_input("x", trt.float32, (1, 3, 8, 8))
    y: Any = network.add_activation(x, trt.ActivationType.RELU).get_output(0)
    y.name = "y"
    network.mark_output(y)
    config = builder.create_builder_config()
    config.num_compute_capabilities = len(capabilities)
    for index, name in enumerate(capabilities):
        if not config.set_compute_capability(getattr(trt.ComputeCapability, name), index):
            raise RuntimeError(f"the builder refuses {name}")
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise RuntimeError("no plan was built")
    return bytes(plan)
