"""Tables that stand in the source so that no library is needed to read a model, held against the library."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from orchestrator.models.dtypes import dtype_name, raw_bytes
from orchestrator.models.operators import NEWEST_IR, NEWEST_OPSET, STANDARD_OPS


def test_the_table_of_operators_is_the_standard() -> None:
    first: dict[str, int] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            first[schema.name] = min(schema.since_version, first.get(schema.name, schema.since_version))
    # an older onnx package knows fewer
    assert first.items() <= STANDARD_OPS.items()
    assert onnx.IR_VERSION <= NEWEST_IR
    assert onnx.defs.onnx_opset_version() <= NEWEST_OPSET


@pytest.mark.parametrize("name", [name for name in onnx.TensorProto.DataType.keys() if name != "UNDEFINED"])  # noqa: SIM118  (an enum)
def test_every_element_type_has_a_name_and_its_size(name: str) -> None:
    code = onnx.TensorProto.DataType.Value(name)
    dtype = dtype_name(code)
    assert dtype is not None
    if name != "STRING":
        packed = numpy_helper.from_array(np.zeros(7, helper.tensor_dtype_to_np_dtype(code)))
        assert packed.data_type == code
        assert raw_bytes(dtype, 7) == len(packed.raw_data)
