import pytest
from pydantic import ValidationError

from orchestrator.config.messages import known_keys, nearest
from orchestrator.config.models import BackendConfig, Config, LimitsConfig


def test_models_are_frozen_and_closed() -> None:
    with pytest.raises(ValidationError):
        Config().server = Config().server
    with pytest.raises(ValidationError):
        Config.model_validate({"nope": 1})


def test_a_yes_is_no_number() -> None:
    for name in LimitsConfig.model_fields:
        with pytest.raises(ValidationError):
            LimitsConfig.model_validate({name: True})


def test_egress_hosts_are_compared_in_small_letters() -> None:
    backend = BackendConfig.model_validate({"allowed_egress": ["API.Example.com", "*.example.com:8443"]})
    assert backend.allowed_egress == ["api.example.com", "*.example.com:8443"]


def test_known_keys_follow_the_models() -> None:
    assert "backends" in known_keys(Config, ("external_agent",))
    assert "api_key" in known_keys(Config, ("external_agent", "backends", "any"))
    assert "cpus" in known_keys(Config, ("external_agent", "backends", "any", "limits"))
    assert known_keys(Config, ("repos",)) == []
    assert known_keys(Config, ("nope", "deeper")) == []


def test_nearest_takes_dashes_for_underscores() -> None:
    assert nearest("api-key", ["api_key", "mode"]) == "api_key"
    assert nearest("zzz", ["api_key", "mode"]) is None
