from pathlib import Path

import pytest

from orchestrator.config.load import Loaded, load, parse
from orchestrator.config.models import public
from orchestrator.errors import ConfigError

BLOCK = """
external_agent:
  enabled: true
  default_sandbox_tier: 1
  target_agents: all
  default_limits:
    memory_max_bytes: 2147483648
    wall_clock_seconds: 300
  backends:
    claude-code:
      binary: claude
      mode: technical_user
      api_key: ${env:ANTHROPIC_API_KEY}
      extra_env: {LOG: "1"}
      allowed_egress: [api.anthropic.com]
      limits: {memory_max_bytes: 1000}
      expose_mcp_tools: [memory_search]
    codumentor:
      base_url: http://127.0.0.1:8765/
"""

PLUGINS = """
plugins:
  - module: some.other.plugin
    args: {key: "${env:NOT_SET}"}
  - module: codumentor.plugins.external_agent
    class: ExternalAgentPlugin
    args:
      enabled: true
      default_sandbox_tier: 0
      target_agents: main          # main | subagent | all
      backends:
        claude-code:
          binary: claude
          mode: technical_user
          api_key: ${env:ANTHROPIC_API_KEY}
          extra_env: {}
"""


def read(text: str, **env: str) -> Loaded:
    return parse(text, name="podmentor.yaml", env=env)


def test_the_documented_block_loads() -> None:
    """C14: the block exactly as the documents have it."""
    agent = read(BLOCK, ANTHROPIC_API_KEY="sk-1").config.external_agent
    backend = agent.backends["claude-code"]
    assert backend.api_key is not None
    assert backend.api_key.get_secret_value() == "sk-1"
    assert (agent.default_sandbox_tier, agent.target_agents) == (1, "all")
    assert backend.limits.memory_max_bytes == 1000
    assert agent.default_limits.wall_clock_seconds == 300
    assert backend.extra_env == {"LOG": "1"}
    assert agent.backends["codumentor"].base_url == "http://127.0.0.1:8765"


def test_the_plugins_form_loads_as_the_same_block() -> None:
    """C14: a file in the documents' ``plugins:`` form; other plugins are left alone."""
    loaded = read(PLUGINS + "server: {port: 9000}\n", ANTHROPIC_API_KEY="sk-1")
    assert list(loaded.config.external_agent.backends) == ["claude-code"]
    assert loaded.config.external_agent.default_sandbox_tier == 0
    assert loaded.config.server.port == 9000
    assert any("plugins[0]" in warning for warning in loaded.warnings)


def test_an_error_in_the_plugins_form_names_the_place_in_that_file() -> None:
    text = PLUGINS.replace("binary: claude", "binry: claude")
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert caught.value.message == (
        "podmentor.yaml:13: plugins[1].args.backends.claude-code.binry: unknown key; did you mean binary?"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plugins: 3", "must be a list"),
        ("plugins: []", "no entry"),
        ("plugins:\n - {module: codumentor.plugins.external_agent, class: Other}", "must be ExternalAgentPlugin"),
        ("plugins:\n - {module: codumentor.plugins.external_agent, arg: {}}", "unknown key"),
        (PLUGINS + "external_agent: {}\n", "a second time"),
        ("plugins:\n - {module: codumentor.plugins.external_agent, args: 3}", "must be a mapping"),
    ],
)
def test_a_wrong_plugins_form_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(text)


def test_a_plugins_entry_without_args_means_the_defaults() -> None:
    loaded = read("plugins:\n - module: codumentor.plugins.external_agent\n", ANTHROPIC_API_KEY="k")
    assert loaded.config.external_agent.backends["claude-code"].api_key is not None


def test_a_typo_names_file_line_key_and_the_nearest_name() -> None:
    text = "server:\n  port: 1\n  heartbeat_second: 3\nexternal_agents: {}\n"
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert caught.value.message.splitlines() == [
        "podmentor.yaml:4: external_agents: unknown key; did you mean external_agent?",
        "podmentor.yaml:3: server.heartbeat_second: unknown key; did you mean heartbeat_seconds?",
    ] or caught.value.message.splitlines() == [
        "podmentor.yaml:3: server.heartbeat_second: unknown key; did you mean heartbeat_seconds?",
        "podmentor.yaml:4: external_agents: unknown key; did you mean external_agent?",
    ]


def test_a_key_that_is_like_no_other_lists_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"runs\.zzz: unknown key; known here: max_concurrent, max_concurrent_per_home, max_queued"
    ):
        read("runs: {zzz: 1}")


def test_a_typo_deep_inside_a_backend() -> None:
    with pytest.raises(ConfigError, match=r"limits\.memory_max: unknown key; did you mean memory_max_bytes"):
        read("external_agent: {backends: {codex: {limits: {memory_max: 1}}}}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("server: {port: yes}", "server.port: must be a number"),
        ("server: {port: 70000}", "server.port: "),
        ("server: 3", "server: must be a mapping"),
        ("external_agent: {backends: {codex: {extra_env: {A: 1}}}}", r"extra_env\.A: must be text \(put it in quotes"),
        ("external_agent: {backends: {codex: {extra_env: {'A B': x}}}}", "extra_env: has a name that no environment"),
        ("external_agent: {backends: {codex: {mode: other}}}", "mode: should be 'technical_user'"),
        ("external_agent: {default_limits: {wall_clock_seconds: .inf}}", "wall_clock_seconds: "),
        ("external_agent: {default_limits: {memory_max_bytes: 0}}", "memory_max_bytes: "),
        ("external_agent: {backends: {'../x': {}}}", "a name has letters"),
        ("external_agent: {backends: {codex: {base_url: 'https://u:p@h'}}}", "base_url: must not hold a user name"),
        ("external_agent: {backends: {codex: {base_url: 'ftp://h'}}}", "base_url: must be a URL"),
        ("external_agent: {backends: {codex: {base_url: 'https://h/v1/responses'}}}", "leave out /responses"),
        (
            "external_agent: {backends: {opencode: {base_url: 'https://h/v1/chat/completions/'}}}",
            "leave out /chat/comp",
        ),
        ("external_agent: {backends: {codex: {model: --yolo}}}", "model: must be a model's name"),
        ("external_agent: {backends: {codex: {model: 'a b'}}}", "model: must be a model's name"),
        ("external_agent: {backends: {codex: {allowed_egress: ['*']}}}", r"allowed_egress\[0\]: is too broad"),
        ("external_agent: {backends: {codex: {allowed_egress: ['*.com']}}}", "too broad"),
        ("external_agent: {backends: {codex: {allowed_egress: ['https://x.y']}}}", "must be a host name"),
        ("repos: {main: relative/dir}", "repos.main: must be an absolute path"),
        ("repos: {main: /}", "the whole file system is no repo"),
        ("repos: {'a/b': /tmp}", "a name has letters"),
        ("storage: {state_dir: here}", "must be an absolute path"),
        ("- a", "must be a mapping"),
    ],
)
def test_wrong_values(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(text)


def test_messages_do_not_quote_values() -> None:
    with pytest.raises(ConfigError) as caught:
        read("external_agent: {backends: {codex: {api_key: [sk-very-secret], base_url: 'https://u:sk-very-secret@h'}}}")
    assert "sk-very-secret" not in str(caught.value) + repr(caught.value.details)


def test_a_missing_key_of_one_backend_is_a_warning() -> None:
    loaded = read(BLOCK)
    assert loaded.config.external_agent.backends["claude-code"].api_key is None
    assert [w for w in loaded.warnings if "ANTHROPIC_API_KEY is not set" in w and "podmentor.yaml:13" in w]


def test_a_repo_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    loaded = read(f"repos: {{here: {tmp_path}, gone: {tmp_path}/gone}}")
    assert len(loaded.warnings) == 1
    assert "repos.gone" in loaded.warnings[0]
    assert loaded.config.repos["here"] == tmp_path


def test_a_tilde_is_the_home() -> None:
    assert read("repos: {h: ~/src}").config.repos["h"] == Path.home() / "src"


def test_a_backend_spelt_like_a_known_one_is_a_warning() -> None:
    warnings = read("external_agent: {backends: {claude_code: {}}}").warnings
    assert any("did you mean claude-code?" in warning for warning in warnings)
    assert not read("external_agent: {backends: {my-own: {}}}").warnings


def test_a_key_over_plain_http_is_a_warning_except_on_this_machine() -> None:
    text = "external_agent: {{backends: {{codex: {{api_key: k, base_url: '{}'}}}}}}"
    assert not read(text.format("http://127.0.0.1:1")).warnings
    assert "unencrypted" in read(text.format("http://api.example.com")).warnings[0]


def test_without_a_file_claude_code_works_with_the_usual_variable(tmp_path: Path) -> None:
    loaded = load(None, env={"ANTHROPIC_API_KEY": "sk-1"}, cwd=tmp_path)
    key = loaded.config.external_agent.backends["claude-code"].api_key
    assert loaded.source is None
    assert key is not None
    assert key.get_secret_value() == "sk-1"
    assert load(None, env={}, cwd=tmp_path).config.external_agent.backends["claude-code"].api_key is None


def test_a_file_that_says_nothing_of_backends_keeps_the_default_one() -> None:
    loaded = read("external_agent: {default_sandbox_tier: 1}", ANTHROPIC_API_KEY="sk-1")
    assert loaded.config.external_agent.default_sandbox_tier == 1
    assert loaded.config.external_agent.backends["claude-code"].api_key is not None
    assert read("").config.external_agent.backends
    assert not read("external_agent: {backends: {}}").config.external_agent.backends


def test_without_a_file_each_backend_with_a_key_is_enabled() -> None:
    assert set(read("").config.external_agent.backends) == {"claude-code"}
    loaded = read("", OPENAI_API_KEY="sk-1", GEMINI_API_KEY="sk-2", OPENCODE_API_KEY="")
    keys = {name: backend.api_key for name, backend in loaded.config.external_agent.backends.items()}
    assert {name: key and key.get_secret_value() for name, key in keys.items()} == {
        "claude-code": None,
        "codex": "sk-1",
        "gemini": "sk-2",
    }


def test_where_the_file_is_looked_for(tmp_path: Path) -> None:
    def write(path: Path, port: int) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"server: {{port: {port}}}\n")
        return path

    def port(path: Path | None, **env: str) -> int:
        return load(path, env=env, cwd=tmp_path / "cwd").config.server.port

    (tmp_path / "cwd").mkdir()
    assert port(None, HOME=str(tmp_path)) == 8765
    write(tmp_path / ".config/podmentor/podmentor.yaml", 1)
    write(tmp_path / "xdg/podmentor/podmentor.yaml", 2)
    assert port(None, HOME=str(tmp_path)) == 1
    assert port(None, HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path / "xdg")) == 2
    write(tmp_path / "cwd/podmentor.yaml", 3)
    assert port(None, XDG_CONFIG_HOME=str(tmp_path / "xdg")) == 3
    named = write(tmp_path / "named.yaml", 4)
    assert port(None, PODMENTOR_CONFIG=str(named)) == 4
    explicit = write(tmp_path / "explicit.yaml", 5)
    assert port(explicit, PODMENTOR_CONFIG=str(named)) == 5


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "nope.yaml", env={}, cwd=tmp_path)
    with pytest.raises(ConfigError, match=r"\$PODMENTOR_CONFIG"):
        load(None, env={"PODMENTOR_CONFIG": str(tmp_path / "nope.yaml")}, cwd=tmp_path)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_bytes(b"a: \xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load(tmp_path / "f.yaml", env={}, cwd=tmp_path)


def test_a_key_in_a_readable_file_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("external_agent:\n  backends:\n    codex:\n      api_key: sk-literal\n")
    path.chmod(0o644)
    assert "chmod 600" in load(path, env={}, cwd=tmp_path).warnings[0]
    path.chmod(0o600)
    assert not load(path, env={}, cwd=tmp_path).warnings


def test_what_may_be_shown_has_no_secret() -> None:
    config = read(BLOCK.replace('"1"', '"sk-env"'), ANTHROPIC_API_KEY="sk-1").config
    shown = public(config)
    assert shown["external_agent"]["backends"]["claude-code"]["api_key"] == "***"
    assert "sk-" not in repr(shown)
    assert "sk-" not in repr(config.external_agent.backends["claude-code"].api_key)
