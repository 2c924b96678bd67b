"""Writes lane.onnx: a small lane segmentation network, untrained, the same bytes on every machine.

    python examples/lane.py [OUTPUT]

Encoder-decoder with skip connections, the shape of what runs in vehicles: a strided stem, residual and depthwise
separable blocks down to 1/16, transposed convolutions back up. Batch normalisation is folded into the convolutions,
as exporters do. Input ``image``: float32 [batch, 3, 160, 320] in 0..1. Output ``lanes``: float32 [batch, 4, 160, 320],
one probability mask per lane (left neighbour, left, right, right neighbour).

Opset 11 and IR version 6 are old on purpose: every parser from TensorRT 7.1 on takes them. There is no matrix
product and no Resize, so that Turing builds it in fp32 and onnx.reference runs it in seconds.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SEED = 20260101
HEIGHT, WIDTH, LANES = 160, 320, 4


class Net:
    """Nodes and weights in the order they were added; every method returns the name of its output tensor."""

    def __init__(self, seed: int) -> None:
        # Uniform numbers of the legacy generator are frozen by numpy and need no libm: equal bits everywhere.
        self._random = np.random.RandomState(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(self, op: str, inputs: list[str], name: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def weight(self, name: str, shape: tuple[int, ...], bound: float) -> str:
        """A new initializer, uniform in -bound..bound."""
        values = (self._random.random_sample(shape) * 2.0 - 1.0) * bound
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def conv(
        self, x: str, name: str, channels: tuple[int, int], *, kernel: int = 3, stride: int = 1, dilation: int = 1, group: int = 1
    ) -> str:
        into, out = channels
        fan_in = into // group * kernel * kernel
        weight = self.weight(f"{name}.weight", (out, into // group, kernel, kernel), math.sqrt(6.0 / fan_in))
        bias = self.weight(f"{name}.bias", (out,), 0.1)
        pad = dilation * (kernel // 2)
        attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "dilations": [dilation] * 2, "pads": [pad] * 4, "group": group}
        return self.node("Conv", [x, weight, bias], name, **attributes)

    def relu(self, x: str) -> str:
        return self.node("Relu", [x], f"{x}.relu")

    def residual(self, x: str, name: str, channels: int) -> str:
        y = self.relu(self.conv(x, f"{name}.conv1", (channels, channels)))
        y = self.conv(y, f"{name}.conv2", (channels, channels))
        return self.relu(self.node("Add", [x, y], f"{name}.add"))

    def separable(self, x: str, name: str, channels: int, dilation: int) -> str:
        y = self.relu(self.conv(x, f"{name}.depthwise", (channels, channels), dilation=dilation, group=channels))
        y = self.conv(y, f"{name}.pointwise", (channels, channels), kernel=1)
        return self.relu(self.node("Add", [x, y], f"{name}.add"))

    def up(self, x: str, skip: str, name: str, channels: tuple[int, int]) -> str:
        """Twice the height and width, then joined with the encoder's tensor of that size, which has ``channels[1]`` channels."""
        into, out = channels
        weight = self.weight(f"{name}.deconv.weight", (into, out, 2, 2), math.sqrt(6.0 / into))
        bias = self.weight(f"{name}.deconv.bias", (out,), 0.1)
        y = self.node("ConvTranspose", [x, weight, bias], f"{name}.deconv", kernel_shape=[2, 2], strides=[2, 2])
        y = self.node("Concat", [self.relu(y), skip], f"{name}.concat", axis=1)
        return self.relu(self.conv(y, f"{name}.conv", (2 * out, out)))


def build() -> onnx.ModelProto:
    """The model; checked, shapes inferred, deterministic."""
    net = Net(SEED)
    half = net.relu(net.conv("image", "stem", (3, 12), stride=2))
    quarter = net.residual(net.relu(net.conv(half, "down1", (12, 24), stride=2)), "block1", 24)
    eighth = net.residual(net.relu(net.conv(quarter, "down2", (24, 48), stride=2)), "block2", 48)
    x = net.relu(net.conv(eighth, "down3", (48, 96), stride=2))
    for number, dilation in enumerate((1, 2, 4), start=1):
        x = net.separable(x, f"context{number}", 96, dilation)
    x = net.up(x, eighth, "up1", (96, 48))
    x = net.up(x, quarter, "up2", (48, 24))
    x = net.up(x, half, "up3", (24, 12))
    weight = net.weight("head.weight", (12, LANES, 2, 2), 0.25)
    x = net.node("ConvTranspose", [x, weight], "head", kernel_shape=[2, 2], strides=[2, 2])
    net.node("Sigmoid", [x], "lanes")

    graph = helper.make_graph(
        net.nodes,
        "lane",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, HEIGHT, WIDTH])],
        [helper.make_tensor_value_info("lanes", TensorProto.FLOAT, ["batch", LANES, HEIGHT, WIDTH])],
        initializer=net.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6, producer_name="enginefarm-examples")
    onnx.checker.check_model(model, full_check=True)
    return model


def main(output: Path) -> None:
    output.write_bytes(build().SerializeToString(deterministic=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("lane.onnx"))
