"""Export: what other programs read of a run is what the run itself computes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from running import small_text
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from minigpt.hub.tokenizer_json import merged, merges_of, tokenizer_files
from minigpt.system.errors import UserError
from minigpt.text.tokenizer import Byte, Char, Tokenizer

# ---- tokenizers ----

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
def made(kind: str) -> Tokenizer:
    """A tokenizer of a kind, made from a small text where it learns."""
    schema = Tokenizer.kinds[kind].Config
    options = schema(vocab_size=300) if kind == "bpe" else schema()  # type: ignore[call-arg]
    try:
        tokenizer: Tokenizer = Tokenizer.kinds[kind].fit(options, [small_text(), *NASTY])
    except UserError:
        if kind in ("char", "byte", "bpe", "gpt2"):
            raise
        pytest.skip(f"the encoding {kind} is not in tiktoken's cache")
    return tokenizer


def read_by_transformers(tokenizer: Tokenizer, folder: Path) -> PreTrainedTokenizerBase:
    for name, text in tokenizer_files(tokenizer, 10**9).items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}), encoding="utf-8")
    found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    return found


def check_equal(tokenizer: Tokenizer, theirs: PreTrainedTokenizerBase, text: str) -> None:
    """Both read a text as the same ids and write it again; what one refuses the other refuses."""
    try:
        ids = tokenizer.encode(text).tolist()
    except UserError:
        with pytest.raises(Exception, match=r"UNK|surrogates"):
            theirs(text)
        return
    assert theirs(text)["input_ids"] == ids
    assert theirs.decode(ids) == tokenizer.decode(ids) == text


@pytest.mark.parametrize("kind", ["char", "byte", "bpe", "gpt2", "cl100k_base", "o200k_base"])
def test_transformers_reads_a_text_as_the_same_ids(kind: str, tmp_path: Path) -> None:
    tokenizer = made(kind)
    theirs = read_by_transformers(tokenizer, tmp_path)
    pieces = st.sampled_from([*NASTY, *small_text(3).split(" ")])

    @given(st.text() | st.lists(pieces | st.text(max_size=3)).map("".join))
    @settings(max_examples=100, deadline=None)
    @example("".join(NASTY))
    @example(small_text(5))
    def same_ids(text: str) -> None:
        check_equal(tokenizer, theirs, text)

    same_ids()


def test_a_character_that_is_not_known_is_an_error_there_too(tmp_path: Path) -> None:
    theirs = read_by_transformers(Char("ab"), tmp_path)
    assert theirs("abba")["input_ids"] == [0, 1, 1, 0]
    with pytest.raises(Exception, match="UNK"):
        theirs("abc")


def test_half_a_character_is_written_alike(tmp_path: Path) -> None:
    theirs = read_by_transformers(Byte(), tmp_path)
    for broken in (b"\xe2\x82", b"\xff\xfe", b"a\xf0\x9f\x98b", b"\xe2\x28\xa1", b"\xed\xa0\x80"):
        assert theirs.decode(list(broken)) == Byte().decode(broken)


def test_the_end_of_a_text_has_its_name(tmp_path: Path) -> None:
    theirs = read_by_transformers(made("gpt2"), tmp_path)
    assert theirs.eos_token_id == made("gpt2").end_of_text == 50256
    assert 50256 not in theirs("<|endoftext|>")["input_ids"]  # in a text it is text
    assert theirs("<|endoftext|>", split_special_tokens=False)["input_ids"] == [50256]


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
