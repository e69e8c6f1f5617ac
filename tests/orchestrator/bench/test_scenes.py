"""What scenes look for afterwards: processes, and a text in files."""

import os
import subprocess
from pathlib import Path

from orchestrator.bench import scenes
from orchestrator.bench.scenes import files_with, processes_with, snapshot


def test_a_process_is_found_by_its_words() -> None:
    with subprocess.Popen(["sleep", "987654.25"]) as process:
        try:
            while process.pid not in processes_with("sleep\x00987654.25"):  # it is being started
                assert process.poll() is None
        finally:
            process.kill()
    assert processes_with("sleep\x00987654.25") == []


def test_a_text_is_found_wherever_it_lies(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x").write_text("....secret....")
    (tmp_path / "y").write_text("nothing")
    (tmp_path / "link").symlink_to(tmp_path / "a" / "x")
    os.mkfifo(tmp_path / "fifo")
    assert files_with([tmp_path, tmp_path / "absent"], "secret") == [str(tmp_path / "a" / "x")]


def test_a_text_on_the_edge_of_two_pieces_is_found(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"." * (scenes._CHUNK - 3) + b"secret")
    assert files_with([tmp_path], "secret") == [str(tmp_path / "x")]


def test_a_snapshot_sees_every_change(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("1")
    before = snapshot(tmp_path)
    (tmp_path / "x").write_text("2")
    assert snapshot(tmp_path) != before
