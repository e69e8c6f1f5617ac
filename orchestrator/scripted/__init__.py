"""A model provider without a model: it answers real CLIs over the real protocols from a script.

``podmentor demo`` and the tests run against it, so neither needs a key nor a network.
"""

from orchestrator.scripted.scenarios import SAMPLE_FILES, SCENARIOS, counted, spoken
from orchestrator.scripted.server import ScriptedProvider, SeenRequest

__all__ = ["SAMPLE_FILES", "SCENARIOS", "ScriptedProvider", "SeenRequest", "counted", "spoken"]
