"""Configuration: what the options mean, and the place of each mistake."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from small_configs import Outer, Reader, mistakes_of, reader, the_mistake

from minigpt.attention import Attention, AverageSoftmax, GroupedQuery, MultiHead, SingleHead
from minigpt.attention.position import Position, Rotary
from minigpt.config import options as config_module
from minigpt.config.options import (
    Count,
    Fraction,
    Natural,
    NonNegative,
    Options,
    Positive,
    Range,
    Rate,
    from_dict,
    load,
    to_yaml,
)
from minigpt.model import ModelConfig
from minigpt.model.mlp import GeGLU, SwiGLU
from minigpt.model.norm import LayerNorm, RMSNorm
from minigpt.system.errors import ConfigError

read = pytest.fixture(reader)


# ---- mistakes, and where they stand ----


HEADS = "model.attention.n_head: 3 heads do not divide n_embd, 100; set head_dim or change one"
OF_A_HUNDRED = "model:\n  n_embd: 100\n  attention:\n    kind: multi_head\n    n_head: 3\n"
WHOLE = "expected a whole number of at least 1 and at most 1,0"
MISTAKES: list[tuple[tuple[str, ...], str]] = [  # a file and overrides, and the line that tells what is wrong
    (
        ("inner:\n  steps: 3\n  ratte: 1\n",),
        "c.yaml:3:3: inner.ratte: unknown key; did you mean 'rate'? (known: rate, steps, name, choice, flag)",
    ),
    (("zzz: 3",), "c.yaml:1:1: zzz: unknown key (known: model, inner)"),  # it is like no other
    *(
        (
            (f"inner: {text}",),
            f"c.yaml:1:8: inner: expected a group of options, as in inner={{rate: 1.0}}, found {what}",
        )
        for text, what in (("3", "3"), ("word", "'word'"), ("[a]", "a list"))
    ),
    *(((text,), "c.yaml:1:1: a config is a group of options, `key: value`") for text in ("- 1", "word", "3")),
    (("inner: {steps: 2.0}",), f"c.yaml:1:16: inner.steps: {WHOLE}00,000,000, found 2.0"),
    ((OF_A_HUNDRED,), f"c.yaml:5:13: {HEADS}"),
    ((OF_A_HUNDRED.replace("3", "4"), "model.attention.n_head=3"), f"command line: model.attention.n_head=3: {HEADS}"),
    (("model:\n  n_embd: 10\n",), f"c.yaml:2:3: {HEADS.replace('3', '4', 1).replace('100', '10')}"),  # of a default
    (
        ("model: {attention: {kind: grouped_query, n_head: 4, n_kv_head: 3}}",),
        "c.yaml:1:64: model.attention.n_kv_head: 4 query heads cannot share 3 key heads evenly",
    ),
    (
        ("model:\n  attention:\n    - average_softmax\n    - {kind: multi_head, n_head: 0}\n",),
        f"c.yaml:4:34: model.attention[1].n_head: {WHOLE}48,576, found 0",
    ),
    *(
        (given, f"{where}: model.{name}: it is called model.{now} now")
        for name, value, now in (("norm_weights", "false", "norm.weights"), ("mlp_width", "3", "mlp.width"))
        for given, where in (
            ((f"model: {{{name}: {value}}}",), "c.yaml:1:9"),
            (("", f"model.{name}={value}"), f"command line: model.{name}={value}"),
        )
    ),
]


@pytest.mark.parametrize(("given", "told"), MISTAKES)
def test_a_mistake_has_its_place_and_what_would_be_right(read: Reader, given: tuple[str, ...], told: str) -> None:
    assert the_mistake(read, *given) == told


def test_all_the_mistakes_of_a_file_at_once(read: Reader) -> None:
    text = "modle: {}\ninner:\n  rate: 0\n  steps: x\n  steps: 3\nmodel:\n  n_layer: 0\n  position: rotaty\n"
    places = {*(f"c.yaml:{place}" for place in ("1:1", "3:9", "4:10", "5:3", "7:12", "8:13"))}
    places |= {"command line: inner.flag=3", "command line: nonsense"}
    assert {where for where, _ in mistakes_of(read, text, "inner.flag=3", "nonsense")} == places


def test_every_mistake_is_one_line(read: Reader) -> None:
    text = f"inner: {{rate: {'x' * 500}, flag: on}}"
    with pytest.raises(ConfigError) as caught:
        read(text)
    lines = str(caught.value).splitlines()
    assert lines == [f"{where}: {what}" for where, what in caught.value.mistakes]
    assert "found 'xxx" in lines[0]
    assert "(502 characters)" in lines[0]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{flag: on}", "expected true or false, found 'on'"),
        ("{flag: 1}", "expected true or false, found 1"),
        ("{choice: up}", "expected one of left, right, found 'up'"),
        ("{name: 3}", "expected text, or null, found 3"),
        ("{steps: true}", "expected a whole number of at least 1 and at most 1,000,000,000, found true"),
        ("{steps: null}", "expected a whole number of at least 1 and at most 1,000,000,000, found null"),
        ("{rate: .nan}", "expected a number above 0, found '.nan'"),
        ("{rate: 1e999}", "expected a number above 0, found inf"),
        ("{rate: [1]}", "expected a number above 0, found a list"),
        ("{rate: {a: 1}}", "expected a number above 0, found a group of options"),
    ],
)
def test_a_value_of_the_wrong_type(read: Reader, text: str, what: str) -> None:
    assert the_mistake(read, f"inner: {text}").split(": ", 2)[2] == what


@dataclass(frozen=True, kw_only=True)
class Ranges(Options):
    count: Count = 1
    natural: Natural = 0
    positive: Positive = 1.0
    non_negative: NonNegative = 0.0
    fraction: Fraction = 0.5
    rate: Rate = 0.5
    both: Annotated[int, Range(2, 4)] = 3


@pytest.mark.parametrize(
    ("field", "right", "wrong", "expected"),
    [
        ("count", (1, 10**9), (0, -1, 10**9 + 1, 10**30), "a whole number of at least 1 and at most 1,000,000,000"),
        ("natural", (0, 7), (-1, 2**63), "a whole number of at least 0 and at most 1,000,000,000"),
        ("positive", (1e-300, 1e300), (0.0, -1.0), "a number above 0"),
        ("non_negative", (0.0, 5.0), (-1e-9,), "a number of at least 0"),
        ("fraction", (0.0, 1.0), (-0.1, 1.1), "a number of at least 0 and at most 1"),
        ("rate", (0.0, 0.99), (1.0, -0.1), "a number of at least 0 and below 1"),
        ("both", (2, 3, 4), (1, 5), "a whole number of at least 2 and at most 4"),
    ],
)
def test_ranges_in_words(field: str, right: tuple[Any, ...], wrong: tuple[Any, ...], expected: str) -> None:
    for value in right:
        assert getattr(Ranges(**{field: value}), field) == value
    for value in wrong:
        with pytest.raises(ConfigError) as caught:
            Ranges(**{field: value})
        assert str(caught.value) == f"Ranges.{field}: expected {expected}, found {value}"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, True, "1", None])
def test_a_number_is_finite_and_no_boolean(value: Any) -> None:
    with pytest.raises(ConfigError):
        Ranges(non_negative=value)


def test_a_whole_number_will_do_for_a_number(read: Reader) -> None:
    rate = read("inner: {rate: 2}").inner.rate
    assert rate == 2.0
    assert type(rate) is float


# ---- checks across fields ----


def test_a_list_is_checked_in_every_member(read: Reader) -> None:
    text = "model:\n  n_embd: 100\n  attention:\n    - single_head\n    - {kind: multi_head, n_head: 3}\n"
    assert "model.attention.n_head: 3 heads do not divide n_embd, 100" in the_mistake(read, text)


def test_a_notebook_is_told_the_same() -> None:
    with pytest.raises(ConfigError) as caught:
        ModelConfig(n_embd=100, attention=MultiHead.Config(n_head=3))
    assert str(caught.value) == f"ModelConfig.{HEADS.removeprefix('model.')}"
    with pytest.raises(ConfigError) as caught:
        from_dict(ModelConfig, {"n_embd": 100, "attention": {"kind": "multi_head", "n_head": 3}})
    assert caught.value.mistakes[0][0] == "ModelConfig.attention.n_head"


def test_options_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        ModelConfig().n_layer = 3


# ---- kinds ----


def test_a_bare_word_is_short_for_its_kind(read: Reader) -> None:
    short = read("model: {attention: grouped_query, position: rotary}")
    long = read("model: {attention: {kind: grouped_query}, position: {kind: rotary}}")
    assert short == long == Outer(model=ModelConfig(attention=GroupedQuery.Config(), position=Rotary.Config()))


def test_without_a_kind_the_options_are_the_defaults(read: Reader) -> None:
    assert read("model: {attention: {n_head: 2}}").model.attention == MultiHead.Config(n_head=2)


def test_a_kind_may_stand_after_its_options(read: Reader) -> None:
    assert read("model: {attention: {head_dim: 5, kind: single_head}}").model.attention == SingleHead.Config(head_dim=5)


def test_an_unknown_kind_has_a_suggestion(read: Reader) -> None:
    found = the_mistake(read, "model:\n  attention: multi_hed\n")
    assert found.startswith(
        "c.yaml:2:14: model.attention: unknown kind 'multi_hed'; did you mean 'multi_head'? (known: "
    )
    assert all(kind in found for kind in Attention.kinds)


def test_an_option_of_another_kind_is_unknown(read: Reader) -> None:
    found = the_mistake(read, "model: {attention: {kind: dot_product, n_head: 4}}")
    assert found.startswith("c.yaml:1:40: model.attention.n_head: unknown key (known: position, causal, include_self,")


@pytest.mark.parametrize("kind", ["3", "{a: b}", "[a]"])
def test_a_kind_that_is_no_word(read: Reader, kind: str) -> None:
    assert "model.attention: a kind is one word" in the_mistake(read, f"model: {{attention: {{kind: {kind}}}}}")


def test_a_list_of_kinds(read: Reader) -> None:
    config = read("model:\n  attention:\n    - average_softmax\n    - {kind: multi_head, n_head: 2}\n").model
    assert config.attention == (AverageSoftmax.Config(), MultiHead.Config(n_head=2))
    assert [config.layer_attention(layer) for layer in range(4)] == list(config.attention) * 2


@pytest.mark.parametrize("value", ["[]", "3", "null", "true", "[3]"])
def test_what_is_no_kind_and_no_list_of_kinds(read: Reader, value: str) -> None:
    found = the_mistake(read, f"model: {{attention: {value}}}")
    assert "expected one of " in found and "average_loop" in found and "multi_head" in found


def test_a_config_leads_back_to_its_class() -> None:
    for family in (Attention, Position):
        for kind, component in family.kinds.items():
            assert component.Config.component is component
            assert component.kind == kind


def test_a_config_for_an_earlier_version_is_told_what_its_options_are_called_now(tmp_path: Path) -> None:
    earlier = "model: {norm: layernorm, norm_weights: false, mlp: swiglu, mlp_width: null}"
    (tmp_path / "config.yaml").write_text(earlier, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(Outer, tmp_path / "config.yaml")
    assert str(caught.value).splitlines() == [
        f"{tmp_path}/config.yaml:1:26: model.norm_weights: it is called model.norm.weights now",
        f"{tmp_path}/config.yaml:1:60: model.mlp_width: it is called model.mlp.width now",
    ]


def test_norms_and_mlps_are_chosen_by_a_word_or_with_options(read: Reader) -> None:
    assert read("model: {norm: rmsnorm, mlp: swiglu}").model == ModelConfig(norm=RMSNorm.Config(), mlp=SwiGLU.Config())
    config = read("model: {norm: {epsilon: 1e-6}, mlp: {kind: geglu, width: 7}}", "model.mlp.width=9").model
    assert config == ModelConfig(norm=LayerNorm.Config(epsilon=1e-6), mlp=GeGLU.Config(width=9))
    assert "did you mean 'swiglu'" in the_mistake(read, "model: {mlp: swigl}")


# ---- where a config is found ----


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: no such file"):
        load(Outer, tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="a folder, not a plain file"):
        load(Outer, tmp_path)


def test_a_config_is_found_by_its_name_or_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs, here = tmp_path / "configs", tmp_path / "here"
    for folder, steps in ((configs, 1), (here, 2)):
        folder.mkdir()
        (folder / "c.yaml").write_text(f"inner: {{steps: {steps}}}")
    monkeypatch.setattr(config_module, "CONFIGS", configs)
    monkeypatch.chdir(tmp_path)
    assert load(Outer, "c.yaml").inner.steps == 1
    monkeypatch.chdir(here)
    assert load(Outer, "c.yaml").inner.steps == 2
    assert load(Outer, configs / "c.yaml").inner.steps == 1


def test_an_option_that_would_do_nothing_is_unknown() -> None:
    class Mine(MultiHead, kind="without_scale"):
        @dataclass(frozen=True, kw_only=True)
        class Config(MultiHead.Config):
            without = ("scaled", "qk_norm", "qk_norm_epsilon")

    try:
        with pytest.raises(ConfigError, match="unknown key"):
            from_dict(ModelConfig, {"attention": {"kind": "without_scale", "scaled": False}})
        with pytest.raises(ConfigError, match="scaled: this kind has no such option"):
            Mine.Config(scaled=False)
        written = yaml.safe_load(to_yaml(ModelConfig(attention=Mine.Config(n_head=2))))["attention"]
        own = {"kind": "without_scale", "n_head": 2, "causal": True, "head_dim": None, "position": None}
        assert written == own | dict.fromkeys(("score_scale", "qkv_bias", "project_bias"))
        assert MultiHead.Config(scaled=False).scaled is False
    finally:
        del Attention.kinds["without_scale"]
