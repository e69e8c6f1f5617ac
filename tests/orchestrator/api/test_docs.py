"""docs/api.md names everything that there is."""

from pathlib import Path
from typing import get_args

from orchestrator import errors
from orchestrator.api.models.runs import LimitsBody, RunBody
from orchestrator.api.routes import ROUTES
from orchestrator.errors import PodmentorError
from orchestrator.events import KINDS, ErrorReason

TEXT = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
OFFLINE = {"invalid_config", "image_build_failed"}
"""Codes that only the command meets."""


def test_every_route_is_documented() -> None:
    for route in ROUTES:
        assert f"`{route.method} {route.path}`" in TEXT


def test_every_member_of_a_run_request_is_documented() -> None:
    for name in {*RunBody.model_fields, *LimitsBody.model_fields}:
        assert f"`{name}`" in TEXT


def test_every_kind_and_reason_is_documented() -> None:
    for name in (*KINDS, *get_args(ErrorReason)):
        assert f"`{name}`" in TEXT


def test_every_code_is_documented_with_its_status() -> None:
    lines = TEXT.splitlines()
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, PodmentorError) and error.code not in OFFLINE:
            assert any(line.startswith(f"| {error.status} |") and f"`{error.code}`" in line for line in lines)
