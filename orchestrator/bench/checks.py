"""The checks, in the order of their numbers.  Pure: each looks at the evidence and says what it thinks of it."""

from __future__ import annotations

import re
from typing import Final

from orchestrator.bench.check import CHECKS, UnsupportedError, check, completed, failed_for, must, one
from orchestrator.bench.results import Evidence, Seen
from orchestrator.bench.scenes import COUNTED, MARKED, PROMPTS, TIMEOUT_SECONDS, WALL_CLOCK

__all__ = ["CHECKS"]

DEAREST_INPUT: Final = 60.0
DEAREST_OUTPUT: Final = 600.0
"""USD for a million tokens: above what the models behind today's CLIs cost, and far below a hundred times as much."""
OUTPUT_SLACK: Final = 2
"""Tokens of an answer: the protocols count its first or last piece, which may be empty, or do not."""
_SEQUENCE: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_WHOLE: Final = {None, "end_turn", "stop", "STOP"}
"""Reasons to stop that say nothing of a limit."""


@check("B01", "a plain answer arrives whole", "text")
def _plain(_: Evidence, scenes: dict[str, Seen]) -> str:
    run = one(scenes["text"])
    completed(run)
    expected = scenes["text"].facts["spoken"]
    must(run.record.final_text == expected, f"the final text is {run.record.final_text!r:.200}")
    must(run.text == expected, f"the messages are {run.text!r:.200}")
    must([e.seq for e in run.events] == list(range(1, len(run.events) + 1)), "the events have gaps")
    must(bool(run.of("session_started")), "no session_started came")
    return f"{len(run.events)} events"


@check("B02", "events come while the model still answers", "gate", capability="streaming")
def _streaming(_: Evidence, scenes: dict[str, Seen]) -> str:
    held = scenes["gate"].facts["held"]
    if not held:
        raise UnsupportedError("nothing came out while the answer was held in its middle")
    completed(one(scenes["gate"]))
    return ", ".join(dict.fromkeys(held))


@check("B03", "an answer comes in pieces", "text", capability="deltas")
def _deltas(_: Evidence, scenes: dict[str, Seen]) -> str:
    run = one(scenes["text"])
    completed(run)
    pieces = len(run.of("message_delta"))
    if pieces < 2:
        raise UnsupportedError("the answer came as a whole")
    return f"{pieces} pieces"


@check("B04", "reasoning is shown", "thinking", capability="thinking")
def _thinking(_: Evidence, scenes: dict[str, Seen]) -> str:
    run = one(scenes["thinking"])
    completed(run)
    if not run.of("thinking"):
        raise UnsupportedError("the model reasoned, and no thinking event came")
    return ""


@check("B05", "a shell tool is called and its output comes back", "shell", capability="tools")
def _shell(_: Evidence, scenes: dict[str, Seen]) -> str:
    run = one(scenes["shell"])
    completed(run)
    uses = {use.data["tool_call_id"]: use.data["name"] for use in run.of("tool_use")}
    must(bool(uses), "no tool_use came")
    results = [result.data for result in run.of("tool_result") if result.data["tool_call_id"] in uses]
    printed = [str(result["content"]) for result in results]
    must(any(MARKED in content for content in printed), "no tool_result has the command's output")
    must(any(COUNTED in content for content in printed), f"the tool_result is not all of the output: {printed!r:.300}")
    answer = run.record.final_text or ""
    must(MARKED in answer and COUNTED in answer, "the model did not get the output")
    return ", ".join(dict.fromkeys(uses.values()))


@check("B06", "an edit is in the diff and not in the repo", "edit", capability="edits")
def _edit(_: Evidence, scenes: dict[str, Seen]) -> str:
    completed(one(scenes["edit"]))
    facts = scenes["edit"].facts
    must(facts["changes"] == [("note.txt", "added")], f"the changes are {facts['changes']}")
    must("+gamma" in facts["patch"] and "+beta" not in facts["patch"], f"the patch is {facts['patch']!r:.300}")
    must(facts["untouched"], "the repo itself was changed")
    return ""


@check("B07", "a failing tool is reported as an error, and the run goes on", "fail", capability="tool_errors")
def _fail(_: Evidence, scenes: dict[str, Seen]) -> str:
    run = one(scenes["fail"])
    completed(run)
    results = run.of("tool_result")
    must(bool(results), "no tool_result came")
    if not any(result.data["is_error"] for result in results):
        raise UnsupportedError("a command that failed looks like one that did not")
    return ""


@check("B08", "a following run remembers", "remember", capability="resume")
def _remember(evidence: Evidence, scenes: dict[str, Seen]) -> str:
    runs = scenes["remember"].runs
    for run in runs:
        completed(run)
    answer = runs[-1].record.final_text or ""
    if "Ada" not in answer and not evidence.supports_resume:
        raise UnsupportedError("the CLI cannot go on with a session")
    must(len(runs) == 2 and "My name is Ada." in answer, f"the second answer was {answer!r:.200}")
    return ""


@check("B09", "a session that is lost is a clear error", "lost")
def _lost(evidence: Evidence, scenes: dict[str, Seen]) -> str:
    if not evidence.supports_resume:
        raise UnsupportedError("the CLI keeps no sessions")
    return failed_for(one(scenes["lost"]), "resume_failed")


@check("B10", "a key that the provider refuses: auth_rejected", "401")
def _wrong_key(_: Evidence, scenes: dict[str, Seen]) -> str:
    return failed_for(one(scenes["401"]), "auth_rejected")


@check("B11", "a rate limit: rate_limited, in bounded time", "busy")
def _busy(_: Evidence, scenes: dict[str, Seen]) -> str:
    return failed_for(one(scenes["busy"]), "rate_limited")


@check("B12", "a provider that fails: provider_unavailable, in bounded time", "500")
def _broken(_: Evidence, scenes: dict[str, Seen]) -> str:
    return failed_for(one(scenes["500"]), "provider_unavailable")


@check("B13", "retries are reported while they go on", "busy", "500", capability="retry_notices")
def _retries(_: Evidence, scenes: dict[str, Seen]) -> str:
    retries = {name: one(scenes[name]).phases().count("retrying") for name in ("busy", "500")}
    if not any(retries.values()):
        raise UnsupportedError("no status `retrying` came")
    return ", ".join(f"{count} at {'429' if name == 'busy' else name}" for name, count in retries.items())


@check("B14", "an answer that breaks off: provider_unavailable", "cut")
def _cut(_: Evidence, scenes: dict[str, Seen]) -> str:
    return failed_for(one(scenes["cut"]), "provider_unavailable")


@check("B15", "an answer cut by its length limit is not taken for a whole one", "maxtok", capability="length_limit")
def _maxtok(_: Evidence, scenes: dict[str, Seen]) -> str:
    run = one(scenes["maxtok"])
    must(run.seconds < WALL_CLOCK, "it ran into the wall clock")
    if run.record.outcome == "failed":
        return run.reason
    stop = run.events[-1].data.get("stop_reason")
    if stop in _WHOLE:
        raise UnsupportedError("it looks like a whole answer")
    return f"stop_reason {stop}"


@check("B16", "an answer of megabytes arrives whole", "huge")
def _huge(_: Evidence, scenes: dict[str, Seen]) -> str:
    run, expected = one(scenes["huge"]), scenes["huge"].facts["spoken"]
    completed(run)
    for where, text in (("messages", run.text), ("final text", run.record.final_text or "")):
        must(text.strip() == expected.strip(), f"{len(text)} of {len(expected)} characters came in the {where}")
    return f"{len(expected) / 1e6:.1f} MB"


@check("B17", "text outside ASCII arrives as it was sent", "utf8")
def _utf8(_: Evidence, scenes: dict[str, Seen]) -> str:
    run, expected = one(scenes["utf8"]), scenes["utf8"].facts["spoken"]
    completed(run)
    if expected in (run.text, run.record.final_text):
        return ""
    must(_SEQUENCE.sub("", expected) in (run.text, run.record.final_text), f"it came as {run.text!r:.200}")
    return "the CLI takes escape sequences out"


@check("B18", "a cancelled run leaves no process", "cancel")
def _cancel(_: Evidence, scenes: dict[str, Seen]) -> str:
    run, facts = one(scenes["cancel"]), scenes["cancel"].facts
    must(facts["running"], f"the tool did not run: {run.how}")
    must(run.record.outcome == "cancelled", f"the run ended as {run.how}")
    must(not facts["left"], f"processes are left: {facts['left']}")
    return ""


@check("B19", "the wall clock ends a run", "timeout")
def _timeout(_: Evidence, scenes: dict[str, Seen]) -> str:
    run = one(scenes["timeout"])
    must(run.reason == "timeout", f"it ended as {run.how}")
    return f"after {run.seconds:.1f} s of {TIMEOUT_SECONDS:.0f}"


@check("B20", "the key is nowhere but at the provider", "secrets", "after")
def _key(_: Evidence, scenes: dict[str, Seen]) -> str:
    run, facts = one(scenes["secrets"]), scenes["after"].facts
    completed(run)
    must("PATH=" in (run.record.final_text or ""), "the search inside the container did not work")
    must(facts["key_used"], "the provider was never asked with the key")
    must(not facts["events"], f"it is in events of {facts['events'][:3]}")
    must(not facts["files"], f"it is in {facts['files'][:3]}")
    must(facts["keys"] == 1, "the provider was also asked without the key, or with another")
    return ""


@check("B21", "no line is left unparsed")
def _unparsed(evidence: Evidence, _: dict[str, Seen]) -> str:
    lines = [
        str(e.data.get("raw")) for run in evidence.runs() for e in run.of("status") if e.data["phase"] == "unparsed"
    ]
    must(not lines, f"{len(lines)} lines, the first: {(lines or [''])[0]:.200}")
    return f"{sum(1 for _ in evidence.runs())} runs"


@check("B22", "tokens are reported", "text", capability="usage")
def _usage(evidence: Evidence, scenes: dict[str, Seen]) -> str:
    tokens = one(scenes["text"]).record.usage.get("tokens") or {}
    if not (tokens.get("input") and tokens.get("output")):
        raise UnsupportedError(f"the tokens are {dict(tokens)}")
    sent = evidence.sent
    # Some CLIs count the cached ones among those of the prompt.
    prompt = {tokens["input"], tokens["input"] + tokens.get("cache_read", 0)}
    must(sent.prompt in prompt, f"the provider counted {sent.prompt} tokens of the prompt, the run {dict(tokens)}")
    cached = tokens.get("cache_read", sent.cached)
    must(cached == sent.cached, f"the provider counted {sent.cached} cached tokens, the run {cached}")
    close = sent.output <= tokens["output"] <= sent.output + OUTPUT_SLACK
    must(close, f"the provider counted {sent.output} tokens of the answer, the run {tokens['output']}")
    return ", ".join(f"{name} {count}" for name, count in tokens.items())


@check("B23", "the cost is reported", "text", capability="cost")
def _cost(evidence: Evidence, scenes: dict[str, Seen]) -> str:
    cost = one(scenes["text"]).record.usage.get("cost_usd")
    if cost is None:
        raise UnsupportedError("there is none in the output")
    sent = evidence.sent
    dearest = (sent.prompt * DEAREST_INPUT + (sent.output + OUTPUT_SLACK) * DEAREST_OUTPUT) / 1e6
    must(0 < cost <= dearest, f"it is {cost:.4f} USD, and no model costs more than {dearest:.4f} USD for these tokens")
    return f"{cost:.4f} USD"


@check("B24", "nothing is left of finished runs", "after")
def _left(_: Evidence, scenes: dict[str, Seen]) -> str:
    left = scenes["after"].facts["leftovers"]
    must(not left, ", ".join(left[:5]))
    return ""


@check("B25", "the CLI goes nowhere but to its provider, and not past the gateway")
def _egress(evidence: Evidence, _: dict[str, Seen]) -> str:
    """Nothing is on the runs' allow-list, and no scene asks for a host: what was refused, the CLI tried by itself."""
    tried = [
        f"{event.data.get('host')}:{event.data.get('port')}"
        for run in evidence.runs()
        for event in run.of("status")
        if event.data["phase"] == "egress_denied"
    ]
    must(not tried, f"it tried {', '.join(dict.fromkeys(tried))}")
    return f"{sum(1 for _ in evidence.runs())} runs"


@check("B26", "a prompt is text, whatever it begins with", "prompts")
def _text(_: Evidence, scenes: dict[str, Seen]) -> str:
    runs = scenes["prompts"].runs
    for prompt, run in zip(PROMPTS, runs, strict=True):
        completed(run)
        answer = run.record.final_text or ""
        must(f"The first was: {prompt}" in answer, f"{prompt!r} was answered with {answer!r:.200}")
    return f"{len(runs)} prompts"


@check("B27", "a plain answer costs one request", "text")
def _requests(_: Evidence, scenes: dict[str, Seen]) -> str:
    completed(one(scenes["text"]))
    requests = scenes["text"].facts["requests"]
    must(requests == 1, f"the provider got {requests} requests")
    return ""


@check("B28", "a sub-agent's work is reported as its own", "delegate")
def _subagent(_: Evidence, scenes: dict[str, Seen]) -> str:
    run = one(scenes["delegate"])
    completed(run)
    uses = run.of("tool_use")
    if not uses:
        raise UnsupportedError("it has no tool that starts a sub-agent")
    starts = uses[0].data["tool_call_id"]
    inner = [event for event in run.of("tool_result") if event.data["tool_call_id"] != starts]
    if not inner:
        raise UnsupportedError("what a sub-agent does is not in the output")
    parents = {event.parent_tool_call_id for event in [*uses[1:], *inner]}
    must(parents == {starts}, f"the parents of what the sub-agent did are {parents}, and its call is {starts}")
    return f"{len(inner)} tool results"


@check("B29", "the runs keep the contracts of the conformance kit")
def _contracts(evidence: Evidence, _: dict[str, Seen]) -> str:
    must(not evidence.broken, "; ".join(evidence.broken[:3]))
    return f"{sum(1 for _ in evidence.runs())} runs"
