"""What a check is, and the words that checks are made of.  Pure.

A check returns a remark (perhaps empty) when all is well, raises ``FailedError`` when it is not, and
``UnsupportedError`` when what was observed shows that the CLI cannot do it at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orchestrator.bench.results import CheckResult, Evidence, Observed, Outcome, Seen

LAST_NUMBER: Final = "B30"
LAST_TITLE: Final = "the adapter declares what was observed"
"""Of the check that looks at what the others have found."""
BOUND_SECONDS: Final = 90.0
"""Within which a run must have ended that the provider refuses again and again."""


class FailedError(Exception):
    """Not as it must be."""


class UnsupportedError(Exception):
    """The CLI cannot do it."""


@dataclass(frozen=True, slots=True)
class Check:
    """``capability``: what is known of the CLI by whether this check passes."""

    number: str
    title: str
    judge: Callable[[Evidence, dict[str, Seen]], str]
    needs: tuple[str, ...]
    capability: str | None

    def result(self, evidence: Evidence) -> CheckResult:
        """Judge.  Where a scene could not be played, the check has failed."""
        outcome: Outcome = "pass"
        try:
            scenes = {name: self._scene(evidence, name) for name in self.needs}
            detail = self.judge(evidence, scenes)
        except FailedError as error:
            outcome, detail = "fail", str(error)
        except UnsupportedError as error:
            outcome, detail = "unsupported", str(error)
            if self.capability is not None and evidence.declared.get(self.capability):
                outcome, detail = "fail", f"the adapter says that it can, but {error}"
        return CheckResult(number=self.number, title=self.title, outcome=outcome, detail=detail)

    @staticmethod
    def _scene(evidence: Evidence, name: str) -> Seen:
        scene = evidence.scenes.get(name)
        if scene is None:
            raise FailedError(f"the scene {name} was not played")
        if scene.failure is not None:
            raise FailedError(scene.failure)
        return scene


CHECKS: Final[list[Check]] = []


def check(
    number: str, title: str, *needs: str, capability: str | None = None
) -> Callable[[Callable[[Evidence, dict[str, Seen]], str]], None]:
    """Add a check; ``needs``: the scenes that it looks at."""

    def add(judge: Callable[[Evidence, dict[str, Seen]], str]) -> None:
        CHECKS.append(Check(number, title, judge, needs, capability))

    return add


def must(holds: bool, otherwise: str) -> None:  # noqa: FBT001  # it reads as a sentence
    """Raises FailedError."""
    if not holds:
        raise FailedError(otherwise)


def one(scene: Seen) -> Observed:
    """The scene's last run."""
    return scene.runs[-1]


def completed(run: Observed) -> None:
    """It must have."""
    must(run.record.outcome == "completed", f"the run ended as {run.how}")


def failed_for(run: Observed, reason: str) -> str:
    """It must have ended with an error of this reason, in bounded time."""
    must(run.record.outcome == "failed", f"the run ended as {run.how}")
    must(run.reason == reason, f"{reason} was expected, not {run.how}")
    must(run.seconds < BOUND_SECONDS, f"it took {run.seconds:.0f} s, more than {BOUND_SECONDS:.0f} s")
    return f"after {run.seconds:.1f} s"
