"""For rehearsals without a GPU: what goes into the image so that its ONNX Runtime seems to have a CUDA provider. It is the CPU provider.

``libcuda`` is the double of tests/docker/farm/double: one declared GPU of the capability in DOUBLE_CAPABILITY, here with a uuid.
"""

from __future__ import annotations

from pathlib import Path

CAPABILITY = "9.0"
_LIBCUDA = Path(__file__).resolve().parents[1] / "docker/farm/double/sitecustomize.py"
_UUID = """

def _uuid(self, raw, device):
    raw._obj[:] = list(range(16))
    return 0


DoubleLibcuda.cuDeviceGetUuid = _uuid
"""
_ONNXRUNTIME = '''

class InferenceSession(InferenceSession):
    """The CPU provider under the name of the CUDA one: a double for rehearsals."""

    def __init__(self, path_or_bytes, sess_options=None, providers=None, **more):
        super().__init__(path_or_bytes, sess_options, providers=["CPUExecutionProvider"], **more)

    def get_providers(self):
        return ["CUDAExecutionProvider", "CPUExecutionProvider"]

    def get_provider_graph_assignment_info(self):
        class Part:
            def __init__(self, real):
                self.ep_name, self.get_nodes = "CUDAExecutionProvider", real.get_nodes

        return [Part(real) for real in super().get_provider_graph_assignment_info()]


def get_available_providers():
    return ["CUDAExecutionProvider", "CPUExecutionProvider"]
'''


def files(site: str, own: Path) -> dict[str, str]:
    """Path in the image -> text; ``site`` is its folder of packages, ``own`` the one here."""
    return {
        f"{site}/sitecustomize.py": _LIBCUDA.read_text() + _UUID,
        f"{site}/onnxruntime/__init__.py": (own / "onnxruntime/__init__.py").read_text() + _ONNXRUNTIME,
    }
