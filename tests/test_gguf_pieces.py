"""SentencePiece vocabularies in GGUF files: the ids are those of its own rule, of sentencepiece and of llama.cpp."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from families import make
from hypothesis import given, settings
from hypothesis import strategies as st
from running import small_text
from test_gguf import WIDE
from test_gguf import write as write_model

from minigpt.hub.gguf_model import Json, open_gguf
from minigpt.hub.gguf_vocabulary import merges_of, of_pieces
from minigpt.hub.importer import import_folder
from minigpt.system.errors import UserError
from minigpt.training.report import silent
from minigpt.training.run import load

pytest.importorskip("tokenizers")

SIGN = "\u2581"  # SentencePiece's sign for a space
PIECES = [
    *[SIGN * 2, "aa", SIGN + "a", "th", "he", SIGN + "t", "the", SIGN + "th", SIGN + "the", "aaa", SIGN * 3, "aaaa"],
    *["ab", "ba", "aba", "bab", "abab", SIGN * 4, "hea", "a" + SIGN, "t" + SIGN, "eé"],
    *[*SIGN, *"abcthe.é"],
]
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES, "<sep>"]
VALUES: Json = {
    "ggml.model": "llama",
    "ggml.tokens": TOKENS,
    "ggml.scores": [0.0] * 259 + [float(-n) for n in range(len(PIECES))] + [0.0],
    "ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(PIECES) + [4],
}


OWN = ["  ", "   ", "\n\n", "\n\n\n"]  # as in Gemma's vocabulary: found in a text before all else
NORMAL = [piece for piece in PIECES if piece.replace(SIGN, " ") not in OWN]
LIKE_GEMMA: Json = {
    "ggml.model": "llama",
    "ggml.tokens": [*TOKENS[:259], *NORMAL, *OWN],
    "ggml.scores": [0.0] * 259 + [float(-n) for n in range(len(NORMAL))] + [-1000.0] * len(OWN),
    "ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(NORMAL) + [4] * len(OWN),
    "ggml.add_space_prefix": False,
}


def by_the_rule(text: str) -> list[int]:
    """Merge the first of the best neighbours until none has a union that is a piece; what is no piece is bytes."""
    ids = {piece: 259 + n for n, piece in enumerate(PIECES)}
    token_ids, sections = list[int](), (" " + text).replace(" ", SIGN).split("<sep>")
    for n, section in enumerate(sections):
        token_ids += [len(TOKENS) - 1] if n else []
        parts = list(section)
        while ranks := [(ids[a + b], i) for i, (a, b) in enumerate(pairwise(parts)) if a + b in ids]:
            i = min(ranks)[1]
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        for part in parts:
            token_ids += [ids[part]] if part in ids else [3 + byte for byte in part.encode()]
    return token_ids


@settings(max_examples=300)
@given(
    st.text(st.sampled_from("  aaabthe.\n🦉é"))
    | st.lists(st.sampled_from(["<sep>", "aa", "   ", "th", "ab"])).map("".join)
)
def test_the_ids_are_those_of_the_rule(text: str) -> None:
    tokenizer = MADE
    assert tokenizer.encode(text).tolist() == (by_the_rule(text) if text else [])
    assert tokenizer.decode(tokenizer.encode(text)) == (" " + text if text else "")


MADE = of_pieces(VALUES)


def test_ends_and_special_tokens_are_those_of_the_file() -> None:
    assert (MADE.begin_of_text, MADE.ends, MADE.vocab_size) == (1, [2], len(TOKENS))
    assert MADE.encode_marked("<s>a")[0] == 1 and MADE.encode("<s>a")[0] != 1
    other = of_pieces(VALUES | {"ggml.add_bos_token": False, "ggml.eos_token_id": 0, "ggml.add_space_prefix": False})
    assert (other.begin_of_text, other.ends) == (None, [0])
    assert other.decode(other.encode("the")) == "the"
    gemma = of_pieces(LIKE_GEMMA)
    assert [LIKE_GEMMA["ggml.tokens"][id] for id in gemma.encode("the   a\n\nb")] == ["the", "   ", "a", "\n\n", "b"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ggml.scores": [0.0]}, "expected a number for each token"),
        ({"ggml.scores": None}, "expected a number for each token"),
        ({"ggml.token_type": ["1"] * len(TOKENS)}, "expected a number for each token"),
        ({"ggml.tokens": [*TOKENS[:-1], "the"]}, "two of them are equal"),
        ({"ggml.tokens": [*TOKENS[:-2], "ß?", "<sep>"]}, "has a character that is no piece"),
        ({"ggml.tokens": [*TOKENS[:-1], SIGN + "x"]}, "is a user-defined token with a space"),
        ({"ggml.precompiled_charsmap": [1]}, "changes the text"),
        ({"ggml.remove_extra_whitespaces": True}, "changes the text"),
        ({"ggml.bos_token_id": 9999}, "must be ids from 0"),
    ],
)
def test_what_is_not_read_is_one_line(changes: Json, message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        of_pieces(VALUES | changes)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("longest", "message"),
    [(1001, "a piece of 1,001 characters"), (1000, "merges take more than 41,943,040 characters")],
)
def test_pieces_whose_merges_would_take_the_memory_are_refused(longest: int, message: str) -> None:
    pieces = {"a" * length: 0.0 for length in range(1, longest + 1)}  # made of 500,000 pairs, of 167 million characters
    with pytest.raises(UserError, match=message):
        merges_of(pieces)


def write(path: Path, values: Json) -> Path:
    """A Llama of random weights with such a vocabulary, as llama.cpp's converter writes it."""
    changes = {f"tokenizer.{key}": value for key, value in ({"ggml.add_space_prefix": True} | values).items()}
    changes |= {f"tokenizer.{key}": None for key in ("ggml.pre", "ggml.merges", "chat_template")}
    changes |= {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "llama.vocab_size": None}
    return write_model(path, make("llama", **WIDE, vocab_size=len(values["ggml.tokens"])), **changes)


def test_such_a_file_becomes_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = load(import_folder(write(tmp_path / "model.gguf", VALUES), "mine", None, silent), device="cpu")
    assert run.context_ids("the").tolist() == [[1, *by_the_rule("the")]]
    assert run.generate("the", temperature=0, max_tokens=4).startswith("the")


# ---- others' programs, where they are installed ----


def learned(folder: Path, **options: Any) -> tuple[Any, Json]:
    """A vocabulary that sentencepiece has learned, and the keys that llama.cpp's converter would write of it."""
    library = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed: pip install sentencepiece")
    (folder / "text.txt").write_text(small_text(400), encoding="utf-8")
    exact = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
    library.SentencePieceTrainer.train(
        input=str(folder / "text.txt"), model_prefix=str(folder / "m"), vocab_size=340, model_type="bpe",
        minloglevel=2, num_threads=1, **exact, **options,
    )  # fmt: skip
    reference = library.SentencePieceProcessor(model_file=str(folder / "m.model"))
    ids, own = range(reference.get_piece_size()), set(options.get("user_defined_symbols", []))
    asked = (
        (4, lambda id: reference.id_to_piece(id) in own),
        (6, reference.is_byte),
        (2, reference.is_unknown),
        (3, reference.is_control),
    )
    values = {
        "ggml.tokens": [reference.id_to_piece(id) for id in ids],
        "ggml.scores": [reference.get_score(id) for id in ids],
        "ggml.token_type": [next((kind for kind, says in asked if says(id)), 1) for id in ids],
        "ggml.add_space_prefix": options.get("add_dummy_prefix", True),
    }
    return reference, values


def texts(count: int) -> list[str]:
    """Texts of known words, of rows of equal signs, and of signs that the vocabulary lacks."""
    draw, parts = random.Random(0), ["the", " ", "  ", "cat ", "a", "aa", "t", "o", "<sep>", "\n", "é", "🦉", ".", "7"]
    rows = [small_text(3), small_text(60)]
    rows += ["".join(draw.choice(parts) * draw.randint(1, 5) for _ in range(draw.randint(1, 12))) for _ in range(count)]
    return rows


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"add_dummy_prefix": False}, {"user_defined_symbols": ["<sep>"]}, {"split_by_whitespace": False}],
    ids=str,
)
def test_the_ids_are_those_of_sentencepiece(options: dict[str, Any], tmp_path: Path) -> None:
    reference, values = learned(tmp_path, **options)
    tokenizer = of_pieces(values)
    for text in texts(2000):
        assert tokenizer.encode(text).tolist() == reference.encode(text), text


@pytest.mark.slow
@pytest.mark.parametrize("values", [VALUES, LIKE_GEMMA], ids=["llama", "gemma"])
def test_the_ids_are_those_of_llama_cpp(values: Json, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama.cpp is not installed: pip install llama-cpp-python")
    path = write(tmp_path / "model.gguf", values)
    reference, tokenizer = llama_cpp.Llama(str(path), vocab_only=True, verbose=False), open_gguf(path).tokenizer()
    for text in texts(2000):
        if "<sep>" not in text:  # around such a token, llama.cpp puts spaces elsewhere than sentencepiece
            assert reference.tokenize(text.encode(), add_bos=False, special=False) == tokenizer.encode(text).tolist(), (
                text
            )
