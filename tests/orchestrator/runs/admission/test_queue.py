"""The line: order, cap, one run at a time per subagent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.runs.admission.queue import Claim, Queue, Waiting


def entry(run_id: str, subagent: str, home: str | None = None, *, capacity: int = 1) -> Waiting:
    account = () if home is None else (Claim("home", home, capacity),)
    return Waiting(run_id, (Claim("subagent", subagent), *account))


def make(cap: int) -> tuple[Queue, list[str]]:
    admitted: list[str] = []
    return Queue(max_concurrent=cap, on_admit=lambda entry: admitted.append(entry.run_id)), admitted


def test_first_come_first_served_up_to_the_cap() -> None:
    line, admitted = make(2)
    for name in "abcd":
        line.join(entry(name, f"s-{name}"))
    line.admit()
    assert admitted == ["a", "b"]
    assert [line.position(name) for name in "abcd"] == [None, None, 0, 1]
    line.done("b")
    assert admitted == ["a", "b", "c"]


def test_a_busy_subagent_keeps_its_place_and_lets_others_pass() -> None:
    line, admitted = make(3)
    for name, subagent in (("a", "s"), ("b", "s"), ("c", "s"), ("d", "t")):
        line.join(entry(name, subagent))
    line.admit()
    assert admitted == ["a", "d"]
    line.done("a")
    assert admitted == ["a", "d", "b"]
    line.done("b")
    assert admitted == ["a", "d", "b", "c"]


def test_leaving_and_returning_to_the_front() -> None:
    line, admitted = make(1)
    line.adopt(entry("x", "sx"))
    line.join(entry("a", "sa"))
    line.join(entry("b", "sb"), first=True)
    assert line.leave("a")
    assert not line.leave("a")
    assert not line.leave("x")
    line.done("x")
    assert admitted == ["b"]


def test_a_closed_line_admits_nobody() -> None:
    line, admitted = make(1)
    line.join(entry("a", "sa"))
    line.close()
    line.admit()
    assert admitted == []


@given(
    st.lists(st.tuples(st.sampled_from(["join", "done", "leave"]), st.integers(0, 9), st.integers(0, 3))),
    st.integers(1, 3),
)
def test_never_over_the_cap_never_two_of_one_subagent_and_nobody_is_lost(
    steps: list[tuple[str, int, int]], cap: int
) -> None:
    line, admitted = make(cap)
    joined: dict[str, str] = {}
    left: set[str] = set()
    for number, (step, pick, subagent) in enumerate(steps):
        if step == "join":
            joined[str(number)] = f"s{subagent}"
            line.join(entry(str(number), f"s{subagent}"))
            line.admit()
        elif step == "done" and line.active:
            line.done(sorted(line.active)[pick % len(line.active)])
        elif step == "leave" and line.waiting:
            run_id = line.waiting[pick % len(line.waiting)].run_id
            left.add(run_id)
            line.leave(run_id)
            line.admit()
        busy = [joined[run_id] for run_id in line.active]
        assert len(busy) == len(set(busy)) <= cap
    while line.active:
        line.done(min(line.active))
    assert set(admitted) | left == set(joined)
    assert len(admitted) == len(set(admitted))
    for owner in set(joined.values()):
        own = [int(run_id) for run_id in admitted if joined[run_id] == owner]
        assert own == sorted(own)


def test_one_at_a_time_per_home_and_others_pass() -> None:
    line, admitted = make(4)
    for name, home in (("a", "h"), ("b", "h"), ("c", None), ("d", "i"), ("e", "h")):
        line.join(entry(name, f"s-{name}", home))
    line.admit()
    assert admitted == ["a", "c", "d"]
    assert [line.waits_for(waiting) for waiting in line.waiting] == ["home", "home"]
    line.done("a")
    assert admitted == ["a", "c", "d", "b"]
    line.done("b")
    assert admitted[-1] == "e"


def test_a_home_may_be_given_to_more_than_one() -> None:
    line, admitted = make(4)
    for name in "abc":
        line.join(entry(name, f"s-{name}", "h", capacity=2))
    line.admit()
    assert admitted == ["a", "b"]


def test_what_a_run_waits_for_is_told_before_it_joins() -> None:
    line, _ = make(1)
    line.join(entry("a", "s", "h"))
    assert line.waits_for(entry("b", "t", "h")) == "home"  # a is ahead and wants the same
    line.admit()
    assert line.waits_for(entry("b", "t", "h")) == "home"
    assert line.waits_for(entry("c", "s")) == "subagent"
    assert line.waits_for(entry("d", "u")) is None  # only its turn


def test_an_admitted_run_that_needs_a_taken_home_goes_back_to_the_front() -> None:
    line, admitted = make(3)
    line.join(entry("a", "s-a", "h"))
    line.join(entry("b", "s-b"))
    line.join(entry("c", "s-c"))
    line.join(entry("d", "s-d"))
    line.admit()
    assert admitted == ["a", "b", "c"]
    assert not line.claim("b", entry("b", "s-b", "h").claims)
    assert admitted == ["a", "b", "c", "d"]
    assert line.position("b") == 0
    line.done("a")
    assert admitted[-1] == "b"
    assert line.claim("b", entry("b", "s-b", "h").claims)
    assert line.claim("c", entry("c", "s-c").claims)
