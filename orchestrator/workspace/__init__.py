"""The directories that agents work in, and what they have changed there.

``prepare``   makes and removes the directories of conversations and runs
``source``    which repos can be worked on, and where the state directory may be
``tree``      compares an overlay's upper directory with the repo
``linediff``  line differences (pure)
``patch``     git's patch format (pure)
``changes``   the list of changes and the whole patch
"""

from orchestrator.workspace.changes.export import list_changes, unified_patch
from orchestrator.workspace.setup.prepare import DirectoryWorkspaces

__all__ = ["DirectoryWorkspaces", "list_changes", "unified_patch"]
