"""Backends."""

from orchestrator.api.models.base import Answer
from orchestrator.contract.adapter import BackendInfo


class BackendList(Answer):
    """The enabled backends."""

    backends: list[BackendInfo]
