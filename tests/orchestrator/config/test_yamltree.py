import pytest

from orchestrator.config.yamltree import dotted, parse
from orchestrator.errors import ConfigError


def test_data_and_lines() -> None:
    doc = parse("a:\n  b: 1\n  c:\n    - x\n    - y: z\n", name="f")
    assert doc.data == {"a": {"b": 1, "c": ["x", {"y": "z"}]}}
    assert doc.line_of(("a", "b")) == 2
    assert doc.line_of(("a", "c", 1, "y")) == 5
    assert doc.where(("a", "b", "unknown")) == "f:2: a.b.unknown"


def test_dotted() -> None:
    assert dotted(("plugins", 0, "args")) == "plugins[0].args"


def test_a_key_given_twice_is_refused_with_both_lines() -> None:
    with pytest.raises(ConfigError, match=r"f:4: a\.b: given twice \(first in line 2\)"):
        parse("a:\n  b: 1\n  c: 2\n  b: 3\n", name="f")


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.system ['true']",
        "a: !!python/object/new:os.system ['true']",
        "a: !!python/name:os.system",
        "!!python/object/apply:os.system ['true']",
        "a: !!set {x}",
        "a: !mine 3",
    ],
)
def test_tags_that_could_run_code_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="f:1"):
        parse(text, name="f")


def test_merge_keys_work_and_the_nearer_value_wins() -> None:
    doc = parse("base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\nagain:\n  <<: *b\n", name="f")
    assert doc.data["use"] == {"x": 1, "y": 3}
    assert doc.data["again"] == {"x": 1, "y": 2}


def test_a_mapping_with_a_merge_may_be_used_twice() -> None:
    doc = parse("a: &a {x: 1}\nb: &b {<<: *a, x: 2}\nc: *b\nd: *b\n", name="f")
    assert doc.data["c"] == doc.data["d"] == {"x": 2}


def test_alias_bombs_and_loops_are_refused() -> None:
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
    bomb += "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
    with pytest.raises(ConfigError, match="beyond all reason"):
        parse(bomb, name="f")
    with pytest.raises(ConfigError, match="beyond all reason"):
        parse("a: &a [*a]", name="f")
    with pytest.raises(ConfigError, match="beyond all reason"):
        parse("[" * 3000, name="f")


def test_a_file_that_is_too_large_is_refused() -> None:
    with pytest.raises(ConfigError, match="larger than"):
        parse("a: " + "x" * 1024**2, name="f")


@pytest.mark.parametrize("text", ["1: a", "true: a", "? [a]\n: b", "null: a"])
def test_keys_are_text(text: str) -> None:
    with pytest.raises(ConfigError, match="keys are text"):
        parse(text, name="f")


def test_syntax_errors_have_a_line_and_a_placeholder_hint() -> None:
    with pytest.raises(ConfigError, match=r"f:2: not YAML"):
        parse("a: 1\nb: ]\n", name="f")
    with pytest.raises(ConfigError, match="needs quotes"):
        parse("a: {k: ${env:X}}\n", name="f")
    with pytest.raises(ConfigError, match="not YAML"):
        parse("a: \x00", name="f")


def test_two_documents_are_refused() -> None:
    with pytest.raises(ConfigError, match="not YAML"):
        parse("a: 1\n---\nb: 2\n", name="f")


def test_a_number_that_is_none_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="f:1: a: not a plain value"):
        parse("a: !!int x", name="f")
