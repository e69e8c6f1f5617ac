import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from orchestrator.cli.main import cli
from orchestrator.config.load import load
from orchestrator.config.models import Paths
from orchestrator.config.paths import resolve_paths
from tests.fakes.api_server import FakeApi, ThreadedApi
from tests.fakes.cli_main import fake_bootstrap

Invoke = Callable[..., Result]


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory, with state and sockets beside it.

    Not pytest's own temporary directory: its path grows with the user's name, and sockets need short ones.
    """
    base = Path(tempfile.mkdtemp(prefix="pmc-", dir="/tmp"))
    (base / "cwd").mkdir()
    (base / "r").mkdir(mode=0o700)
    monkeypatch.chdir(base / "cwd")
    for name in ("PODMENTOR_CONFIG", "PODMENTOR_STATE", "PODMENTOR_URL", "PODMENTOR_TOKEN", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(base / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(base / "s"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base / "r"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-not-real")
    yield base
    monkeypatch.chdir("/")
    shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def paths(place: Path) -> Paths:
    return resolve_paths(load(None).config)


@pytest.fixture
def api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def served(api: FakeApi, paths: Paths) -> Iterator[ThreadedApi]:
    """A service that runs."""
    paths.token_file.write_text(api.token + "\n")
    with ThreadedApi(api, paths.api_socket) as service:
        yield service


@pytest.fixture
def embedded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No service runs; the one inside the command is a fake."""
    monkeypatch.setitem(sys.modules, "orchestrator.bootstrap.service", fake_bootstrap())


@pytest.fixture
def invoke(place: Path) -> Invoke:
    def call(*args: str, stdin: str | None = None) -> Result:
        return CliRunner().invoke(cli, args, input=stdin)

    return call
