"""Whatever an agent has its CLI say, and however long it is: the service reads it at once."""

import importlib
import json
import re

import pytest

from adapters.claude_code import ClaudeCodeAdapter
from adapters.codex import CodexAdapter
from adapters.gemini import GeminiAdapter
from adapters.opencode import OpenCodeAdapter
from orchestrator.contract.adapter import BaseAdapter
from orchestrator.events import Completed, Error
from tests.orchestrator.hang import not_for_ever

SIZE = 512 * 1024
TEXTS = (
    " ",
    "\t",
    "\n",
    "{",
    "\x1b[",
    "\x1b[0;",
    "0",
    "the model ",
    "billing is ",
    "INSUFFICIENT_",
    "hit your ",
    "API Error: ",
    "[API Error: ",
    "[ERROR] Model",
    "Reconnecting... 1/1 (",
    "unexpected status ",
    '{"error":',
    "incomplete response returned, reason: ",
    "2026-01-01T",
    "a",
    "oauth token ",
    "insufficient",
    "credits are ",
)
MODULES = [
    f"adapters.{name}"
    for name in (
        "claude_code.failures",
        "claude_code.parser",
        "codex.failures",
        "codex.parser",
        "gemini.failures",
        "gemini.oneshot",
        "gemini.parser",
        "opencode.failures",
        "opencode.parser",
    )
]
PATTERNS = [
    (module, name)
    for module in MODULES
    for name, value in vars(importlib.import_module(module)).items()
    if isinstance(value, re.Pattern) and name != "_LOG_LINE"  # this one is only matched, not searched for
]
ADAPTERS: list[BaseAdapter] = [ClaudeCodeAdapter(), CodexAdapter(), GeminiAdapter(), OpenCodeAdapter()]


@pytest.mark.parametrize(("module", "name"), PATTERNS)
def test_no_pattern_takes_long(module: str, name: str) -> None:
    pattern: re.Pattern[str] = getattr(importlib.import_module(module), name)
    for text in TEXTS:
        with not_for_ever():
            pattern.search(text * (SIZE // len(text)))


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)
@pytest.mark.parametrize("text", ["[" * 100_000, '{"error":' * 50_000, '{"message":' * 50_000])
def test_deep_nesting_in_an_error_ends_the_run_as_any_other_does(adapter: BaseAdapter, text: str) -> None:
    error = {"message": text, "name": "APIError", "data": {"message": text, "responseBody": text}}
    for line in (
        {"type": "result", "subtype": "error_during_execution", "is_error": True, "result": text},
        {"type": "error", "message": text},
        {"type": "turn.failed", "error": error},
        {"type": "result", "status": "error", "error": error},
        {"type": "error", "sessionID": "ses_1", "timestamp": 1, "error": error},
    ):
        parser = adapter.parser()
        events = parser.feed(json.dumps(line).encode() + b"\n") + parser.close(1, text[-8192:])
        assert isinstance(events[-1], Completed | Error)
