"""The directories that agents work in, and what they have changed there: a thin layer over git and overlays."""

from orchestrator.workspace.service import DirectoryWorkspaces

__all__ = ["DirectoryWorkspaces"]
