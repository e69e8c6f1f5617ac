"""The recorder: what a CLI printed in a run, as a recording that its adapter's parser can be held to.

A recording is a folder: ``stdout.bin`` (the bytes), ``meta.json`` (how it was made, exit code, end of stderr) and
``events.jsonl`` (what the parser makes of it; to be read by a person before it is kept as what must come out).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from orchestrator.bench.results import Evidence, Observed
from orchestrator.bench.scenes import FIRST, SCENES
from orchestrator.contract.adapter import BaseAdapter
from orchestrator.contract.sandbox import GATEWAY_PORT, WORKSPACE_DIR
from orchestrator.errors import PodmentorError, StorageError
from orchestrator.framing import CriFramer
from orchestrator.testing.recordings import Recording, play, to_dict

STDERR_TAIL: Final = 8192
"""Bytes; as much as a parser is given at the end of a run."""
MAX_STDOUT: Final = 900_000
"""Bytes of a recording that is worth keeping; what is longer is left out."""
_CHUNK: Final = 1 << 20


def record(adapter: BaseAdapter, evidence: Evidence, into: Path, *, max_bytes: int = MAX_STDOUT) -> list[str]:
    """Write one folder for each recorded run below ``into``; their names.  Raises StorageError.  Blocks."""
    names: list[str] = []
    for scene in (FIRST, *SCENES):
        seen = evidence.scenes.get(scene.name)
        if seen is None or not scene.recorded:
            continue
        for number, run in enumerate(seen.runs, start=1):
            name = scene.name if len(seen.runs) == 1 else f"{scene.name}-{number}"
            if run.log is not None and _write(adapter, run, into / name, max_bytes=max_bytes):
                names.append(name)
    return names


def _write(adapter: BaseAdapter, run: Observed, folder: Path, *, max_bytes: int) -> bool:
    recording = recording_of(run)
    if len(recording.stdout) > max_bytes:
        return False
    meta = {
        "argv": argv_of(adapter, run),
        "exit_code": recording.exit_code,
        "stderr_tail": recording.stderr_tail,
        "cli_version": run.record.cli_version,
    }
    events = play(adapter, recording)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stdout.bin").write_bytes(recording.stdout)
        (folder / "meta.json").write_text(json.dumps(meta, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        lines = "".join(json.dumps(to_dict(event), ensure_ascii=False) + "\n" for event in events)
        (folder / "events.jsonl").write_text(lines, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"the recording cannot be written to {folder}: {error.strerror}") from error
    return True


def recording_of(run: Observed) -> Recording:
    """What the CLI printed in this run, which must have a log.  Raises OSError."""
    assert run.log is not None
    stdout, stderr = split(_pieces(run.log))
    tail = stderr[-STDERR_TAIL:].decode("utf-8", "replace")
    return Recording(name=run.log.parent.name, stdout=stdout, exit_code=run.record.exit_code, stderr_tail=tail)


def check_writable(into: Path) -> None:
    """Make the directory and write a file there, before the minutes that a bench takes.  Raises StorageError."""
    try:
        into.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=into) as file:
            file.write(b"x")
    except OSError as error:
        raise StorageError(f"no recordings can be written to {into}: {error.strerror}") from error


def argv_of(adapter: BaseAdapter, run: Observed) -> list[str]:
    """The CLI's command line in this run."""
    gateway = adapter.gateway_argv(f"http://127.0.0.1:{GATEWAY_PORT}")
    try:
        argv = adapter.build_argv(prompt=run.record.query, session_id=run.resumed, cwd=Path(WORKSPACE_DIR))
    except PodmentorError:
        argv = adapter.build_argv(prompt=run.record.query, session_id=None, cwd=Path(WORKSPACE_DIR))
    return [*argv, *gateway]


def split(log: Iterable[bytes]) -> tuple[bytes, bytes]:
    """stdout and stderr out of conmon's log."""
    framer = CriFramer()
    out: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    for chunk in log:
        for piece in framer.feed(chunk):
            out[piece.stream].append(piece.data)
    return b"".join(out["stdout"]), b"".join(out["stderr"])


def _pieces(path: Path) -> Iterable[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
