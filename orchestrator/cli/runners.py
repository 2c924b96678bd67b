"""``enginefarm runners``: where steps can run, and what is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from orchestrator.runners.base import Host

app = typer.Typer(help="List the runners: platform, GPUs, backends.")


@app.callback(invoke_without_command=True)
def list_runners(
    runners: Annotated[Path | None, typer.Option("--runners", envvar="ENGINEFARM_RUNNERS", help="runners.yaml to use.")] = None,
    python: Annotated[str | None, typer.Option("--python", envvar="ENGINEFARM_PYTHON", help="Interpreter of the local runner.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with the full host descriptions.")] = False,
) -> None:
    """List the runners: platform, GPUs, backends with versions, slots. A runner that does not work is listed with the reason."""
    from orchestrator.errors import EnginefarmError, raise_all
    from orchestrator.runners.load import load_runners

    broken: list[EnginefarmError] = []
    rows: list[dict[str, Any]] = []
    for runner in load_runners(runners, python):
        row: dict[str, Any] = {"name": runner.name, "kind": runner.kind, "slots": runner.slots, "labels": list(runner.labels)}
        try:
            row["host"] = dict(runner.host())
        except EnginefarmError as error:
            row["error"] = error.as_dict()
            broken.append(error)
        rows.append(row)
    if as_json:
        import json

        typer.echo(json.dumps({"schema": "enginefarm.runners/1", "runners": rows}, indent=2, sort_keys=True))
    else:
        for row in rows:
            typer.echo("\n".join(_describe(row)))
    raise_all(broken)


def _describe(row: dict[str, Any]) -> list[str]:
    """One runner as lines."""
    labels = f"  labels: {', '.join(row['labels'])}" if row["labels"] else ""
    slots = "1 slot" if row["slots"] == 1 else f"{row['slots']} slots"
    head = f"{row['name']}  {row['kind']}  {slots}{labels}"
    if "error" in row:
        return [head, f"  does not work: {row['error']['what']}"]
    host: Host = row["host"]
    memory = f"{host['memory_bytes'] / 2**30:.0f} GiB" if host["memory_bytes"] else "memory unknown"
    machine = f"{host['cpu']['count']} x {host['cpu']['model']}, {memory}"
    lines = [head, f"  host          {host['platform']}, {host['os']}, Python {host['python']}", f"  cpu           {machine}"]
    if host["jetson"]:
        known = [f"{name} {host['jetson'][key]}" for name, key in (("L4T", "l4t"), ("JetPack", "jetpack")) if host["jetson"][key]]
        lines.append(f"  jetson        {', '.join([host['jetson']['model'] or 'Jetson', *known])}")
    lines += [f"  gpu           {gpu['name']} (compute capability {gpu['compute_capability']})" for gpu in host["gpus"]]
    if not host["gpus"]:
        lines.append("  gpu           none")
    if host["driver"]:
        lines.append(f"  driver        {host['driver']['version'] or 'unknown'}, CUDA {host['driver']['cuda'] or 'unknown'}")
    return lines + [f"  {name:<13} {_backend(facts)}" for name, facts in sorted(host["backends"].items())]


def _backend(facts: dict[str, Any]) -> str:
    if "version" not in facts:
        return str(facts.get("error", "not there"))
    abilities = facts.get("providers") or facts.get("compute_capabilities") or []
    return f"{facts['version']} ({', '.join(abilities)})" if abilities else str(facts["version"])
