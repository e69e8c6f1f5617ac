"""A client of the real server that holds every JSON answer against the published document."""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from openapi_schema_validator import OAS31Validator

from orchestrator.api.openapi import build_spec, with_version
from orchestrator.api.routes import ROUTES
from orchestrator.api.server import RunningServers
from orchestrator.api.tokens import TokenStore
from orchestrator.config.models import Config
from orchestrator.vault import Vault
from tests.fakes.account_service import FakeAccounts
from tests.fakes.audit import FakeAudit
from tests.fakes.run_service import FakeRunService

SPEC: dict[str, Any] = json.loads(json.dumps(with_version(build_spec(ROUTES), "1.2.3")))


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A whole response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One server-sent event."""

    id: str | None
    event: str
    data: dict[str, Any]


@dataclass(kw_only=True)
class Api:
    """The running service and tokens for it."""

    runs: FakeRunService
    accounts: FakeAccounts
    tokens: TokenStore
    config: Config
    servers: RunningServers
    session: aiohttp.ClientSession
    token: dict[str, str] = field(default_factory=dict)
    """By name: local, alice and bob (user), svc (service), root (admin)."""
    directory: Path
    vault: Vault | None
    audit: FakeAudit

    @property
    def url(self) -> str:
        """Of the TCP listener."""
        return f"http://127.0.0.1:{self.servers.port}"

    def headers(self, who: str | None, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """With the token of ``who``."""
        auth = {} if who is None else {"Authorization": f"Bearer {self.token[who]}"}
        return {**auth, **(extra or {})}

    async def call(
        self,
        method: str,
        path: str,
        *,
        who: str | None = "alice",
        body: object = None,
        raw: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send, read all, and check the answer's form."""
        data = json.dumps(body).encode() if body is not None else raw
        async with self.session.request(
            method, self.url + path, data=data, headers=self.headers(who, headers)
        ) as response:
            answer = Answer(status=response.status, headers=response.headers.copy(), body=await response.read())
        check_form(method, path.partition("?")[0], answer)
        return answer

    async def get(self, path: str, *, who: str | None = "alice", headers: Mapping[str, str] | None = None) -> Answer:
        """GET."""
        return await self.call("GET", path, who=who, headers=headers)

    async def post(
        self, path: str, body: object = None, *, who: str | None = "alice", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """POST."""
        return await self.call("POST", path, who=who, body=body, headers=headers)

    async def events(self, path: str, *, headers: Mapping[str, str] | None = None) -> list[Frame]:
        """A whole stream, which must end by itself."""
        async with self.session.get(self.url + path, headers=self.headers("alice", headers)) as response:
            assert response.status == 200, await response.text()
            return [frame async for frame in frames(response)]


def check_form(method: str, path: str, answer: Answer) -> None:
    """Every answer of a known route is described; every error is a problem."""
    media_type = answer.headers.get("Content-Type", "").partition(";")[0]
    assert answer.headers["X-Request-Id"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "no-store"
    if answer.status >= 400 and media_type != "application/json":
        assert media_type == "application/problem+json"
        validate(answer.json, {"$ref": "#/components/schemas/Problem"})
        assert answer.json["status"] == answer.status
        assert answer.json["request_id"] == answer.headers["X-Request-Id"]
    operation = operation_of(method, path)
    if operation is None:
        assert answer.status in {403, 404, 405}
        return
    replies = operation["responses"]
    assert str(answer.status) in replies, f"{method} {path}: {answer.status} is not in the document"
    sent = replies[str(answer.status)]["headers"].keys() - {"Retry-After"}  # it comes when the time is known
    assert sent <= answer.headers.keys()
    content = replies[str(answer.status)].get("content")
    if content is None:
        assert answer.body == b""
    else:
        assert media_type in content
        if media_type == "application/json":
            validate(answer.json, content[media_type]["schema"])


def operation_of(method: str, path: str) -> dict[str, Any] | None:
    """The documented operation for a concrete path."""
    parts = path.split("/")
    for template, operations in SPEC["paths"].items():
        wanted = template.split("/")
        if len(wanted) == len(parts) and all(w.startswith("{") or w == p for w, p in zip(wanted, parts, strict=True)):
            found = operations.get(method.lower())
            if found is not None:
                return dict(found)
    return None


def validate(value: object, schema: Mapping[str, Any]) -> None:
    """``value`` against a schema that may refer to the document's components."""
    OAS31Validator({**schema, "components": SPEC["components"]}).validate(value)


async def frames(response: aiohttp.ClientResponse) -> AsyncIterator[Frame]:
    """The server-sent events of a response, each checked against the document."""
    members: dict[str, str] = {}
    async for raw in response.content:
        line = raw.decode("ascii").rstrip("\n")
        if line:
            name, _, value = line.partition(": ")
            members[name] = value
            continue
        if "data" in members:
            data = json.loads(members["data"])
            validate(data, {"$ref": "#/components/schemas/Event"})
            yield Frame(id=members.get("id"), event=members["event"], data=data)
        members = {}
