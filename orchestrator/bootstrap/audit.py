"""The part of the composition root that a command needs which writes or reads the audit log without a service."""

from __future__ import annotations

from orchestrator.audit import AuditLog, AuditReader
from orchestrator.config.models import Paths
from orchestrator.contract.audit import Audit, AuditLines

__all__ = ["audit_lines", "audit_log"]


def audit_log(paths: Paths) -> Audit:
    """To write it, beside a running service."""
    return AuditLog(paths.audit_log)


def audit_lines(paths: Paths) -> AuditLines:
    """To read it."""
    return AuditReader(paths.audit_log)
