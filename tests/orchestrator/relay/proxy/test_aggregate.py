from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.contract.egress import EgressReport
from orchestrator.relay.proxy.aggregate import MAX_TARGETS, OTHERS, WINDOW_SECONDS, Aggregator

DENIED = EgressReport(run_id="r", verdict="denied", host="a.example", port=443, reason="no")
ALLOWED = EgressReport(run_id="r", verdict="allowed", host="a.example", port=443, bytes_up=1, bytes_down=2)


def test_the_first_is_reported_at_once_and_equal_ones_are_counted_for_a_minute() -> None:
    aggregator = Aggregator("r")
    assert aggregator.denied("a.example", 443, "no", 0.0) == [DENIED]
    assert aggregator.denied("a.example", 443, "no", 1.0) == []
    assert aggregator.denied("a.example", 443, "never", 2.0) == []
    assert aggregator.due(WINDOW_SECONDS - 1) == []
    assert aggregator.due(WINDOW_SECONDS) == [replace(DENIED, count=2, reason="never")]
    assert aggregator.denied("a.example", 443, "no", WINDOW_SECONDS + 1) == []
    assert aggregator.due(2 * WINDOW_SECONDS) == [DENIED]
    assert aggregator.due(3 * WINDOW_SECONDS) == []
    assert aggregator.denied("a.example", 443, "no", 3 * WINDOW_SECONDS) == [DENIED]


def test_another_port_or_host_is_another_target() -> None:
    aggregator = Aggregator("r")
    assert aggregator.denied("a.example", 443, "no", 0.0) == [DENIED]
    assert aggregator.denied("a.example", 80, "no", 0.0) == [replace(DENIED, port=80)]
    assert aggregator.denied("b.example", 443, "no", 0.0) == [replace(DENIED, host="b.example")]
    assert aggregator.ended("a.example", 443, up=1, down=2, now=0.0) == [ALLOWED]


def test_bytes_are_summed_up() -> None:
    aggregator = Aggregator("r")
    assert aggregator.ended("a.example", 443, up=1, down=2, now=0.0) == [ALLOWED]
    aggregator.ended("a.example", 443, up=10, down=20, now=0.0)
    aggregator.ended("a.example", 443, up=100, down=200, now=0.0)
    assert aggregator.close() == [replace(ALLOWED, count=2, bytes_up=110, bytes_down=220)]
    assert aggregator.close() == []


def test_what_is_due_is_reported_with_the_next_attempt_as_well() -> None:
    aggregator = Aggregator("r")
    aggregator.denied("a.example", 443, "no", 0.0)
    aggregator.denied("a.example", 443, "no", 1.0)
    assert aggregator.denied("b.example", 443, "no", WINDOW_SECONDS) == [DENIED, replace(DENIED, host="b.example")]


@given(st.lists(st.tuples(st.integers(0, 500), st.booleans()), max_size=400))
def test_reports_stay_few_and_count_every_attempt(attempts: list[tuple[int, bool]]) -> None:
    aggregator = Aggregator("r")
    reports: list[EgressReport] = []
    for number, (host, denied) in enumerate(attempts):
        name, now = f"h{host}.example", number / 1000
        reports += aggregator.denied(name, 1, "no", now) if denied else aggregator.ended(name, 1, up=1, down=2, now=now)
    assert len(reports) <= 2 * MAX_TARGETS
    reports += aggregator.close()
    assert sum(report.count for report in reports) == len(attempts)
    assert sum(report.bytes_up for report in reports) == sum(not denied for _, denied in attempts)
    assert all((report.port == 0) == (report.host == OTHERS) for report in reports)
