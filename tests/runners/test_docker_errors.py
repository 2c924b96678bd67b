"""What engines say, in our words; texts as engines gave them."""

from __future__ import annotations

import docker.errors
import pytest
import requests
import urllib3

from orchestrator import errors
from orchestrator.errors import Kind
from orchestrator.runners.docker_errors import engine_errors, explain


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('could not select device driver "" with capabilities: [[gpu]]', errors.GPU_ACCESS),
        ("Unknown runtime specified nvidia", errors.GPU_ACCESS),
        ("unknown or invalid runtime name: nvidia", errors.GPU_ACCESS),
        ("failed to inject CDI devices: unresolvable CDI devices nvidia.com/gpu=GPU-a", errors.GPU_ACCESS),
        (
            'error gathering device information while adding custom device "/dev/nvidia0": no such file or directory',
            errors.GPU_DEVICE,
        ),
        ("nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8, please update your driver", errors.GPU_ACCESS),
        ('failed to create shim task: OCI runtime create failed: exec: "python3": executable file not found in $PATH', errors.IMAGE_UNFIT),
        ("exec /usr/bin/python3: exec format error", errors.IMAGE_PLATFORM),
        ("No such image: example.com/x:1", errors.IMAGE_OFFLINE),
        ("No such container: 1234", errors.ENGINE_LOST),
        ("Error processing tar file(exit status 1): write /x: no space left on device", errors.DISK),
        ("Client sent an HTTP request to an HTTPS server.", errors.ENGINE_TLS),
        ("something new", errors.ENGINE_REFUSED),
    ],
)
def test_texts_of_engines(text: str, kind: Kind) -> None:
    found = explain(docker.errors.APIError("500 Server Error", explanation=text), "lab", "start the container")
    assert found.kind is kind
    assert "lab" in found.what or kind is errors.IMAGE_UNFIT
    assert found.why == text


@pytest.mark.parametrize(
    "error",
    [
        requests.exceptions.ConnectionError("('Connection aborted.', RemoteDisconnected('Remote end closed connection'))"),
        requests.exceptions.ChunkedEncodingError("Response ended prematurely"),
        urllib3.exceptions.ProtocolError("Connection broken: IncompleteRead(0 bytes read)"),
        requests.exceptions.ReadTimeout("Read timed out."),
        BrokenPipeError(32, "Broken pipe"),
    ],
)
def test_a_connection_that_ends_is_the_engines_fault(error: Exception) -> None:
    with pytest.raises(errors.EnginefarmError) as caught, engine_errors("lab", "bring the results back"):
        raise error
    assert caught.value.kind is errors.ENGINE_LOST
    assert caught.value.exit is errors.Exit.INFRASTRUCTURE
    assert "bring the results back" in caught.value.what


def test_certificates_are_told_from_lost_connections() -> None:
    error = requests.exceptions.SSLError("HTTPSConnectionPool: ... SSLError(SSLCertVerificationError(1, 'CERTIFICATE_VERIFY_FAILED'))")
    found = explain(error, "lab", "reach the engine", errors.ENGINE_UNREACHABLE)
    assert found.kind is errors.ENGINE_TLS
    assert "tls" in (found.fix or "")


def test_other_exceptions_pass() -> None:
    with pytest.raises(ZeroDivisionError), engine_errors("lab", "count"):
        _ = 1 / 0


def test_what_an_engine_says_is_shown_printable_and_short() -> None:
    found = explain(docker.errors.APIError("x", explanation="a\x1b[31mb\n" * 1000), "lab", "try")
    assert "\x1b" not in (found.why or "")
    assert len(found.why or "") <= 600
