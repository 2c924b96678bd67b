"""Ways to an engine of the tests: certificates for TLS, and an sshd of their own."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def make_certificates(folder: Path) -> None:
    """ca, server (for 127.0.0.1), client, and a stranger's CA with a client of its own."""
    new = ("req", "-newkey", "rsa:2048", "-nodes")
    for ca in ("ca", "stranger"):
        _openssl(folder, *new, "-x509", "-days", "2", "-subj", f"/CN={ca}", "-keyout", f"{ca}.key", "-out", f"{ca}.pem")
    for name, ca in (("server", "ca"), ("client", "ca"), ("other", "stranger")):
        _openssl(folder, *new, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        (folder / f"{name}.ext").write_text("subjectAltName=IP:127.0.0.1\n")
        signed = ["-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext"]
        _openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)


def tls_flags(folder: Path) -> tuple[str, ...]:
    """Flags of a dockerd that asks who its clients are."""
    files = {"--tlscacert": "ca.pem", "--tlscert": "server.pem", "--tlskey": "server.key"}
    return ("--tlsverify", *(word for flag, name in files.items() for word in (flag, str(folder / name))))


def start_sshd(folder: Path) -> tuple[int, subprocess.Popen[bytes]]:
    """An sshd on loopback; ``folder``/bin holds an ssh that knows its key and its host."""
    port = free_port()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    shutil.copy(folder / "user.pub", folder / "authorized")
    host = (folder / "host.pub").read_text().split()
    (folder / "known").write_text(f"[127.0.0.1]:{port} {host[0]} {host[1]}\n")
    lines = [f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {folder}/host", f"AuthorizedKeysFile {folder}/authorized"]
    lines += ["StrictModes no", "PermitRootLogin yes", "UsePAM no", f"PidFile {folder}/pid"]
    (folder / "sshd_config").write_text("\n".join(lines) + "\n")
    (folder / "ssh_config").write_text(
        f"IdentityFile {folder}/user\nIdentitiesOnly yes\nUserKnownHostsFile {folder}/known\nGlobalKnownHostsFile none\n"
    )
    (folder / "bin").mkdir()
    wrapper = folder / "bin" / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/ssh_config "$@"\n')
    wrapper.chmod(0o755)
    Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen(
        ["/usr/sbin/sshd", "-D", "-e", "-f", str(folder / "sshd_config")], stderr=subprocess.PIPE, start_new_session=True
    )
    assert server.stderr is not None
    assert b"listening" in server.stderr.readline()
    return port, server
