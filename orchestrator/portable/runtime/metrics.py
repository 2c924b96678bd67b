"""Counts of this process, in Prometheus' text format. They outlive a model, so that a service that loads again counts on."""

import threading
from typing import Dict, List, Optional, Tuple

_HELP = {
    "enginefarm_load_attempts_total": ("counter", "Engines looked at by load(), by outcome: loaded, refused, failed"),
    "enginefarm_load_errors_total": ("counter", "Calls of load() that gave no model"),
    "enginefarm_model_info": ("gauge", "The engine that is loaded"),
    "enginefarm_model_degraded": ("gauge", "1 when a better engine should have been loaded"),
    "enginefarm_load_seconds": ("gauge", "Time that the last load took"),
    "enginefarm_runs_total": ("counter", "Calls of the model"),
    "enginefarm_run_errors_total": ("counter", "Calls that failed: inputs refused or not run"),
    "enginefarm_run_seconds_total": ("counter", "Time spent in calls"),
}

Labels = Tuple[Tuple[str, str], ...]
_VALUES: Dict[str, Dict[Labels, float]] = {}
_LOCK = threading.Lock()


def add(name: str, amount: float, **labels: object) -> None:
    """Raise a counter."""
    key = _key(labels)
    with _LOCK:
        values = _VALUES.setdefault(name, {})
        values[key] = values.get(key, 0.0) + amount


def put(name: str, value: float, **labels: object) -> None:
    """Set a gauge."""
    with _LOCK:
        _VALUES.setdefault(name, {})[_key(labels)] = value


def drop(name: str, **labels: object) -> None:
    """Remove a gauge's values that carry all of ``labels``."""
    wanted = set(_key(labels))
    with _LOCK:
        values = _VALUES.get(name, {})
        for key in [key for key in values if wanted.issubset(key)]:
            del values[key]


def text(model: Optional[str] = None, version: Optional[int] = None) -> str:
    """All values, or those of one model (of one version), as a scrape expects them."""
    wanted = set(_key({name: value for name, value in (("model", model), ("version", version)) if value is not None}))
    lines: List[str] = []
    with _LOCK:
        for name in sorted(_VALUES):
            values = {key: value for key, value in _VALUES[name].items() if wanted.issubset(key)}
            if not values:
                continue
            kind, about = _HELP[name]
            lines += ["# HELP {} {}".format(name, about), "# TYPE {} {}".format(name, kind)]
            lines += ["{}{{{}}} {}".format(name, _labels(key), _number(values[key])) for key in sorted(values)]
    return "\n".join(lines) + "\n" if lines else ""


def _key(labels: Dict[str, object]) -> Labels:
    return tuple(sorted((name, str(value)) for name, value in labels.items()))


def _labels(key: Labels) -> str:
    return ",".join('{}="{}"'.format(name, _escaped(value)) for name, value in key)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
