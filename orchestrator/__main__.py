"""``python -m orchestrator``: the same as ``podmentor``."""

from orchestrator.cli.main import main

main()
