"""C18, C19: users' own keys."""

from __future__ import annotations

import inspect

import pytest
from pydantic import SecretStr

from orchestrator.config.models import BackendConfig, Config, ExternalAgentConfig
from orchestrator.contract.types import Credentials
from orchestrator.credentials import ByoKey, CredentialChain, OwnKeys, TechnicalUser
from orchestrator.credentials.byo_key import check_key, resolve, secret_name
from orchestrator.errors import (
    AuthRequiredError,
    InvalidRequestError,
    NotFoundError,
    SecretUnreadableError,
    StorageError,
    UnknownBackendError,
    VaultUnavailableError,
)
from tests.fakes.audit import FakeAudit
from tests.fakes.secrets import FakeSecrets

KEY = "sk-own-key-of-alice"


def test_c18_the_name_of_the_secret() -> None:
    assert secret_name("claude-code") == "external_agent/claude-code/api_key"


def test_c18_the_signature_of_resolve() -> None:
    parameters = inspect.signature(resolve).parameters
    assert list(parameters) == ["store", "user_id", "backend"]
    assert all(one.kind is inspect.Parameter.KEYWORD_ONLY for one in parameters.values())
    assert inspect.iscoroutinefunction(resolve)


async def test_c18_resolve() -> None:
    store = FakeSecrets()
    assert await resolve(store=None, user_id="alice", backend="codex") is None
    assert await resolve(store=store, user_id="alice", backend="codex") is None
    await store.put("alice", "external_agent/codex/api_key", KEY)
    found = await resolve(store=store, user_id="alice", backend="codex")
    assert found == Credentials(api_key=KEY, home=None, extra_env={})
    assert KEY not in repr(found)
    assert await resolve(store=store, user_id="bob", backend="codex") is None
    assert await resolve(store=store, user_id="alice", backend="claude-code") is None


def config() -> Config:
    backends = {
        "codex": BackendConfig(api_key=SecretStr("sk-technical"), extra_env={"A": "1"}),
        "bare": BackendConfig(),
    }
    return Config(external_agent=ExternalAgentConfig(backends=backends))


async def test_c19_the_own_key_comes_before_the_technical_users_with_a_copy_of_the_environment() -> None:
    store, settings = FakeSecrets(), config()
    await store.put("alice", secret_name("codex"), KEY)
    chain = CredentialChain([TechnicalUser(), ByoKey(store)], settings)
    alice, bob = [await chain.resolve(user_id=user, backend="codex") for user in ("alice", "bob")]
    assert (alice.source, alice.api_key, alice.extra_env) == ("byo_key", KEY, {"A": "1"})
    assert (bob.source, bob.api_key) == ("technical_user", "sk-technical")
    alice.extra_env["A"] = "2"
    assert settings.external_agent.backends["codex"].extra_env == {"A": "1"}
    assert store.touched == [("alice", secret_name("codex"))]


async def test_c18_without_a_store_the_technical_user_still_works() -> None:
    chain = CredentialChain([ByoKey(None), TechnicalUser()], config())
    assert (await chain.resolve(user_id="alice", backend="codex")).source == "technical_user"
    with pytest.raises(AuthRequiredError, match="podmentor vault init"):
        await chain.resolve(user_id="alice", backend="bare")


async def test_nothing_stored_says_how_to_store_it() -> None:
    chain = CredentialChain([ByoKey(FakeSecrets()), TechnicalUser()], config())
    with pytest.raises(AuthRequiredError, match="podmentor keys set bare"):
        await chain.resolve(user_id="alice", backend="bare")


async def test_a_key_that_cannot_be_read_does_not_become_the_technical_users() -> None:
    store = FakeSecrets()
    store.failure = SecretUnreadableError("the stored secret cannot be read")
    chain = CredentialChain([ByoKey(store), TechnicalUser()], config())
    with pytest.raises(SecretUnreadableError):
        await chain.resolve(user_id="alice", backend="codex")


@pytest.mark.parametrize("text", [f"  {KEY}\n", f"\t{KEY}\r\n", KEY])
def test_a_key_is_trimmed(text: str) -> None:
    assert check_key(text) == KEY


@pytest.mark.parametrize(
    "text",
    [
        "",
        "short",
        "x" * 4097,
        "two words in it",
        "a\nb-c-d-e-f-g",
        "nul\0-in-the-key",
        "schlüssel-mit-umlaut",
        "tab\tin-the-key",
        "escape\x1b[31m-in-it",
        "invisible\u200b-in-it",
    ],
)
def test_what_cannot_be_a_key_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_key(text)
    assert len(text) < 3 or text not in str(caught.value)


async def test_own_keys_are_kept_per_user_and_audited_without_the_value() -> None:
    store, audit = FakeSecrets(), FakeAudit()
    keys = OwnKeys(store, audit, ["codex"])
    info = await keys.put(user_id="alice", backend="codex", api_key=f" {KEY}\n", actor="user:alice")
    assert (info.user_id, info.backend, info.fingerprint) == ("alice", "codex", "0badf00d")
    assert store.values == {("alice", secret_name("codex")): KEY}
    await store.put("alice", "config/other", "not a key")
    assert await keys.list_keys(user_id="alice") == [info]
    assert await keys.list_keys(user_id="bob") == []
    assert await keys.list_keys(user_id=None) == [info]
    with pytest.raises(NotFoundError):
        await keys.delete(user_id="bob", backend="codex", actor="user:bob")
    await keys.delete(user_id="alice", backend="codex", actor="admin:root")
    assert audit.events == [
        {"event": "key.set", "actor": "user:alice", "user_id": "alice", "backend": "codex"},
        {"event": "key.deleted", "actor": "admin:root", "user_id": "alice", "backend": "codex"},
    ]


async def test_a_backend_that_is_not_enabled_gets_no_key_but_can_lose_one() -> None:
    store = FakeSecrets()
    await store.put("alice", secret_name("gone"), KEY)
    keys = OwnKeys(store, FakeAudit(), ["codex"])
    with pytest.raises(UnknownBackendError, match="enabled: codex"):
        await keys.put(user_id="alice", backend="gone", api_key=KEY, actor="user:alice")
    await keys.delete(user_id="alice", backend="gone", actor="user:alice")
    assert await keys.list_keys(user_id="alice") == []


async def test_what_cannot_be_audited_does_not_happen() -> None:
    store, audit = FakeSecrets(), FakeAudit()
    keys = OwnKeys(store, audit, ["codex"])
    audit.failure = StorageError("no space left")
    with pytest.raises(StorageError):
        await keys.put(user_id="alice", backend="codex", api_key=KEY, actor="user:alice")
    assert store.values == {}


async def test_c18_no_vault_is_said_as_such() -> None:
    keys = OwnKeys(None, FakeAudit(), ["codex"])
    for attempt in (
        keys.put(user_id="alice", backend="codex", api_key=KEY, actor="a"),
        keys.get(user_id="alice", backend="codex"),
        keys.list_keys(user_id="alice"),
        keys.delete(user_id="alice", backend="codex", actor="a"),
    ):
        with pytest.raises(VaultUnavailableError, match="podmentor vault init"):
            await attempt
