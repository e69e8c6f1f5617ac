from orchestrator.contract.egress import EgressReport
from orchestrator.relay.process.outbox import WINDOW, Outbox


def report(number: int) -> EgressReport:
    return EgressReport(run_id="r", verdict="denied", host=f"h{number}.example", port=443)


def filled(count: int, **options: int) -> Outbox:
    outbox = Outbox(**options)
    for number in range(1, count + 1):
        outbox.put(report(number))
    return outbox


def test_reports_are_kept_until_they_are_taken() -> None:
    outbox = filled(3)
    assert outbox.next(0) == [(1, report(1)), (2, report(2)), (3, report(3))]
    assert outbox.next(2) == [(3, report(3))]
    outbox.taken(2)
    assert outbox.next(0) == [(3, report(3))]
    assert outbox.waiting_for == 3
    outbox.taken(3)
    assert outbox.next(0) == []
    assert outbox.waiting_for == 0
    outbox.put(report(4))
    assert outbox.next(0) == [(4, report(4))]


def test_no_more_than_a_window_is_under_way() -> None:
    outbox = filled(WINDOW + 2)
    assert [number for number, _ in outbox.next(0)] == list(range(1, WINDOW + 1))
    assert outbox.next(WINDOW) == []
    outbox.taken(1)
    assert [number for number, _ in outbox.next(WINDOW)] == [WINDOW + 1]


def test_the_oldest_go_when_there_is_no_room_and_are_counted() -> None:
    outbox = filled(5, max_kept=3)
    assert [number for number, _ in outbox.next(0)] == [3, 4, 5]
    assert (outbox.lost, outbox.last) == (2, 5)
