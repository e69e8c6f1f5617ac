import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.relay.control.client import ROOT
from orchestrator.relay.process import hardening
from orchestrator.relay.process.hardening import close_logging, open_logging

SCRIPT = """
import os
from orchestrator.relay.process.hardening import harden
from orchestrator.system.own_memory import is_dumpable
harden()
print(is_dumpable(), oct(os.umask(0)))
"""


def test_the_memory_is_closed_and_new_files_are_ours() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=False, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("False 0o77\n", "")


@pytest.fixture(autouse=True)
def the_loggers_as_they_were() -> Iterator[None]:
    root = logging.getLogger()
    names = ("aiohttp", "asyncio")
    before = (root.level, root.handlers[:], logging.raiseExceptions, [logging.getLogger(name).level for name in names])
    yield
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    logging.raiseExceptions = before[2]
    for name, level in zip(names, before[3], strict=True):
        logging.getLogger(name).setLevel(level)


def test_keys_are_taken_out_of_messages_and_tracebacks(tmp_path: Path) -> None:
    keys = ["sk-one"]
    listener = open_logging(tmp_path / "log", lambda: keys)
    log = logging.getLogger("orchestrator.relay.test")
    log.info("with %s in it", "sk-one")
    try:
        int("sk-one")
    except ValueError:
        log.exception("failed")
    keys.append("sk-two")
    log.info("sk-two")
    logging.getLogger("aiohttp.server").error("quotes a request")
    close_logging(listener)
    text = (tmp_path / "log").read_text()
    assert "sk-" not in text
    assert "with *** in it" in text
    assert "ValueError: invalid literal for int() with base 10: '***'" in text
    assert "quotes" not in text


def test_the_file_stays_within_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardening, "LOG_BYTES", 2000)
    listener = open_logging(tmp_path / "log", list)
    for number in range(200):
        logging.getLogger("orchestrator.relay.test").info("entry %d", number)
    close_logging(listener)
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["log", "log.1"]
    assert all(path.stat().st_size <= 2000 for path in files)
    assert "entry 199" in files[0].read_text()
