"""The command line: an argument `group.key=value` overrides the file, and its mistakes name the argument."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_configs import Inner, Reader, mistakes_of, reader, the_mistake

from minigpt.attention.averages.average_softmax import AverageSoftmax
from minigpt.attention.softmax.grouped_query import GroupedQuery
from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.attention.softmax.single_head import SingleHead
from minigpt.config.options import load, override
from minigpt.config.strict_yaml import parse_yaml
from minigpt.runs.assemble import RunConfig
from minigpt.system.errors import ConfigError, Mistake

read = pytest.fixture(reader)


def test_an_argument_overrides_the_file(read: Reader) -> None:
    text = "inner: {rate: 2}\nmodel: {attention: {kind: multi_head, n_head: 2}}"
    config = read(text, "inner.rate=3e-1", "model.attention=average_softmax", "model.n_layer=7")
    assert config.inner.rate == 0.3
    assert config.model.attention == AverageSoftmax.Config()
    assert config.model.n_layer == 7


def test_the_last_argument_wins(read: Reader) -> None:
    assert read("", "inner.steps=3", "inner.steps=5").inner.steps == 5


def test_an_argument_reaches_into_the_short_form(read: Reader) -> None:
    config = read("model: {attention: grouped_query}", "model.attention.n_kv_head=2")
    assert config.model.attention == GroupedQuery.Config(n_kv_head=2)


def test_an_argument_may_be_a_group_or_a_list(read: Reader) -> None:
    config = read("", "model.attention=[single_head, {kind: multi_head, n_head: 2}]", "inner={steps: 4}")
    assert config.model.attention == (SingleHead.Config(), MultiHead.Config(n_head=2))
    assert config.inner == Inner(steps=4)


def test_an_argument_may_be_a_pattern_of_files(read: Reader) -> None:
    """What YAML has plans for, such as a star, means itself."""
    assert read("", "inner.name=*.txt").inner.name == "*.txt"
    assert read("", "inner.name=").inner.name is None
    assert read("", "inner.name=#1").inner.name == "#1"
    assert read("", "inner.name= ").inner.name == " "


def test_nothing_is_the_empty_text_where_null_is_not_allowed(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("sampling: {stop: 'x'}", encoding="utf-8")
    assert load(RunConfig, tmp_path / "c.yaml", ["sampling.stop="]).sampling.stop == ""
    with pytest.raises(ConfigError, match=r"training\.max_steps: expected a whole number .*, found ''"):
        load(RunConfig, tmp_path / "c.yaml", ["training.max_steps="])


@pytest.mark.parametrize("text", [".\n", "a\nb", "a\x85b", "a\u2028", "1\n", "\r"])
def test_line_ends_of_an_argument_are_kept(read: Reader, text: str) -> None:
    """YAML would make a space of them, or drop them."""
    assert read("", f"inner.name={text}").inner.name == text
    assert read("", "model.attention=[single_head,\n multi_head]").model.attention == (
        SingleHead.Config(),
        MultiHead.Config(),
    )


@pytest.mark.parametrize("argument", ["inner.steps", "=3", "inner..steps=3", ".inner=3", "--steps=3", ""])
def test_an_argument_that_is_none(read: Reader, argument: str) -> None:
    found = the_mistake(read, "", argument)
    assert found == f"command line: {argument}: expected group.key=value, as in training.max_steps=50"


def test_a_mistake_on_the_command_line_says_so(read: Reader) -> None:
    assert the_mistake(read, "inner: {steps: 3}", "inner.steps=0") == (
        "command line: inner.steps=0: inner.steps: "
        "expected a whole number of at least 1 and at most 1,000,000,000, found 0"
    )
    found = the_mistake(read, "", "inner.stepps=3")
    assert found.startswith("command line: inner.stepps=3: inner.stepps: unknown key; did you mean 'steps'?")
    found = the_mistake(read, "model: {attention: [single_head]}", "model.attention.n_head=2")
    what = "attention is not a group of options here; set attention as a whole"
    assert found == f"command line: model.attention.n_head=2: {what}"
    assert the_mistake(read, "", "inner.name=[1").startswith("command line: inner.name=[1:1:3: not YAML")


def test_a_long_argument_is_cut_short(read: Reader) -> None:
    (where, _), *_ = mistakes_of(read, "", "inner.steps=" + "x" * 500)
    assert len(where) < 100


@given(st.text(max_size=30))
def test_any_argument_is_read_or_refused(argument: str) -> None:
    mistakes: list[Mistake] = []
    try:
        override(parse_yaml("{}", "c.yaml", []), "inner.name=" + argument, mistakes)
    except ConfigError as error:
        assert error.mistakes
