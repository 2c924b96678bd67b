"""Operators that onnx.reference computes wrongly (seen in onnx 1.23.2), as the standard defines them.

Without these a sound model would differ from its "reference":

* BatchNormalization of opset 9 to 13 runs in training mode there whenever ``momentum`` is known, which is always
  (the schema has a default); the standard says test mode when the node has one output.
* GlobalMaxPool reduces the right axes only with two spatial dimensions.
* Softmax, LogSoftmax and Hardmax before opset 13 have the default axis 1 and work on all dimensions from the axis on, taken as one row;
  there they work on one axis, as from opset 13 on.

What :func:`computed_otherwise` names is not corrected: a model with it has no reference here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def corrected_ops(opset: int) -> list[type[Any]]:
    """Classes for ``ReferenceEvaluator(new_ops=...)`` for a model of default-domain ``opset``."""
    import numpy as np
    from onnx.reference.op_run import OpRun

    class BatchNormalization(OpRun):  # type: ignore[misc]
        op_domain = ""

        def _run(
            self, x: np.ndarray, scale: np.ndarray, bias: np.ndarray, mean: np.ndarray, var: np.ndarray, **options: Any
        ) -> tuple[np.ndarray]:
            if len(self.onnx_node.output) > 1 or (opset < 7 and not options.get("is_test")):
                raise NotImplementedError("BatchNormalization in training mode")
            shape = (-1, *(1,) * (x.ndim - 2))
            epsilon = 1e-5 if options.get("epsilon") is None else options["epsilon"]
            factor = scale / np.sqrt(var + np.asarray(epsilon, var.dtype))
            return ((factor.reshape(shape) * (x - mean.reshape(shape)) + bias.reshape(shape)).astype(x.dtype),)

    class GlobalMaxPool(OpRun):  # type: ignore[misc]
        op_domain = ""

        def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
            return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)

    return [GlobalMaxPool, *([BatchNormalization] if opset < 14 else []), *(_flattening_ops() if opset < 13 else [])]


def _flattening_ops() -> list[type[Any]]:
    """The softmax family as it was before opset 13."""
    import numpy as np
    from onnx.reference.op_run import OpRun

    def rows(node: Any, x: np.ndarray, axis: int | None) -> np.ndarray:
        own = [attribute for attribute in node.attribute if attribute.name == "axis"]
        if not own or not own[0].ref_attr_name:  # ``axis`` is the function's then, else it may be the newest opset's default
            axis = own[0].i if own else 1
        elif axis is None:
            axis = 1
        return x.reshape(math.prod(x.shape[: axis + x.ndim if axis < 0 else axis]), -1) if x.size else x.reshape(0, 1)

    def log_softmax(x: np.ndarray) -> np.ndarray:
        shifted = x - x.max(axis=1, keepdims=True)
        logs: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        return logs

    class Softmax(OpRun):  # type: ignore[misc]
        op_domain = ""

        def _run(self, x: np.ndarray, axis: int | None = None) -> tuple[np.ndarray]:
            return (np.exp(log_softmax(rows(self.onnx_node, x, axis))).reshape(x.shape).astype(x.dtype),)

    class LogSoftmax(OpRun):  # type: ignore[misc]
        op_domain = ""

        def _run(self, x: np.ndarray, axis: int | None = None) -> tuple[np.ndarray]:
            return (log_softmax(rows(self.onnx_node, x, axis)).reshape(x.shape).astype(x.dtype),)

    class Hardmax(OpRun):  # type: ignore[misc]
        op_domain = ""

        def _run(self, x: np.ndarray, axis: int | None = None) -> tuple[np.ndarray]:
            flat = rows(self.onnx_node, x, axis)
            largest = np.zeros_like(flat)
            np.put_along_axis(largest, flat.argmax(axis=1, keepdims=True), 1, axis=1)
            return (largest.reshape(x.shape),)

    return [Softmax, LogSoftmax, Hardmax]


def computed_otherwise(nodes: Iterable[Any], opset: int) -> str | None:
    """What among ``nodes`` (NodeProto, of a model of default-domain ``opset``) onnx.reference computes differently from the standard."""
    for node in nodes:
        if node.domain not in ("", "ai.onnx"):
            continue
        texts = {attribute.name: attribute.s for attribute in node.attribute}
        if node.op_type == "MaxPool" and texts.get("auto_pad") == b"SAME_LOWER":
            return "MaxPool with auto_pad SAME_LOWER"
        if node.op_type == "RoiAlign" and opset < 16:
            return f"RoiAlign of opset {opset}"
        if node.op_type == "Loop" and (len(node.input) < 2 or not node.input[1]):
            return "Loop without a condition"
        if node.op_type == "Resize" and texts.get("coordinate_transformation_mode") == b"align_corners":
            return "Resize with align_corners"
    return None
