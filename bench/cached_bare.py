"""The bare builder: one TensorRT-RTX engine of one ONNX file, written down. What cached_builds.py measures enginefarm against.

python cached_bare.py MODEL.onnx CAPABILITIES PROFILE ENGINE        (PROFILE: {"<input>": {"min": [...], "opt": [...], "max": [...]}})
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main() -> int:
    import tensorrt_rtx_bindings as trt

    model, capabilities, profile, engine = sys.argv[1:]
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(model):
        raise SystemExit(f"{model}: {parser.get_error(0).desc()}")
    config = builder.create_builder_config()
    config.num_compute_capabilities = len(capabilities.split(","))
    for index, capability in enumerate(capabilities.split(",")):
        config.set_compute_capability(getattr(trt.ComputeCapability, "SM" + capability.replace(".", "")), index)
    config.set_flag(trt.BuilderFlag.TF32)
    if shapes := json.loads(profile):
        added = builder.create_optimization_profile()
        for name, dims in shapes.items():
            added.set_shape(name, tuple(dims["min"]), tuple(dims["opt"]), tuple(dims["max"]))
        config.add_optimization_profile(added)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise SystemExit(f"{model}: no engine for {capabilities}")
    Path(engine).write_bytes(plan)
    return 0


if __name__ == "__main__":
    sys.exit(main())
