from orchestrator.adapterkit.kept_text import KeptText


def test_the_pieces_of_the_newest_message_are_kept() -> None:
    text = KeptText(100)
    assert (text.message_id, text.join()) == ("", "")
    for message_id, piece in (("a", "old"), ("b", "one "), ("b", "two")):
        text.add(message_id, piece)
    assert (text.message_id, text.join()) == ("b", "one two")


def test_a_long_message_is_cut_and_marked() -> None:
    text = KeptText(5)
    for piece in ("abc", "defg", "h"):
        text.add("a", piece)
    assert text.join() == "abcde …[cut: 3 characters, the whole is in the run's log]"
