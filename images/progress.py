"""Numbering and timing the steps of a build."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from orchestrator.contract.images import BuildProgress, ProgressSink
from orchestrator.errors import ImageBuildError


class Steps:
    """Reports each step's beginning, lines and end, with the time since it began."""

    def __init__(self, sink: ProgressSink, *, total: int = 0) -> None:
        self._sink = sink
        self.total = total
        self._number = 0
        self._step = ""
        self._warned = False
        self._began = time.monotonic()

    @contextmanager
    def step(self, name: str, text: str) -> Iterator[None]:
        """A step; it is reported as finished when the block ends without an error or a warning."""
        self._open(name)
        self._say("started", text)
        self._warned = False
        try:
            yield
        except ImageBuildError as error:
            error.details.setdefault("step", name)
            raise
        if not self._warned:
            self._say("finished", text)

    def skip(self, name: str, text: str) -> None:
        """A step in which nothing had to be done."""
        self._open(name)
        self._say("skipped", text)

    def warn(self, text: str) -> None:
        """The open step did not quite succeed, but the build goes on."""
        self._warned = True
        self._say("warning", text)

    def detail(self, line: str) -> None:
        """A line that the open step's tool printed."""
        self._say("detail", line)

    def _open(self, name: str) -> None:
        self._number += 1
        self._step = name
        self._began = time.monotonic()

    def _say(self, kind: Literal["started", "detail", "finished", "skipped", "warning"], text: str) -> None:
        self._sink(
            BuildProgress(
                step=self._step,
                kind=kind,
                text=text,
                elapsed_seconds=time.monotonic() - self._began,
                number=self._number,
                total=max(self.total, self._number),
            )
        )
