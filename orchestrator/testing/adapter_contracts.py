"""The contracts that an adapter is held to by itself."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from orchestrator.contract.adapter import AgentAdapter
from orchestrator.contract.types import Credentials
from orchestrator.errors import PodmentorError
from orchestrator.events import Error, Status
from orchestrator.testing.kit import Contracts, Subject, in_tables, one_terminal
from orchestrator.testing.recordings import Recording, play, to_dict

KEY: Final = "the-run-token-of-the-conformance-kit"
PROMPT: Final = "the prompt of the conformance kit"
SESSION: Final = "7b0cf0f5-6c6c-4d55-9f0e-0e9d6a3b8f11"
EXIT_CODES: Final = (0, 1, 126, 127, 137, 143, None)
ADAPTER_CONTRACTS: Contracts[[Subject]] = Contracts()


@ADAPTER_CONTRACTS("A01", "the documented members are there")
def _members(adapter: Subject) -> None:
    assert isinstance(adapter, AgentAdapter), "a documented member is missing"
    assert adapter.name, "name is empty"
    assert adapter.binary, "binary is empty"


@ADAPTER_CONTRACTS("A02", "the command line holds neither secret nor prompt")
def _argv(adapter: Subject) -> None:
    argv = adapter.build_argv(prompt=PROMPT, session_id=None, cwd=Path("/workspace"))
    assert argv, "argv is empty"
    assert argv[0] == adapter.binary, f"argv begins with {argv[0]!r}, not with {adapter.binary!r}"
    assert all(argv), "argv holds an empty word"
    assert KEY not in " ".join(argv), "argv holds the key"
    if not getattr(adapter, "prompt_in_argv", False):
        assert PROMPT not in " ".join(argv), "argv holds the prompt (set prompt_in_argv where the CLI wants it so)"


@ADAPTER_CONTRACTS("A03", "a session is resumed by its id, and an id that reads as an option is not passed on")
def _resume(adapter: Subject) -> None:
    if not adapter.supports_resume:
        return
    session = getattr(adapter, "session_example", SESSION)  # an adapter may take only ids of its CLI's own form
    argv = adapter.build_argv(prompt=PROMPT, session_id=session, cwd=Path("/workspace"))
    assert any(session in word for word in argv), "the session id is not on the command line"
    try:
        argv = adapter.build_argv(prompt=PROMPT, session_id="--version", cwd=Path("/workspace"))
    except PodmentorError:
        return
    assert "--version" not in argv, "a session id can be an option"


@ADAPTER_CONTRACTS(
    "A04", "the environment holds PATH, HOME, LANG, what the operator adds, and the key in whole values only"
)
def _env(adapter: Subject) -> None:
    without = adapter.build_env(creds=Credentials(), home=Path("/home/someone"))
    extra = {"EXTRA_OF_THE_OPERATOR": "x"}
    full = adapter.build_env(creds=Credentials(api_key=KEY, extra_env=extra), home=Path("/home/someone"))
    assert without.get("HOME") == "/home/someone", "HOME is not the directory that was given"
    assert {"PATH", "LANG"} <= without.keys(), "PATH or LANG is missing"
    assert all(isinstance(value, str) for value in [*full, *full.values()]), "a variable is no text"
    assert full.get("EXTRA_OF_THE_OPERATOR") == "x", "the operator's extra_env is missing"
    added = {name: value for name, value in full.items() if without.get(name) != value and name not in extra}
    assert all(KEY not in value or value == KEY for value in full.values()), "the key is part of a value"
    assert all(value == KEY for value in added.values()), f"a key changes {sorted(added)}, which are not the key"


@ADAPTER_CONTRACTS("A05", "the gateway is reached by its base URL, and leads to https only")
def _gateway(adapter: Subject) -> None:
    if adapter.gateway is None:
        return
    url = "http://127.0.0.1:18080"
    named = [*adapter.gateway_env(url).values(), *adapter.gateway_argv(url)]
    assert any(url in value for value in named), "neither gateway_env nor gateway_argv names the gateway"
    assert adapter.gateway.upstream.startswith("https://"), "the provider is not reached by https"
    assert not adapter.gateway.upstream.endswith("/"), "upstream ends with a slash"
    assert adapter.gateway.key_headers, "no header holds the key"
    assert adapter.gateway.path_prefixes, "no path is let through"
    assert all(prefix.startswith("/") and prefix != "/" for prefix in adapter.gateway.path_prefixes), "a bad prefix"


@ADAPTER_CONTRACTS("A06", "egress hosts are plain names, each once")
def _egress(adapter: Subject) -> None:
    hosts = adapter.default_allowed_egress
    assert len(set(hosts)) == len(hosts), "a host is listed twice"
    for host in hosts:
        plain = "." in host and not set(host) & set("/:* ") and host == host.lower()
        assert plain, f"{host!r} is no host name"


@ADAPTER_CONTRACTS("A07", "a CLI that prints nothing ends in exactly one terminal event, whatever its exit code")
def _silent(adapter: Subject) -> None:
    for code in EXIT_CODES:
        one_terminal(play(adapter, Recording(name="silent", stdout=b"", exit_code=code)), f"exit code {code}")


@ADAPTER_CONTRACTS("A08", "a CLI that is not there is reported as such")
def _not_there(adapter: Subject) -> None:
    stderr = f"exec {adapter.binary}: no such file or directory"
    last = play(adapter, Recording(name="127", stdout=b"", exit_code=127, stderr_tail=stderr))[-1]
    reason = last.reason if isinstance(last, Error) else None
    assert reason == "cli_not_installed", f"exit code 127 gave {to_dict(last)}"


@ADAPTER_CONTRACTS("A09", "a line that is not understood is shown as unparsed")
def _unknown(adapter: Subject) -> None:
    if not adapter.supports_stream_json:
        return
    for line in (b'{"type": "no.such.type.exists"}\n', b"no JSON at all\n", b"[1, 2]\n", b'{"type": ["a list"]}\n'):
        events = play(adapter, Recording(name="unknown", stdout=line, exit_code=1))
        phases = [event.phase for event in events if isinstance(event, Status)]
        assert phases == ["unparsed"], f"{line!r} was not shown as unparsed"


@ADAPTER_CONTRACTS("A10", "bytes that are no text do no harm")
def _noise(adapter: Subject) -> None:
    noise = random.Random(1).randbytes(4096)  # noqa: S311 - the same noise each time
    for code in EXIT_CODES:
        events = play(adapter, Recording(name="noise", stdout=noise, exit_code=code, stderr_tail="\ufffd\x00"))
        one_terminal(events, f"exit code {code}")
        in_tables(events)
