"""What every sub-command gets as its click object."""

import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.config.load import Loaded
    from orchestrator.config.models import Config, Paths


@dataclass
class CliContext:
    """The global options, and what follows from them, read when it is first asked for.

    ``config`` and ``paths`` raise ConfigError; ``paths`` makes the directories.
    """

    config_path: Path | None = None
    state_dir: Path | None = None
    url: str | None = None
    """A service elsewhere; None: the one of this user on this machine."""
    verbose: int = 0

    @cached_property
    def loaded(self) -> "Loaded":
        """The configuration with its source and warnings."""
        from orchestrator.config.load import load

        loaded = load(self.config_path)
        if self.state_dir is None:
            return loaded
        storage = loaded.config.storage.model_copy(update={"state_dir": self.state_dir.expanduser().absolute()})
        return replace(loaded, config=loaded.config.model_copy(update={"storage": storage}))

    @property
    def config(self) -> "Config":
        """The configuration, ``--state`` included."""
        return self.loaded.config

    @cached_property
    def paths(self) -> "Paths":
        """The directories, made and checked."""
        from orchestrator.config.paths import resolve_paths

        return resolve_paths(self.config)

    @property
    def remote_token(self) -> str | None:
        """The token for ``url``; only from the environment, since a command line can be read by others."""
        return os.environ.get("PODMENTOR_TOKEN") or None
