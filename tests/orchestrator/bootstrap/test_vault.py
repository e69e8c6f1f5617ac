"""What the credentials' places are put together with."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.bootstrap.vault import credential_chain
from orchestrator.config.models import Config, Paths


def reason(found: list[dict[str, object]]) -> str:
    return str(found[0]["reason"])


@pytest.mark.parametrize("backend", ["claude-code", "codex", "opencode"])
async def test_a_login_is_named_where_the_backend_has_one(tmp_path: Path, backend: str) -> None:
    config = Config.model_validate({"external_agent": {"backends": {backend: {}}}})
    chain = credential_chain(config, Paths(state_dir=tmp_path, runtime_dir=tmp_path), None)
    assert f"podmentor login {backend}" in reason(await chain.explain(user_id="local", backend=backend))


@pytest.mark.parametrize("backend", ["gemini", "not-installed"])
async def test_no_login_is_named_where_there_is_none(tmp_path: Path, backend: str) -> None:
    config = Config.model_validate({"external_agent": {"backends": {backend: {"login_command": ["x"]}}}})
    chain = credential_chain(config, Paths(state_dir=tmp_path, runtime_dir=tmp_path), None)
    assert reason(await chain.explain(user_id="local", backend=backend)) == "this backend has no such login"
