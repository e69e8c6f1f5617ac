"""The ``result`` line, which ends a run, and the counting of tokens for a run that has none."""

from __future__ import annotations

from collections import Counter
from typing import Any

from adapters.claude_code.failures import Failure, message_of, reason_of
from orchestrator.adapterkit.members import as_number, is_count, number_or_none, text_or_none
from orchestrator.events import Completed, Error, Status, Tokens


class Usage:
    """Token counts summed over the messages of a run."""

    def __init__(self) -> None:
        self._messages: dict[str, dict[str, int]] = {}

    def count(self, message_id: str, usage: Any) -> None:
        """Newer counts of a message replace older ones: the provider counts cumulatively."""
        self._messages.setdefault(message_id, {}).update(_counts(usage))

    def total(self) -> Tokens:
        """The sum."""
        total: dict[str, int] = {}
        for usage in self._messages.values():
            for name, value in usage.items():
                total[name] = total.get(name, 0) + value
        return _tokens(total)


def read_result(obj: dict[str, Any], *, usage: Usage, last_text: str, failure: Failure | None) -> Completed | Error:
    """The terminal event.  ``last_text`` and ``failure``: the newest message, and the newest failure, before it.

    ``is_error`` decides: not the subtype (``success`` with a refused key), not the exit code (0 when interrupted).
    """
    subtype = text_or_none(obj.get("subtype")) or "success"
    said = text_or_none(obj.get("result"))
    tokens = _tokens_of(obj) or usage.total()
    cost = number_or_none(obj.get("total_cost_usd", obj.get("cost_usd")))
    if not obj.get("is_error") and not subtype.startswith("error"):
        turns = number_or_none(obj.get("num_turns"))
        return Completed(
            final_text=said or last_text,
            tokens=tokens,
            duration_ms=as_number(number_or_none(obj.get("duration_ms")) or 0),
            stop_reason=text_or_none(obj.get("stop_reason")),
            cost_usd=cost,
            turns=None if turns is None else as_number(turns),
        )
    ending = text_or_none(obj.get("terminal_reason"))
    status = obj.get("api_error_status")
    errors = obj.get("errors")
    listed = "; ".join(str(error) for error in errors) if isinstance(errors, list) else ""
    found = Failure(
        text=said or listed or (failure.text if failure else ""),
        kind=failure.kind if failure else None,
        status=status if isinstance(status, int) else None,
        ending=subtype if ending in {None, "completed"} else ending,
    )
    details = {
        # An error that calls itself a success would only confuse.
        "subtype": None if subtype == "success" else subtype,
        "terminal_reason": None if ending == "completed" else ending,
        "http_status": found.status,
        "kind": found.kind,
        "cli_message": found.text,
        "tokens": tokens.to_dict(),
        "cost_usd": cost,
    }
    reason = reason_of(found)
    known = {name: value for name, value in details.items() if value is not None}
    return Error(reason=reason, message=message_of(reason, found), details=known)


def denials(obj: dict[str, Any]) -> list[Status]:
    """A notice for each tool that the CLI's settings refused: the ``result`` line calls the run a success all the same.

    Each name once, with the number of its calls: a run may ask for the same again and again.
    """
    given = obj.get("permission_denials")
    refused = Counter(
        text_or_none(entry.get("tool_name")) or "?"
        for entry in (given if isinstance(given, list) else ())
        if isinstance(entry, dict)
    )
    return [
        Status(
            phase="diagnostic", info={"stderr": f"Claude Code's settings refused {count} call(s) of the tool {name}."}
        )
        for name, count in refused.items()
    ]


def _tokens_of(obj: dict[str, Any]) -> Tokens | None:
    """``usage`` stays at zero when the run ended early or the answer was asked for again without a stream; the counts
    per model are right then too."""
    counted = _tokens(_counts(obj.get("usage")))
    if counted.input or counted.output or counted.cache_read:
        return counted
    models = obj.get("modelUsage")
    counts = [_counts(model) for model in models.values()] if isinstance(models, dict) else []
    if not counts:
        return counted if isinstance(obj.get("usage"), dict) else None
    return Tokens(
        input=sum(count.get("inputTokens", 0) for count in counts),
        output=sum(count.get("outputTokens", 0) for count in counts),
        cache_read=sum(count.get("cacheReadInputTokens", 0) for count in counts),
        cache_write=sum(count.get("cacheCreationInputTokens", 0) for count in counts),
    )


def _counts(usage: Any) -> dict[str, int]:
    if not isinstance(usage, dict):
        return {}
    return {name: value for name, value in usage.items() if is_count(value)}


def _tokens(usage: dict[str, int]) -> Tokens:
    return Tokens(
        input=usage.get("input_tokens", 0),
        output=usage.get("output_tokens", 0),
        cache_read=usage.get("cache_read_input_tokens"),
        cache_write=usage.get("cache_creation_input_tokens"),
    )
