import pytest

from orchestrator import errors
from orchestrator.cli.exits import CliError, exit_of_code, exit_of_run, hint_of_run, shown
from orchestrator.errors import ServiceGoneError
from tests.fakes.api_server import make_run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidRequestError, 2),
        (errors.ConfigError, 2),
        (errors.UnauthorizedError, 4),
        (errors.ForbiddenError, 4),
        (errors.AuthRequiredError, 4),
        (errors.NotFoundError, 5),
        (errors.UnknownBackendError, 5),
        (errors.QueueFullError, 3),
        (errors.SandboxError, 3),
        (errors.RuntimeUnavailableError, 3),
        (errors.ImageMissingError, 3),
        (errors.ShuttingDownError, 3),
        (ServiceGoneError, 3),
        (errors.ConflictError, 1),
        (errors.PodmentorError, 1),
    ],
)
def test_errors(error: type[errors.PodmentorError], code: int) -> None:
    assert exit_of_code(error.code) == code
    assert shown(error("x")).exit_code == code


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("timeout", 124),
        ("idle_timeout", 124),
        ("start_timeout", 124),
        ("auth_required", 4),
        ("auth_rejected", 4),
        ("image_missing", 3),
        ("sandbox_failed", 3),
        ("cli_failed", 1),
        ("memory_exceeded", 1),
        ("lost", 1),
        ("cancelled", 1),
    ],
)
def test_runs(reason: str, code: int) -> None:
    assert exit_of_run(make_run("r", outcome="failed", error={"reason": reason})) == code


def test_a_completed_run_is_fine_and_one_without_an_error_is_not() -> None:
    assert exit_of_run(make_run("r")) == 0
    assert exit_of_run(make_run("r", outcome=None, error=None)) == 1


def test_errors_are_cleaned(capsys: pytest.CaptureFixture[str]) -> None:
    CliError("a\x1b[2Jb", code="x\x07", exit_code=1, hint="h").show()
    assert capsys.readouterr().err == "error: ab [x]\nhint: h\n"


@pytest.mark.parametrize("reason", ["auth_required", "auth_rejected", "image_missing"])
def test_a_hint_names_the_runs_own_backend(reason: str) -> None:
    hint = hint_of_run(make_run("r", backend="gemini", outcome="failed", error={"reason": reason}))
    assert hint is not None
    assert " gemini " in hint
    assert "{" not in hint
    assert " codex " in (shown(errors.AuthRequiredError("x", backend="codex")).hint or "")
    assert " BACKEND " in (shown(errors.AuthRequiredError("x")).hint or "")
