"""What the agents of a soak do.  Each kind is a CLI in the workspace; most speak Claude Code's format, some are it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

_HEAD = r"""#!/usr/bin/python3
import json, os, signal, sys, time
asked = json.loads(sys.stdin.readline() or "{}")
def line(**obj):
    sys.stdout.write(json.dumps(obj) + "\n"); sys.stdout.flush()
def say(text):
    line(type="assistant", message={"id": "m" + text, "content": [{"type": "text", "text": text}]})
def result():
    line(type="result", subtype="success", is_error=False, result="done", duration_ms=1, num_turns=1,
         usage={"input_tokens": 1, "output_tokens": 1})
def deaf():
    for number in range(1, signal.NSIG):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
def forever():
    while True: time.sleep(60)
def children():
    # forked twice, with sessions of their own, deaf: nobody's children any more
    for _ in range(3):
        if os.fork() == 0:
            os.setsid(); deaf()
            if os.fork() == 0:
                os.close(1); os.close(2)
                forever()
            os._exit(0)
def hello():
    line(type="system", subtype="init", session_id="11111111-1111-4111-8111-111111111111", model="m", tools=[], mcp_servers=[])
"""


@dataclass(frozen=True)
class Kind:
    """One way to be an agent.  ``ends``: by itself; else a limit or a cancel has to."""

    name: str
    weight: int
    body: str
    ends: bool = True
    limits: tuple[tuple[str, float], ...] = ()


KINDS = (
    Kind("brief", 5, "hello(); say('a'); time.sleep(asked['seconds']); result()"),
    Kind("talks", 3, "hello()\nfor n in range(int(asked['seconds'] * 20)): say(str(n)); time.sleep(0.05)\nresult()"),
    Kind("lingers", 1, "deaf(); hello(); result(); forever()"),
    Kind("deaf", 5, "deaf(); hello(); say('a'); forever()", ends=False),
    Kind("forks, ends", 3, "children(); hello(); say('a'); time.sleep(asked['seconds']); result()"),
    Kind("forks, stays", 4, "children(); deaf(); hello(); say('a'); forever()", ends=False),
    Kind(
        "eats memory",
        3,
        "hello(); say('a'); held = []\nwhile True: held.append(b'x' * 8_000_000); time.sleep(0.02)",
        limits=(("memory_max_bytes", 200_000_000),),
    ),
    Kind(
        "floods",
        2,
        "deaf(); hello()\nwhile True: say('z' * 1000); time.sleep(0.001)",
        limits=(("output_max_bytes", 1_000_000),),
    ),
    Kind("silent", 2, "deaf(); forever()", ends=False),
    Kind("crashes", 1, "hello(); say('a'); time.sleep(asked['seconds']); os.abort()"),
    Kind("Claude Code", 4, ""),
    Kind("Claude Code, hangs", 2, "", ends=False),
    Kind("Claude Code, deaf tools", 3, "", ends=False),
)
_PROMPTS = {
    "Claude Code": "Please greet me.",
    "Claude Code, hangs": "scenario: hang",
    "Claude Code, deaf tools": "scenario: dump\nRUN: trap '' TERM INT HUP; (setsid sh -c 'sleep 600; true' &); sleep 600; true",
}
_REAL = '#!/bin/sh\nexec claude "$@"\n'


@dataclass(frozen=True)
class Plan:
    """One run of a soak.  Times in seconds."""

    kind: Kind
    query: str
    tier: int
    limits: dict[str, float]
    cancel_after: float | None

    def body(self, repos: Path) -> dict[str, Any]:
        """What is posted."""
        repo = str(repo_of(self.kind, repos))
        return {"backend": "claude-code", "query": self.query, "repo": repo, "tier": self.tier, "limits": self.limits}


def repo_of(kind: Kind, repos: Path) -> Path:
    return repos / "".join(c if c.isalnum() else "-" for c in kind.name)


def make_repos(repos: Path) -> None:
    """A workspace for each kind, with its CLI in it."""
    for kind in KINDS:
        repo = repo_of(kind, repos)
        repo.mkdir(parents=True)
        cli = repo / "cli"
        cli.write_text(f"{_HEAD}\n{kind.body}\n" if kind.body else _REAL)
        cli.chmod(0o755)
        git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(repo)]
        for argv in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
            subprocess.run([*git, *argv], check=True)


def plan(random: Random) -> Plan:
    """The next run."""
    kind = random.choices(KINDS, [kind.weight for kind in KINDS])[0]
    seconds = random.uniform(0.0, 3.0)
    limits = {**dict(kind.limits), "wall_clock_seconds": 60.0}
    if not kind.ends or random.random() < 0.15:
        limits["wall_clock_seconds"] = round(random.uniform(2.0, 12.0), 1)
    cancel = random.uniform(0.0, 8.0) if random.random() < (0.4 if kind.ends else 0.6) else None
    tier = 0 if random.random() < 0.15 else 1
    return Plan(kind, _PROMPTS.get(kind.name, json.dumps({"seconds": seconds})), tier, limits, cancel)
