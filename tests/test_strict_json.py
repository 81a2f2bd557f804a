"""Strict JSON: what is read from an untrusted file, and the form that it must have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from minigpt.system.strict_json import has_form, parse_json


@pytest.mark.parametrize("text", ["1", '"a"', "[1, -2.5e3, true, null]", '{"a": {"b": []}}', str(2**63 - 1)])
def test_plain_values_are_read(text: str) -> None:
    assert json.dumps(parse_json(text)) == text.replace("-2.5e3", "-2500.0")
    assert parse_json(text.encode()) == parse_json(text)


WRONG = ["NaN", "[Infinity]", "-Infinity", "1e999", str(2**63), "-9" * 30, "9" * 5000, "[" * 100_000, '{"a":' * 100_000]


@pytest.mark.parametrize("text", [*WRONG, "", "{", "1 2", "'a'", b"\xff\xfe\xfd", b"\0" * 100])
def test_anything_else_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_a_key_is_there_once() -> None:
    with pytest.raises(ValueError, match="'b' is there twice"):
        parse_json('[{"a": 1, "b": 2, "b": 2}]')


def test_a_huge_whole_number_is_a_float_where_that_is_asked_for() -> None:
    values = parse_json('{"a": 1000000000000000019884624838656, "b": 7}', huge=True)
    assert values == {"a": 1e30, "b": 7} and [type(value) for value in values.values()] == [float, int]
    with pytest.raises(ValueError):
        parse_json("9" * 5000, huge=True)


FORMS: list[tuple[Any, list[Any], list[Any]]] = [
    (int, [0, -5], [True, 1.0, "1", None]),
    (float, [0, 1.5, 1e18], [True, 1e19, "1", None]),
    (float | None, [1, None], [[], "1"]),
    ([int], [[], [1, 2]], [{}, [1.5], 1]),
    ((int, str), [[1, "a"]], [[1], [1, "a", "b"], ["a", 1]]),
    ({"a": int}, [{"a": 1}, {"a": 1, "b": []}], [{}, {"a": "1"}, [], None]),
    ({str: [int]}, [{}, {"a": [1]}], [{"a": 1}, [1]]),
]


@pytest.mark.parametrize(("form", "right", "wrong"), FORMS, ids=str)
def test_forms(form: Any, right: list[Any], wrong: list[Any]) -> None:
    assert all(has_form(value, form) for value in right)
    assert not any(has_form(value, form) for value in wrong)
