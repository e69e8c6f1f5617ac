"""C19: which credential a run gets, and what is said when there is none."""

from __future__ import annotations

import copy
import logging
from pathlib import Path

import pytest
from pydantic import SecretStr

from orchestrator.config.models import BackendConfig, Config, ExternalAgentConfig
from orchestrator.contract.credentials import Resolved, SourceName
from orchestrator.credentials import CredentialChain, TechnicalUser
from orchestrator.errors import AuthRequiredError, SecretUnreadableError, UnknownBackendError

SECRET = "sk-ant-very-secret"
CONFIG = Config(
    external_agent=ExternalAgentConfig(
        backends={
            "claude-code": BackendConfig(api_key=SecretStr(SECRET), extra_env={"TOKEN": SECRET}),
            "codex": BackendConfig(),
            "gemini": BackendConfig(api_key=SecretStr("  ")),
            "my-own": BackendConfig(),
            "off": BackendConfig(enabled=False, api_key=SecretStr(SECRET)),
        }
    )
)
BACKENDS = CONFIG.external_agent.backends


class FakeLink:
    """Has a credential for the users in ``users``."""

    def __init__(self, source: SourceName, users: set[str], home: Path | None = None) -> None:
        self.source = source
        self._users = users
        self._home = home

    async def find(self, user_id: str, backend: str, config: BackendConfig) -> Resolved | None:
        if user_id not in self._users:
            return None
        key = None if self._home else f"{self.source}-key"
        return Resolved(source=self.source, home=self._home, api_key=key)

    def hint(self, backend: str) -> str:
        return f"bring a {self.source} for {backend}"


def chain() -> CredentialChain:
    key = FakeLink("byo_key", {"ann", "bob"})
    subscription = FakeLink("byo_subscription", {"ann"}, Path("/homes/ann"))
    return CredentialChain([TechnicalUser(), key, subscription], CONFIG)


@pytest.mark.parametrize(
    ("user", "source"), [("ann", "byo_subscription"), ("bob", "byo_key"), ("eve", "technical_user")]
)
async def test_c19_subscription_then_own_key_then_technical_user(user: str, source: str) -> None:
    assert (await chain().resolve(user_id=user, backend="claude-code")).source == source


async def test_c19_the_technical_user_has_the_configured_key_and_a_copy_of_the_environment() -> None:
    found = await CredentialChain([TechnicalUser()], CONFIG).resolve(user_id="eve", backend="claude-code")
    assert found.api_key == SECRET
    assert found.home is None
    found.extra_env["TOKEN"] = "changed"
    assert BACKENDS["claude-code"].extra_env == {"TOKEN": SECRET}


@pytest.mark.parametrize(
    ("backend", "variable"), [("codex", "OPENAI_API_KEY"), ("gemini", "GEMINI_API_KEY"), ("my-own", "MY_OWN_API_KEY")]
)
async def test_c19_nothing_found_says_what_to_do(backend: str, variable: str) -> None:
    with pytest.raises(AuthRequiredError) as caught:
        await CredentialChain([TechnicalUser()], CONFIG).resolve(user_id="eve", backend=backend)
    assert f"set external_agent.backends.{backend}.api_key in podmentor.yaml" in caught.value.message
    assert f"${{env:{variable}}}" in caught.value.message
    assert caught.value.details == {"backend": backend}


async def test_no_links_at_all_is_auth_required_too() -> None:
    with pytest.raises(AuthRequiredError):
        await CredentialChain([], CONFIG).resolve(user_id="eve", backend="codex")


@pytest.mark.parametrize("backend", ["nothing", "off"])
async def test_a_backend_that_is_not_enabled_is_unknown(backend: str) -> None:
    with pytest.raises(UnknownBackendError):
        await chain().resolve(user_id="ann", backend=backend)
    with pytest.raises(UnknownBackendError):
        await chain().explain(user_id="ann", backend=backend)


async def test_explain_lists_every_link_with_its_reason() -> None:
    reports = await chain().explain(user_id="bob", backend="claude-code")
    assert [(r["source"], r["chosen"]) for r in reports] == [
        ("byo_subscription", False),
        ("byo_key", True),
        ("technical_user", False),
    ]
    assert reports[0]["reason"] == "nothing found; to use it: bring a byo_subscription for claude-code"
    assert reports[2]["reason"] == "available, but byo_key comes first"
    assert SECRET not in repr(reports)


async def test_no_command_is_named_that_a_backend_does_not_have() -> None:
    class NoLogin(FakeLink):
        def hint(self, backend: str) -> None:  # type: ignore[override]
            del backend

    sources = CredentialChain([NoLogin("byo_subscription", set()), TechnicalUser()], CONFIG)
    assert (await sources.explain(user_id="eve", backend="codex"))[0]["reason"] == "this backend has no such login"
    with pytest.raises(AuthRequiredError) as caught:
        await sources.resolve(user_id="eve", backend="codex")
    assert "None" not in caught.value.message
    assert "; or" not in caught.value.message


async def test_explain_with_nothing_found_chooses_none() -> None:
    reports = await chain().explain(user_id="eve", backend="codex")
    assert [r["chosen"] for r in reports] == [False, False, False]
    assert "${env:OPENAI_API_KEY}" in reports[2]["reason"]


async def test_a_run_that_began_with_a_link_gets_that_one_or_none() -> None:
    assert (await chain().resolve(user_id="ann", backend="claude-code", source="byo_key")).source == "byo_key"
    with pytest.raises(AuthRequiredError, match="byo_subscription of the backend 'claude-code' is gone"):
        await chain().resolve(user_id="bob", backend="claude-code", source="byo_subscription")


class BrokenLink(FakeLink):
    """Has something that cannot be read."""

    async def find(self, user_id: str, backend: str, config: BackendConfig) -> Resolved | None:
        raise SecretUnreadableError("the stored secret cannot be read")


async def test_a_broken_credential_is_never_replaced_by_anothers() -> None:
    broken = CredentialChain([TechnicalUser(), BrokenLink("byo_key", set())], CONFIG)
    with pytest.raises(SecretUnreadableError):
        await broken.resolve(user_id="eve", backend="claude-code")
    reports = await broken.explain(user_id="eve", backend="claude-code")
    assert [one["chosen"] for one in reports] == [False, False]
    assert reports[0]["reason"] == "the stored secret cannot be read (and no other is used in its place)"
    assert reports[1]["reason"] == "available, but byo_key comes first"


async def test_a_broken_credential_behind_a_good_one_does_no_harm() -> None:
    good = CredentialChain([FakeLink("byo_subscription", {"ann"}, Path("/h")), BrokenLink("byo_key", set())], CONFIG)
    assert (await good.resolve(user_id="ann", backend="codex")).source == "byo_subscription"
    reports = await good.explain(user_id="ann", backend="codex")
    assert [one["chosen"] for one in reports] == [True, False]
    assert "byo_subscription comes first" in reports[1]["reason"]


class NotingSource(FakeLink):
    """Counts its uses."""

    uses = 0

    async def used(self, user_id: str, backend: str) -> None:
        self.uses += 1


async def test_looking_is_no_use() -> None:
    source = NotingSource("byo_key", {"ann"})
    asked = CredentialChain([source], CONFIG)
    await asked.explain(user_id="ann", backend="codex")
    assert source.uses == 0
    await asked.resolve(user_id="ann", backend="codex")
    assert source.uses == 1


async def test_secrets_do_not_show(caplog: pytest.LogCaptureFixture) -> None:
    found = await chain().resolve(user_id="eve", backend="claude-code")
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("test").info("%s %r %s", found, found, copy.copy(found))
    assert SECRET not in caplog.text
    assert SECRET not in f"{found} {found!r}"
