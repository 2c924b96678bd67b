"""Operators that onnx.reference computes wrongly (seen in onnx 1.23.2), as the standard defines them.

Without these a sound model would differ from its "reference":

* BatchNormalization of opset 9 to 13 runs in training mode there whenever ``momentum`` is known, which is always
  (the schema has a default); the standard says test mode when the node has one output.
* GlobalMaxPool reduces the right axes only with two spatial dimensions.
"""

from __future__ import annotations

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

    return [BatchNormalization, GlobalMaxPool] if opset < 14 else [GlobalMaxPool]
