from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.contract.egress import EgressReport
from orchestrator.relay.proxy.aggregate import MAX_TARGETS, OTHERS, WINDOW_SECONDS, Tally

DENIED = EgressReport(run_id="r", verdict="denied", host="a.example", port=443, reason="no")
ALLOWED = EgressReport(run_id="r", verdict="allowed", host="a.example", port=443, bytes_up=1, bytes_down=2)


def test_the_first_is_told_at_once_and_equal_ones_are_counted_for_a_minute() -> None:
    tally = Tally("r")
    assert tally.denied("a.example", 443, "no", 0.0) == [DENIED]
    assert tally.denied("a.example", 443, "no", 1.0) == []
    assert tally.denied("a.example", 443, "never", 2.0) == []
    assert tally.due(WINDOW_SECONDS - 1) == []
    assert tally.due(WINDOW_SECONDS) == [replace(DENIED, count=2, reason="never")]
    assert tally.denied("a.example", 443, "no", WINDOW_SECONDS + 1) == []
    assert tally.due(2 * WINDOW_SECONDS) == [DENIED]
    assert tally.due(3 * WINDOW_SECONDS) == []
    assert tally.denied("a.example", 443, "no", 3 * WINDOW_SECONDS) == [DENIED]


def test_another_port_or_host_is_another_target() -> None:
    tally = Tally("r")
    assert tally.denied("a.example", 443, "no", 0.0) == [DENIED]
    assert tally.denied("a.example", 80, "no", 0.0) == [replace(DENIED, port=80)]
    assert tally.denied("b.example", 443, "no", 0.0) == [replace(DENIED, host="b.example")]
    assert tally.ended("a.example", 443, up=1, down=2, now=0.0) == [ALLOWED]


def test_bytes_are_summed_up() -> None:
    tally = Tally("r")
    assert tally.ended("a.example", 443, up=1, down=2, now=0.0) == [ALLOWED]
    tally.ended("a.example", 443, up=10, down=20, now=0.0)
    tally.ended("a.example", 443, up=100, down=200, now=0.0)
    assert tally.close() == [replace(ALLOWED, count=2, bytes_up=110, bytes_down=220)]
    assert tally.close() == []


def test_what_is_due_is_told_with_the_next_attempt_as_well() -> None:
    tally = Tally("r")
    tally.denied("a.example", 443, "no", 0.0)
    tally.denied("a.example", 443, "no", 1.0)
    assert tally.denied("b.example", 443, "no", WINDOW_SECONDS) == [DENIED, replace(DENIED, host="b.example")]


@given(st.lists(st.tuples(st.integers(0, 500), st.booleans()), max_size=400))
def test_reports_stay_few_and_count_every_attempt(attempts: list[tuple[int, bool]]) -> None:
    tally = Tally("r")
    reports: list[EgressReport] = []
    for number, (host, denied) in enumerate(attempts):
        name, now = f"h{host}.example", number / 1000
        reports += tally.denied(name, 1, "no", now) if denied else tally.ended(name, 1, up=1, down=2, now=now)
    assert len(reports) <= 2 * MAX_TARGETS
    reports += tally.close()
    assert sum(report.count for report in reports) == len(attempts)
    assert sum(report.bytes_up for report in reports) == sum(not denied for _, denied in attempts)
    assert all((report.port == 0) == (report.host == OTHERS) for report in reports)
