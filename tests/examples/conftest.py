"""The example package, installed as a user would, into a directory of its own."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).with_name("podmentor-example")


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it is installed."""
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*pip, "--disable-pip-version-check", "--target", str(target), str(EXAMPLE)],
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def installed(target: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """It can be imported, and its entry points are found."""
    monkeypatch.syspath_prepend(target)
    yield target
    for name in [name for name in sys.modules if name.partition(".")[0] == "podmentor_example"]:
        del sys.modules[name]
