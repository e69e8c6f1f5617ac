"""podmentor vault."""

import json
from pathlib import Path

import pytest

from orchestrator.config.models import Paths
from orchestrator.vault import MasterKey
from tests.orchestrator.cli.conftest import Invoke
from tests.orchestrator.vault.kit import SECRET, raw_bytes


def status(invoke: Invoke) -> dict[str, object]:
    found = json.loads(invoke("vault", "status", "--json").stdout)
    assert isinstance(found, dict)
    return found


def audited(paths: Paths) -> list[dict[str, object]]:
    return [json.loads(line) for line in paths.audit_log.read_text().splitlines()]


def test_init_makes_the_key_once(invoke: Invoke, paths: Paths) -> None:
    assert status(invoke)["configured"] is False
    made = invoke("vault", "init")
    assert made.exit_code == 0
    key = paths.vault_key.read_text()
    assert paths.vault_key.stat().st_mode & 0o777 == 0o600
    assert key.strip() not in made.output
    assert "back this key up" in made.stderr
    again = invoke("vault", "init")
    assert again.exit_code == 1
    assert "podmentor vault rotate" in again.output
    assert invoke("vault", "init", "--discard-secrets").exit_code == 1, "a good key is not thrown away"
    assert paths.vault_key.read_text() == key
    found = status(invoke)
    assert (found["configured"], found["error"], found["secrets"]) == (True, None, 0)
    assert MasterKey.from_text(key, where="f").key_id == found["key_id"]


def test_rotate(invoke: Invoke, paths: Paths) -> None:
    assert invoke("vault", "rotate").exit_code == 3
    invoke("vault", "init")
    invoke("keys", "set", "claude-code", "--user", "alice", stdin=SECRET)
    before = status(invoke)
    done = invoke("vault", "rotate", "--json")
    assert done.exit_code == 0, done.output
    after = status(invoke)
    assert json.loads(done.stdout) == {"key_id": after["key_id"], "secrets": 1}
    assert before["key_id"] != after["key_id"]
    assert (after["unreadable"], after["rotation_unfinished"]) == ([], False)
    assert [event["event"] for event in audited(paths)] == [
        "vault.initialised",
        "key.set",
        "vault.rotating",
        "vault.rotated",
    ]
    assert "encrypted anew" in invoke("vault", "rotate").stdout


def test_a_lost_key_is_told_and_can_be_given_up(invoke: Invoke, paths: Paths) -> None:
    invoke("vault", "init")
    invoke("keys", "set", "claude-code", stdin=SECRET)
    paths.vault_key.unlink()
    lost = invoke("vault", "status")
    assert (lost.exit_code, "1 secrets are stored and cannot be used" in lost.output) == (1, True)
    refused = invoke("vault", "init")
    assert refused.exit_code == 1
    assert "--discard-secrets" in refused.output
    assert invoke("vault", "init", "--discard-secrets").exit_code == 0
    assert status(invoke)["secrets"] == 0
    assert invoke("keys", "set", "claude-code", stdin=SECRET).exit_code == 0


def test_a_wrong_key_is_told(invoke: Invoke, paths: Paths) -> None:
    invoke("vault", "init")
    invoke("keys", "set", "claude-code", stdin=SECRET)
    paths.vault_key.write_text(MasterKey.new().to_text())
    found = status(invoke)
    assert "bring the right key back" in str(found["error"])
    assert len(found["unreadable"]) == 1  # type: ignore[arg-type]
    assert invoke("vault", "status").exit_code == 1
    for args in (("keys", "set", "claude-code"), ("vault", "set", "x")):
        assert invoke(*args, stdin=SECRET).exit_code == 3
    assert invoke("auth", "explain", "claude-code").exit_code == 4, "not the technical user's instead"
    assert invoke("keys", "delete", "claude-code").exit_code == 0


@pytest.mark.parametrize("text", ["", "nonsense", "pmvault1-AAAA"])
def test_a_file_that_holds_no_key_is_told(invoke: Invoke, paths: Paths, text: str) -> None:
    paths.vault_key.write_text(text)
    paths.vault_key.chmod(0o600)
    found = invoke("keys", "list")
    assert found.exit_code == 3
    assert "holds no key of a vault" in found.output
    assert text not in found.output or not text


def test_the_key_from_a_variable(invoke: Invoke, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = invoke("vault", "init", "--print")
    assert not paths.vault_key.exists()
    monkeypatch.setenv("PODMENTOR_VAULT_KEY", printed.stdout.strip())
    assert invoke("keys", "set", "claude-code", stdin=SECRET).exit_code == 0
    assert status(invoke)["place"] == "$PODMENTOR_VAULT_KEY"
    assert invoke("vault", "init").exit_code == 1
    refused = invoke("vault", "rotate")
    assert (refused.exit_code, "PODMENTOR_VAULT_KEY_NEXT" in refused.output) == (3, True)
    new = invoke("vault", "init", "--print").stdout.strip()
    monkeypatch.setenv("PODMENTOR_VAULT_KEY_NEXT", new)
    assert invoke("vault", "rotate").exit_code == 0
    again = invoke("vault", "rotate")
    assert (again.exit_code, "in use already" in again.output) == (1, True)
    monkeypatch.setenv("PODMENTOR_VAULT_KEY", new)
    monkeypatch.delenv("PODMENTOR_VAULT_KEY_NEXT")
    assert status(invoke)["error"] is None
    assert not paths.vault_key.exists()


def test_secrets_of_the_configuration(invoke: Invoke, place: Path, paths: Paths) -> None:
    """C14: ``${secret:NAME}`` resolves from the vault when the service starts."""
    config = Path("podmentor.yaml")
    config.write_text("external_agent: {backends: {claude-code: {api_key: '${secret:tech}'}}}\n")
    assert invoke("config", "check").exit_code == 0
    unconfigured = invoke("auth", "explain", "claude-code")
    assert (unconfigured.exit_code, "no vault is configured" in unconfigured.output) == (2, True)
    invoke("vault", "init")
    missing = invoke("auth", "explain", "claude-code")
    assert (missing.exit_code, "podmentor vault set tech" in missing.output) == (2, True)
    assert invoke("vault", "set", "tech", stdin=f"{SECRET}\n").exit_code == 0
    assert invoke("auth", "explain", "claude-code").exit_code == 0
    listed = json.loads(invoke("vault", "list", "--json").stdout)["secrets"]
    assert [one["name"] for one in listed] == ["tech"]
    assert listed[0]["last_used_at"] is not None
    assert listed[0]["fingerprint"] in invoke("vault", "list").stdout
    assert json.loads(invoke("keys", "list", "--all", "--json").stdout) == {"keys": []}
    assert SECRET.encode() not in raw_bytes(place)
    assert {"event": "secret.used", "actor": "service", "user_id": "_config", "name": "tech"}.items() <= audited(paths)[
        -1
    ].items()
    assert invoke("vault", "delete", "tech").exit_code == 0
    assert invoke("vault", "delete", "tech").exit_code == 5


@pytest.mark.parametrize("name", ["../x", "_config", "a b", "x" * 65])
def test_a_secret_needs_a_plain_name(invoke: Invoke, name: str) -> None:
    invoke("vault", "init")
    assert invoke("vault", "set", name, stdin=SECRET).exit_code == 2


@pytest.mark.parametrize("value", ["", "two\nlines", "nul\0", "x" * 4097])
def test_a_secret_is_one_line(invoke: Invoke, value: str) -> None:
    invoke("vault", "init")
    found = invoke("vault", "set", "x", stdin=value)
    assert found.exit_code == 2
    assert value not in found.output or not value


def test_a_key_file_that_the_configuration_names_must_be_there(invoke: Invoke, place: Path) -> None:
    key = place / "elsewhere" / "key"
    Path("podmentor.yaml").write_text(
        f"vault: {{key_file: {key}}}\nexternal_agent: {{backends: {{claude-code: {{}}}}}}\n"
    )
    for args in (("keys", "list"), ("auth", "explain", "claude-code")):
        found = invoke(*args)
        assert (found.exit_code, f"there is no {key}" in found.output) == (3, True)
    assert status(invoke)["error"] is not None
    assert invoke("vault", "init").exit_code == 0
    assert key.stat().st_mode & 0o777 == 0o600
    assert invoke("keys", "list").exit_code == 0
