"""``enginefarm runners``: where steps can run, and what is there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

if TYPE_CHECKING:
    from orchestrator.runners.base import Host, Runner
    from orchestrator.runners.docker import DockerRunner
    from orchestrator.runners.ssh import SshRunner

app = typer.Typer(help="List, probe and clean the runners: platform, GPUs, backends.")

_File = Annotated[Path | None, typer.Option("--runners", envvar="ENGINEFARM_RUNNERS", help="runners.yaml to use.")]
_Python = Annotated[str | None, typer.Option("--python", envvar="ENGINEFARM_PYTHON", help="Interpreter of the local runner.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON, with the full host descriptions.")]
_Names = Annotated[list[str] | None, typer.Argument(metavar="NAME", help="Runners; default: all.")]


@app.callback(invoke_without_command=True)
def runners_group(ctx: typer.Context, runners: _File = None, python: _Python = None, as_json: _Json = False) -> None:
    """List the runners: platform, GPUs, backends with versions, slots. A runner that does not work is listed with the reason."""
    if ctx.invoked_subcommand is None:
        _list(_chosen(runners, python, None), as_json)


@app.command("ls", hidden=True)
@app.command("list")
def list_command(names: _Names = None, runners: _File = None, python: _Python = None, as_json: _Json = False) -> None:
    """List the runners: platform, GPUs, backends with versions, slots, who holds a GPU."""
    _list(_chosen(runners, python, names), as_json)


@app.command("probe")
def probe_command(
    names: _Names = None,
    runners: _File = None,
    python: _Python = None,
    image: Annotated[str | None, typer.Option("--image", help="Look from inside this image, which must be on the engine.")] = None,
    as_json: _Json = False,
) -> None:
    """Look at the runners anew; with --image, Docker runners from a container of that image: its backends, the GPUs it sees."""
    chosen = _chosen(runners, python, names)
    if image is not None:
        from orchestrator.runners.docker import DockerRunner

        for runner in chosen:
            if isinstance(runner, DockerRunner):
                runner.probe_image = image
    _list(chosen, as_json)


@app.command("clean")
def clean_command(
    names: _Names = None,
    runners: _File = None,
    images: Annotated[bool, typer.Option("--images", help="Also images that enginefarm made or pulled.")] = False,
    volumes: Annotated[bool, typer.Option("--volumes", help="Also models and files that were kept for the next run.")] = False,
    keep: Annotated[str | None, typer.Option("--keep", metavar="SIZE", help="Keep the newest of these up to SIZE, like 50 GiB.")] = None,
    as_json: _Json = False,
) -> None:
    """Remove what enginefarm left on Docker engines and hosts reached over ssh, and nothing else. What a live run uses stays."""
    from orchestrator.errors import EnginefarmError, raise_all

    kept = _size(keep)
    broken: list[EnginefarmError] = []
    rows: list[dict[str, Any]] = []
    for runner in _chosen(runners, None, names):
        try:
            row = _cleaned(runner, images, volumes, kept)
        except EnginefarmError as error:
            broken.append(error)
            continue
        rows += [row] if row else []
    if as_json:
        _print_json({"schema": "enginefarm.cleaned/1", "runners": rows})
    else:
        for row in rows:
            counts = ", ".join(f"{len(items)} {what}" for what, items in row["removed"].items())
            typer.echo(f"{row['name']}  removed {counts}; {row['bytes'] / 2**30:.1f} GiB")
        if not rows and not broken:
            typer.echo("no Docker runner, and none over ssh")
    raise_all(broken)


def _cleaned(runner: Runner, images: bool, volumes: bool, keep_bytes: int) -> dict[str, Any] | None:
    """Clean one runner; gives what was removed, None for one that leaves nothing anywhere. Raises EnginefarmError."""
    if runner.kind == "ssh":
        found = cast("SshRunner", runner).clean(inputs=volumes, keep_bytes=keep_bytes)
        return {"name": runner.name, "removed": {what: found[what] for what in ("steps", "inputs")}, "bytes": found["bytes"]}
    if runner.kind != "docker":
        return None
    from orchestrator.runners.clean import clean
    from orchestrator.runners.docker_errors import engine_errors

    with engine_errors(runner.name, "clean up"):
        done = clean(cast("DockerRunner", runner).engine(), images=images, volumes=volumes, keep_bytes=keep_bytes)
    removed = {"containers": done.containers, "volumes": done.volumes, "images": done.images}
    return {"name": runner.name, "removed": removed, "bytes": done.bytes}


def _size(text: str | None) -> int:
    from orchestrator.errors import USAGE, EnginefarmError
    from orchestrator.matrix.binder import read_bytes

    try:
        return read_bytes(text) if text else 0
    except ValueError as error:
        raise EnginefarmError(USAGE, f"--keep: {error}", fix='write it like --keep "50 GiB"') from error


def _chosen(path: Path | None, python: str | None, names: list[str] | None) -> list[Runner]:
    """The configured runners, or those named. Raises EnginefarmError for a name that is none."""
    import difflib

    from orchestrator.errors import USAGE, EnginefarmError
    from orchestrator.runners.load import load_runners

    found = {runner.name: runner for runner in load_runners(path, python)}
    for name in names or ():
        if name not in found:
            close = difflib.get_close_matches(name, found, n=1)
            fix = f"did you mean {close[0]}?" if close else f"there are: {', '.join(found)}"
            raise EnginefarmError(USAGE, f'there is no runner "{name}"', fix=fix)
    return [runner for name, runner in found.items() if not names or name in names]


def _list(runners: list[Runner], as_json: bool) -> None:
    from orchestrator.errors import EnginefarmError, raise_all

    broken: list[EnginefarmError] = []
    rows: list[dict[str, Any]] = []
    for runner in runners:
        row: dict[str, Any] = {"name": runner.name, "kind": runner.kind, "labels": list(runner.labels)}
        try:
            row["host"] = dict(runner.host())
            row["held"] = _held(runner)
        except EnginefarmError as error:
            row["error"] = error.as_dict()
            broken.append(error)
        rows.append({**row, "slots": runner.slots})
    if as_json:
        _print_json({"schema": "enginefarm.runners/1", "runners": rows})
    else:
        for row in rows:
            typer.echo("\n".join(_describe(row)))
    raise_all(broken)


def _held(runner: Runner) -> dict[str, str]:
    """GPU uuid -> who holds it, where leases lie on an engine or host."""
    if runner.kind == "ssh":
        return cast("SshRunner", runner).holders()
    if runner.kind != "docker":
        return {}
    from orchestrator.runners.lease import holders

    return holders(cast("DockerRunner", runner).engine())


def _print_json(value: dict[str, Any]) -> None:
    import json

    typer.echo(json.dumps(value, indent=2, sort_keys=True))


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
    python = f", Python {host['python']}" if host["python"] else ""
    lines = [head, *_engine_lines(host), f"  host          {host['platform']}, {host['os']}{python}", f"  cpu           {machine}"]
    if host["jetson"]:
        known = [f"{name} {host['jetson'][key]}" for name, key in (("L4T", "l4t"), ("JetPack", "jetpack")) if host["jetson"][key]]
        lines.append(f"  jetson        {', '.join([host['jetson']['model'] or 'Jetson', *known])}{_declared(host, 'jetson')}")
    lines += [f"  gpu           {_gpu(gpu, row['held'])}{_declared(host, 'gpus')}" for gpu in host["gpus"]]
    if not host["gpus"]:
        problem = host.get("gpu_problem")
        lines.append(f"  gpu           none{': ' + problem['what'] if problem else ''}")
    if host["driver"]:
        driver = f"{host['driver']['version'] or 'unknown'}, CUDA {host['driver']['cuda'] or 'unknown'}"
        lines.append(f"  driver        {driver}{_declared(host, 'driver')}")
    backends = sorted(host["backends"].items())
    if "engine" in host and all("version" not in facts for _, facts in backends):
        return lines  # they come with the images
    return lines + [f"  {name:<13} {_backend(facts)}" for name, facts in backends]


def _engine_lines(host: Host) -> list[str]:
    """What only a Docker engine or a host reached over ssh has."""
    remote = host.get("remote")
    if remote is not None:
        return [f"  over ssh      {remote['address']}, {remote['free_disk_bytes'] / 2**30:.0f} GiB free in {remote['workdir']}"]
    engine = host.get("engine")
    if engine is None:
        return []
    free = engine["free_disk_bytes"]
    disk = f", {free / 2**30:.0f} GiB free" if free is not None else ""
    return [f"  engine        {engine['version']} at {engine['address']}{disk}", f"  gpu access    {engine['gpu_access']}"]


def _gpu(gpu: dict[str, Any], held: dict[str, str]) -> str:
    memory = f", {gpu['memory_bytes'] / 2**30:.0f} GiB" if gpu.get("memory_bytes") else ""
    uuid = f", {gpu['uuid']}" if gpu.get("uuid") and not gpu.get("declared_uuid") else ""
    holder = held.get(str(gpu.get("uuid")))
    return f"{gpu['name']} (compute capability {gpu['compute_capability']}{memory}{uuid})" + (f", held by {holder}" if holder else "")


def _declared(host: Host, field: str) -> str:
    return ", declared in runners.yaml" if field in host.get("declared", ()) else ""


def _backend(facts: dict[str, Any]) -> str:
    if "version" not in facts:
        return str(facts.get("error", "not there"))
    abilities = facts.get("providers") or facts.get("compute_capabilities") or []
    return f"{facts['version']} ({', '.join(abilities)})" if abilities else str(facts["version"])
