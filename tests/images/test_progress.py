"""Steps are numbered, timed and closed once."""

import pytest

from images.progress import Steps
from orchestrator.contract.images import BuildProgress
from orchestrator.errors import ImageBuildError


def test_steps_are_numbered_and_closed_once() -> None:
    events: list[BuildProgress] = []
    steps = Steps(events.append, total=3)
    with steps.step("base", "make base"):
        steps.detail("line")
    steps.skip("agent", "up to date")
    with steps.step("agent", "start"):
        steps.warn("does not start")
    assert [(event.number, event.kind, event.text) for event in events] == [
        (1, "started", "make base"),
        (1, "detail", "line"),
        (1, "finished", "make base"),
        (2, "skipped", "up to date"),
        (3, "started", "start"),
        (3, "warning", "does not start"),
    ]
    assert {event.total for event in events} == {3}
    assert all(event.elapsed_seconds >= 0 for event in events)


def test_a_failure_is_not_reported_as_finished_and_knows_its_step() -> None:
    events: list[BuildProgress] = []
    steps = Steps(events.append)
    with pytest.raises(ImageBuildError) as caught, steps.step("base", "make base"):
        raise ImageBuildError("no")
    assert caught.value.details == {"step": "base"}
    assert [event.kind for event in events] == ["started"]
