from orchestrator.contract.egress import EgressReport
from orchestrator.relay.process.reports import WINDOW, ReportQueue


def report(number: int) -> EgressReport:
    return EgressReport(run_id="r", verdict="denied", host=f"h{number}.example", port=443)


def filled(count: int, **options: int) -> ReportQueue:
    queue = ReportQueue(**options)
    for number in range(1, count + 1):
        queue.put(report(number))
    return queue


def test_reports_are_kept_until_they_are_taken() -> None:
    queue = filled(3)
    assert queue.next(0) == [(1, report(1)), (2, report(2)), (3, report(3))]
    assert queue.next(2) == [(3, report(3))]
    queue.taken(2)
    assert queue.next(0) == [(3, report(3))]
    assert queue.waiting_for == 3
    queue.taken(3)
    assert queue.next(0) == []
    assert queue.waiting_for == 0
    queue.put(report(4))
    assert queue.next(0) == [(4, report(4))]


def test_no_more_than_a_window_is_under_way() -> None:
    queue = filled(WINDOW + 2)
    assert [number for number, _ in queue.next(0)] == list(range(1, WINDOW + 1))
    assert queue.next(WINDOW) == []
    queue.taken(1)
    assert [number for number, _ in queue.next(WINDOW)] == [WINDOW + 1]


def test_the_oldest_go_when_there_is_no_room_and_are_counted() -> None:
    queue = filled(5, max_kept=3)
    assert [number for number, _ in queue.next(0)] == [3, 4, 5]
    assert (queue.lost, queue.last) == (2, 5)
