"""Strict YAML: what a word means, and which texts are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_configs import Outer, Reader, reader, the_mistake

from minigpt.config.options import build, load
from minigpt.config.strict_yaml import MAX_BYTES, MAX_DEPTH, parse_yaml, scalar
from minigpt.system.errors import ConfigError, Mistake

read = pytest.fixture(reader)


# ---- what a word means ----


@pytest.mark.parametrize(
    ("word", "value"),
    [
        *(("3e-4", 3e-4), ("3E4", 3e4), ("017", 17), ("1_000", 1000), ("-5", -5), ("+5", 5), (".5", 0.5), ("5.", 5.0)),
        *(("1.5e+3", 1500.0), ("true", True), ("False", False), ("null", None), ("~", None), ("", None)),
    ],
)
def test_numbers_are_numbers(word: str, value: object) -> None:
    assert scalar(word) == value
    assert type(scalar(word)) is type(value)


@pytest.mark.parametrize(
    "word",
    ["on", "off", "yes", "no", "TRUE", "0x10", "0o17", "1:30", "2024-01-01", ".inf", ".nan", "e5", "1e", "-", "1_"],
)
def test_other_words_are_words(word: str) -> None:
    assert scalar(word) == word


@given(st.text(alphabet="0123456789_eE.+-", max_size=12))
def test_whatever_looks_like_a_number_is_one_or_a_word(word: str) -> None:
    assert isinstance(scalar(word), (int, float, str)) or word == ""


def test_a_quoted_number_is_text(read: Reader) -> None:
    assert read("inner: {name: '3'}").inner.name == "3"
    assert the_mistake(read, "inner: {rate: '3'}") == "c.yaml:1:15: inner.rate: expected a number above 0, found '3'"


def test_an_empty_group_is_all_defaults(read: Reader) -> None:
    assert read("{}") == Outer()


@pytest.mark.parametrize("text", ["", "\n", "# nothing but a comment\n", "---\n", "~"])
@pytest.mark.parametrize("overrides", [(), ("inner.steps=3",)], ids=["", "with an override"])
def test_a_file_that_says_nothing_is_refused(tmp_path: Path, text: str, overrides: tuple[str, ...]) -> None:
    """All of it commented out, or cut to nothing: a run of all defaults is not what was meant."""
    (tmp_path / "c.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"c\.yaml: the file is empty or has only comments; write \{\} for all"):
        load(Outer, tmp_path / "c.yaml", overrides)


def test_a_byte_order_mark_is_passed_over(read: Reader) -> None:
    assert read(b"\xef\xbb\xbfinner: {steps: 3}").inner.steps == 3


# ---- files that are none of ours ----


@pytest.mark.parametrize("text", ["inner: &a {}", "inner: *a", "a: &x [*x]"])
def test_anchors_and_aliases_are_refused(read: Reader, text: str) -> None:
    assert "anchors (&) and aliases (*) are not allowed" in the_mistake(read, text)


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.getcwd", "!!str", "!mine"])
def test_tags_are_refused(read: Reader, tag: str) -> None:
    found = the_mistake(read, f"inner: {tag} {{}}")
    assert found.startswith("c.yaml:1:8: tags such as")


def test_depth_is_limited(read: Reader) -> None:
    deep = "a: " + "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1)
    assert "unknown key" in the_mistake(read, deep)
    assert f"nested more than {MAX_DEPTH} deep" in the_mistake(read, "a: " + "[" * 100_000)


def test_size_is_limited(read: Reader) -> None:
    assert read("{}" + " " * (MAX_BYTES - 2)) == Outer()
    assert the_mistake(read, "#" * MAX_BYTES + "\n") == f"c.yaml: larger than {MAX_BYTES:,} bytes: this is not a config"


def test_bytes_that_are_not_utf8_are_named(read: Reader) -> None:
    assert the_mistake(read, b"inner: {name: \xff}") == "c.yaml: not UTF-8: byte 14 is 0xff"


def test_a_second_document_is_refused(read: Reader) -> None:
    assert the_mistake(read, "inner: {}\n---\ninner: {}") == (
        "c.yaml:2:1: a config is one YAML document; a second one begins here"
    )


@pytest.mark.parametrize("text", ["inner: [1", "\tinner: 3", "inner: {a: b: c}", "a: \x00", "'", "inner: }"])
def test_what_is_not_yaml(read: Reader, text: str) -> None:
    assert "not YAML" in the_mistake(read, text)


@pytest.mark.parametrize("key", ["1", "true", "1e3", "[a]", "{a: b}", "null"])
def test_a_key_that_is_no_word(read: Reader, key: str) -> None:
    assert "a key must be a word" in the_mistake(read, f"inner: {{? {key} : 2}}")


def test_a_key_that_stands_twice(read: Reader) -> None:
    found = the_mistake(read, "inner:\n  rate: 1\n  steps: 2\n  rate: 1\n")
    assert found == "c.yaml:4:3: duplicate key 'rate' (first at c.yaml:2:3)"


@given(st.text(alphabet="ab:,-[]{}&*!?#|>'\"% \n\t1e_.0~\\", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing but a ConfigError comes of a text, whatever it is."""
    mistakes: list[Mistake] = []
    try:
        tree = parse_yaml(text, "c.yaml", mistakes)
        if isinstance(tree.value, dict):
            build(Outer, tree)
    except ConfigError as error:
        assert error.mistakes
