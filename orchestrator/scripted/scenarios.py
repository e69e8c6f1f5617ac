"""The scripts: from a conversation to the next answer.  Pure, and the same for every protocol.

A scenario is named by the path of the request, else by a line ``scenario: NAME`` in a prompt (the newest that has
one), else it is the server's default.  A name of three digits fails with that HTTP status.

The ``demo`` scenario works on a small repository: a shell script with a bug, and the check that finds it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from orchestrator.scripted.steps import (
    Break,
    Conversation,
    Cut,
    Fail,
    Pause,
    Step,
    Stop,
    Text,
    Thinking,
    ToolCall,
)
from orchestrator.scripted.wire import CACHED_TOKENS, PROMPT_TOKENS, cut

SCRIPT: Final = "slug.sh"
CHECK: Final = "check.sh"
BUG: Final = "printf '%s\\n' \"$*\" | tr 'A-Z' 'a-z' | tr ' ' '_'"
FIX: Final = "printf '%s\\n' \"$*\" | tr 'A-Z' 'a-z' | tr ' ' '-'"

SAMPLE_FILES: Final[dict[str, str]] = {
    "README.md": "# slug\n\nTurns a title into a file name. `sh check.sh` tells whether it works.\n",
    SCRIPT: f"#!/bin/sh\n# Words in lower case, joined by dashes.\n{BUG}\n",
    CHECK: """#!/bin/sh
want=hello-container-world
got=$(sh slug.sh Hello Container World)
if [ "$got" = "$want" ]; then
    echo "ok: $got"
else
    echo "FAILED: wanted $want, got $got"
    exit 1
fi
""",
}
"""Path to content."""
ANSWER: Final = "Hello from the scripted provider. There is nothing else to do."
SIDE_ANSWER: Final = "Scripted title"
SUBAGENT_PROMPT: Final = "Say hello. (You are the sub-agent.)\nscenario: delegate"
"""Names its own scenario, so that the sub-agent's requests play it whatever the default is."""
_TAG = re.compile(r"^\s*scenario:\s*([\w-]+)\s*$", re.MULTILINE)
_RUN = re.compile(r"^RUN:[ \t]*(\S.*)$|^RUN:[ \t]*\n(.*)\Z", re.MULTILINE | re.DOTALL)
_STATUS = re.compile(r"[45]\d\d")

Script = Callable[[Conversation], Sequence[Step]]


def named_in(conversation: Conversation) -> str | None:
    """The scenario that the conversation itself asks for."""
    for prompt in reversed(conversation.prompts):
        if found := _TAG.search(prompt):
            return found.group(1)
    return None


def play(scenario: str, conversation: Conversation) -> Sequence[Step]:
    """The next answer.  A request that offers no tools is a side request and never takes part in the story."""
    if _STATUS.fullmatch(scenario):
        return [Fail(int(scenario))]
    script = SCENARIOS.get(scenario)
    if script is None:
        return [Fail(400, f"there is no scenario {scenario!r}; there are {', '.join(sorted(SCENARIOS))}, and NNN")]
    steps = script(conversation)
    if not conversation.tools and any(isinstance(step, ToolCall) for step in [*steps, *_opening(script)]):
        return [Text(SIDE_ANSWER)]
    return steps


def spoken(scenario: str) -> str:
    """All the text of a scenario's first answer; empty for a name that is none."""
    script = SCENARIOS.get(scenario)
    steps = script(Conversation(prompts=("Hello.",))) if script is not None else ()
    return "".join(step.text for step in steps if isinstance(step, Text))


def counted(scenario: str) -> tuple[int, int, int]:
    """The tokens of a scenario's first answer: of the prompt, of those the cached ones, and of the text."""
    script = SCENARIOS[scenario]
    steps = script(Conversation(prompts=("Hello.",)))
    pieces = sum(len(cut(step.text, step.size)) for step in steps if isinstance(step, Text))
    return PROMPT_TOKENS, CACHED_TOKENS, pieces


def _opening(script: Script) -> Sequence[Step]:
    return script(Conversation(prompts=("RUN: true",)))


def _rounds(*answers: Sequence[Step]) -> Script:
    """One answer for each round of tools; the last one repeats."""
    return lambda conversation: answers[min(conversation.rounds, len(answers) - 1)]


def _dump(conversation: Conversation) -> Sequence[Step]:
    """Runs what stands behind ``RUN:`` in the newest prompt: the rest of its line, or of the prompt if it is alone."""
    if conversation.rounds:
        return [Text(f"The command printed:\n{conversation.results[-1]}", 200)]
    found = _RUN.search(conversation.prompt)
    if found is None:
        return [Text("The prompt has no line that begins with RUN: and names a command.")]
    line, rest = found.groups()
    command = line.split("\n", 1)[0] if line else rest
    return [ToolCall("shell", {"command": command.strip()})]


def _remember(conversation: Conversation) -> Sequence[Step]:
    first = " ".join(_TAG.sub("", "".join(conversation.prompts[:1])).split())
    return [Text(f"This is prompt number {len(conversation.prompts)}. The first was: {first}")]


def _delegate(conversation: Conversation) -> Sequence[Step]:
    if SUBAGENT_PROMPT in conversation.prompt:
        return _rounds(
            [Thinking("I am the helper."), ToolCall("shell", {"command": "echo from the helper"})],
            [Text("The helper says hello.")],
        )(conversation)
    return _rounds(
        [Text("I let a helper do it."), ToolCall("agent", {"prompt": SUBAGENT_PROMPT})], [Text("The helper is done.")]
    )(conversation)


def _demo(conversation: Conversation) -> Sequence[Step]:
    match conversation.rounds:
        case 0:
            return [
                Thinking("First I look at what is here and whether its own check passes."),
                Text("I look at the repository and run its check.\n"),
                ToolCall("shell", {"command": f"git log --oneline | head -n 5; ls; sh {CHECK}"}),
            ]
        case 1:
            return [
                Thinking(f"The check fails because words are joined by underscores. That is in {SCRIPT}."),
                ToolCall("read", {"path": SCRIPT}),
            ]
        case 2 if not conversation.failed[-1]:
            return [
                Text(f"The words are joined by underscores where the check wants dashes. I change {SCRIPT}.\n"),
                ToolCall("edit", {"path": SCRIPT, "old": BUG, "new": FIX}),
            ]
        case 2:
            return [Text(f"There is no {SCRIPT} here, so this is not the sample repository. I leave it as it is.")]
        case 3:
            return [ToolCall("shell", {"command": f"sh {CHECK} && git diff --stat"})]
        case _:
            outcome = "still fails" if conversation.failed[-1] else "passes now"
            return [Text(f"I changed one line of {SCRIPT}: words are joined by dashes. The check {outcome}.")]


HUGE_LINES = 40_000


def _huge(_: Conversation) -> Sequence[Step]:
    """About 3 MB, in pieces of 64 KiB."""
    return [
        Text(
            "".join(
                f"{n:06d} the quick brown fox jumps over the lazy dog, and again and again.\n"
                for n in range(HUGE_LINES)
            ),
            65536,
        )
    ]


_SLOW = [step for n in range(1, 6) for step in (Pause("slow"), Text(f"Sentence {n} of 5. ", 40))]

SCENARIOS: Final[dict[str, Script]] = {
    "text": _rounds([Text(ANSWER)]),
    "utf8": _rounds([Text("Grüße 🌍 — \u2028 line, \x1b[31mred\x1b[0m, tab\there.\nSecond line.", 5)]),
    "thinking": _rounds([Thinking("The user wants a greeting. I keep it short."), Text(ANSWER)]),
    "shell": _rounds(
        [Text("I run a command. "), ToolCall("shell", {"command": "echo hi > out.txt && cat out.txt"})],
        [Text("The command printed hi.")],
    ),
    "tools2": _rounds(
        [ToolCall("shell", {"command": "echo one"}), ToolCall("shell", {"command": "echo two"})],
        [Text("Both commands ran.")],
    ),
    "edit": _rounds(
        [ToolCall("write", {"path": "note.txt", "content": "alpha\nbeta\n"})],
        [ToolCall("edit", {"path": "note.txt", "old": "beta", "new": "gamma"})],
        [Text("note.txt now says alpha and gamma.")],
    ),
    "fail": _rounds(
        [ToolCall("shell", {"command": "echo out; echo err >&2; exit 3"})],
        [Text("The command failed with status 3.")],
    ),
    "badtool": _rounds([ToolCall("unknown", {"x": 1})], [Text("That tool does not exist.")]),
    "delegate": _delegate,
    "dump": _dump,
    "remember": _remember,
    "demo": _demo,
    "gate": _rounds([Text("Before the gate. "), Pause("gate"), Text("Behind the gate.")]),
    "slow": _rounds(_SLOW),
    "hang": _rounds([Pause("hang"), Text("Awake.")]),
    "cut": _rounds([Text("This answer breaks"), Cut()]),
    "torn": _rounds([Text("This answer breaks"), Cut(torn=True)]),
    "broken": _rounds([Text("This answer breaks"), Break()]),
    "huge": _huge,
    "maxtok": _rounds([Text("An answer without an e"), Stop("max_tokens")]),
    "credit": _rounds([Fail(400, "Your credit balance is too low to access the API. Go to Plans & Billing.")]),
    "badkey": _rounds([Fail(400, "API key not valid. Please pass a valid API key.")]),
    "busy": _rounds([Fail(429, retry_after=1)]),
    "spent": _rounds([Fail(429, retry_after=3600)]),
}
