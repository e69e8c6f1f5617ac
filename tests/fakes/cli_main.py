"""The command with a fake service inside, as a process of its own: ``python -m tests.fakes.cli_main ARGS``."""

import sys
import types

from tests.fakes.api_server import fake_running_service


def fake_bootstrap() -> types.ModuleType:
    """A module that takes the place of the composition root."""
    module = types.ModuleType("orchestrator.bootstrap.service")
    module.running_service = fake_running_service  # type: ignore[attr-defined]  # a module made by hand
    return module


if __name__ == "__main__":
    sys.modules["orchestrator.bootstrap.service"] = fake_bootstrap()
    from orchestrator.cli.main import main

    main()
