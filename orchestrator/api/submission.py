"""Bodies into run requests: what the configuration and the caller's role have to say about them.  Pure."""

from pathlib import Path

from orchestrator.api.identity import Identity, is_plain_name
from orchestrator.api.models.requests import RunBody, ToolArgs
from orchestrator.config.models import ServerConfig
from orchestrator.contract.runs import LimitsRequest, RunRequest
from orchestrator.errors import ForbiddenError, InvalidRequestError, PayloadTooLargeError


def run_request(
    body: RunBody, who: Identity, server: ServerConfig, key: str | None, trace: str | None = None
) -> RunRequest:
    """The request of POST /v1/runs.

    Raises PayloadTooLargeError (query), ForbiddenError (a path from somebody who is not the local owner),
    InvalidRequestError (a repo that is neither name nor path).
    """
    _check_query(body.query, server)
    repo, path = _repo(body.repo, who)
    limits = LimitsRequest() if body.limits is None else LimitsRequest(**body.limits.model_dump())
    return RunRequest(
        backend=body.backend,
        query=body.query,
        user_id=who.user_id,
        subagent_id=body.subagent_id,
        repo=repo,
        repo_path=path,
        tier=body.tier,
        workspace=body.workspace,
        limits=limits,
        metadata=body.metadata,
        egress=None if body.egress is None else tuple(body.egress),
        idempotency_key=key,
        privileged=who.role == "admin",
        actor=who.actor,
        traceparent=trace,
    )


def tool_request(
    args: ToolArgs,
    backend: str,
    who: Identity,
    server: ServerConfig,
    *,
    repo: str | None,
    key: str | None,
    trace: str | None = None,
) -> RunRequest:
    """The request of POST /v1/tools/{tool_name}; ``repo`` is a name only, whoever asks."""
    _check_query(args.query, server)
    if repo is not None and not is_plain_name(repo):
        raise InvalidRequestError("X-Podmentor-Repo must be the name of a configured repo")
    return RunRequest(
        backend=backend,
        query=args.query,
        user_id=who.user_id,
        subagent_id=args.subagent_id,
        repo=repo,
        idempotency_key=key,
        privileged=who.role == "admin",
        actor=who.actor,
        traceparent=trace,
    )


def _check_query(query: str, server: ServerConfig) -> None:
    if len(query) > server.max_query_chars:
        raise PayloadTooLargeError(
            f"query: {len(query)} characters, at most {server.max_query_chars} are taken: put the rest into a file of"
            " the repo"
        )


def _repo(repo: str | None, who: Identity) -> tuple[str | None, Path | None]:
    if repo is None:
        return None, None
    if not repo.startswith("/"):
        if not is_plain_name(repo):
            raise InvalidRequestError("repo: must be the name of a configured repo, or an absolute path")
        return repo, None
    if not who.local_owner:
        raise ForbiddenError("repo: only the local owner may give a path; use the name of a configured repo")
    if "\0" in repo:
        raise InvalidRequestError("repo: must not hold a NUL character")
    return None, Path(repo)
