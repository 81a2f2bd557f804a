"""Tokenizers that are exported: transformers reads a text as the same ids."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from running import small_text
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from minigpt.hub.tokenizer_json import merged, merges_of, read_tokenizer, tokenizer_files, vocabulary_of
from minigpt.system.errors import UserError
from minigpt.text.ranked import Ranked
from minigpt.text.tokenizer import Byte, Char, Tokenizer

NASTY = [
    "",
    " ",
    "\n\n  a\t\r\n",
    "a\x00b\x04",
    "<|endoftext|>",
    "x<|endoftext|> <|fim_prefix|>y",
    "don't DON'T 'll\u017f",
    "1234567 12,345.678",
    "\u00e9e\u0301 \u1e9b\u0323",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "\u0663\u0664\u0665 \u4e2d\u6587\u3002 \u0e01\u0e33",
    "\ufeff\u2028\x85\xa0\u3000",
    "a  b   c \n \n d",
]


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    """A tokenizer of a kind, made from a small text where it learns."""
    schema = Tokenizer.kinds[kind].Config
    options = schema(vocab_size=300) if kind == "bpe" else schema()  # type: ignore[call-arg]
    try:
        tokenizer: Tokenizer = Tokenizer.kinds[kind].fit(options, [small_text(), *NASTY])
    except UserError:
        if kind in ("char", "byte", "bpe"):
            raise
        pytest.skip(f"the encoding {kind} is not in tiktoken's cache")
    return tokenizer


def read_by_transformers(tokenizer: Tokenizer, folder: Path) -> PreTrainedTokenizerBase:
    for name, text in tokenizer_files(tokenizer, 10**9).items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}), encoding="utf-8")
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    return tokenizer


def check_equal(tokenizer: Tokenizer, reference: PreTrainedTokenizerBase, text: str) -> None:
    """Both read a text as the same ids and write it again; what one refuses the other refuses."""
    try:
        ids = tokenizer.encode(text).tolist()
    except UserError:
        with pytest.raises(Exception, match=r"UNK|surrogates"):
            reference(text)
        return
    assert reference(text)["input_ids"] == ids
    assert reference.decode(ids) == tokenizer.decode(ids) == text


@pytest.mark.parametrize("kind", ["char", "byte", "bpe", "gpt2", "cl100k_base", "o200k_base"])
def test_transformers_reads_a_text_as_the_same_ids(kind: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(kind)
    reference = read_by_transformers(tokenizer, tmp_path)
    pieces = st.sampled_from([*NASTY, *small_text(3).split(" ")])

    @given(st.text() | st.lists(pieces | st.text(max_size=3)).map("".join))
    @settings(max_examples=40, deadline=None)
    @example("".join(NASTY))
    @example(small_text(5))
    def same_ids(text: str) -> None:
        check_equal(tokenizer, reference, text)

    same_ids()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bpe", "gpt2", "cl100k_base", "o200k_base"])
def test_every_character_of_unicode_is_read_alike(kind: str, tmp_path: Path, whole: bool) -> None:
    """In six surroundings: whether it is a letter, a digit or a space decides where a text is split.

    No other plane has characters.
    """
    tokenizer = tokenizer_of(kind)
    reference = read_by_transformers(tokenizer, tmp_path)
    far = 64 if whole else 256  # beyond the alphabets, one block of four: what comes there comes in long rows
    for first in [*range(0, 0x3400, 64), *range(0x3400, 0x40000, far), *range(0xE0000, 0xE1000, 64)]:
        block = [chr(code) for code in range(first, first + 64) if not 0xD800 <= code < 0xE000]
        for around in ("a{}b", "{}{} {}", "1{}2", "'{} ", "\n{}\n", "'S{}"):
            text = "\x00 |".join(around.replace("{}", character) for character in block)
            assert reference(text)["input_ids"] == tokenizer.encode(text).tolist(), (first, around)


def test_a_character_that_is_not_known_is_an_error_there_too(tmp_path: Path) -> None:
    reference = read_by_transformers(Char("ab"), tmp_path)
    assert reference("abba")["input_ids"] == [0, 1, 1, 0]
    with pytest.raises(Exception, match="UNK"):
        reference("abc")


def test_half_a_character_is_written_alike(tmp_path: Path) -> None:
    reference = read_by_transformers(Byte(), tmp_path)
    for broken in (b"\xe2\x82", b"\xff\xfe", b"a\xf0\x9f\x98b", b"\xe2\x28\xa1", b"\xed\xa0\x80"):
        assert reference.decode(list(broken)) == Byte().decode(broken)


@pytest.mark.parametrize("kind", ["gpt2", "cl100k_base"])
def test_special_tokens_keep_their_ids(kind: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(kind)
    reference = read_by_transformers(tokenizer, tmp_path)
    assert reference.eos_token_id == tokenizer.end_of_text
    for name, id in tokenizer.special_tokens.items():
        assert id not in reference(name)["input_ids"]  # in a text it is text
        assert reference(name, split_special_tokens=False)["input_ids"] == [id]
        assert reference.decode([id]) == name


@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_a_mark_is_a_special_token_there(kind: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(kind).with_marks("end_of_text")
    reference = read_by_transformers(tokenizer, tmp_path)
    assert reference.eos_token_id == tokenizer.end_of_text == tokenizer.vocab_size - 1 == len(reference) - 1
    check_equal(tokenizer, reference, "x<|end_of_text|>y")
    assert reference.decode([tokenizer.end_of_text], skip_special_tokens=True) == ""


def published(**changes: Any) -> Ranked:
    """A vocabulary as a GGUF file has it: learned from a small text, with special tokens, and ids in another order."""
    pieces, merges, _, _ = vocabulary_of(tokenizer_of("bpe"))  # type: ignore[arg-type]
    tokens = ["<s>", "</s>", *reversed(pieces), "  \n", "<pad>"]
    whole, last = [len(tokens) - 2], len(tokens) - 1
    template = "{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}"
    values = {"split": "smollm", "special": [0, 1, last], "whole": whole, "begin_of_text": 0, "ends": [1]} | changes
    return Ranked(tokens, merges, chat_template=template, **values)


def test_a_vocabulary_of_a_gguf_file_is_read_as_the_same_ids(tmp_path: Path) -> None:
    tokenizer = published()
    reference = read_by_transformers(tokenizer, tmp_path)

    @given(st.text() | st.lists(st.sampled_from([*NASTY, "</s>", "  \n", "the "])).map("".join))
    @settings(max_examples=40, deadline=None)
    def same_ids(text: str) -> None:
        ids = tokenizer.encode(text).tolist()
        assert reference(text, split_special_tokens=True)["input_ids"] == [0, *ids]
        assert reference(text)["input_ids"] == [0, *tokenizer.encode_marked(text).tolist()]  # as chats need it
        assert reference.decode(ids) == text

    same_ids()
    assert (reference.bos_token, reference.eos_token_id) == ("<s>", 1)
    chat = reference.apply_chat_template([{"role": "user", "content": "the cat"}], tokenize=False)
    assert chat == "<s>the cat</s>"
    again = read_tokenizer(tmp_path, {"eos_token_id": 1}, tokenizer.vocab_size)
    assert again.encode_marked("<s>the cat  \n12").tolist() == tokenizer.encode_marked("<s>the cat  \n12").tolist()
    assert (again.begin_of_text, again.ends) == (0, [1])
    assert again.chat_template == tokenizer.chat_template  # type: ignore[attr-defined]
    steps, same = (json.loads(tokenizer_files(one, 8)["tokenizer.json"]) for one in (again, tokenizer))
    assert steps == same


def test_merges_follow_from_ranks() -> None:
    ranks = {b"a": 0, b"b": 1, b"c": 2, b"ab": 3, b"bc": 4, b"abc": 5, b"ca": 6, b"bcab": 7, b"cc": 9}
    assert merged(b"abc", ranks, 5) == [b"ab", b"c"]  # not a, bc: ab has the lower rank
    assert merges_of(ranks) == [(b"a", b"b"), (b"b", b"c"), (b"ab", b"c"), (b"c", b"a"), (b"bc", b"ab"), (b"c", b"c")]
    assert merges_of({b"a": 0, b"aaa": 1}) == []  # three parts are left: it is found as a whole word only


def test_a_tokenizer_of_a_plugin_has_no_counterpart() -> None:
    tokenizer = type("Own", (Tokenizer,), {"kind": "own"})()
    tokenizer.__class__.kind = "own"
    with pytest.raises(UserError, match=r"own has no counterpart in tokenizer\.json"):
        tokenizer_files(tokenizer, 8)
