"""What is written of options is read back equal: of every kind, with any right values, in any text."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from small_configs import Inner

import minigpt
from minigpt.attention import MultiHead
from minigpt.attention.position import Sinusoidal
from minigpt.config.options import Component, Fraction, Options, build, hints, in_todays_form, to_yaml
from minigpt.config.strict_yaml import parse_yaml
from minigpt.model import ModelConfig
from minigpt.system.errors import ConfigError, Mistake
from minigpt.text.dataset import DataConfig
from minigpt.text.source import Source
from minigpt.training.callbacks import Callback
from minigpt.training.loop import TrainingConfig


@cache
def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Any right value of an annotation."""
    if get_origin(hint) is Annotated:
        base, limit = get_args(hint)
        if base is int:
            low = None if limit.low == -math.inf else int(limit.low)
            high = None if limit.high == math.inf else int(limit.high)
            return st.integers(low, high).filter(limit.__contains__)
        low, high = (None if math.isinf(edge) else edge for edge in (limit.low, limit.high))
        numbers = st.floats(low, high, allow_nan=False, allow_infinity=False)
        return numbers.filter(limit.__contains__)
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_origin(hint) is tuple:
        return st.lists(values_of(get_args(hint)[0]), min_size=1, max_size=3).map(tuple)
    if len(members := get_args(hint)) > 1:
        return st.one_of([values_of(member) for member in members])
    if isinstance(hint, type) and issubclass(hint, Component.Config) and hint.component.kinds:
        return st.one_of([configs_of(member.Config) for member in hint.component.kinds.values()])
    if isinstance(hint, type) and issubclass(hint, Options):
        return configs_of(hint)
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    plain: dict[Any, st.SearchStrategy[Any]] = {bool: st.booleans(), str: text, type(None): st.none()}
    plain |= {int: st.integers(-(10**9), 10**9), float: st.floats(allow_nan=False, allow_infinity=False)}
    return plain[hint]


@st.composite
def configs_of(draw: st.DrawFn, schema: type[Options]) -> Options:
    """Any right options of a dataclass, each field at its default half of the time; what fits no others is redrawn."""
    known = hints(schema)
    drawn = [name for name in known if draw(st.booleans())]
    values = dict[str, Any]()
    for _ in range(10):
        values |= {name: draw(values_of(known[name])) for name in drawn}
        try:
            return schema(**values)
        except ConfigError as error:
            places = {where.removeprefix(f"{schema.__qualname__}.").split(".")[0] for where, _ in error.mistakes}
            drawn = [name for name in known if name in places]
    assume(False)
    raise AssertionError


def read_back(schema: type[Options], text: str) -> Options:
    mistakes: list[Mistake] = []
    tree = parse_yaml(text, "c.yaml", mistakes)
    assert not mistakes
    return build(schema, in_todays_form(tree, "c.yaml"))


for module in iter_modules(minigpt.__path__):  # whatever family a module opens, it is known from here on
    import_module(f"minigpt.{module.name}")
FAMILIES = [family for family in Component.__subclasses__() if family.__module__.startswith("minigpt.")]
REGISTERED = [component.Config for family in FAMILIES for component in family.kinds.values()]


@pytest.mark.parametrize("schema", REGISTERED, ids=lambda schema: f"{schema.__module__}.{schema.component.kind}")
def test_options_of_every_kind_are_read_back_equal(schema: type[Component.Config]) -> None:
    @settings(max_examples=5, suppress_health_check=list(HealthCheck))  # of each of a hundred kinds
    @given(configs_of(schema))
    def read_back_equal(config: Options) -> None:
        assert read_back(schema, to_yaml(config)) == config

    read_back_equal()


@settings(max_examples=50)
@given(configs_of(ModelConfig))
def test_a_model_config_is_read_back_equal(config: ModelConfig) -> None:
    assert read_back(ModelConfig, to_yaml(config)) == config


@dataclass(frozen=True, kw_only=True)
class Groups(Options):
    """As in a run's config: at the top of a file, `format` is another number."""

    training: TrainingConfig = TrainingConfig()
    data: DataConfig = DataConfig()


@pytest.mark.parametrize("group", ["training", "data"])
def test_training_and_data_are_read_back_equal(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a callback and a source of one's own, of which none ship."""
    for family in (Callback, Source):
        monkeypatch.setattr(family, "kinds", {})

        @dataclass(frozen=True, kw_only=True)
        class Config(family.Config):  # type: ignore[misc,name-defined]
            share: Fraction = 0.5
            word: str = ""

        type("Mine", (family,), {"Config": Config, "__module__": __name__}, kind="mine")

    @settings(max_examples=50)
    @given(configs_of(hints(Groups)[group]))
    def read_back_equal(config: Options) -> None:
        groups = Groups(**{group: config})
        assert read_back(Groups, to_yaml(groups)) == groups

    read_back_equal()


@given(configs_of(Inner))
def test_any_text_is_read_back_equal(config: Inner) -> None:
    assert read_back(Inner, to_yaml(config)) == config


@pytest.mark.parametrize(
    "text",
    ["3", "1e3", "017", "true", "null", "~", "", "on", "1:30", "a: b", "*x", "é", "\ud7ff", "#", "\x85", "a\u2028b"],
)
def test_text_that_looks_like_something_else_stays_text(text: str) -> None:
    assert read_back(Inner, to_yaml(Inner(name=text))) == Inner(name=text)


@given(
    st.text(st.sampled_from("\x85\u2028\u2029\n\r\t\x0b\x0c\x1b\x7f\xa0\ufeff\u202e\ufffe\ud800 a'\":#-"), max_size=6),
    st.integers(0, 90),
)
def test_line_ends_and_controls_of_any_kind_are_read_back_equal(text: str, width: int) -> None:
    """Folding a long line, at column 100, changes nothing either."""
    name = "word " * (width // 5) + text
    assert read_back(Inner, to_yaml(Inner(name=name))) == Inner(name=name)


def test_what_is_written_is_complete() -> None:
    """Defaults included, kinds by name, groups in order: a run folder says all of it."""
    written = yaml.safe_load(to_yaml(ModelConfig(position=Sinusoidal.Config())))
    assert list(written) == ["format", "minigpt", *(field.name for field in fields(ModelConfig))]
    assert written["position"] == {"kind": "sinusoidal"}
    assert list(written["attention"]) == ["kind", *(field.name for field in fields(MultiHead.Config))]
