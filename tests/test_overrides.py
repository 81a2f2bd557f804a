"""The command line: an argument `group.key=value` overrides the file, and its mistakes name the argument."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_configs import Inner, Reader, mistakes_of, reader, the_mistake

from minigpt.attention import Attention, AverageSoftmax, GroupedQuery, MultiHead, SingleHead
from minigpt.config.options import hints, load
from minigpt.config.overrides import override
from minigpt.config.strict_yaml import parse_yaml
from minigpt.system.errors import ConfigError, Mistake
from minigpt.training.assemble import RunConfig

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
    found = the_mistake(read, "inner: {steps: 3}", "inner.steps.more=2")
    what = "steps is not a group of options here; set steps as a whole"
    assert found == f"command line: inner.steps.more=2: {what}"
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


# ---- a kind in place of another ----


class Swap:
    """A config with overrides: the values, and the sentences about what was kept."""

    def __init__(self, folder: Path, text: str, *overrides: str):
        (folder / "c.yaml").write_text(text, encoding="utf-8")
        self.said = list[str]()
        self.config = load(RunConfig, folder / "c.yaml", overrides, self.said.append)

    @property
    def attention(self) -> Any:
        return self.config.model.attention


TINY = "model: {attention: {kind: multi_head, n_head: 2, qk_norm: true}, norm: {kind: layernorm, weights: false}}"
BY_LAYER = "model: {attention: [{kind: sliding_window, n_head: 2, window: 5}, {kind: gated, n_head: 2, qk_norm: true}]}"


def test_a_bare_name_keeps_the_options_that_the_new_kind_has_too(tmp_path: Path) -> None:
    same = Swap(tmp_path, TINY, "model.attention=multi_head")
    assert same.attention == MultiHead.Config(n_head=2, qk_norm=True)
    assert same.said == [
        "model.attention: multi_head keeps n_head: 2, qk_norm: true; "
        "written as {kind: NAME}, a kind has its own defaults"
    ]
    other = Swap(tmp_path, TINY, "model.attention=linear", "model.norm=rmsnorm")
    assert (other.attention.n_head, other.config.model.norm.weights) == (2, False)
    assert "linear keeps n_head: 2, has no qk_norm: true" in other.said[0]
    assert other.said[1].startswith("model.norm: rmsnorm keeps weights: false; ")
    assert Swap(tmp_path, TINY, "model.attention=average_softmax").said == [
        "model.attention: average_softmax has no n_head: 2, qk_norm: true"
    ]


def test_a_kind_that_is_written_out_means_what_it_says(tmp_path: Path) -> None:
    exact = Swap(tmp_path, TINY, "model.attention={kind: grouped_query, n_kv_head: 1}")
    assert exact.attention == GroupedQuery.Config(n_kv_head=1)
    assert exact.said == [
        "model.attention: {kind: grouped_query} leaves out n_head: 2, qk_norm: true; "
        "written as a bare name, a kind keeps them"
    ]
    assert not Swap(tmp_path, TINY, "model.attention={kind: multi_head, n_head: 8, qk_norm: false}").said


def test_options_alone_change_the_kind_that_is_there(tmp_path: Path) -> None:
    only = Swap(tmp_path, "model: {attention: {kind: gated, n_head: 2, qk_norm: true}}", "model.attention={n_head: 8}")
    assert (only.attention.component.kind, only.attention.n_head, only.attention.qk_norm) == ("gated", 8, True)
    named = Swap(tmp_path, TINY, "model.attention.kind=gated", "model.attention.n_head=8")
    assert named.attention == only.attention


def test_the_last_of_several_swaps_keeps_what_was_there_first(tmp_path: Path) -> None:
    there_and_back = Swap(tmp_path, TINY, "model.attention=average_softmax", "model.attention=multi_head")
    assert there_and_back.attention == MultiHead.Config(n_head=2, qk_norm=True)
    exact = Swap(tmp_path, TINY, "model.attention={kind: multi_head, n_head: 8}", "model.attention=gated")
    assert (exact.attention.n_head, exact.attention.qk_norm) == (8, False)


def test_a_list_keeps_options_layer_by_layer(tmp_path: Path) -> None:
    from_one = Swap(tmp_path, TINY, "model.attention=[linear, {kind: multi_head}, multi_head]").attention
    assert [kind.n_head for kind in from_one] == [2, 4, 2]
    assert [getattr(kind, "qk_norm", None) for kind in from_one] == [None, False, True]
    windows = Swap(tmp_path, BY_LAYER, "model.attention=sliding_window")
    assert [(kind.window, kind.qk_norm) for kind in windows.attention] == [(5, False), (5, True)]
    longer = Swap(tmp_path, BY_LAYER, "model.attention=[linear, linear, multi_head]")
    assert [kind.n_head for kind in longer.attention] == [2] * len(longer.attention)
    assert longer.said[0].count("model.attention: ") == len(longer.said) == 1
    one = Swap(tmp_path, BY_LAYER.replace("qk_norm: true", "qk_norm: false"), "model.attention=multi_head")
    assert one.attention == MultiHead.Config(n_head=2)  # all layers are equal: no list is left


def test_an_option_for_a_list_is_set_in_the_kinds_that_have_it(tmp_path: Path) -> None:
    changed = Swap(tmp_path, BY_LAYER, "model.attention.window=7", "model.attention.n_head=8").attention
    assert [kind.n_head for kind in changed] == [8, 8]
    assert changed[0].window == 7
    with pytest.raises(ConfigError, match=r"model\.attention\.windw: unknown key; did you mean 'window'"):
        Swap(tmp_path, BY_LAYER, "model.attention.windw=7")
    with pytest.raises(ConfigError, match="position: kind is missing"):
        Swap(tmp_path, BY_LAYER, "model.attention.position.base=7")


def test_a_name_with_another_meaning_is_not_kept(tmp_path: Path) -> None:
    keys = Swap(tmp_path, "model: {attention: {kind: top_k, k: 7}}", "model.attention=block_top_k")
    assert keys.attention == Attention.kinds["block_top_k"].Config()
    assert keys.said == ["model.attention: block_top_k means something else by k: 7"]
    muon = "training: {optimizer: {kind: muon, learning_rate: 0.05, beta1: 0.8, weight_decay: 0}}"
    adamw = Swap(tmp_path, muon, "training.optimizer=adamw")
    assert (adamw.config.training.optimizer.learning_rate, adamw.config.training.optimizer.beta1) == (0.001, 0.8)


def test_the_default_of_a_config_is_no_option_of_it(tmp_path: Path) -> None:
    assert Swap(tmp_path, "model: {n_layer: 2}", "model.attention=delta_product").said == []


def test_every_kind_keeps_what_it_shares_with_every_other(tmp_path: Path) -> None:
    """What is kept is told, equals what is written out, and is never an option that the new kind lacks."""
    for old in ("grouped_query", "streaming", "delta_net"):
        text = f"model: {{attention: {{kind: {old}, n_head: 2, head_dim: 6}}}}"
        for kind, component in Attention.kinds.items():
            swap = Swap(tmp_path, text, f"model.attention={kind}")
            set_here = {"n_head": 2, "head_dim": 6}
            known = hints(component.Config).keys() - component.Config.meaning
            shared = {name: value for name, value in set_here.items() if name in known}
            assert swap.attention == component.Config(**shared), (old, kind)
            assert all(f"{name}: {value}" in swap.said[0] for name, value in set_here.items()), (old, kind)
