"""Every wrong type and range of every field of every component, generated from the schema.

`wrong` is an independent implementation: it reads the annotations, and shares no code with `config/options.py`. Right
values of every field are in `../test_written_options.py`.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from running import furnish, script

from minigpt.comparison.variants import CompareConfig
from minigpt.config.options import Options, Range, build, hints
from minigpt.config.strict_yaml import parse_yaml
from minigpt.system.errors import ConfigError, Mistake
from minigpt.training.assemble import RunConfig

Texts = st.SearchStrategy[str]  # of YAML, on one line
Kinds = dict[tuple[str, ...], str]  # where a component stands, and which kind it is


@dataclass(frozen=True)
class Field:
    """One field of the schema: where it stands, what it is annotated with, and the components it is in."""

    path: tuple[str, ...]
    hint: Any
    inside: tuple[tuple[tuple[str, ...], str], ...] = ()  # where each component stands and its kind, the outer first

    def __str__(self) -> str:
        return ".".join(self.path) + "".join(f" of {kind}" for _, kind in reversed(self.inside))

    @property
    def kinds(self) -> Kinds:
        return dict(self.inside)


def members(hint: Any) -> tuple[Any, ...]:
    """What a union is made of."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def is_group(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Options)


def fields(schema: type[Options], within: Field = Field((), None), seen: set[Any] | None = None) -> Iterator[Field]:
    """Every field of a schema, and those of each kind of each component in it.

    A component in a component, such as the position of an attention, is walked in the first that has it there.
    """
    seen = set() if seen is None else seen
    for name, hint in hints(schema).items():
        here = Field((*within.path, name), hint, within.inside)
        yield here
        for group in filter(is_group, members(hint)):
            kinds = group.component.kinds if hasattr(group, "component") else {"": None}
            for kind, component in kinds.items():
                options = component.Config if component else group
                if (here.path, options) not in seen:
                    seen.add((here.path, options))
                    inside = (*within.inside, (here.path, kind)) if component else within.inside
                    yield from fields(options, Field(here.path, hint, inside), seen)


FIELDS = list(fields(RunConfig))
LEAVES = [field for field in FIELDS if not any(map(is_group, members(field.hint)))]

WORDS = st.sampled_from(["abc", "'1'", '"true"', "'null'", "yes", "off", "0x10", "1_", "1e", "--1", ".nan", "-.inf"])
BOOLS, NULL = st.sampled_from(["true", "false"]), st.just("null")
NUMBERS, ODD_LISTS = st.just("[1]"), st.sampled_from(["[]", "[abc]", "[[true]]"])
LISTS, GROUPS = NUMBERS | ODD_LISTS, st.sampled_from(["{a: 1}", "{}", "{kind: abc}"])
WHOLE, REAL = st.integers(-(10**30), 10**30).map(str), st.floats(-1e300, 1e300).map(repr)


def limits_of(hint: Any) -> tuple[Any, Range]:
    """A number's type and range."""
    if get_origin(hint) is Annotated:
        return get_args(hint)[0], get_args(hint)[1]
    return hint, Range()


def outside(base: type, limits: Range) -> list[Texts]:
    """Numbers that are too small or too large."""
    found: list[Texts] = []
    if limits.low > -math.inf:
        below = st.integers(-(10**30), int(limits.low) - 1) if base is int else st.floats(-1e300, limits.low - 1e-9)
        found += [below.map(repr)] + [st.just(repr(limits.low))] * limits.open_low
    if limits.high < math.inf:
        above = st.integers(int(limits.high) + 1, 10**30) if base is int else st.floats(limits.high + 1e-9, 1e300)
        found += [above.map(repr)] + [st.just(repr(limits.high))] * limits.open_high
    return found + ([st.just("1e999")] if base is float else [])


def wrong(hint: Any) -> Texts:
    """Values that a field must refuse."""
    parts = members(hint)
    base, limits = limits_of(parts[0])
    pools = [GROUPS, LISTS, WORDS, BOOLS, WHOLE, REAL, NULL]
    if base is int:
        pools = [GROUPS, LISTS, WORDS, BOOLS, REAL, NULL, *outside(base, limits)]
    elif base is float:
        pools = [GROUPS, LISTS, WORDS, BOOLS, NULL, *outside(base, limits)]
    elif base is bool:
        pools.remove(BOOLS)
    elif get_origin(base) is tuple:
        pools[1] = NUMBERS | st.just("[]") if get_args(base)[0] is str else ODD_LISTS
    elif get_origin(base) is not Literal and is_group(base):
        pools.remove(GROUPS)
    allowed = [WORDS] * (str in parts) + [NULL] * (type(None) in parts)
    return st.one_of([pool for pool in pools if not any(pool is one for one in allowed)])


def write(values: dict[Field, str], kinds: Kinds) -> tuple[str, dict[Field, tuple[int, int]]]:
    """A config that says these values, and the line and column at which each stands."""
    lines: list[str] = []
    places = {}

    def group(path: tuple[str, ...]) -> None:
        indent = "  " * len(path)
        if path in kinds:
            lines.append(f"{indent}kind: {kinds[path]}")
        for field, text in values.items():
            if field.path[:-1] == path:
                start = f"{indent}{field.path[-1]}: "
                lines.append(start + text)
                places[field] = (len(lines), len(start) + 1)
        inside = {
            field.path[: len(path) + 1]
            for field in values
            if field.path[: len(path)] == path and len(field.path) > len(path) + 1
        }
        for deeper in sorted(inside):
            lines.append(f"{indent}{deeper[-1]}:")
            group(deeper)

    group(())
    return "\n".join(lines) + "\n", places


def mistakes(text: str) -> list[tuple[str, str]]:
    """What a config is told: (where, what), the file's name left out."""
    found: list[Mistake] = []
    try:
        build(RunConfig, parse_yaml(text, "c.yaml", found), found)
    except ConfigError as error:
        return [(where.removeprefix("c.yaml:"), what) for where, what in error.mistakes]
    return []


def grouped(every: list[Field]) -> list[list[Field]]:
    """Together what stands in the same components: to begin with a group takes longer than to try a value."""
    groups: dict[Any, list[Field]] = {}
    for field in every:
        groups.setdefault(field.inside, []).append(field)
    return list(groups.values())


def named(group: list[Field]) -> str:
    """The first of its fields."""
    return str(group[0])


def test_the_schema_was_walked_to_its_ends() -> None:
    named = {str(field) for field in FIELDS}
    assert {"model.n_embd", "model.attention.n_head of multi_head", "training.optimizer.beta1 of muon"} <= named
    assert {"model.position.stretch.low of llama3 of rotary", "model.attention.position of strided"} <= named
    assert len(FIELDS) > 60 and len(LEAVES) > 50


@pytest.mark.parametrize("group", grouped(FIELDS), ids=named)
def test_a_wrong_value_is_refused_at_its_place(group: list[Field]) -> None:
    @settings(max_examples=6, suppress_health_check=list(HealthCheck))
    @given(st.tuples(*(wrong(field.hint) for field in group)))
    def refused(drawn: tuple[str, ...]) -> None:
        for field, value in zip(group, drawn, strict=True):
            text, places = write({field: value}, field.kinds)
            found = mistakes(text)
            assert len(found) == 1, (text, found)
            line, column = places[field]
            inside = value[0] in "[{"  # then it may be something in it that is wrong, further to the right
            assert found[0][0] == f"{line}:{column}" or (inside and found[0][0].startswith(f"{line}:")), (text, found)
            assert found[0][1].startswith((".".join(field.path) + ": ", ".".join(field.path) + "[")), (text, found)

    refused()


@pytest.mark.parametrize("schema", [RunConfig, CompareConfig], ids=lambda schema: schema.__name__)
def test_every_whole_number_has_an_upper_limit(schema: type[Options]) -> None:
    """No number of an untrusted config is larger than torch can count."""
    for field in fields(schema):
        for hint in members(field.hint):
            base, limits = limits_of(get_args(hint)[0] if get_origin(hint) is tuple else hint)
            if base is int:
                assert limits.low > -(2**63) and limits.high < 2**63, field


@st.composite
def many_wrong(draw: st.DrawFn) -> tuple[dict[Field, str], Kinds]:
    """Several wrong values in a config of any kinds."""
    kinds: Kinds = {}
    for path in sorted({path for field in LEAVES for path in field.kinds}, key=len):
        there = [f.kinds for f in LEAVES if path in f.kinds and kinds == {**kinds, **outer(f, path)}]
        if there:
            kinds[path] = draw(st.sampled_from(sorted({inside[path] for inside in there})))
    there_too = [field for field in LEAVES if kinds == {**kinds, **field.kinds}]
    chosen = draw(st.lists(st.sampled_from(there_too), min_size=2, max_size=len(there_too), unique=True))
    values = {field: draw(wrong(field.hint)) for field in chosen}
    return values, {path: kind for field in chosen for path, kind in field.kinds.items()}


def outer(field: Field, path: tuple[str, ...]) -> Kinds:
    """The components around one of those that a field is in."""
    return {place: kind for place, kind in field.inside if len(place) < len(path)}


def test_all_mistakes_are_reported_at_once() -> None:
    @settings(max_examples=25, suppress_health_check=list(HealthCheck))
    @given(many_wrong())
    def reported(drawn: tuple[dict[Field, str], Kinds]) -> None:
        text, places = write(*drawn)
        found = mistakes(text)
        assert {int(where.split(":")[0]) for where, _ in found} == {line for line, _ in places.values()}
        said = sorted(what.split(": ")[0] for _, what in found)
        assert said == sorted({*said})  # each once; of a list, each of its items
        assert {re.sub(r"(\[\d+\])+$", "", name) for name in said} == {".".join(field.path) for field in drawn[0]}

    reported()


def test_the_command_prints_them_all_and_ends_with_2(tmp_path: Path) -> None:
    values = {field: "[]" for field in LEAVES if not field.inside}
    text, places = write(values, {})
    ended = script("train.py", "--config", furnish(tmp_path, text) / "small.yaml", cwd=tmp_path)
    assert ended.code == 2 and ended.out == ""
    assert ended.err.count("\n") == len(values) > 30
    for field, (line, column) in places.items():
        assert f"small.yaml:{line}:{column}: {'.'.join(field.path)}: expected " in ended.err
