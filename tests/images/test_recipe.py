"""The recipe hash changes with every input and with nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from images.plan import recipe_hash
from images.trust import certificates

FILES = {"Containerfile": b"FROM x\n", "package.json": b"{}", "sub/extra": b"\x00\x01"}
CERT_A = b"-----BEGIN CERTIFICATE-----\nQUFB\n-----END CERTIFICATE-----"
CERT_B = b"-----BEGIN CERTIFICATE-----\nQkJC\n-----END CERTIFICATE-----"


def test_order_of_files_does_not_matter() -> None:
    backwards = dict(reversed(FILES.items()))
    assert list(backwards) != list(FILES)
    assert recipe_hash(FILES, "a") == recipe_hash(backwards, "a")


@pytest.mark.parametrize("name", FILES)
def test_every_byte_of_every_file_matters(name: str) -> None:
    hashes = {recipe_hash(FILES)}
    for index in range(len(FILES[name])):
        changed = bytearray(FILES[name])
        changed[index] ^= 1
        hashes.add(recipe_hash({**FILES, name: bytes(changed)}))
    assert len(hashes) == len(FILES[name]) + 1


def test_names_and_further_inputs_matter() -> None:
    renamed = {**FILES, "sub/other": FILES["sub/extra"]}
    del renamed["sub/extra"]
    assert len({recipe_hash(FILES), recipe_hash(renamed), recipe_hash(FILES, "x"), recipe_hash(FILES, "x", "")}) == 4


@given(
    st.dictionaries(st.text(min_size=1, max_size=4), st.binary(max_size=6), max_size=3),
    st.dictionaries(st.text(min_size=1, max_size=4), st.binary(max_size=6), max_size=3),
    st.lists(st.text(max_size=4), max_size=3),
    st.lists(st.text(max_size=4), max_size=3),
)
def test_different_recipes_have_different_hashes(
    files: dict[str, bytes], other: dict[str, bytes], inputs: list[str], others: list[str]
) -> None:
    same = (files, inputs) == (other, others)
    assert (recipe_hash(files, *inputs) == recipe_hash(other, *others)) is same


def test_certificates_are_put_in_order_and_stand_once() -> None:
    first = certificates([b"# a\n" + CERT_A + b"\n# b\n" + CERT_B + b"\n"])
    second = certificates([CERT_B.replace(b"\n", b"\r\n") + b"\r\n", CERT_A, CERT_A])
    assert first == second == CERT_A + b"\n" + CERT_B + b"\n"


def test_private_keys_beside_certificates_are_left_out() -> None:
    pem = b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n" + CERT_A
    assert certificates([pem]) == CERT_A + b"\n"
