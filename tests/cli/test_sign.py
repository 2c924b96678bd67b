"""``enginefarm keygen``, ``sign`` and ``verify`` as they are called."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli.main import run


def _release() -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "verdict" / "compat_release.py"
    spec = importlib.util.spec_from_file_location("compat_release_for_sign", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command in a project with a release in art/; gives exit code and output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ENGINEFARM_SIGNING_KEY", raising=False)
    _release().write_release(tmp_path / "art")

    def command(*words: str) -> SimpleNamespace:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run(list(words))
        said = capsys.readouterr()
        return SimpleNamespace(code=ended.value.code or 0, out=said.out, err=said.err)

    return command


def test_the_whole_way_from_key_to_refusal(call: Any, tmp_path: Path) -> None:
    made = call("keygen", "release.key")
    assert made.code == 0
    assert (tmp_path / "release.key").read_text().splitlines()[1] not in made.out

    assert call("verify", "art/lane_v3.json", "--key", "release.key.pub").code == 6  # not signed yet
    signed = call("sign", "art/lane_v3.json", "--key", "release.key")
    assert signed.code == 0
    assert signed.out.startswith("art/lane_v3.json.sig: lane v3 revision 1, 2 files as described, signed with ed25519:")
    assert call("verify", "art/lane_v3.json", "--key", "release.key.pub").code == 0
    assert call("select", "art/lane_v3.json", "--key", "release.key.pub").code == 0

    (tmp_path / "art" / "lane_v3_cpu.onnx").write_bytes(b"other")
    refused = call("verify", "art/lane_v3.json", "--key", "release.key.pub")
    assert refused.code == 6
    assert "error[EF601]: lane_v3_cpu.onnx is not the one that was checked" in refused.err
    assert call("sign", "art/lane_v3.json", "--key", "release.key").code == 6


def test_a_changed_manifest_and_a_foreign_key_are_refused(call: Any, tmp_path: Path) -> None:
    call("keygen", "a.key")
    call("keygen", "b.key")
    call("sign", "art/lane_v3.json", "--key", "a.key")

    for words in (("verify", "art/lane_v3.json"), ("select", "art/lane_v3.json")):
        refused = call(*words, "--key", "b.key.pub")
        assert refused.code == 6
        assert "error[EF606]: manifest is not trusted" in refused.err
    path = tmp_path / "art" / "lane_v3.json"
    path.write_bytes(path.read_bytes() + b"\n")
    assert "is of another revision" in call("verify", "art/lane_v3.json", "--key", "a.key.pub").err


def test_files_that_are_not_here_are_named_and_no_reason_to_refuse(call: Any, tmp_path: Path) -> None:
    call("keygen", "a.key")
    call("sign", "art/lane_v3.json", "--key", "a.key")
    (tmp_path / "art" / "lane_v3_cpu.onnx").unlink()

    done = call("verify", "art/lane_v3.json", "--key", "a.key.pub")
    assert done.code == 0
    assert "  not here: lane_v3_cpu.onnx\n" in done.out


def test_every_manifest_is_verified_though_one_is_refused(call: Any, tmp_path: Path) -> None:
    call("keygen", "a.key")
    _release().write_release(tmp_path / "more")
    call("sign", "more/lane_v3.json", "--key", "a.key")

    done = call("verify", "art/lane_v3.json", "more/lane_v3.json", "--key", "a.key.pub")
    assert done.code == 6
    assert done.out.startswith("more/lane_v3.json: lane v3 revision 1")


def test_a_key_has_to_be_named(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    call("keygen", "a.key")

    assert call("verify", "art/lane_v3.json").code == 2
    assert call("sign", "art/lane_v3.json").code == 2
    monkeypatch.setenv("ENGINEFARM_SIGNING_KEY", "a.key")
    assert call("sign", "art/lane_v3.json").code == 0


def test_a_key_that_others_can_read_is_warned_of(call: Any, tmp_path: Path) -> None:
    call("keygen", "a.key")
    (tmp_path / "a.key").chmod(0o640)

    assert "warning: others can read a.key" in call("sign", "art/lane_v3.json", "--key", "a.key").err


def test_a_policy_that_requires_a_signature_verifies_it(call: Any, tmp_path: Path) -> None:
    call("keygen", "keys.key")
    call("keygen", "foreign.key")
    (tmp_path / "policy.yaml").write_text("signature: true\ntrusted_keys: [keys.key.pub]\n")
    check = ("policy", "check", "--target", "cpu", "--manifest", "art/lane_v3.json", "--json")

    def findings() -> list[tuple[str, str]]:
        done = call(*check)
        found = json.loads(done.out)["findings"]
        assert done.code == (6 if found else 0)
        return [(finding["code"], finding["why"]) for finding in found]

    assert [code for code, _ in findings()] == ["P108", "P108"]
    call("sign", "art/lane_v3.json", "--key", "foreign.key")
    assert all("it is signed with ed25519:" in why for _, why in findings())
    call("sign", "art/lane_v3.json", "--key", "keys.key")
    assert findings() == []
    (tmp_path / "keys.key.pub").unlink()
    assert call(*check).code == 2
