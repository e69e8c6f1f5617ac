"""C18: a record opens for its owner and name, under its key, unchanged, and else not at all."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import SecretUnreadableError, VaultUnavailableError
from orchestrator.vault.sealed import MasterKey, key_id_of, open_sealed, seal
from tests.orchestrator.vault.kit import SECRET

KEY = MasterKey(bytes(range(32)))
NAME = "external_agent/claude-code/api_key"
texts = st.text(st.characters(codec="utf-8"), max_size=200)


@given(value=texts, user=texts, name=texts)
def test_what_is_sealed_opens_again(value: str, user: str, name: str) -> None:
    record = seal(KEY, value, user_id=user, name=name)
    assert open_sealed(KEY, record, user_id=user, name=name) == value
    assert key_id_of(record) == KEY.key_id


@given(st.data())
@settings(max_examples=200)
def test_any_flipped_bit_is_refused(data: st.DataObject) -> None:
    record = bytearray(seal(KEY, SECRET, user_id="alice", name=NAME))
    position = data.draw(st.integers(0, len(record) * 8 - 1))
    record[position // 8] ^= 1 << position % 8
    with pytest.raises(SecretUnreadableError) as caught:
        open_sealed(KEY, bytes(record), user_id="alice", name=NAME)
    assert SECRET not in str(caught.value)


def test_any_cut_and_any_addition_is_refused() -> None:
    record = seal(KEY, SECRET, user_id="alice", name=NAME)
    for broken in (*(record[:length] for length in range(len(record))), record + b"\0", b"\0" + record):
        with pytest.raises(SecretUnreadableError):
            open_sealed(KEY, broken, user_id="alice", name=NAME)


@given(user=texts, name=texts)
def test_a_record_opens_only_for_its_own_user_and_name(user: str, name: str) -> None:
    record = seal(KEY, SECRET, user_id="alice", name=NAME)
    if (user, name) != ("alice", NAME):
        with pytest.raises(SecretUnreadableError):
            open_sealed(KEY, record, user_id=user, name=name)


def test_letters_cannot_be_moved_from_the_user_to_the_name() -> None:
    record = seal(KEY, SECRET, user_id="ab", name="c")
    with pytest.raises(SecretUnreadableError):
        open_sealed(KEY, record, user_id="a", name="bc")


def test_another_master_key_is_refused_even_when_its_id_is_put_in() -> None:
    record = seal(KEY, SECRET, user_id="alice", name=NAME)
    other = MasterKey.new()
    with pytest.raises(SecretUnreadableError):
        open_sealed(other, record, user_id="alice", name=NAME)
    forged = record[:4] + bytes.fromhex(other.key_id) + record[12:]
    with pytest.raises(SecretUnreadableError):
        open_sealed(other, forged, user_id="alice", name=NAME)


def test_the_same_value_never_looks_the_same() -> None:
    records = {seal(KEY, SECRET, user_id="alice", name=NAME) for _ in range(50)}
    assert len(records) == 50
    assert len({record[28:40] for record in records}) == 50


def test_fingerprints_tell_values_apart_and_nothing_else() -> None:
    seen = KEY.fingerprint("alice", SECRET)
    assert seen == KEY.fingerprint("alice", SECRET)
    assert len(seen) == 8
    assert seen not in {
        KEY.fingerprint("alice", SECRET + "x"),
        KEY.fingerprint("bob", SECRET),  # nobody sees that two users have one key
        MasterKey.new().fingerprint("alice", SECRET),  # nor can check a guess without the master key
    }


def test_a_key_survives_its_text_and_hides_itself() -> None:
    key = MasterKey.new()
    assert MasterKey.from_text(f" {key.to_text()}\n", where="f") == key
    assert repr(key) == "MasterKey()"
    assert key.key_id != MasterKey.new().key_id


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "pmvault1-",
        "pmvault1-AAAA",
        "é" * 43,
        KEY.to_text()[:-1],
        KEY.to_text() + "A",
        KEY.to_text().removeprefix("pmvault1-"),
    ],
)
def test_a_text_that_is_no_key_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(VaultUnavailableError) as caught:
        MasterKey.from_text(text, where="the file f")
    assert "the file f holds no key" in str(caught.value)
    assert len(text) < 9 or text not in str(caught.value)
