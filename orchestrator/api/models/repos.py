"""Repos."""

from orchestrator.api.models.base import Answer


class RepoInfo(Answer):
    """A repo of the configuration."""

    name: str
    """What a run names as its `repo`."""
    path: str | None
    """On the machine of the service; null for callers who are no admins."""


class RepoList(Answer):
    """By name."""

    repos: list[RepoInfo]
