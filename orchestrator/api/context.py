"""What the application holds, and what a request carries, under typed names (aiohttp's typed keys)."""

import re
import secrets
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from orchestrator.api.identity import Identity
from orchestrator.api.tokens import TokenStore
from orchestrator.config.models import Config
from orchestrator.contract.accounts import AccountService
from orchestrator.contract.changes import ChangeService
from orchestrator.contract.credentials import Credentialing, UserKeys
from orchestrator.contract.metrics import MetricsPage
from orchestrator.contract.runs import RunService
from orchestrator.system.tasks import TaskOwner


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """Which service this is."""

    instance: str
    version: str
    embedded: bool
    """It is inside a command, and ends with it."""


ACCOUNTS: Final[web.AppKey[AccountService]] = web.AppKey("accounts")
RUNS: Final[web.AppKey[RunService]] = web.AppKey("runs")
CHANGES: Final[web.AppKey[ChangeService]] = web.AppKey("changes")
CREDENTIALS: Final[web.AppKey[Credentialing]] = web.AppKey("credentials")
OWN_KEYS: Final[web.AppKey[UserKeys]] = web.AppKey("own_keys")
METRICS: Final[web.AppKey[MetricsPage]] = web.AppKey("metrics")
TOKENS: Final[web.AppKey[TokenStore]] = web.AppKey("tokens")
CONFIG: Final[web.AppKey[Config]] = web.AppKey("config")
ABOUT: Final[web.AppKey[About]] = web.AppKey("about")
TASKS: Final[web.AppKey[TaskOwner]] = web.AppKey("tasks")
STALL_SECONDS: Final[web.AppKey[float]] = web.AppKey("stall_seconds")
"""A client that takes no byte for so long is disconnected."""
SPEC: Final[web.AppKey[bytes]] = web.AppKey("spec")

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
IDENTITY: Final[web.RequestKey[Identity]] = web.RequestKey("identity", Identity)
REQUEST_ID: Final[web.RequestKey[str]] = web.RequestKey("request_id", str)
STARTED: Final[web.RequestKey[bool]] = web.RequestKey("started", bool)
"""The head of the answer is out: an error can no longer be reported."""


def identity_of(request: web.Request) -> Identity:
    """Who asks; only on routes that are not public."""
    return request[IDENTITY]


def request_id_of(request: web.BaseRequest) -> str:
    """The id under which this request is logged and answered: the caller's, when it is harmless, else a new one."""
    found: str | None = request.get(REQUEST_ID)
    if found is None:
        sent = request.headers.get("X-Request-Id", "")
        found = request[REQUEST_ID] = sent if _REQUEST_ID.fullmatch(sent) else secrets.token_hex(8)
    return found
