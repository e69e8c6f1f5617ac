"""What a killed test session leaves behind is removed by the next one, and nothing of a session that lives."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.podman import session
from tests.podman.images_kit import IMAGE, run_to_end

pytestmark = pytest.mark.podman


class Other:
    """Another session, as far as it can be seen: its process, its note, and what it has made."""

    def __init__(self, files: Path) -> None:
        self.files = files
        (files / "home").mkdir(parents=True)
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.name = session.session_of(self.process.pid)
        with session.turn("sessions") as notes:
            self.note = notes / self.name
            self.note.write_text(str(files))
        words = ["-c", "import time; time.sleep(600)", "-m", "orchestrator", f"{files}/podmentor.yaml"]
        self.service = subprocess.Popen([sys.executable, *words])
        self.sockets = Path(os.environ["XDG_RUNTIME_DIR"]) / f"pmt-{self.name}-abc"
        self.sockets.mkdir()
        self.labelled = self._container(f"--label={session.LABEL}={self.name}")
        self.mounted = self._container("--label=podmentor.instance=x", f"--volume={files}/home:/home/agent")

    @staticmethod
    def _container(*options: str) -> str:
        done = run_to_end(["podman", "create", "--pull=never", "--network=none", *options, IMAGE, "true"])
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def there(self) -> list[bool]:
        """Service, sockets, containers, note."""
        containers = run_to_end(["podman", "ps", "--all", "--quiet", "--no-trunc"]).stdout.split()
        return [
            self.service.poll() is None,
            self.sockets.exists(),
            self.labelled in containers,
            self.mounted in containers,
            self.note.exists(),
        ]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@contextmanager
def other(files: Path) -> Iterator[Other]:
    made = Other(files)
    try:
        yield made
    finally:
        made.kill()
        with session.turn("sessions"):
            session.remove_left_by(made.name, made.files)
            made.note.unlink(missing_ok=True)
        made.service.wait(10)


def test_only_what_dead_sessions_left_is_removed(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with ExitStack() as stack:
        dead, living = (stack.enter_context(other(tmp_path / name)) for name in ("dead", "living"))
        dead.kill()
        files = tmp_path_factory.getbasetemp()
        session.begin(files.parent if session.IS_WORKER else files)
        dead.service.wait(10)
        assert dead.there() == [False] * 5
        assert living.there() == [True] * 5


def test_a_process_of_the_same_number_is_another_session() -> None:
    assert session.lives(session.SESSION)
    assert not session.lives(f"{os.getpid()}-1")
    assert not session.lives(f"{2**22 + 1}-1")
