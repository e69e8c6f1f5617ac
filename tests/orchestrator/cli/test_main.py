import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from orchestrator.cli.exits import CliError
from orchestrator.cli.lazy import Lazy, LazyGroup
from orchestrator.cli.main import COMMANDS, Root, cli
from orchestrator.errors import RuntimeUnavailableError
from tests.orchestrator.cli.conftest import Invoke

OWN = ["run", "demo", "runs", "subagents", "changes", "backends", "serve", "config"]


def test_help_lists_every_command_and_the_exit_codes(invoke: Invoke) -> None:
    found = invoke("--help")
    assert found.exit_code == 0
    for name, lazy in COMMANDS.items():
        assert name in found.output
        assert lazy.help in found.output
    for line in ("124  the run reached a time limit", "130  cancelled by Ctrl-C", "3  the service or the sandbox"):
        assert line in found.output


@pytest.mark.parametrize("name", OWN)
def test_help_of_each_command(invoke: Invoke, name: str) -> None:
    found = invoke(name, "--help")
    assert found.exit_code == 0, found.output
    assert found.output.startswith("Usage: ")


def test_help_is_quick_because_nothing_heavy_is_imported() -> None:
    heavy = ["aiohttp", "podman", "pydantic", "yaml", "rich", "asyncio"]
    code = (
        "import sys\nfrom orchestrator.cli.main import cli\n"
        "try:\n    cli.main(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.strip() == "[]"


def test_version(invoke: Invoke) -> None:
    assert invoke("--version").output.startswith("podmentor ")


def test_a_typo_gets_advice(invoke: Invoke) -> None:
    found = invoke("rnu", "x")
    assert found.exit_code == 2
    assert "Did you mean 'run'?" in found.output


def group(target: str) -> LazyGroup:
    return Root(name="root", table={"x": Lazy(target, "An x.")})


def test_a_command_that_cannot_be_imported_breaks_only_itself() -> None:
    broken = group("orchestrator.cli.nowhere:command")
    assert CliRunner().invoke(broken, ["--help"]).exit_code == 0
    found = CliRunner().invoke(broken, ["x"])
    assert found.exit_code == 1
    assert found.output.startswith("error: the command 'x' is not part of this installation")
    assert CliRunner().invoke(group("orchestrator.cli.main:COMMANDS"), ["x"]).exit_code == 1


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (RuntimeUnavailableError("no\x1b[2J podman"), 3, "error: no podman [runtime_unavailable]"),
        (ZeroDivisionError("oh"), 1, "error: unexpected ZeroDivisionError: oh [internal]"),
        (KeyboardInterrupt(), 130, ""),
        (CliError("x", code="y", exit_code=7), 7, "error: x [y]"),
    ],
)
def test_every_error_is_one_line_and_an_exit_code(error: BaseException, code: int, line: str) -> None:
    root = Root(name="root")

    @root.command("boom")
    def boom() -> None:
        raise error

    found = CliRunner().invoke(root, ["boom"])
    assert found.exit_code == code
    assert found.output.splitlines()[:1] == ([line] if line else [])
    assert "Traceback" not in found.output


def test_state_and_config_options(invoke: Invoke, place: object, tmp_path: object) -> None:
    found = invoke("--state", "elsewhere", "config", "show", "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.output)["storage"]["state_dir"].endswith("/cwd/elsewhere")
    missing = invoke("--config", "nope.yaml", "config", "show")
    assert missing.exit_code == 2
    assert "nope.yaml: there is no such file" in missing.output


def test_the_module_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    assert "Usage: podmentor" in done.stdout


def test_the_root_is_a_click_group() -> None:
    assert isinstance(cli, click.Group)
