"""What the OCI runtime keeps is removed by it, and only when there is something."""

import os
from pathlib import Path

import pytest

from orchestrator.podman import oci_state

CID = "ab" * 32


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A runc that notes what it is asked and obeys."""
    script = tmp_path / "bin" / "runc"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nrm -r "$2/$5"\n')
    script.chmod(0o755)
    return f"{script.parent}:{os.environ['PATH']}"


async def test_a_record_that_podman_left_is_deleted(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", path)
    (tmp_path / "runc" / CID).mkdir(parents=True)
    await oci_state.forget(CID, user_dir=tmp_path, env=None)
    assert (tmp_path / "calls").read_text() == f"--root {tmp_path}/runc delete --force {CID}\n"
    assert not (tmp_path / "runc" / CID).exists()
    await oci_state.forget(CID, user_dir=tmp_path, env=None)
    assert len((tmp_path / "calls").read_text().splitlines()) == 1


async def test_a_runtime_that_fails_is_only_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "crun" / CID).mkdir(parents=True)
    await oci_state.forget(CID, user_dir=tmp_path, env=None)
    assert "crun still has a record" in caplog.text


async def test_an_exit_file_that_came_late_is_removed(tmp_path: Path) -> None:
    exits = tmp_path / "libpod" / "tmp" / "exits"
    exits.mkdir(parents=True)
    for name in (CID, "other"):
        (exits / name).write_text("137")
    await oci_state.forget(CID, user_dir=tmp_path, env=None)
    assert [path.name for path in exits.iterdir()] == ["other"]
