"""From what the Gemini CLI prints without a stream (plain text, or ``--output-format json``) to a result."""

from __future__ import annotations

import re
from typing import Any

from adapters.gemini.failures import Failure, message_of, reason_of
from orchestrator.adapterkit.failures import not_in_image
from orchestrator.adapterkit.members import is_count, text_or_none
from orchestrator.adapterkit.parsing import decode
from orchestrator.contract.types import AgentResult

MEMBERS = frozenset({"response", "error", "stats", "session_id", "warnings"})
"""What the object of ``--output-format json`` may have."""
_BROKEN = re.compile(r"^\[ERROR\] ((?:Model|The model|Invalid stream)\b.*)$", re.MULTILINE)
"""How the CLI says, with exit code 0, that the text it has printed is no whole answer."""
_OPENING = re.compile(r'\{\s*"(?:session_id|response)":')
_NOISE = ("Warning: ", "YOLO mode is enabled", "Ripgrep is not available", "at ")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def read_oneshot(stdout: str, stderr: str, rc: int) -> AgentResult:
    """The result of a whole output; ``rc``: 128+n for signal n.

    An answer needs exit code 0 and text: the CLI ends with 0 when it is killed, too.  When it fails it prints the
    object on stderr.
    """
    answer = _object(stdout)
    said = answer if answer is not None else _object(stderr) if rc else None
    error = said.get("error") if said else None
    text = stdout.strip() if answer is None else (text_or_none(answer.get("response")) or "").strip()
    if answer is None and error is None and (broken := _BROKEN.search(stderr)):
        error = broken.group(1)
    tokens = _tokens(said.get("stats")) if said else {}
    if answer is None and error is None and _is_torn(text):
        error = "The CLI's answer has no end."
    if rc == 0 and error is None and text:
        return AgentResult(final_text=text, is_error=False, tokens=tokens)
    message = text_or_none(error.get("message") if isinstance(error, dict) else error) or ""
    failure = Failure(text=message or words(stderr), exit_code=rc)
    details = {"exit_code": rc, "stderr": stderr[-8192:]}
    if rc in {126, 127} and not text:
        return _failed(text, tokens, **not_in_image("Gemini CLI", details).data())
    if rc == 0 and error is None:
        shown = "Gemini CLI ended without an answer: it was killed, or the model gave none."
        return _failed(text, tokens, reason="cli_failed", message=shown, details=details)
    reason = reason_of(failure)
    return _failed(text, tokens, reason=reason, message=message_of(reason, failure), details=details)


def words(stderr: str) -> str:
    """What stderr says, without what it always says, and without stack traces."""
    lines = (line.strip() for line in _COLOUR.sub("", stderr).splitlines())
    return "\n".join(line for line in lines if line and not line.startswith(_NOISE))


def _failed(text: str, tokens: dict[str, int], **error: Any) -> AgentResult:
    return AgentResult(final_text=text, is_error=True, tokens=tokens, error=error)


def _object(text: str) -> dict[str, Any] | None:
    """The CLI's object: the text from the first line that opens one.  An answer that is JSON itself is none."""
    start = 0 if text.lstrip().startswith("{") else text.find("\n{") + 1
    if start == 0 and not text.lstrip().startswith("{"):
        return None
    end = text.rfind("}")
    try:
        value = decode(text[start : end + 1])
    except (ValueError, RecursionError):
        return None
    fits = isinstance(value, dict) and value.keys() & {"response", "error"} and value.keys() <= MEMBERS
    return value if fits else None


def _is_torn(text: str) -> bool:
    """Whether ``text`` begins as the CLI's object does, and is no JSON."""
    if not _OPENING.match(text):
        return False
    try:
        decode(text)
    except (ValueError, RecursionError):
        return True
    return False


def _tokens(stats: Any) -> dict[str, int]:
    """Summed over the models; ``prompt`` has the cached ones in it."""
    models = stats.get("models") if isinstance(stats, dict) else None
    total: dict[str, int] = {}
    for model in models.values() if isinstance(models, dict) else ():
        tokens = model.get("tokens") if isinstance(model, dict) else None
        for name, value in tokens.items() if isinstance(tokens, dict) else ():
            if is_count(value):
                total[name] = total.get(name, 0) + value
    if not total:
        return {}
    cached = total.get("cached", 0)
    return {
        "input": max(0, total.get("prompt", 0) - cached),
        "output": total.get("candidates", 0),
        "cache_read": cached,
        "reasoning": total.get("thoughts", 0),
    }
