"""Keeps the keys inside the relay: its memory closed to other processes of the user, its log free of them.

The containers run as the same user.  The log file is bounded in size and written off the event loop.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import queue
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from orchestrator.system.own_memory import close_own_memory

LOG_BYTES: Final = 1024 * 1024
"""Of the file and of its one predecessor each."""


def harden() -> None:
    """The memory is closed to others, and new files are ours alone.

    Raises: OSError when the kernel refuses; a relay must not take keys then.
    """
    close_own_memory()
    os.umask(0o077)


class RedactingFormatter(logging.Formatter):
    """Formats as usual, then takes out every key that the relay has at that moment."""

    def __init__(self, keys: Callable[[], Iterable[str]]) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._keys = keys

    def format(self, record: logging.LogRecord) -> str:
        """The entry, its traceback included, with ``***`` for each secret."""
        text = super().format(record)
        for key in self._keys():
            text = text.replace(key, "***")
        return text


def open_logging(path: Path, keys: Callable[[], Iterable[str]]) -> logging.handlers.QueueListener:
    """Send every log record of the process to ``path`` (0600 by the process's umask)."""
    logging.raiseExceptions = False  # a full disk must not end up as tracebacks in the same file
    target = logging.handlers.RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
    target.setFormatter(logging.Formatter("%(message)s"))
    entries: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    handler = logging.handlers.QueueHandler(entries)
    handler.setFormatter(RedactingFormatter(keys))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    # aiohttp's server quotes malformed requests with a traceback; asyncio names peers.  Ours say what is needed.
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL + 1)
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    listener = logging.handlers.QueueListener(entries, target)
    listener.start()
    return listener


def close_logging(listener: logging.handlers.QueueListener) -> None:
    """Write what is waiting and close the file."""
    listener.stop()
    for handler in listener.handlers:
        handler.close()
