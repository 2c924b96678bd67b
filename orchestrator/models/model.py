"""What is known of a model after it was read: plain frozen values, no behaviour that touches a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

Dim = int | str | None
"""A static size, a name that ties sizes together, or None for "any size, tied to nothing"."""

STAGED_NAME = "model.onnx"
"""Name of the graph file inside a staging folder; external data keeps its relative path beside it."""


@dataclass(frozen=True)
class TensorInfo:
    """One graph input or output.

    ``dtype`` is a numpy-like name (``float32``, ``bfloat16``, ``float8_e4m3fn``, ``int64``, ``bool``, ``string``), or
    ``sequence(...)``, ``optional(...)``, ``map(...)``, ``sparse(...)`` for what is not a dense tensor.
    ``shape`` holds :data:`Dim`; it is None when the model does not even say the rank.
    """

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None

    @property
    def is_tensor(self) -> bool:
        return "(" not in self.dtype

    @property
    def is_dynamic(self) -> bool:
        return self.shape is None or not all(isinstance(dim, int) for dim in self.shape)


@dataclass(frozen=True)
class ExternalFile:
    """One side file: ``path`` relative to the model's folder (posix, normalised), ``size`` in bytes."""

    path: str
    size: int
    digest: str


@dataclass(frozen=True)
class Model:
    """One model as it was read.

    ``digest`` is over the graph and all external data (see load.py), ``size_bytes`` the sum of them. ``nodes`` and
    ``op_types`` count subgraphs and function bodies too; an operator of another domain has the key ``domain::Op``.
    ``weight_dtypes`` counts constant tensors (initializers and Constant nodes) per dtype.
    """

    path: Path
    digest: str
    size_bytes: int
    ir_version: int
    opsets: dict[str, int]
    producer: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    external: tuple[ExternalFile, ...]
    nodes: int
    op_types: dict[str, int]
    weight_dtypes: dict[str, int]
    has_qdq: bool
    custom_ops: tuple[str, ...]
    """``domain::Op`` of operators that no ONNX standard and no function of the model defines."""
    random_ops: tuple[str, ...]
    """Operators that give other outputs on every run: nothing can be compared."""
    data_dependent_ops: tuple[str, ...]
    """Operators whose output shape depends on values: compare shapes before values."""
    gpu_blockers: tuple[str, ...]
    """Why no TensorRT engine of this model can exist, one sentence each; ONNX Runtime may still run it."""
    placeholder_dims: bool
    """Dimensions carry names such as ``?`` that parsers would tie together although the model does not mean it."""
    warnings: tuple[str, ...]
    staged: Path | None
    """The private, read-only copy (``<stage>/model.onnx``) that was hashed and scanned."""
    graph_digest: str = ""
    """Digest of the graph file alone: tells a changed graph from changed external data."""

    @property
    def float_weights(self) -> frozenset[str]:
        """Floating-point dtypes among the constant tensors."""
        return frozenset(dtype for dtype in self.weight_dtypes if dtype.startswith(("float", "bfloat")))
