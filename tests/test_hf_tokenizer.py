"""Published vocabularies: the ids are those of `tokenizers`, a text is the bytes of its ids, and a bomb is one line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_corpora import corpus_of, own_data

from minigpt.hub.tokenizer_json import read_tokenizer
from minigpt.system.errors import UserError
from minigpt.text import hf_steps, split_patterns
from minigpt.text.cuts import Piece, cut_up, encode_block
from minigpt.text.dataset import DataConfig, Dataset
from minigpt.text.hf_tokenizer import HuggingFace
from minigpt.text.ranked import Ranked
from minigpt.text.tokenizer import MAX_BYTES, Tokenizer, misspelt

library = pytest.importorskip("tokenizers")
models, before, after, trainers = library.models, library.pre_tokenizers, library.normalizers, library.trainers

data = pytest.fixture(scope="module", autouse=True)(own_data)

LESSON = "The crow said, “naïve 🦉!” Then the crow sang: the crow, the crow. It's 1234 and 3.14;\r\n\n  don't 你好。"
ALPHABET = before.ByteLevel.alphabet()
SPECIAL = ["<s>", "</s>"]

Json = dict[str, Any]


def byte_level(*words: Any, normalizer: Any = None) -> Any:
    """A byte-level vocabulary, learned from one sentence."""
    made = library.Tokenizer(models.BPE())
    made.pre_tokenizer, made.normalizer = before.Sequence(list(words)), normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=SPECIAL, initial_alphabet=ALPHABET, show_progress=False
    )
    made.train_from_iterator([LESSON] * 3, trainer)
    return made


def by_pattern(pattern: str) -> Any:
    split = before.Split(library.Regex(pattern), "isolated")
    return byte_level(split, before.ByteLevel(add_prefix_space=False, use_regex=False))


def sentencepiece(normalizer: Any, words: Any) -> Any:
    """A vocabulary with a sign for spaces, and a token for each byte."""
    signs = [*SPECIAL, "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    learned = library.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    learned.pre_tokenizer = before.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=signs, show_progress=False, limit_alphabet=30)
    learned.train_from_iterator([LESSON] * 3, trainer)
    learned.normalizer, learned.pre_tokenizer = normalizer, words
    values = json.loads(learned.to_str())
    values["added_tokens"] = values["added_tokens"][:3]
    return library.Tokenizer.from_str(json.dumps(values))


SPACES = after.Replace(" ", hf_steps.SPACE)
MADE: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: byte_level(before.ByteLevel(add_prefix_space=False)),
    "with a space in front": lambda: byte_level(before.ByteLevel(add_prefix_space=True)),
    "smollm": lambda: byte_level(before.Digits(individual_digits=True), before.ByteLevel(add_prefix_space=False)),
    "neox": lambda: byte_level(before.ByteLevel(add_prefix_space=False), normalizer=after.NFC()),
    "llama 3": lambda: by_pattern(split_patterns.LLAMA3),
    "qwen 2": lambda: by_pattern(split_patterns.QWEN2),
    "tekken": lambda: by_pattern(split_patterns.TEKKEN),
    "gpt-4o": lambda: by_pattern(split_patterns.GPT4O),
    "bloom": lambda: by_pattern(split_patterns.BLOOM),
    "llama 2": lambda: sentencepiece(after.Sequence([after.Prepend(hf_steps.SPACE), SPACES]), None),
    "gemma": lambda: sentencepiece(SPACES, before.Split(" ", "merged_with_previous")),
    "metaspace first": lambda: sentencepiece(None, before.Metaspace(prepend_scheme="first", split=False)),
    "metaspace always": lambda: sentencepiece(None, before.Metaspace(prepend_scheme="always")),
}


def ours(values: Any, vocab_size: int = 400, begin: int | None = None, ends: tuple[int, ...] = ()) -> HuggingFace:
    text = values if isinstance(values, str) else json.dumps(values)
    return HuggingFace(text, vocab_size, begin, list(ends), None)


@pytest.fixture(scope="module", params=MADE)
def pair(request: pytest.FixtureRequest) -> tuple[HuggingFace, Any]:
    """A vocabulary as it is run here, and by `tokenizers` alone."""
    made = MADE[request.param]()
    return ours(made.to_str(), made.get_vocab_size()), made


# ---------------------------------------------------------------------------------------------- the laws

TEXTS = st.lists(
    st.sampled_from([*LESSON, "  ", "\n\n", " 12", "  3", "<s>", "</s>", "'LL", "\t", "x" * 30, "é", "\u3000", "; "])
    | st.text()
).map("".join)


@settings(max_examples=60)
@given(TEXTS)
def test_ids_are_those_of_the_library_and_a_text_is_the_bytes_of_its_ids(
    pair: tuple[HuggingFace, Any], text: str
) -> None:
    mine, theirs = pair
    theirs.encode_special_tokens = True
    try:
        ids = mine.encode(text).tolist()
    except UserError as error:  # signs for spaces in a text, and characters that NFC composes
        assert "cannot be written" in str(error)
        return
    assert ids == theirs.encode(text, add_special_tokens=False).ids
    front = " " if mine._steps.leads != "never" and text else ""
    assert mine.decode(ids) in {text, front + text}
    assert "".join(mine.stream(ids)) == mine.decode(ids)
    assert "\ufffd" in text or all("\ufffd" not in piece for piece in mine.stream(ids))


def test_words_that_look_like_special_tokens_are_said() -> None:
    names = ["<|im_start|>", "<|im_end|>", "<start_of_turn>"]
    text = "<|im_start|>user <|im_strat|> <|odd|> <b>bold</b> <start_of_turm> a <| b |> <|im_strat|>"
    assert misspelt(text, names) == [
        "note: <|im_strat|> is no special token of this model, so it is plain text; did you mean '<|im_start|>'?",
        "note: <|odd|> is no special token of this model, so it is plain text"
        " (some of its special tokens: <|im_start|>, <|im_end|>, <start_of_turn>)",
        "note: <start_of_turm> is no special token of this model, so it is plain text; did you mean '<start_of_turn>'?",
    ]


def test_special_tokens_are_plain_text_unless_they_are_asked_for(pair: tuple[HuggingFace, Any]) -> None:
    mine, theirs = pair
    text = "a crow</s>the <s>crow"
    assert not {0, 1} & set(mine.encode(text).tolist())
    theirs.encode_special_tokens = False
    assert mine.encode_marked(text).tolist() == theirs.encode(text, add_special_tokens=False).ids
    assert mine.encode_marked("").tolist() == mine.encode("").tolist() == []
    assert (mine.special_tokens["<s>"], mine.token_bytes(1)) == (0, b"</s>")


def test_a_long_text_is_encoded_in_parts_with_the_ids_of_the_whole(
    pair: tuple[HuggingFace, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = pair
    monkeypatch.setattr("minigpt.text.hf_tokenizer.PART", 50)
    longest, encode = [0], mine._ids
    monkeypatch.setattr(mine, "_ids", lambda text: longest.append(len(text)) or encode(text))
    theirs.encode_special_tokens = True
    text = (LESSON + " ") * 20 + "x" * 500 + LESSON.replace(" ", "") * 3
    assert mine.encode(text).tolist() == theirs.encode(text, add_special_tokens=False).ids
    assert max(longest) < len(text)


def test_a_long_text_can_be_cut_with_the_ids_of_the_whole(pair: tuple[HuggingFace, Any]) -> None:
    mine, text = pair[0], (LESSON + " ") * 20 + "x" * 500 + LESSON * 3
    assert pieces_have_its_ids(mine, text) > 20


def pieces_have_its_ids(tokenizer: HuggingFace | Ranked, text: str) -> int:
    """Read a few characters at a time, it has the ids of the whole; how many pieces there are."""
    some = (text[start : start + 50] for start in range(0, len(text), 50))
    pieces = [Piece(0, n, piece) for n, piece in enumerate(cut_up(some, tokenizer.cut))]
    assert "".join(piece.text for piece in pieces) == text
    assert encode_block(tokenizer, pieces)[0].tolist() == tokenizer.encode(text).tolist()
    return len(pieces)


def test_a_stretch_without_a_place_to_cut_is_cut_at_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.text.hf_tokenizer.PART", 5_000)
    monkeypatch.setattr("minigpt.text.hf_tokenizer.LONGEST_PART", 80_000)
    mine, longest = ours(plain(merges=[["a", "a"]], also=["aa"])), [0]
    encode = mine._ids
    monkeypatch.setattr(mine, "_ids", lambda text: longest.append(len(text)) or encode(text))
    assert mine.decode(mine.encode("a" * 230_001)) == "a" * 230_001
    assert max(longest) == 80_000


# ------------------------------------------------------------------------------ vocabularies with less than all


def plain(merges: list[Any] | None = None, also: list[str] | None = None, lacks: str = "", **values: Any) -> Json:
    """The values of a tokenizer.json of single bytes."""
    letters = [letter for letter in sorted(ALPHABET) if letter not in lacks]
    vocabulary = {token: id for id, token in enumerate([*letters, *(also or [])])}
    model = {"type": "BPE", "vocab": vocabulary, "merges": merges or []}
    words = {"type": "ByteLevel", "add_prefix_space": False}
    return {"added_tokens": [], "pre_tokenizer": words, "model": model} | values


@pytest.mark.parametrize(
    ("values", "text", "where"),
    [
        (plain(lacks="Ā"), "ab\0c", r"'\\x00' \(U\+0000\) at index 2"),
        (plain(lacks="Ã"), "ab\né", r"'é' \(U\+00E9\) at index 3 \(line 2, column 1\)"),
        (plain(normalizer={"type": "NFC"}), "ae\u0301", r"'e' \(U\+0065\) at index 1"),
        (plain(model={"type": "BPE", "vocab": {"a": 0, "<unk>": 1}, "merges": [], "unk_token": "<unk>"}), "ab", "'b'"),
        (plain(model={"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": "<unk>"}), "ab", "'b'"),
        (
            {
                "added_tokens": [],
                "pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"[\s\S]"}, "behavior": "Isolated"},
                "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}},
            },
            "abc",
            "'c'",
        ),
    ],
)
def test_a_character_that_cannot_be_written_is_named_not_lost(values: Json, text: str, where: str) -> None:
    with pytest.raises(UserError, match=f"^{where}.* cannot be written: the vocabulary lacks it, or changes it"):
        ours(values).encode(text)


def test_ids_that_no_token_has_and_tokens_that_no_row_has() -> None:
    """A model's table may be larger than its vocabulary, or end before the last special tokens."""
    added = [{"id": id, "content": f"<{id}>", "special": True} for id in (256, 257)]
    larger, smaller = ours(plain(added_tokens=added)), ours(plain(added_tokens=added), 257)
    assert (larger.token_bytes(257), larger.token_bytes(399).decode()) == (b"<257>", "\ufffd")
    assert smaller.special_tokens == {"<256>": 256}
    with pytest.raises(UserError, match="id 257 is not in the vocabulary"):
        smaller.token_bytes(257)


def test_it_is_kept_with_a_run(tmp_path: Path) -> None:
    made = HuggingFace(json.dumps(plain(also=["<s>"])), 300, 256, [7, 8], "{{ messages }}")
    made.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.to_json() == made.to_json() and loaded.fingerprint == made.fingerprint
    assert (loaded.begin_of_text, loaded.end_of_text, loaded.ends) == (256, 7, [7, 8])


@pytest.mark.slow
def test_a_vocabulary_as_large_as_gemmas_fits_into_a_run(tmp_path: Path) -> None:
    """262,144 tokens, in a file of 37 MB. What is kept in a run is smaller, and is read again."""
    letters = sorted(ALPHABET)
    pairs = [[a, b] for a in letters for b in letters]
    triples = ([a + b, c] for c in letters for a, b in pairs)
    pairs = [*pairs, *islice(triples, 262_144 - 256 - len(pairs))]
    values = plain(also=["".join(pair) for pair in pairs], merges=pairs)
    (tmp_path / "tokenizer.json").write_text(json.dumps(values, indent=6), encoding="utf-8")
    assert MAX_BYTES < (tmp_path / "tokenizer.json").stat().st_size < hf_steps.LARGEST
    made = read_tokenizer(tmp_path, {}, 262_144)
    made.save(tmp_path / "kept.json")
    assert (tmp_path / "kept.json").stat().st_size < MAX_BYTES
    assert Tokenizer.load(tmp_path / "kept.json").encode("abc crow").tolist() == made.encode("abc crow").tolist()


def test_documents_begin_as_the_model_is_used_to() -> None:
    corpus = corpus_of("aa", "bbbbbbbbbbbbbbbbbbbb")
    made = ours(plain(also=["<s>", "</s>"]), 300, 256, (257,))
    a, b = (made.encode(letter).item() for letter in "ab")
    assert Dataset(DataConfig(windows="random"), corpus, made, 1).ids[:7].tolist() == [256, a, a, 257, 256, b, b]
    same = ours(plain(also=["<s>"]), 300, 256, (256,))
    assert Dataset(DataConfig(windows="random"), corpus, same, 1).ids[:5].tolist() == [256, a, a, 256, b]


def test_it_says_what_to_install_and_that_it_is_not_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (HuggingFace, Ranked):
        with pytest.raises(UserError, match="comes with a model"):
            kind.fit(kind.Config(), ["text"])
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r'pip install -e "\.\[bpe\]"'):
        ours(plain())


# ------------------------------------------------------------------------------------------------- untrusted files


def added(**values: Any) -> Json:
    return plain(added_tokens=[{"id": 256, "content": "<s>", "special": True} | values])


def words(**values: Any) -> Json:
    return plain(pre_tokenizer={"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "a"}} | values)


def model(**values: Any) -> Json:
    return plain(model=plain()["model"] | values)


STRANGE: dict[str, tuple[Any, str]] = {
    "not JSON": ("{", "not JSON"),
    "deep": ("[" * 100_000, "not JSON: nested too deep"),
    "a number": ('{"a": ' + "9" * 10_000 + "}", "does not fit into 64 bits"),
    "a list": ([], "not a tokenizer.json"),
    "no vocabulary": (plain(model={"type": "BPE"}), "not a tokenizer.json"),
    "nothing in it": (model(vocab={}), "must have a vocabulary"),
    "unigram": (model(type="Unigram"), "the model 'Unigram' is not run here"),
    "dropout": (model(dropout=0.1), "the model's dropout is not run here"),
    "prefix": (model(continuing_subword_prefix="##"), "continuing_subword_prefix is not run here"),
    "suffix": (model(end_of_word_suffix="</w>"), "end_of_word_suffix is not run here"),
    "a merge of no token": (model(merges=[["a", "zz"]]), "Token `zz` out of vocabulary"),
    "a merge of one": (model(merges=[["a"]]), "merges must be a list of pairs"),
    "merges of three": (model(merges=["a b c"]), "not a tokenizer: .*[Mm]erges"),
    "one id twice": (model(vocab={"a": 0, "b": 0}), "two tokens have one id"),
    "a negative id": (model(vocab={"a": -1}), "ids from -1 to -1"),
    "an id beyond the model": (model(vocab={"a": 2**40}), "but the model has 400 rows"),
    "half a character": (model(vocab={"\ud800": 0}), "half a surrogate pair"),
    "an added token without text": (added(content=""), "1 to 1000 characters"),
    "an added token without end": (added(content="x" * 1001), "1 to 1000 characters"),
    "an added token of half a character": (added(content="\ud800"), "half a surrogate pair"),
    "an added token of another": (added(content="a"), "two tokens have one id, or one has two: 'a'"),
    "an added token in a row of another": (added(id=3), "two tokens have one id"),
    "an added token with a gap": (added(id=300), "cannot have the id 300"),
    "an added token beyond": (added(id=400, special=False), "but the model has 400 rows"),
    "lower case": (plain(normalizer={"type": "Lowercase"}), "the normalizer 'Lowercase' is not run here"),
    "another sign": (plain(normalizer={"type": "Prepend", "prepend": "x"}), "'Prepend' is not run here"),
    "a pattern replaced": (
        plain(normalizer={"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": hf_steps.SPACE}),
        "the normalizer 'Replace' is not run here",
    ),
    "words without spaces": (plain(pre_tokenizer={"type": "Whitespace"}), "pre_tokenizer 'Whitespace' is not run here"),
    "removed spaces": (words(behavior="Removed"), "'Split' is not run here as it stands"),
    "inverted": (words(invert=True), "invert must be false"),
    "without a pattern": (words(pattern=7), "must have a pattern"),
    "a pattern that never ends": (
        words(pattern={"Regex": "(a+)+$"}),
        r"the split pattern '\(a\+\)\+\$' is not run here",
    ),
    "a huge pattern": (words(pattern={"Regex": "a|" * 100_000}), r"the split pattern '(a\|){30}\.\.\.' is not run"),
    "a sequence of sequences": (
        plain(pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Sequence"}]}),
        "pre_tokenizer 'Sequence' is not run here",
    ),
    "steps that are none": (plain(pre_tokenizer=[7]), "must be a step with a type"),
    "no step": (plain(pre_tokenizer=None), "how spaces are written is not known"),
    "a space before each word": (
        plain(pre_tokenizer={"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "ByteLevel"}]}),
        "puts a space in front of every word",
    ),
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_strange_tokenizer_is_refused_in_one_line(name: str) -> None:
    values, what = STRANGE[name]
    with pytest.raises(UserError, match=what) as error:
        ours(values)
    assert len(str(error.value)) < 500 and "\n" not in str(error.value)


def test_a_text_of_a_gigabyte_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hf_steps, "LARGEST", 1000)
    with pytest.raises(UserError, match="larger than 1,000 characters"):
        ours(plain())


def test_what_acts_on_no_plain_text_is_left_out() -> None:
    """To cut a text short, to pad it, and to put tokens around it."""
    short = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    pad = {"strategy": {"Fixed": 9}, "direction": "Left", "pad_id": 0, "pad_type_id": 0, "pad_token": "!"}
    made = ours(plain(truncation=short, padding=pad, decoder={"type": "Strip"}, post_processor={"type": "no such"}))
    assert made.decode(made.encode("a crow")) == "a crow"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"vocab_size": 0}, "vocab_size must be"),
        ({"vocab_size": 10**12}, "vocab_size must be"),
        ({"begin_of_text": 400}, "must be ids from 0 to 399"),
        ({"ends": [-1]}, "must be ids from 0 to 399"),
        ({"ends": 7}, "ends a list of ids"),
        ({"chat_template": 7}, "chat_template a text"),
        ({"text": 7}, "text must be the text of a tokenizer.json"),
    ],
)
def test_arguments_are_checked(arguments: Json, what: str) -> None:
    given = {"text": json.dumps(plain()), "vocab_size": 400, "begin_of_text": None, "ends": [], "chat_template": None}
    with pytest.raises(UserError, match=what):
        HuggingFace(**given | arguments)


# --------------------------------------------------------------------------------- the vocabulary of a GGUF file


def ranked(made: Any, split: str, **changes: Any) -> Ranked:
    """The same vocabulary as a GGUF file has it."""
    values = json.loads(made.to_str())["model"]
    tokens = sorted(values["vocab"], key=values["vocab"].get)
    merges = [" ".join(merge) for merge in values["merges"]]
    given = {"tokens": tokens, "merges": merges, "split": split, "special": [0, 1], "whole": []}
    return Ranked(**given | {"begin_of_text": None, "ends": [1], "chat_template": None} | changes)


@settings(max_examples=60)
@given(TEXTS)
def test_tiktoken_makes_the_ids_that_the_library_makes(text: str) -> None:
    for name, mine, theirs in RANKED:
        theirs.encode_special_tokens = True
        ids = mine.encode(text).tolist()
        assert ids == theirs.encode(text, add_special_tokens=False).ids, name
        assert mine.decode(ids) == "".join(mine.stream(ids)) == text


NAMES = {"gpt2": "gpt-2", "smollm": "smollm", "llama 3": "llama-bpe", "qwen 2": "qwen2", "tekken": "tekken"}
RANKED = [(name, ranked(made, NAMES[name]), made) for name, made in ((name, MADE[name]()) for name in NAMES)]


def test_tokens_that_are_found_first_and_special_tokens_of_a_gguf_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minigpt.text.seams.PART", 30)
    _, mine, theirs = RANKED[0]
    crow = ranked(theirs, "gpt-2", tokens=[*mine.tokens, "<think>"], whole=[len(mine.tokens)])
    assert crow.encode("a<think>").tolist() == [*mine.encode("a"), len(mine.tokens)]
    assert not {0, 1} & set(mine.encode("<s>a</s>").tolist())
    assert mine.encode_marked("<s>a</s>").tolist() == [0, *mine.encode("a"), 1]
    assert pieces_have_its_ids(crow, "the crow<think>sang, " * 99) > 20
    assert (mine.token_bytes(0), mine.ends, mine.end_of_text) == (b"<s>", [1], 1)
    assert Tokenizer.from_json(crow.to_json()).encode("a<think>").tolist() == crow.encode("a<think>").tolist()


def test_a_gguf_vocabulary_may_lack_bytes() -> None:
    lacking = Ranked(sorted(set(ALPHABET) - {"Ã"}), [], "smollm", [], [], None, [], None)
    assert lacking.decode(lacking.encode("crow")) == "crow"
    with pytest.raises(UserError, match=r"'é' \(U\+00E9\) at index 4 cannot be written: the vocabulary lacks it"):
        lacking.encode("crowé")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"tokens": "abc"}, "lists of texts"),
        ({"special": [400]}, "must be ids"),
        ({"split": "mine"}, "the split pattern 'mine' is not known here, only gpt-2"),
        ({"split": []}, r"the split pattern '\[\]' is not known here"),
        ({"ends": 7}, "ends a list of ids"),
        ({"merges": ["a"]}, "the merge 'a' is not a pair"),
        ({"merges": ["a b c"]}, "the merge 'a b c' is not a pair"),
        ({"merges": ["a €"]}, "the merge 'a €' is not a pair"),
        ({"merges": ["a b"]}, "the merge 'a b' is made of, or makes, what is no token"),
        ({"tokens": ["\ud800"], "special": [], "merges": [], "ends": []}, "half a surrogate pair"),
    ],
)
def test_a_strange_gguf_vocabulary_is_refused_in_one_line(changes: Json, what: str) -> None:
    letters = {"tokens": sorted(ALPHABET), "merges": [], "special": []}
    with pytest.raises(UserError, match=what):
        ranked(RANKED[0][2], **{"split": "gpt-2"} | letters | changes)
