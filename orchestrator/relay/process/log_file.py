"""The relay's log file: bounded in size, written off the event loop, with the keys taken out whatever is logged."""

from __future__ import annotations

import logging
import logging.handlers
import queue
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

LOG_BYTES: Final = 1024 * 1024
"""Of the file and of its one predecessor each."""


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
