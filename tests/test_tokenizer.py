"""Tokenizers: decoding gives the encoded text, and an untrusted file or prompt does no harm."""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
import string
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from running import forked
from small_corpora import ROOT, shakespeare_file
from tiktoken_ext import openai_public

from minigpt.config.options import Options, build, from_python
from minigpt.seeing.numbers import token_text
from minigpt.system.errors import ConfigError, UserError
from minigpt.system.waiting import interruptible
from minigpt.text import seams
from minigpt.text import tokenizer as tokenizers
from minigpt.text.dataset import DataConfig
from minigpt.text.ranked import Ranked
from minigpt.text.seams import last_part, parts
from minigpt.text.split_patterns import OF_GGUF
from minigpt.text.tokenizer import BPE, PIECES, Byte, Char, Tiktoken, Tokenizer, byte_letters

SENTENCE = "The crow said, “naïve 🦉!”\r\nThen the crow sang: the crow, the crow."


@pytest.fixture(scope="module")
def shakespeare() -> str:
    """The text of tiny Shakespeare."""
    return shakespeare_file().read_bytes().decode()


@pytest.fixture(scope="module")
def gpt2() -> Iterator[Tokenizer]:
    """The gpt2 encoding, from a cache on this machine."""
    folders = [os.environ.get("TIKTOKEN_CACHE_DIR"), ROOT.parent / "shared/tiktoken_cache"]
    found = [Path(folder) for folder in folders if folder and (Path(folder) / GPT2_FILE).exists()]
    if not found:
        pytest.skip("tiktoken's gpt2 files are not here: set TIKTOKEN_CACHE_DIR to a folder that has them")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(found[0]))
        yield tokenizers.GPT2()


GPT2_FILE = "6d1cbeee0f20b3d9449abfede4726ed8212e3aee"  # SHA-1 of the address of vocab.bpe: tiktoken's name for it


@pytest.fixture(scope="module")
def bpe() -> BPE:
    """A small BPE, learned from one sentence."""
    pytest.importorskip("tokenizers")
    return BPE.fit(BPE.Config(vocab_size=280), [SENTENCE])


BYTE = Byte()


# ------------------------------------------------------------------------------------------------- char


def test_char_ids_are_places_in_the_sorted_alphabet() -> None:
    tokenizer = Char.fit(Char.Config(), ["hel", "lo"])
    assert tokenizer.alphabet == "ehlo"
    assert tokenizer.encode("hello").tolist() == [1, 0, 2, 2, 3]
    assert tokenizer.encode("hello").dtype == np.int64
    assert tokenizer.decode([1, 0, 2, 2, 3]) == "hello"
    assert tokenizer.encode("").tolist() == []


@given(st.text(min_size=1))
def test_char_gives_back_any_text(text: str) -> None:
    tokenizer = Char.fit(Char.Config(), [text])
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocab_size == len(set(text))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("hello€", "'€' (U+20AC) at index 5:"),
        ("hel\nlo\nh€l€", "'€' (U+20AC) at index 8 (line 3, column 2):"),
        ("\nZ", "'Z' (U+005A) at index 1 (line 2, column 1):"),
        ("a", "'a' (U+0061) at index 0:"),  # below the alphabet's letters, inside the table
        ("o\U0010ffff", "'\\U0010ffff' (U+10FFFF) at index 1:"),
        ("o\udc80", "'\\udc80' (U+DC80) at index 1:"),
    ],
)
def test_char_names_an_unknown_character_and_its_place(text: str, where: str) -> None:
    tokenizer = Char.fit(Char.Config(), ["hello\n"])
    with pytest.raises(UserError, match="5 characters") as error:
        tokenizer.encode(text)
    assert f"unknown character {where}" in str(error.value)
    assert "\n" not in str(error.value)


# ---------------------------------------------------------------------------------------------- marks

CHARS = Char("".join(sorted("\n <>_|delnoftx")))


@pytest.mark.parametrize("tokenizer", [BYTE, CHARS])
def test_marks_are_the_last_ids_and_stand_for_no_text(tokenizer: Tokenizer) -> None:
    marked, V = tokenizer.with_marks("end_of_text", "user"), tokenizer.vocab_size
    assert (marked.vocab_size, marked.marks) == (V + 2, {"end_of_text": V, "user": V + 1})
    assert (marked.end_of_text, list(marked.ends)) == (V, [V])
    assert (tokenizer.vocab_size, tokenizer.end_of_text, dict(tokenizer.special_tokens)) == (V, None, {})
    ids = [*marked.encode("<|end_"), V, *marked.encode("of_text|>"), V + 1]
    assert marked.decode(ids) == "".join(marked.stream(ids)) == "<|end_of_text|>"
    assert marked.label(V) == token_text(marked, V) == "<|end_of_text|>" and marked.label(0) == tokenizer.label(0)
    assert marked.encode_marked("e<|end_of_text|>").tolist() == [*marked.encode("e"), V]
    for id in (V, V + 2, -1):
        with pytest.raises(UserError, match=f"id {id} is not .* 0 to {V - 1} that stand for text, and 2 marks"):
            marked.token_bytes(id)


@given(st.text(), st.lists(st.sampled_from(["<|end_of_text|>", "<|user|>", "x"])))
def test_no_text_spells_a_mark(bpe: BPE, text: str, names: list[str]) -> None:
    for tokenizer in (BYTE, bpe):
        marked, typed = tokenizer.with_marks("end_of_text", "user"), text.join(names)
        assert marked.encode(typed).tolist() == tokenizer.encode(typed).tolist()
        assert not {*marked.encode(typed).tolist()} & {*marked.marks.values()}


def test_a_saved_tokenizer_keeps_its_marks_and_one_without_is_saved_as_before(tmp_path: Path, bpe: BPE) -> None:
    for tokenizer in (BYTE, CHARS, bpe):
        marked = tokenizer.with_marks("end_of_text").with_marks("end_of_turn")
        marked.save(tmp_path / "tokenizer.json")
        again = Tokenizer.load(tmp_path / "tokenizer.json")
        assert (again.marks, again.fingerprint) == (marked.marks, marked.fingerprint)
        assert list(again.ends) == list(again.marks.values())
        assert again.end_of_text == tokenizer.vocab_size and type(again) is type(tokenizer)
        assert "marks" not in tokenizer.to_json() and again.fingerprint != tokenizer.fingerprint


@pytest.mark.parametrize(
    "marks",
    [[], {}, "user", [1], ["user", "user"], ["a b"], ["<|x|>"], ["x" * 41], [None], [f"a{'b' * n}" for n in range(65)]],
)
def test_marks_of_an_untrusted_file(marks: Any, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps({"kind": "byte", "marks": marks}))
    with pytest.raises(UserError, match=r"tokenizer\.json: .*(marks|already|names)"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_a_vocabulary_with_an_end_of_text_gets_no_second_one(gpt2: Tokenizer) -> None:
    with pytest.raises(UserError, match="gpt2 has a token end_of_text already"):
        gpt2.with_marks("end_of_text")
    user = gpt2.with_marks("user")
    assert (user.marks, user.end_of_text, user.decode([50257, 50256])) == ({"user": 50257}, 50256, "<|endoftext|>")
    with pytest.raises(ConfigError, match=r"tokenizer\.end_of_text: unknown key"):
        build(DataConfig, from_python({"tokenizer": {"kind": "gpt2", "end_of_text": True}}, "test"))


# ---------------------------------------------------------------------------------------- every kind


def test_byte_ids_are_utf8() -> None:
    assert BYTE.encode("é\r\n").tolist() == [195, 169, 13, 10]
    assert BYTE.vocab_size == 256
    assert BYTE.decode([195, 169]) == "é"
    assert BYTE.decode([195]) == "\ufffd"


@given(st.text())
def test_byte_and_bpe_give_back_any_text(bpe: BPE, text: str) -> None:
    for tokenizer in (BYTE, bpe):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.text())
def test_gpt2_gives_back_any_text(gpt2: Tokenizer, text: str) -> None:
    assert gpt2.decode(gpt2.encode(text)) == text


@given(st.text())
def test_a_stream_of_single_ids_is_the_text_and_never_half_a_character(bpe: BPE, text: str) -> None:
    for tokenizer in (BYTE, bpe):
        pieces = list(tokenizer.stream(tokenizer.encode(text)))
        assert "".join(pieces) == text
        assert "\ufffd" in text or all("\ufffd" not in piece for piece in pieces)
        assert len(pieces) == len(tokenizer.encode(text))


@given(st.lists(st.integers(0, 255)))
def test_a_stream_of_any_bytes_is_what_decode_says(ids: list[int]) -> None:
    assert "".join(BYTE.stream(iter(ids))) == BYTE.decode(ids)


def test_a_stream_waits_for_the_rest_of_a_character_and_says_when_there_is_none() -> None:
    owl = BYTE.encode("🦉!").tolist()
    assert list(BYTE.stream(owl)) == ["", "", "", "🦉", "!"]
    assert list(BYTE.stream(owl[:3])) == ["", "", "", "\ufffd"]


@pytest.mark.parametrize("id", [-1, 256, 10**12])
def test_an_id_beyond_the_vocabulary_is_refused(id: int, bpe: BPE) -> None:
    with pytest.raises(UserError, match=f"id {id} is not in the vocabulary: byte has the ids 0 to 255"):
        BYTE.decode([65, id])
    for tokenizer in (bpe, Char("ab")):
        with pytest.raises(UserError, match="not in the vocabulary"):
            tokenizer.token_bytes(id if id < 0 else id + 30)


def test_half_a_surrogate_pair_is_refused_by_name(bpe: BPE) -> None:
    for tokenizer in (BYTE, bpe):
        with pytest.raises(UserError, match=r"'\\ud800' \(U\+D800\) at index 2 is half a surrogate pair"):
            tokenizer.encode("ab\ud800")


# -------------------------------------------------------------------------------------------------- bpe


def test_bpe_learns_the_most_frequent_pair_first() -> None:
    pytest.importorskip("tokenizers")
    tokenizer = BPE.fit(BPE.Config(vocab_size=258), ["xyxyxy"])  # xy stands three times, yx twice; then xyxy
    assert tokenizer.pieces == ["xy", "xyxy"]
    assert tokenizer.vocab_size == 258
    assert tokenizer.encode("xyxyxyx").tolist() == [257, 256, ord("x")]


def test_bpe_merges_by_rank_within_words() -> None:
    tokenizer = BPE(["ab", "abc", " a", "é".encode().decode("latin-1")])
    assert tokenizer.encode("abcab").tolist() == [257, 256]
    assert tokenizer.encode("é").tolist() == [259]
    assert tokenizer.encode("c ab").tolist() == [99, 32, 256]  # "ab" has the lower rank
    assert BPE(["b a"]).encode("b a").tolist() == [98, 32, 97]  # no piece reaches across a word's end
    assert tokenizer.token_bytes(257) == b"abc"


def test_bpe_learns_the_same_twice_and_stops_when_nothing_is_left(bpe: BPE) -> None:
    assert BPE.fit(BPE.Config(vocab_size=280), iter([SENTENCE])).fingerprint == bpe.fingerprint
    assert BPE.fit(BPE.Config(vocab_size=100_000), ["ab"]).vocab_size == 257


def test_bpe_learns_bytes_that_are_not_letters() -> None:
    pytest.importorskip("tokenizers")
    tokenizer = BPE.fit(BPE.Config(vocab_size=260), ["🦉🦉🦉🦉"])
    assert "🦉".encode() in {tokenizer.token_bytes(id) for id in range(tokenizer.vocab_size)}
    assert BPE.fit(BPE.Config(vocab_size=257), ["  \n  \n  \n"]).pieces in (["  "], ["\n "], [" \n"])


def test_bpe_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r'pip install -e "\.\[bpe\]"'):
        BPE.fit(BPE.Config(), ["text"])
    assert BPE(["ab"]).encode("ab").tolist() == [256]  # what is trained runs without it


def test_bpe_vocabulary_has_a_range() -> None:
    with pytest.raises(ConfigError, match="at least 257"):
        build(DataConfig, from_python({"tokenizer": {"kind": "bpe", "vocab_size": 256}}, "x"))


# ------------------------------------------------------------------------------------ public encodings


def test_gpt2_is_tiktokens_own(gpt2: Tokenizer, shakespeare: str) -> None:
    own = tiktoken.get_encoding("gpt2")
    assert gpt2.encode("hello world").tolist() == [31373, 995]
    assert gpt2.encode(shakespeare[:100_000]).tolist() == own.encode(shakespeare[:100_000])
    assert (gpt2.vocab_size, gpt2.end_of_text) == (50257, 50256)
    assert len(gpt2.encode(shakespeare)) == 338_025  # as nanoGPT's data/shakespeare/readme.md counts it
    assert json.dumps(gpt2.to_json()) == '{"kind": "gpt2"}'


def test_special_tokens_in_a_text_are_plain_text(gpt2: Tokenizer) -> None:
    ids = gpt2.encode("<|endoftext|>").tolist()
    assert 50256 not in ids and len(ids) > 1
    assert gpt2.decode(ids) == gpt2.decode([50256]) == "<|endoftext|>"


def test_a_gap_in_a_vocabulary_reads_as_a_replacement_character() -> None:
    class Gap(Tiktoken):
        vocab_size = 301
        encoding = tiktoken.Encoding(
            "gap", pat_str=".", mergeable_ranks={bytes([i]): i for i in range(256)}, special_tokens={"<|end|>": 300}
        )

    assert Gap().decode([65, 299, 66, 300]) == "A\ufffdB<|end|>"


# --------------------------------------------------------------------------------- a long text, in parts

HARD = [
    *"abzABZ0129'\u2019.,;:!?-=/\\_()\n\r\t \x0b\x0c\x1c\x1f\x85\xa0\u2028\u3000\u200b\ufeff",
    *("  ", "\r\n", "\n\n", " \n", "'s", "'LL", "'re", "é", "e\u0301", "ß", "ǅ", "ʰ", "ª", "Ⅷ", "½", "²", "٣", "①"),
    *("中", "日本", "。", "\uff0c", "ไทย", "न्दी", "😀", "👩\u200d👧"),
    *("\U0001d4b3", "ACGT", "aaaa", "    ", "====", "…"),
]
LETTERS = {latin.encode("latin-1"): letter for letter, latin in byte_letters().items()}


@pytest.fixture(scope="module")
def encodings() -> dict[str, tiktoken.Encoding]:
    """An encoding of every split pattern that tiktoken runs here, in which any two bytes of a word may be one token."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    used = sorted({byte for text in HARD for byte in text.encode()})
    ranks |= {pair: 256 + n for n, pair in enumerate(bytes([a, b]) for a in used for b in used)}
    with pytest.MonkeyPatch.context() as monkeypatch:
        for load in ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks"):
            monkeypatch.setattr(openai_public, load, lambda *_, **__: {})
        patterns = {name: openai_public.ENCODING_CONSTRUCTORS[name]()["pat_str"] for name in tokenizers.FILES}
    patterns |= {"bpe": PIECES} | {f"ranked, {name}": OF_GGUF[name] for name in OF_GGUF}
    return {
        name: tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        for pattern, name in {pattern: name for name, pattern in reversed(patterns.items())}.items()
    }


@given(st.lists(st.sampled_from(HARD), max_size=40).map("".join), st.integers(1, 9))
def test_the_parts_of_a_text_have_the_ids_of_the_whole(
    encodings: dict[str, tiktoken.Encoding], text: str, size: int
) -> None:
    with patch.object(seams, "PART", size):
        cut, last = list(parts(text)), last_part(text)
    assert "".join(cut) == text and (last == len(text) - len(cut[-1]) if cut else last == 0)
    for name, encoding in encodings.items():
        assert [id for part in cut for id in encoding.encode_ordinary(part)] == encoding.encode_ordinary(text), name


@pytest.mark.parametrize("pattern", ["gpt2", "o200k_base"])
def test_what_is_a_letter_here_is_one_in_tiktokens_tables(
    pattern: str, encodings: dict[str, tiktoken.Encoding]
) -> None:
    """They may be of another version of Unicode. Of what is no letter there, a comma would be part."""
    every = (chr(point) for point in range(0x110000) if not 0xD800 <= point < 0xE000)
    text = "".join(f"{letter}," for letter in every if letter.isalnum())
    ranks = {bytes([byte]): byte for byte in range(256)} | {bytes([byte, 44]): 256 + byte for byte in range(256)}
    encoding = tiktoken.Encoding("", pat_str=encodings[pattern]._pat_str, mergeable_ranks=ranks, special_tokens={})
    assert max(encoding.encode_ordinary(text)) < 256 and len(text) > 200_000


def long_words() -> dict[str, str]:
    """Words of 5,000 characters, which do not end where a shorter one would."""
    draw = random.Random(0)

    def of(alphabet: Iterable[str]) -> str:
        return "".join(draw.choices(list(alphabet), k=5000))

    cjk = [chr(point) for point in range(0x4E00, 0x9FFF)]
    alphabets = {"letters": string.ascii_letters, "digits": string.digits, "signs": "=-+*/#'\"", "DNA": "ACGT"}
    alphabets |= {"CJK": cjk, "emoji": "😀🦉👩\u200d👧", "marks": "a\u0301é", "apostrophes": "a'sre", "blanks": " \t"}
    alphabets |= {"line ends": "\r\n", "one letter": "a", "one blank": " ", "base64": f"{string.ascii_letters}0123/+"}
    return {name: of(alphabet) for name, alphabet in alphabets.items()}


LONG = long_words()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (n % 4 > 0)) for n, name in enumerate(LONG)]
)
def test_a_long_word_has_the_ids_that_tiktoken_makes(name: str, gpt2: Tokenizer, bpe: BPE) -> None:
    tokens = sorted({bytes([byte]) for byte in range(256)} | {b"AC", b"GT", b"ACGT", b"aa", b"  ", b"=="})
    merges = ["A C", "G T", "AC GT", "a a", f"{LETTERS[b' ']} {LETTERS[b' ']}", "= ="]
    letters = ["".join(LETTERS[bytes([byte])] for byte in token) for token in tokens]
    for text in (LONG[name], f"a word, {LONG[name]} and {LONG[name]}\n{LONG[name]}.", LONG[name] + "x"):
        assert gpt2.encode(text).tolist() == tiktoken.get_encoding("gpt2").encode_ordinary(text)
        assert bpe.encode(text).tolist() == bpe.encoding.encode_ordinary(text)
        for split in OF_GGUF:
            ranked = Ranked(letters, merges, split, [], [], None, [], None)
            assert ranked.encode(text).tolist() == ranked._ids[ranked._encoding.encode_ordinary(text)].tolist()


def test_a_word_that_would_take_too_long_is_refused_by_name_and_size(bpe: BPE, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seams, "LONGEST", 9000)
    monkeypatch.setattr(seams, "BLANKS", 3000)
    for text in ("a" * 8999, "one\n" + "a" * 8999 + "\nand " * 9999, " " * 2999 + "a"):
        assert bpe.encode(text).tolist() == bpe.encoding.encode_ordinary(text)
        assert len(text) < 9000 or last_part(text) > 9000
    for text, what in (
        ("a" * 9000, r"from 'a' \(U\+0061\) at index 0 on, a word of 9,000 characters or more, too many to tokenize"),
        ("é\nand " + "=" * 9999 + "\nand", r"from '=' \(U\+003D\) at index 6 \(line 2, column 5\) on, a word of 9,000"),
        ("b" + "\n" * 3000, r"from '\\n' \(U\+000A\) at index 1 .* on, white space of 3,000 characters or more"),
    ):
        for call in (bpe.encode, last_part, lambda text: BPE.fit(BPE.Config(vocab_size=280), [text])):
            with pytest.raises(UserError, match=what) as refused:
                call(text)  # type: ignore[operator]
            assert "line ends" in str(refused.value) and "data.tokenizer=byte" in str(refused.value)


@pytest.mark.slow
def test_tiktoken_can_read_as_much_white_space_as_is_allowed(encodings: dict[str, tiktoken.Encoding]) -> None:
    """Of twice as much, its search for words ends in a panic, and not in an error."""
    for encoding in encodings.values():
        for blanks in (" ", "\n"):
            text = (blanks * seams.BLANKS)[: seams.BLANKS - 1]
            assert encoding.decode(encoding.encode_ordinary(text + "a")) == text + "a"


LOOK = """
from minigpt.system.errors import UserError
from minigpt.text import tokenizer
tokenizer.ANSWER = 0.3  # seconds, for the 1.5 of a user
try:
    tokenizer.Tokenizer.kinds[{kind!r}]()
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("kind", "network"), [("gpt2", "silent"), ("cl100k_base", "refuses"), ("o200k_base", "damaged")]
)
def test_without_a_network_there_is_soon_one_clear_line(kind: str, network: str, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    if network == "damaged":  # the file is there by its name, and tiktoken finds that it is not what it should be
        address = f"{tokenizers.HOST}/{tokenizers.FILES[kind][0]}"
        (tmp_path / "cache" / hashlib.sha1(address.encode()).hexdigest()).write_bytes(b"YQ== 0\n")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1] if network == "silent" else 1
        proxy = f"http://127.0.0.1:{port}"
        found = {"https_proxy": proxy, "HTTPS_PROXY": proxy, "no_proxy": "", "NO_PROXY": ""}
        found["TIKTOKEN_CACHE_DIR"] = str(tmp_path / "cache")
        process = forked([1, 2], code=LOOK.format(kind=kind), argv=["-c"], cwd=str(ROOT), env=found)
        assert process.stdout
        with process.stdout:
            said = process.stdout.read()
        assert (process.rest(), process.code) == ("", 0)  # and it ends: nothing waits for the silent network
    assert said.count("\n") == 1
    for part in (f"encoding {kind}", str(tmp_path / "cache"), "TIKTOKEN_CACHE_DIR", "data.tokenizer=char"):
        assert part in said


def test_a_call_that_never_returns_is_left_behind() -> None:
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no answer in 0\.2 seconds"):
        interruptible(threading.Event().wait, "waiting", 0.2)
    assert time.monotonic() - start >= 0.2


# ------------------------------------------------------------------------------------------- on disk


@pytest.mark.parametrize("make", [lambda: Char("\n abé🦉"), Byte, lambda: BPE([" a", "\xff\x00"])])
def test_save_and_load(make: type[Tokenizer], tmp_path: Path) -> None:
    before = make()
    before.save(tmp_path / "tokenizer.json")
    after = Tokenizer.load(tmp_path / "tokenizer.json")
    assert type(after) is type(before)
    assert after.to_json() == before.to_json()
    assert after.fingerprint == before.fingerprint
    assert after.encode(" aba").tolist() == before.encode(" aba").tolist()


def test_fingerprints_differ_where_tokenizers_do() -> None:
    made = [Char("ab"), Char("abc"), Byte(), BPE(["ab"]), BPE(["ab", "cd"]), BPE(["cd", "ab"])]
    assert len({tokenizer.fingerprint for tokenizer in made}) == len(made)
    canonical = b'{"alphabet": "ab", "kind": "char"}'
    assert Char("ab").fingerprint == hashlib.sha256(canonical).hexdigest()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "not the JSON"),
        (b"[]", 'an object with a "kind"'),
        (b'{"alphabet": "ab"}', 'an object with a "kind"'),
        (b'{"kind": ["char"], "alphabet": "ab"}', 'an object with a "kind"'),
        (b'{"kind": "chra", "alphabet": "ab"}', "did you mean 'char'"),
        (b'{"kind": "mine"}', "--plugin"),
        (b'{"kind": "char"}', "made from alphabet, found nothing"),
        (b'{"kind": "char", "alphabet": "ab", "file": "../x"}', "made from alphabet, found alphabet, file"),
        (b'{"kind": "byte", "vocab_size": 3}', "made from nothing, found vocab_size"),
        (b'{"kind": "char", "alphabet": ""}', "alphabet"),
        (b'{"kind": "char", "alphabet": "ba"}', "sorted"),
        (b'{"kind": "char", "alphabet": "aab"}', "only once"),
        (b'{"kind": "char", "alphabet": ["a", "b"]}', "must be text"),
        (b'{"kind": "char", "alphabet": "a\\ud800"}', "surrogate"),
        (b'{"kind": "bpe", "pieces": "ab"}', "list of texts"),
        (b'{"kind": "bpe", "pieces": ["a"]}', "two characters"),
        (b'{"kind": "bpe", "pieces": ["ab", 7]}', "list of texts"),
        (b'{"kind": "bpe", "pieces": ["ab", "ab"]}', "different"),
        ('{"kind": "bpe", "pieces": ["a€"]}'.encode(), "bytes"),
    ],
)
def test_a_damaged_or_strange_file_is_refused_by_name(content: bytes, what: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        Tokenizer.load(path)
    assert str(error.value).startswith(f"{path}: ")
    assert what in str(error.value)


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with path.open("wb") as file:
        file.truncate(1 << 41)  # two terabytes, of which none is written, and which no memory holds
    with pytest.raises(UserError, match="larger than"):
        Tokenizer.load(path)


# ---------------------------------------------------------------------------------------- a kind of one's own


def test_a_users_own_kind_needs_no_change_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Tokenizer, "kinds", dict(Tokenizer.kinds))

    class Words(Tokenizer, kind="words"):
        """An id is a word."""

        def __init__(self, words: list[str]):
            self.words, self.vocab_size = words, len(words)

        @classmethod
        def fit(cls, config: Options, texts: Iterable[str]) -> Words:
            return cls(sorted({word for text in texts for word in text.split()}))

        def encode(self, text: str) -> np.ndarray:
            return np.array([self.words.index(word) for word in text.split()], dtype=np.int64)

        def token_bytes(self, id: int) -> bytes:
            return self.words[self._check(id)].encode() + b" "

    config = build(DataConfig, from_python({"tokenizer": "words"}, "x")).tokenizer
    made = config.component.fit(config, ["to be or", "not to be"])
    made.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert isinstance(loaded, Words)
    assert loaded.words == ["be", "not", "or", "to"]
    assert loaded.decode(loaded.encode("to be")) == "to be "
    assert list(loaded.stream([3, 0])) == ["to ", "be "]
