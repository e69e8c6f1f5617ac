"""What the CLI in a run's container is started with: its command, its environment, its prompt.  Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from orchestrator.contract.adapter import BaseAdapter
from orchestrator.contract.credentials import Resolved
from orchestrator.contract.runs import RunRecord
from orchestrator.contract.sandbox import CONTROL_DIR, GATEWAY_PORT, HOME_DIR, WORKSPACE_DIR
from orchestrator.contract.types import Credentials

ENTRY: Final = "podmentor-entry"
"""First word of every container's command: starts the relays to the control directory's sockets, then the CLI."""
GATEWAY_URL: Final = f"http://127.0.0.1:{GATEWAY_PORT}"
"""The gateway as a CLI in its container sees it."""
RECAP_RUNS: Final = 50
"""A recap is made of so many earlier runs at most."""
RECAP_MAX_CHARS: Final = 24_000
"""Of a whole recap; the newest runs when not all find room.  Below 128 KiB, which is what an argument may have."""
_CUT: Final = " …[cut]"


def argv_of(
    adapter: BaseAdapter, prompt: str, *, session_id: str | None, model: str | None, binary: str | None, gateway: bool
) -> list[str]:
    """The container's command.  ``binary``: instead of the adapter's.  ``gateway``: the run has one."""
    argv = adapter.build_argv(prompt=prompt, session_id=session_id, cwd=Path(WORKSPACE_DIR))
    chosen = [] if model is None else adapter.model_argv(model)
    return [ENTRY, binary or argv[0], *argv[1:], *chosen, *(adapter.gateway_argv(GATEWAY_URL) if gateway else [])]


def env_of(
    adapter: BaseAdapter, credential: Resolved, token: str, *, model: str | None = None, gateway: bool = True
) -> dict[str, str]:
    """The container's environment: the run's token where the CLI expects a key, never the key."""
    home = Path(HOME_DIR)
    route = adapter.gateway_env(GATEWAY_URL) if gateway else {}
    chosen = {} if model is None else adapter.model_env(model)
    creds = Credentials(
        api_key=token if credential.api_key is not None else None,
        home=home,
        extra_env={**credential.extra_env, **route, **chosen, "PODMENTOR_CONTROL": CONTROL_DIR},
    )
    return adapter.build_env(creds=creds, home=home)


def with_recap(earlier: Sequence[RunRecord], query: str) -> str:
    """The prompt for a CLI that cannot resume a session of its own: ``query`` behind what was said in the ``earlier``
    runs (newest first); alone when there are none."""
    turns: list[str] = []
    room = RECAP_MAX_CHARS
    for run in earlier:
        answer = run.final_text if run.outcome == "completed" else None
        turn = f"User: {run.query}\n\nYou: {answer or '(no answer: the run did not complete)'}"
        if len(turn) > room:
            if room > len(_CUT):
                turns.append(turn[: room - len(_CUT)] + _CUT)
            break
        turns.append(turn)
        room -= len(turn)
    if not turns:
        return query
    return "\n\n".join(
        (
            "This conversation has been going on for a while. What was said so far:",
            *reversed(turns),
            "That was the conversation so far. Go on with it. What the user says now:",
            query,
        )
    )
