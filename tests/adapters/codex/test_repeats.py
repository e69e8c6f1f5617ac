from adapters.codex.repeats import Texts


def test_a_text_is_new_by_itself() -> None:
    assert Texts().add("message", "a", "one") == ("a", "one")


def test_an_item_that_grows_goes_on() -> None:
    texts = Texts()
    texts.add("message", "a", "one")
    assert texts.add("message", "a", "one two") == ("a", " two")
    assert texts.add("message", "a", "another") == ("a", "another")


def test_without_a_new_attempt_the_same_text_is_another() -> None:
    texts = Texts()
    texts.add("message", "a", "one")
    assert texts.add("message", "b", "one") == ("b", "one")


def test_a_repeated_item_may_grow_as_well() -> None:
    texts = Texts()
    texts.add("message", "a", "one")
    texts.again()
    assert texts.add("message", "b", "one two") == ("a", " two")
    assert texts.add("message", "b", "one two three") == ("a", " three")


def test_repeats_come_in_their_order_and_end_at_the_first_difference() -> None:
    texts = Texts()
    for item_id, kind, text in (("a", "thought", "x"), ("b", "message", "y"), ("c", "message", "z")):
        texts.add(kind, item_id, text)
    texts.again()
    assert texts.add("thought", "d", "x") == ("a", "")
    assert texts.add("message", "e", "other") == ("e", "other")
    assert texts.add("message", "f", "z") == ("f", "z")


def test_an_attempt_that_broke_earlier_leaves_the_rest_to_the_next() -> None:
    texts = Texts()
    texts.add("thought", "a", "x")
    texts.add("message", "b", "y")
    texts.again()
    texts.add("thought", "c", "x")
    texts.again()
    assert texts.add("thought", "d", "x") == ("a", "")
    assert texts.add("message", "e", "yes") == ("b", "es")
