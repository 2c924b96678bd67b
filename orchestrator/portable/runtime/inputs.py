"""Whether what a model is called with is what it takes: names, types, shapes within the optimization profile."""

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ..worker.errors import quoted
from .errors import InputError

Spec = NamedTuple(
    "Spec",
    [("name", str), ("dtype", str), ("shape", Tuple[int, ...]), ("low", Tuple[int, ...]), ("high", Tuple[int, ...])],
)
"""An input or output: -1 in ``shape`` is dynamic; ``low`` and ``high`` are the profile's bounds, empty without one."""


class DeviceArray:
    """Device memory that the caller owns: ``address``, numpy's name of the type, and shape; C order.

    Anything else that carries ``__cuda_array_interface__`` (CuPy, PyTorch, Numba) can be given in its place.
    """

    def __init__(self, address: int, dtype: str, shape: Sequence[int]) -> None:
        import numpy as np

        self.__cuda_array_interface__ = {
            "data": (int(address), False),
            "typestr": np.dtype(dtype).str,
            "shape": tuple(int(dim) for dim in shape),
            "strides": None,
            "version": 3,
        }


Device = NamedTuple("Device", [("address", int), ("dtype", str), ("shape", Tuple[int, ...]), ("owner", Any)])
"""What ``__cuda_array_interface__`` says; ``owner`` keeps the memory alive."""


def specs(tensors: Sequence[Dict[str, Any]], profiles: Dict[str, Any]) -> List[Spec]:
    """The manifest's tensors with their bounds."""
    found = []
    for tensor in tensors:
        ranges = profiles.get(tensor["name"], {})
        low, high = tuple(ranges.get("min", ())), tuple(ranges.get("max", ()))
        found.append(Spec(tensor["name"], tensor["dtype"], tuple(tensor["shape"]), low, high))
    return found


def checked(given: Mapping[str, Any], wanted: Sequence[Spec], pointers: bool) -> Dict[str, Any]:
    """The inputs as contiguous arrays of native byte order (or Device); InputError names everything that is wrong.

    ``pointers``: whether the engine reads device memory.
    """
    if not isinstance(given, Mapping):
        raise InputError("give the inputs as a mapping from name to array, not {}".format(_kind(given)))
    problems = _names(given, wanted)
    arrays: Dict[str, Any] = {}
    for spec in wanted:
        if spec.name in given:
            problem, array = _one(spec, given[spec.name], pointers)
            arrays[spec.name] = array
            problems += [problem] if problem else []
    if problems:
        raise InputError("; ".join(problems))
    return arrays


def device_view(value: Any) -> Optional[Device]:
    """``value`` as device memory, or None when it is none; InputError when its layout cannot be used."""
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is None:
        return None
    import numpy as np

    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    strides = interface.get("strides")
    if strides is not None and tuple(strides) != _c_strides(shape, dtype.itemsize):
        raise InputError("device memory has to be contiguous in C order; strides are {}".format(tuple(strides)))
    return Device(int(interface["data"][0]), dtype.name, shape, value)


def _c_strides(shape: Tuple[int, ...], item: int) -> Tuple[int, ...]:
    found: List[int] = []
    for dim in reversed(shape):
        found.append(item)
        item *= dim
    return tuple(reversed(found))


def _names(given: Mapping[str, Any], wanted: Sequence[Spec]) -> List[str]:
    names = [spec.name for spec in wanted]
    if set(given) == set(names):
        return []
    import difflib

    problems = []
    for name in given:
        if name not in names:
            close = difflib.get_close_matches(str(name), names, n=1)
            hint = "did you mean {}?".format(quoted(close[0])) if close else "its inputs are {}".format(", ".join(map(quoted, names)))
            problems.append("the model has no input {}; {}".format(quoted(str(name)), hint))
    missing = [name for name in names if name not in given]
    if missing:
        problems.append("input {} is missing".format(" and ".join(map(quoted, missing))))
    return problems


def _one(spec: Spec, value: Any, pointers: bool) -> Tuple[str, Any]:
    """Problem (or empty) and array of one input."""
    device = device_view(value)
    if device is not None:
        if not pointers:
            return "input {} is in device memory; this engine takes numpy arrays".format(quoted(spec.name)), None
        return _type_problem(spec, device.dtype) or _shape_problem(spec, device.shape), device
    import numpy as np

    if not isinstance(value, np.ndarray):
        return "input {} is {}; give a numpy array".format(quoted(spec.name), _kind(value)), None
    problem = _type_problem(spec, value.dtype.name) or _shape_problem(spec, value.shape)
    if problem:
        return problem, None
    if not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    # a scalar stays one: ascontiguousarray gives it a dimension
    return "", value if value.flags["C_CONTIGUOUS"] else np.ascontiguousarray(value)


def _type_problem(spec: Spec, dtype: str) -> str:
    if dtype == spec.dtype:
        return ""
    return 'input {} is {}; the model takes {}: x.astype("{}")'.format(quoted(spec.name), dtype, spec.dtype, spec.dtype)


def _shape_problem(spec: Spec, shape: Sequence[int]) -> str:
    shown = _shown(shape)
    if len(shape) != len(spec.shape):
        return "input {} has shape {}; the model takes {}".format(quoted(spec.name), shown, _shown(spec.shape))
    if any(want not in (-1, shape[axis]) for axis, want in enumerate(spec.shape)):
        return "input {} has shape {}; the model takes {}".format(quoted(spec.name), shown, _shown(spec.shape))
    # of an input that carries a shape, whose own shape is fixed, the profile holds values
    ranged = -1 in spec.shape and len(spec.low) == len(shape) == len(spec.high)
    if ranged and not all(spec.low[axis] <= have <= spec.high[axis] for axis, have in enumerate(shape)):
        text = "input {} has shape {}; the engine's profile goes from {} to {}"
        return text.format(quoted(spec.name), shown, _shown(spec.low), _shown(spec.high))
    return ""


def _shown(shape: Sequence[int]) -> str:
    return "x".join("?" if dim == -1 else str(dim) for dim in shape) or "scalar"


def _kind(value: Any) -> str:
    return "None" if value is None else "a {}".format(type(value).__name__)
