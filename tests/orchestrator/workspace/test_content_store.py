"""Contents, each kept once, and at their names only when they are on the disk."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from orchestrator.workspace.content_store import ContentStore


def add(store: ContentStore, place: Path, data: bytes) -> str:
    (place / "source").write_bytes(data)
    with (place / "source").open("rb") as source:
        return store.add(source.fileno())


def test_a_content_is_kept_once_under_its_digest(tmp_path: Path) -> None:
    with ContentStore(tmp_path / "blobs") as store:
        digests = [add(store, tmp_path, data) for data in (b"one", b"two", b"one")]
        store.commit()
    assert digests == [hashlib.sha256(data).hexdigest() for data in (b"one", b"two", b"one")]
    assert sorted(p.name for p in (tmp_path / "blobs").iterdir()) == sorted(set(digests))
    assert store.path(digests[1]).read_bytes() == b"two"


def test_what_was_not_committed_is_not_there_after_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(fd: int) -> None:
        raise OSError(5, "the machine stops")

    monkeypatch.setattr("orchestrator.workspace.content_store.sync_file_system", crash)
    with ContentStore(tmp_path / "blobs") as store:
        digest = add(store, tmp_path, b"one")
        assert digest in store
        with pytest.raises(OSError, match="stops"):
            store.commit()
    with ContentStore(tmp_path / "blobs") as store:
        assert digest not in store
    monkeypatch.undo()
    with ContentStore(tmp_path / "blobs") as store:
        assert add(store, tmp_path, b"one") == digest
        store.commit()
    assert store.path(digest).read_bytes() == b"one"


def test_the_file_system_is_flushed_only_for_new_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    monkeypatch.setattr("orchestrator.workspace.content_store.sync_file_system", flushed.append)
    for _ in range(2):
        with ContentStore(tmp_path / "blobs") as store:
            add(store, tmp_path, b"one")
            add(store, tmp_path, b"two")
            store.commit()
    assert len(flushed) == 1


def test_what_is_not_wanted_goes_and_leftovers_too(tmp_path: Path) -> None:
    with ContentStore(tmp_path / "blobs") as store:
        kept, dropped = add(store, tmp_path, b"one"), add(store, tmp_path, b"two")
        store.commit()
        add(store, tmp_path, b"three")
    store.keep({kept})
    assert [p.name for p in (tmp_path / "blobs").iterdir()] == [kept]
    assert dropped != kept
