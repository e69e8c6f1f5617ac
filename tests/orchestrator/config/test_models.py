import pytest
from pydantic import ValidationError

from orchestrator.config.load import known_keys, nearest, parse
from orchestrator.config.models import BackendConfig, Config, LimitsConfig
from orchestrator.errors import ConfigError


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


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ("{url: 'http://user:hunter2@p.example:3128'}", "must not hold credentials"),
        ("{url: 'https://p.example:3128'}", "must be like http://proxy"),
        ("{url: 'http://p.example:3128/path'}", "must be like http://proxy"),
        ("{url: 'http://p.example:0'}", "must be like http://proxy"),
        ("{url: 'http://p.example:99999'}", "must be like http://proxy"),
        ("{url: 'p.example:3128'}", "must be like http://proxy"),
        ("{url: 'http://p.example', password: hunter2}", "needs a username"),
        ("{url: 'http://p.example', username: 'a:b'}", "username"),
        ("{url: 'http://p.example', no_proxy: [10.0.0.1/8]}", "not a network"),
        ("{url: 'http://p.example', no_proxy: ['a b']}", "must be a host name"),
    ],
)
def test_an_upstream_proxy_that_cannot_be_meant_is_refused_without_its_secrets(block: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        parse(f"egress: {{upstream_proxy: {block}}}", name="f", env={})
    assert "hunter2" not in str(caught.value)


def test_an_upstream_proxy_has_a_normal_form() -> None:
    text = "egress: {upstream_proxy: {url: 'http://P.example/', no_proxy: ['*.Corp.example', '10.0.0.0/8', '[::1]']}}"
    proxy = parse(text, name="f", env={}).config.egress.upstream_proxy
    assert proxy is not None
    assert (proxy.url, proxy.no_proxy) == ("http://p.example:80", ["*.corp.example", "10.0.0.0/8", "::1"])
