"""Where traces go."""

from __future__ import annotations

import pytest

from orchestrator.config.environment import traces_target
from orchestrator.config.models import Config

OURS = {"otlp_endpoint": "http://collector:4318/"}


@pytest.mark.parametrize(
    ("config", "env", "url"),
    [
        ({}, {}, None),
        (OURS, {}, "http://collector:4318/v1/traces"),
        ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c/otlp/"}, "https://c/otlp/v1/traces"),
        ({}, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/t"}, "http://c/t"),
        (
            {},
            {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/t", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://d"},
            "http://c/t",
        ),
        (OURS, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://other"}, "http://collector:4318/v1/traces"),
        (OURS, {"OTEL_SDK_DISABLED": "true"}, None),
        ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_TRACES_EXPORTER": "none"}, None),
        ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, None),
    ],
)
def test_the_configuration_then_the_variables(config: dict[str, str], env: dict[str, str], url: str | None) -> None:
    target = traces_target(Config.model_validate({"telemetry": config}), env=env)
    assert (None if target is None else target.url) == url


def test_the_services_name() -> None:
    config = Config.model_validate({"telemetry": OURS})
    for env, name in (({}, "podmentor"), ({"OTEL_SERVICE_NAME": "agents"}, "agents")):
        target = traces_target(config, env=env)
        assert target is not None
        assert target.service_name == name


@pytest.mark.parametrize("value", ["collector:4317", "grpc://collector:4317", "http://"])
def test_a_variable_that_is_no_url_is_not_meant_for_us(value: str, caplog: pytest.LogCaptureFixture) -> None:
    assert traces_target(Config(), env={"OTEL_EXPORTER_OTLP_ENDPOINT": value}) is None
    assert "$OTEL_EXPORTER_OTLP_ENDPOINT is not a URL" in caplog.text


def test_who_asks() -> None:
    for config, env, asked in (
        ({"telemetry": OURS}, {}, True),
        ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, False),
    ):
        target = traces_target(Config.model_validate(config), env=env)
        assert target is not None
        assert target.asked_of_us is asked
