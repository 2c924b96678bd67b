"""The worker protocol, version 1: what a step is asked and what it answers.

``python3 worker.pyz request.json`` runs one step in the folder that holds ``request.json`` and writes ``result.json``
(temp file, fsync, rename) and the files it names into that same folder. Every path in a request or result is
relative to that folder and has no ``..``. Tensors travel as raw little-endian C-order bytes next to a description
``{"name": str, "dtype": numpy dtype name, "shape": [int, ...], "file": str}``: no numpy is needed to read them.

Standard output carries JSON lines between the two marker lines (images print banners around them); free text goes
to standard error. The nonce in the markers comes from the request, so that nothing printed by a library can be
taken for an event.

Request (all steps)::

    {"schema": "enginefarm.request/1", "step": "probe" | "build" | "validate", "nonce": str,
     "backend": "tensorrt" | "tensorrt-rtx" | "onnxruntime",            (not for probe)
     "limits": {"memory_bytes": int | null}}

``build`` adds::

    "model": "model/model.onnx", "engine": "engine.plan" | "engine.onnx",
    "options": {"provider": str | null, "compute_capability": ["8.6", ...], "precision": str,
                "strongly_typed": bool, "tf32": bool, "workspace": int | null, "optimization_level": int | null,
                "hardware_compatibility": str, "version_compatible": bool, "plugins": [str, ...],
                "profiles": [{"<input>": {"min": [...], "opt": [...], "max": [...]}}]}

``validate`` adds::

    "engine": str, "provider": str | null, "plugins": [str, ...],
    "compute_capability": ["8.6", ...],                    (the GPU to run on has one of these; empty: any)
    "samples": [{"name": str, "inputs": [tensor, ...]}, ...],
    "warmup": int, "runs": int, "soak_seconds": float

Result (all steps)::

    {"schema": "enginefarm.result/1", "step": ..., "ok": bool, "worker": str, "seconds": float,
     "error": {"kind": str, "message": str, "details": {...}, "log": [str, ...]} | null}

``error.kind`` is one of ERROR_KINDS. ``probe`` adds ``"host"`` (see probe.py). ``build`` adds ``"engine"``
({"file", "size_bytes", "sha256"}), ``"backend_version"``, ``"io"`` ([{"name", "mode", "dtype", "shape"}]),
``"build_seconds"``, ``"details"``. ``validate`` adds ``"backend_version"``, ``"device"`` (the GPU or CPU it ran on),
``"outputs"`` ([{"sample": str, "outputs": [tensor, ...]}]), ``"timings"`` ({"load_seconds", "run_ms": [float, ...]}; the
first sample is the one timed and soaked), ``"soak"`` ({"seconds", "runs", "stable": bool} or null; stable: the last run
gave bit for bit what the first gave) and ``"details"``. For an input that carries a shape, a profile's min, opt and max are its values.

Events: ``{"event": "phase", "phase": str}``, ``{"event": "log", "level": "verbose|info|warning|error", "text": str}``.
"""

REQUEST_SCHEMA = "enginefarm.request/1"
RESULT_SCHEMA = "enginefarm.result/1"
HOST_SCHEMA = "enginefarm.host/1"

BEGIN_MARKER = "===enginefarm-events {nonce} begin==="
END_MARKER = "===enginefarm-events {nonce} end==="

ERROR_KINDS = (
    "bad-request",  # the request is not of this protocol
    "backend-missing",  # the backend's module or library cannot be imported
    "no-device",  # no usable GPU for this step
    "parse-failed",  # the model was refused by the parser
    "unsupported-op",  # the parser does not take an operator
    "capability-refused",  # a compute capability refuses the model: details.capability, details.reason
    "build-failed",  # the builder gave no engine
    "load-failed",  # the engine did not load
    "run-failed",  # the engine loaded and did not run
    "out-of-memory",
    "disk-full",
    "crashed",  # unexpected exception in the worker
)
