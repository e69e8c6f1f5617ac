"""A process that looks like a container's conmon: the same words in its command line, ended when asked to."""

import subprocess
import sys
from pathlib import Path
from typing import Self

_LINGER = "import sys; print(flush=True); sys.stdin.read()"


class FakeConmon:
    def __init__(self, container_id: str, exit_dir: Path | None) -> None:
        options = [] if exit_dir is None else ["--exit-dir", str(exit_dir)]
        self._exit_file = None if exit_dir is None else exit_dir / container_id
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LINGER, "-c", container_id, *options, "--full-attach"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it runs: its command line can be read
        self.pid = self._process.pid

    def write_exit_file(self, text: str) -> None:
        """By rename, as conmon does."""
        assert self._exit_file is not None
        new = self._exit_file.with_suffix(".NEW")
        new.write_text(text)
        new.rename(self._exit_file)

    def end(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process.wait(10)

    def returncode(self) -> int:
        return self._process.wait(10)

    def kill(self) -> None:
        self._process.kill()
        self.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
