"""The audit log: written by the service and the command, read by its owner."""

from orchestrator.audit.log import AuditLog
from orchestrator.audit.reader import AuditReader

__all__ = ["AuditLog", "AuditReader"]
