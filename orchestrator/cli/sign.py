"""``enginefarm keygen``, ``sign`` and ``verify``: who released these engines, and are they still the ones that were released."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from orchestrator.publish.signing import Checked

_Manifests = Annotated[
    list[Path], typer.Argument(metavar="MANIFEST", help="<model>_v<N>.json, latest.json, or the model's folder.", show_default=False)
]


def keygen_command(
    key: Annotated[Path, typer.Argument(metavar="FILE", help="File for the private key; the public one is FILE.pub.", show_default=False)],
) -> None:
    """Make a key pair for signing manifests (Ed25519). Nothing is overwritten."""
    from orchestrator.publish.signing import new_key
    from orchestrator.report.text import safe

    name, public = new_key(key)
    typer.echo(f"{safe(str(key))}: private, keep it secret\n{safe(str(public))}: public, give it to who verifies\nkey {name}")


def sign_command(
    manifests: _Manifests,
    key: Annotated[
        Path, typer.Option("--key", envvar="ENGINEFARM_SIGNING_KEY", metavar="FILE", help="Private key to sign with.", show_default=False)
    ],
) -> None:
    """Sign manifests: writes MANIFEST.sig. Refused when a file beside a manifest is not the one that was checked."""
    from orchestrator.publish.signing import PASSPHRASE, check_files, read_signing_key, sign
    from orchestrator.report.text import safe

    private = read_signing_key(key)
    if private.open_to_others:
        typer.echo(f"warning: others can read {safe(str(key))}: chmod 600 it (passphrases go into {PASSPHRASE})", err=True)
    for checked in [check_files(path) for path in manifests]:
        typer.echo(f"{safe(str(sign(checked.opened, private)))}: {_about(checked)}, signed with {private.key_id}")


def verify_command(
    manifests: _Manifests,
    key: Annotated[
        list[Path], typer.Option("--key", metavar="PUB", help="Public key that you trust. Repeatable: one has to fit.", show_default=False)
    ],
) -> None:
    """Check that a trusted key signed the manifests and that every file beside them is the one that was signed.

    Exit codes: 0 all is as it was signed (files that are not here are named), 6 refused.
    """
    from orchestrator.errors import EnginefarmError, raise_all
    from orchestrator.publish.signing import check_files, signed_by
    from orchestrator.report.text import safe

    problems: list[EnginefarmError] = []
    for path in manifests:
        try:
            checked = check_files(path)
            name, public = signed_by(checked.opened, key)
        except EnginefarmError as error:
            problems.append(error)
            continue
        typer.echo(f"{safe(checked.opened.path)}: {_about(checked)}, signed with {name} ({safe(str(public))})")
        for absent in checked.absent:
            typer.echo(f"  not here: {safe(absent)}")
    raise_all(problem for error in problems for problem in getattr(error, "problems", (error,)))


def _about(checked: Checked) -> str:
    from orchestrator.report.text import safe

    content = checked.opened.content
    model, count = content["model"], len(checked.files)
    files = f"{count} file{'' if count == 1 else 's'} as described"
    return f"{safe(model['name'])} v{model['version']} revision {content['revision']}, {files}"
