from adapters.codex.told import Told


def test_a_text_is_new_by_itself() -> None:
    assert Told().tell("message", "a", "one") == ("a", "one")


def test_an_item_that_grows_is_told_on() -> None:
    told = Told()
    told.tell("message", "a", "one")
    assert told.tell("message", "a", "one two") == ("a", " two")
    assert told.tell("message", "a", "another") == ("a", "another")


def test_without_a_new_attempt_the_same_text_is_another() -> None:
    told = Told()
    told.tell("message", "a", "one")
    assert told.tell("message", "b", "one") == ("b", "one")


def test_a_repeated_item_may_grow_as_well() -> None:
    told = Told()
    told.tell("message", "a", "one")
    told.again()
    assert told.tell("message", "b", "one two") == ("a", " two")
    assert told.tell("message", "b", "one two three") == ("a", " three")


def test_repeats_come_in_their_order_and_end_at_the_first_difference() -> None:
    told = Told()
    for item_id, kind, text in (("a", "thought", "x"), ("b", "message", "y"), ("c", "message", "z")):
        told.tell(kind, item_id, text)
    told.again()
    assert told.tell("thought", "d", "x") == ("a", "")
    assert told.tell("message", "e", "other") == ("e", "other")
    assert told.tell("message", "f", "z") == ("f", "z")


def test_an_attempt_that_broke_earlier_leaves_the_rest_to_the_next() -> None:
    told = Told()
    told.tell("thought", "a", "x")
    told.tell("message", "b", "y")
    told.again()
    told.tell("thought", "c", "x")
    told.again()
    assert told.tell("thought", "d", "x") == ("a", "")
    assert told.tell("message", "e", "yes") == ("b", "es")
