"""Chats: the forms of a line, the ids of a talk and what of it is taught, templates, and a talk in a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ranks import ranks
from running import ROOT, script, started, well
from small_corpora import own_data
from small_trainings import make_model

from minigpt.model.documents import within_documents
from minigpt.system.errors import ConfigError, UserError
from minigpt.text.chat import MARKS, Talking, whole_turns
from minigpt.text.dataset import IGNORED, DataConfig, Dataset
from minigpt.text.ids import _key
from minigpt.text.languages.tasks.talks import NAMES, PLACES, THINGS, Talks, kinds_of
from minigpt.text.talks import FieldNames, Turn, as_document, read_talk, turns_of
from minigpt.text.tokenizer import BPE, Byte, Char, Tokenizer
from minigpt.training.assemble import open_text
from minigpt.training.floor import expectations
from minigpt.training.loop import next_token_loss, right_answers
from minigpt.training.report import read_metrics
from minigpt.training.run import load

data = pytest.fixture(scope="module", autouse=True)(own_data)

Json = dict[str, Any]
HI = [Turn("user", "Hi"), Turn("assistant", "Hello", True)]
BYTES = Byte().with_marks(*MARKS)
CHAT = DataConfig(source="chat.jsonl", format="chat", windows="documents")


def ask(*texts: str, system: str = "") -> list[Turn]:
    """Turns of a user and an assistant, in turn."""
    turns = [Turn("assistant", text, True) if n % 2 else Turn("user", text) for n, text in enumerate(texts)]
    return [Turn("system", system)] * bool(system) + turns


def line_of(turns: Sequence[Turn]) -> str:
    return json.dumps({"messages": [{"role": turn.role, "content": turn.text} for turn in turns]})


def chat_file(folder: Path, *lines: str | Sequence[Turn]) -> Path:
    path = folder / "chat.jsonl"
    texts = [line if isinstance(line, str) else line_of(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def dataset_of(path: Path, block_size: int = 64, tokenizer: Tokenizer = BYTES, **options: Any) -> Dataset:
    config = replace(CHAT, source=str(path), **({"validation": 0.3} | options))
    return Dataset(config, config.open(), tokenizer, block_size)


WORDS = st.text(st.sampled_from("ab <|user|>\n\u00e9☃"), min_size=1, max_size=12).filter(str.strip)
TALKS = st.builds(
    lambda system, pairs: ask(*(text for pair in pairs for text in pair), system=system),
    st.just("") | WORDS,
    st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=4),
)


# ---------------------------------------------------------------------------------------------- the forms of a line


@pytest.mark.parametrize(
    ("line", "turns"),
    [
        ({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}, HI),
        ({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]}, HI),
        ({"conversations": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}, HI),
        ({"instruction": "Hi", "output": "Hello"}, HI),
        ({"instruction": "Hi", "input": " ", "output": "Hello"}, HI),
        ({"instruction": "Add", "input": "1 2", "output": "3"}, ask("Add\n\n1 2", "3")),
        ({"prompt": "Hi", "completion": "Hello", "id": 7}, HI),
        ({"system": "Be kind", "prompt": "Hi", "completion": "Hello"}, ask("Hi", "Hello", system="Be kind")),
        ({"prompt": "Hi", "messages": [{"role": "assistant", "content": "Hello"}]}, HI[1:]),
        (json.loads(line_of([*HI, Turn("user", "Bye")])), HI),  # nobody answers the last turn
    ],
)
def test_each_form_is_read_as_turns(line: Json, turns: list[Turn]) -> None:
    assert read_talk(line, FieldNames()) == turns
    assert turns_of(as_document(turns)) == turns


def test_a_turn_of_weight_0_is_read_and_not_taught() -> None:
    line = json.loads(line_of(ask("a", "b", "c", "d")))
    line["messages"][1]["weight"] = 0
    assert [turn.taught for turn in read_talk(line, FieldNames())] == [False, False, False, True]
    line["messages"][3]["weight"] = 0
    with pytest.raises(UserError, match="a talk without an answer"):
        read_talk(line, FieldNames())


def test_names_of_fields_can_be_given() -> None:
    asked = FieldNames(question="q", answer="a")
    assert read_talk({"q": "Hi", "a": "Hello", "messages": 3}, asked) == HI
    listed = FieldNames(turns="talk", role="who", content="says")
    assert read_talk({"talk": [{"who": "human", "says": "Hi"}, {"who": "gpt", "says": "Hello"}]}, listed) == HI
    with pytest.raises(UserError, match=r"no talk in \[\"prompt\", \"completion\"\]: expected: q and a"):
        read_talk({"prompt": "Hi", "completion": "Hello"}, asked)
    for wrong in ({"question": "q"}, {"answer": "a"}, {"turns": "t", "question": "q", "answer": "a"}):
        with pytest.raises(ConfigError):
            FieldNames(**wrong)


def messages(*pairs: tuple[Any, Any]) -> Json:
    return {"messages": [{"role": role, "content": content} for role, content in pairs]}


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ([1], "expected an object with turns"),
        ({"text": "once"}, r"no talk in \[\"text\"\]: expected: messages, or conversations, or instruction and output"),
        ({"messages": [], "prompt": "a", "completion": "b"}, "more than one form: messages, or prompt and completion"),
        ({"messages": "Hi"}, "expected a list of turns"),
        (messages(("user", "a"), ("tool", "b")), 'turn 2: unknown role "tool": expected system, user, assistant'),
        (messages(("user", "a"), ("user", "b")), "turn 2: the user speaks twice in a row"),
        (messages(("user", "a"), ("system", "b")), "turn 2: the system speaks after turn 1"),
        (messages(("user", "a"), ("assistant", " ")), "turn 2: the assistant says nothing"),
        (messages(("user", [1]), ("assistant", "b")), r"turn 1: content: expected text, found \[1\]"),
        ({"messages": [{"content": "a"}]}, "turn 1: no role or from in"),
        ({"messages": ["a"]}, 'turn 1: no role or from in "a"'),
        (messages(("user", "a")), "a talk without an answer"),
        (messages(), "a talk without an answer"),
        ({"prompt": "a", "completion": 3}, "field completion: expected text, found 3"),
    ],
)
def test_what_is_no_talk_is_refused_with_its_turn(line: Any, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        read_talk(line, FieldNames())


def test_bad_lines_are_counted_or_refused_with_line_and_turn(tmp_path: Path) -> None:
    bad = json.dumps(messages(("user", "a"), ("robot", "b")))
    odd = '{"prompt": "\\ud800", "completion": "b"}'
    path = chat_file(tmp_path, HI, bad, '{"prompt": "Hi", "completion": "Hello"}', odd)
    config = replace(CHAT, source=str(path))
    corpus = config.open()
    assert "2 documents, 2 lines passed over" in corpus.description
    assert [turns_of(document) for document in corpus.documents()] == [HI, HI]
    with pytest.raises(UserError, match=r'chat\.jsonl: line 2: turn 2: unknown role "robot"'):
        replace(config, bad_files="refuse").open()
    with pytest.raises(UserError, match="no line can be used"):
        replace(config, source=str(chat_file(tmp_path, bad))).open()
    (tmp_path / "story.txt").write_text("once")
    with pytest.raises(UserError, match=r"story\.txt: a chat is read from JSON Lines"):
        replace(config, source=str(tmp_path / "story.txt")).open()


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"format": "chat", "source": "stories", "windows": "documents"}, "format"),
        ({"format": "chat", "source": "shakespeare", "windows": "documents"}, "format"),
        ({"source": "talks", "windows": "documents"}, "format"),
        ({"format": "chat", "source": "x"}, "windows"),
        ({"format": "chat", "source": "x", "windows": "shuffled"}, "windows"),
        ({"format": "chat", "source": "x", "windows": "packed"}, "attend"),
        ({"learn": "everything"}, "learn"),
        ({"fields": FieldNames(turns="x")}, "fields"),
    ],
)
def test_options_that_contradict_one_another_are_refused(options: Json, where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DataConfig(**options)
    assert [place for place, _ in caught.value.mistakes] == [f"DataConfig.{where}"]


# ---------------------------------------------------------------------------------------------- laws of ids and mask


def hugging_face(jinja: str | None = None, specials: Sequence[str] = (), begin: bool = False) -> tuple[Tokenizer, Any]:
    """A small byte-level vocabulary of a published kind, here and for transformers."""
    library, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    made = library.Tokenizer(library.models.BPE())
    made.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    names = ["<|bos|>", "<|eos|>", *specials]
    trainer = library.trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=names,
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["user\nHello there, assistant\n\nsystem\n a user said hello"] * 3, trainer)
    values = {"kind": "hf", "text": made.to_str(), "vocab_size": made.get_vocab_size(), "ends": [1]}
    values |= {"begin_of_text": 0 if begin else None, "chat_template": jinja}
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<|bos|>", eos_token="<|eos|>", chat_template=jinja
    )
    return Tokenizer.from_json(values), theirs


SMOL = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou "
    "are a helpful AI assistant<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
QWEN = (
    "{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}"
    "{%- else %}{{- '<|im_start|>system\\nYou are Q.<|im_end|>\\n' }}{%- endif %}{%- for message in messages %}"
    "{%- if message.role != 'system' %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + "
    "'\\n' }}{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
LLAMA = (
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' "
    "+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\\n\\n' %}"
    "{% set rest = messages[1:] %}{% else %}{% set first = '' %}{% set rest = messages %}{% endif %}{% for message in "
    "rest %}{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' + (first "
    "if loop.first else '') + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
PHI = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '<|im_sep|>' + message['content'] + "
    "'<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"
)
CHATML, HEADERS = ("<|im_start|>", "<|im_end|>"), ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
TURNS = ("<start_of_turn>", "<end_of_turn>")
TEMPLATES: dict[str, Callable[[], tuple[Tokenizer, Any]]] = {
    "smollm": lambda: hugging_face(SMOL, CHATML),
    "qwen": lambda: hugging_face(QWEN, CHATML),
    "llama": lambda: hugging_face(LLAMA, HEADERS, begin=True),
    "gemma": lambda: hugging_face(GEMMA, TURNS, begin=True),
    "phi": lambda: hugging_face(PHI, (*CHATML, "<|im_sep|>")),
}
TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "byte": lambda: BYTES,
    "bpe": lambda: BPE.fit(BPE.Config(vocab_size=300), ["Hi a user said Hello, a user"] * 9).with_marks(*MARKS),
    "without a template": lambda: hugging_face()[0],
    "begins": lambda: hugging_face(begin=True)[0],
    "a base of chatml": lambda: hugging_face(None, CHATML)[0],
    **{name: lambda make=make: make()[0] for name, make in TEMPLATES.items()},  # type: ignore[misc]
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def talking(request: pytest.FixtureRequest) -> Talking:
    return Talking(TOKENIZERS[request.param]())


def spans(taught: np.ndarray[Any, Any]) -> list[list[int]]:
    """The indices of each run of true values."""
    runs = groupby(range(len(taught)), key=lambda i: bool(taught[i]))
    return [[*run] for learned, run in runs if learned]


@settings(max_examples=20)
@given(TALKS)
def test_what_is_taught_are_the_answers_with_their_ends(talking: Talking, turns: list[Turn]) -> None:
    ids, taught = talking.ids(turns)
    answers = [turn.text for turn in turns if turn.role == "assistant"]
    strip = str.strip if talking.template.strips else str
    end = talking.template.after["assistant"][0]
    assert [ids[span[-1]] for span in spans(taught)] == [end] * len(answers)
    assert [talking.tokenizer.decode(ids[span[:-1]]) for span in spans(taught)] == [*map(strip, answers)]
    assert np.array_equal(talking.encode(as_document(turns)), 2 * ids + taught)


@settings(max_examples=20)
@given(TALKS)
def test_the_talk_so_far_is_the_beginning_of_the_training_example(talking: Talking, turns: list[Turn]) -> None:
    ids, taught = talking.ids(turns)
    for n, turn in enumerate(turns):
        if turn.role == "assistant":
            prompt, asked = talking.ids(turns[:n], answering=True)
            assert np.array_equal(ids[: len(prompt)], prompt) and np.array_equal(asked, taught[: len(prompt)])
            assert taught[len(prompt)]  # what comes next is the answer


@settings(max_examples=20)
@given(TALKS, WORDS)
def test_a_turn_is_encoded_by_itself(talking: Talking, turns: list[Turn], other: str) -> None:
    """So the ids of one do not depend on another, and no token crosses a seam."""
    alone = talking.ids([*turns, Turn("user", other)])[0]
    assert np.array_equal(alone[: len(talking.ids(turns)[0])], talking.ids(turns)[0])
    said = talking._encode(other.strip() if talking.template.strips else other, begins=False)
    after = len(talking._after["user"])
    assert np.array_equal(alone[len(alone) - after - len(said) : len(alone) - after], said)


def test_a_mark_that_a_user_types_stays_text(talking: Talking) -> None:
    marks = set(talking.ends)
    typed = "".join(talking.tokenizer.special_tokens) + "<|user|><|end_of_turn|><|im_end|>"
    plain, forged = (talking.ids(ask(text, "b", "c", "d"))[0] for text in ("a", typed))
    assert len(marks) and sum(id in marks for id in forged) == sum(id in marks for id in plain)
    assert typed in talking.tokenizer.decode(forged)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=30, suppress_health_check=list(HealthCheck))
@given(turns=TALKS)
def test_ids_are_those_of_transformers(name: str, turns: list[Turn]) -> None:
    mine, theirs = PAIRS[name] if name in PAIRS else PAIRS.setdefault(name, TEMPLATES[name]())
    turns = [turn._replace(text=re.sub(r"^\s+", "", turn.text).replace("<|user|>", "")) for turn in turns]
    turns = [turn if turn.text.strip() else turn._replace(text="x") for turn in turns]
    talking = Talking(mine)
    listed = [{"role": turn.role, "content": turn.text} for turn in turns]
    for upto in range(2, len(turns) + 1):
        if turns[upto - 1].role == "user":
            expected = theirs.apply_chat_template(listed[:upto], add_generation_prompt=True, return_dict=False)
            assert talking.ids(turns[:upto], answering=True)[0].tolist() == expected
    assert talking.ids(turns)[0].tolist() == theirs.apply_chat_template(listed, return_dict=False)


PAIRS: dict[str, tuple[Tokenizer, Any]] = {}


def test_a_template_that_is_not_known_is_said_and_ours_is_used() -> None:
    template = Talking(hugging_face("[INST]{{ messages[0].content }}[/INST]")[0]).template
    assert template.name == "minigpt" and "not one of those known here" in template.note
    thinking = Talking(hugging_face(SMOL + "{# <think> #}", CHATML)[0]).template
    assert thinking.name == "ChatML" and "thoughts" in thinking.note
    assert not Talking(hugging_face(SMOL, CHATML)[0]).template.note
    with pytest.raises(UserError, match="the tokenizer char of this run has no id that can mark a turn"):
        Talking(Char("abc"))


# ---------------------------------------------------------------------------------------------- laws of the dataset

LONG = [ask("a", "bb", "ccc", "ddd"), ask("q" * 9, "r" * 9, "s", "t"), ask("x", "y"), ask("u", "v" * 30), ask("a", "b")]


def taught_texts(dataset: Dataset, x: torch.Tensor, y: torch.Tensor) -> list[str]:
    """What each run of targets says, with `.` for the end of a turn; a target is the id that follows its input."""
    assert dataset.talking is not None
    end, texts = dataset.talking.template.after["assistant"][0], []
    for inputs, targets in zip(x.tolist(), y.tolist(), strict=True):
        for n, target in enumerate(targets[:-1]):
            assert target in (IGNORED, inputs[n + 1], end)  # no window has the last id as an input
        for learned, run in groupby(targets, key=lambda id: id != IGNORED):
            if learned:
                texts.append("".join("." if id == end else dataset.talking.tokenizer.decode([id]) for id in run))
    return texts


def test_targets_are_the_answers_and_their_ends_in_both_splits(tmp_path: Path) -> None:
    dataset = dataset_of(chat_file(tmp_path, *LONG))
    parts = dict[str, list[str]]()
    for split in dataset.splits:
        parts[split] = [text for b in dataset.windows(split, 2) for text in taught_texts(dataset, *b)]
    assert parts["train"] + parts["val"] == ["bb.", "ddd.", "r" * 9 + ".", "t.", "y.", "v" * 30 + ".", "b."]
    drawn = [text for n in range(20) for text in taught_texts(dataset, *dataset.batch("train", n, 3, seed=1))]
    assert {*drawn} == {*parts["train"]}
    halves = [dataset.batch("train", 5, 4, 1, slice(rank, None, 2)) for rank in range(2)]
    assert sorted(taught_texts(dataset, *halves[0]) + taught_texts(dataset, *halves[1])) == sorted(
        taught_texts(dataset, *dataset.batch("train", 5, 4, 1))
    )


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("block_size", range(6, 48, 6))
def test_a_long_talk_loses_whole_turns_and_never_a_part_of_an_answer(
    tmp_path: Path, block_size: int, packed: bool
) -> None:
    talks, windows = [*LONG, ask("x", "y"), ask("a", "b")], "packed" if packed else "documents"
    options = {"windows": windows, "attend": "document" if packed else "window"}
    dataset = dataset_of(chat_file(tmp_path, *talks), block_size, **options)
    assert dataset.talking is not None
    encode, fitting = dataset.talking.ids, list[list[str]]()
    for turns in talks:
        whole = [n for n, turn in enumerate(turns) if turn.taught and len(encode(turns[: n + 1])[0]) <= block_size + 1]
        fitting.append([f"{turns[n].text}." for n in whole])
    parts = [text for split in dataset.splits for b in dataset.windows(split, 2) for text in taught_texts(dataset, *b)]
    assert parts == [text for texts in fitting for text in texts]
    assert dataset.talks is not None
    assert dataset.talks.shortened.tolist() == [
        0 < len(texts) < sum(turn.taught for turn in turns) for texts, turns in zip(fitting, talks, strict=True)
    ]
    notes = "\n".join(dataset.about_talks())
    assert (f"{fitting.count([])} talks are left out" in notes) == ([] in fitting)


def test_a_tokenizer_of_a_plugin_that_changes_makes_the_ids_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "from minigpt.text.tokenizer import Byte\n\nclass Own(Byte):\n    pass\n"
    (tmp_path / "own_tokenizer.py").write_text(code, encoding="utf-8")
    spec = spec_from_file_location("own_tokenizer", tmp_path / "own_tokenizer.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "own_tokenizer", module)  # inspect looks there for the file of a class
    corpus, own = replace(CHAT, source=str(chat_file(tmp_path, HI))).open(), Talking(module.Own().with_marks(*MARKS))
    before = _key(corpus, own)
    assert _key(corpus, own) == before
    (tmp_path / "own_tokenizer.py").write_text(f"{code}\n", encoding="utf-8")
    assert _key(corpus, own) != before


def test_what_is_scanned_in_parts_is_what_is_scanned_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = np.concatenate([Talking(BYTES).encode(as_document(turns)) for turns in LONG])
    starts = np.cumsum([0, *(len(Talking(BYTES).encode(as_document(turns))) for turns in LONG)])[:-1]
    at_once = whole_turns(stored, starts, 20)
    for size in range(1, 12):
        monkeypatch.setattr("minigpt.text.chat.SCANNED", size)
        assert all(np.array_equal(a, b) for a, b in zip(whole_turns(stored, starts, 20), at_once, strict=True))


def test_nothing_that_is_taught_is_refused(tmp_path: Path) -> None:
    path = chat_file(tmp_path, ask("a" * 50, "b"), ask("a" * 50, "b"))
    with pytest.raises(UserError, match=r"the train split of .* has no answer that fits .* model.block_size than 20"):
        dataset_of(path, 20)
    assert dataset_of(chat_file(tmp_path, HI, HI), validation=0.01).window_count("val") == 1  # no talk is divided
    with pytest.raises(UserError, match=r"the val split of .* has no answer"):
        dataset_of(chat_file(tmp_path, HI))


def test_a_user_sees_what_is_taught_and_how_much(tmp_path: Path) -> None:
    path = chat_file(tmp_path, ask("a", "é\x1b", system="s"), HI, HI)
    first, second = dataset_of(path).about_talks()
    assert first.startswith("talks: 10 of 19 tokens are taught (52.6%)")  # é is two
    assert second == "<|system|>s<|user|>a<|assistant|>[[é\\x1b<|end_of_turn|>]]"
    everything = "\n".join(dataset_of(path, learn="everything").about_talks())
    assert "all 19 tokens are taught" in everything and "[[<|system|>s" in everything


def test_everything_is_learned_where_it_is_asked_for_and_an_evaluation_is_on_the_answers(tmp_path: Path) -> None:
    path = chat_file(tmp_path, *[HI] * 9)
    answers, everything = dataset_of(path), dataset_of(path, learn="everything")
    x, y = everything.batch("train", 0, 3, 1)
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert all(torch.equal(a, b) for a, b in zip(next(answers.windows("val", 9)), next(everything.windows("val", 9))))


MANY = [
    ask("a", "bb", "ccc", "dd"),
    ask("q", "rrr"),
    ask("x", "y"),
    ask("m" * 30, "n"),
    ask("u", "vvvvvvvvv"),
    ask("o", "p"),
]


def taught(targets: torch.Tensor) -> str:
    return str([id for id in targets.flatten().tolist() if id != IGNORED])


@pytest.mark.parametrize("learn", ["answers", "everything"])
def test_packed_windows_have_whole_talks_each_with_the_loss_that_it_has_alone(tmp_path: Path, learn: str) -> None:
    """No talk is divided, so that answers are taught whole and every window teaches something; each once an epoch."""
    path, model = chat_file(tmp_path, *MANY, *MANY), make_model(V=BYTES.vocab_size).eval()
    whole = dataset_of(path, 16, learn=learn)
    batch = whole._gather(*whole._windows("train"), train=True)
    rows = [(x[None], y[None]) for x, y in zip(*batch, strict=True)]
    alone = {taught(y): next_token_loss(model(x), y, "sum").item() for x, y in rows}
    packed = dataset_of(path, 16, learn=learn, windows="packed", attend="document")
    windows = packed._pack("train").count
    assert windows < len(rows)
    for epoch in range(3):
        seen = list[str]()
        for n in range(epoch * windows, (epoch + 1) * windows):
            (x, y), begins = packed.batch("train", n, 1, seed=3), packed.begins("train", n, 1, seed=3)
            assert begins is not None
            with within_documents(model, begins, lambda tensor, device: tensor):
                logits = model(x)
            for start, stop in pairwise([*torch.nonzero(begins[0]).flatten().tolist(), x.shape[1]]):
                seen.append(taught(y[:, start:stop]))
                loss = next_token_loss(logits[:, start:stop], y[:, start:stop], "sum").item()
                assert loss == pytest.approx(alone[seen[-1]], rel=1e-4)
        assert sorted(seen) == sorted(taught(y) for _, y in rows)


def test_right_answers_are_those_whose_ids_are_all_the_likeliest() -> None:
    y = torch.tensor([[IGNORED, 1, 2, IGNORED, 3], [4, IGNORED, 5, 6, IGNORED]])
    guessed = torch.tensor([[0, 1, 0, 0, 3], [4, 9, 5, 6, 9]])
    logits = torch.nn.functional.one_hot(guessed, 10).float()
    assert right_answers(logits, y).tolist() == [3, 4]
    assert right_answers(logits, torch.full((2, 5), IGNORED)).tolist() == [0, 0]


# ---------------------------------------------------------------------------------------------- the chat language


def solved(turns: Sequence[Turn]) -> list[str]:
    """The answers of a talk, worked out from its text alone."""
    story, _, first = turns[0].text.rpartition(". ")
    facts = re.findall(r"(\w+) has a (\w+) in (\w+)", story)
    answers, kind = list[str](), ""
    for question in [first, *(turn.text for turn in turns[2::2])]:
        words = re.findall(r"\w+", question)
        kind = kind if words[0] == "And" else words[0]
        if kind == "Add":
            answers.append(str(int(answers[-1] if words[0] == "And" else words[1]) + int(words[-1])))
        else:
            [fact] = [fact for fact in facts if words[-1] in fact]
            answers.append(fact[("Who", "What", "Where").index(kind)])
    return answers


LANGUAGE = Talks(Talks.Config(count=400, validation=200, facts=(2, 3, 5), turns=8))


def test_every_answer_of_the_language_follows_from_its_talk_and_nothing_is_asked_twice() -> None:
    kinds = list[str]()
    for document in LANGUAGE.texts():
        turns = turns_of(document)
        assert [turn.text for turn in turns if turn.taught] == solved(turns)
        assert len(turns) == 16 and {*re.findall(r"[A-Z]\w+(?= has a)", turns[0].text)} <= {*NAMES}
        assert {*re.findall(r"(?<= has a )\w+", turns[0].text)} <= {*THINGS}
        assert {*re.findall(r"(?<= in )\w+", turns[0].text)} <= {*PLACES}
        fresh = [question for turn in turns[::2] if not (question := turn.text.rpartition(". ")[2]).startswith("And")]
        assert len(fresh) == len({*fresh})
        kinds += [kind for kind, _ in kinds_of(turns)]
    assert 0.3 < kinds.count("follow-up") / len(kinds) < 0.5
    assert min(kinds.count(kind) for kind in ("who", "what", "where", "sum")) > 0.1 * len(kinds)


def test_a_reader_who_remembers_is_right_and_one_who_forgets_guesses() -> None:
    config = DataConfig(source=LANGUAGE.config, format="chat", windows="documents")
    corpus, tokenizer = open_text(config)
    expected = expectations(corpus, tokenizer)
    assert expected is not None and expected.answers is not None
    dataset = Dataset(config, corpus, tokenizer, 512)
    targets = dataset.first_targets("val", 10**9)
    assert expected.floor == 0 and len(targets) == len(expected.ideal) == len(expected.takes)
    end = tokenizer.marks["end_of_turn"]
    assert [0, *(np.flatnonzero(targets == end)[:-1] + 1)] == expected.answers.tolist()
    turns = [turns_of(document) for document in LANGUAGE.texts()[-200:]]
    guesses = [np.log(choices) for talk in turns for _, choices in kinds_of(talk)]
    assert expected.forgetful[expected.answers] == pytest.approx(guesses)
    with pytest.raises(UserError, match=r"model\.block_size: a talk of talks has \d+ tokens, 40 fit"):
        Dataset(config, corpus, tokenizer, 40)


# ---------------------------------------------------------------------------------------------- runs

CONFIG = """\
data: {source: {kind: talks, count: 300, validation: 40, turns: 3}, format: chat, tokenizer: char, windows: documents}
model: {n_layer: 1, n_embd: 16, block_size: 256, position: convolution, attention: {kind: multi_head, n_head: 2}}
training: {batch_size: 8, max_steps: 8, eval_every: 4, sample_every: 4, checkpoint_every: 4, device: cpu}
sampling: {max_tokens: 20}
"""
ENDLESS = """
import time, torch, minigpt.model.sampling

def endless(logits, config, generator=None):
    time.sleep(0.05)
    return torch.full((1,), 7)

minigpt.model.sampling.next_token = endless
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, `small`, that learned some talks for 8 steps."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "small.yaml").write_text(CONFIG)
    (folder / "endless.py").write_text(ENDLESS)
    out = well(script("train.py", "--config", "small.yaml", cwd=folder))
    assert "tokens are taught" in out and "[[" in out.partition("step  1/8")[0]
    assert "of the answers right)" in out and "follow-up" in out
    return folder


@pytest.mark.slow
def test_two_processes_learn_the_same_talks_as_one(home: Path) -> None:
    together = ranks("train.py", "--config", "small.yaml", "--name", "two", cwd=home)
    assert together.code == 0, together.err
    two, one = (read_metrics(home / "runs" / name / "metrics.jsonl") for name in ("two", "small"))
    for mine, theirs in zip(two, one, strict=True):
        assert mine.keys() == theirs.keys()
        for key in {"train/loss", "val/loss", "val/right"} & mine.keys():
            assert mine[key] == pytest.approx(theirs[key], rel=1e-4, abs=1e-6)


@pytest.mark.slow
def test_a_comparison_trains_on_talks(home: Path) -> None:
    compared = CONFIG + "compare: {baseline: answers, seeds: [1, 2]}\n"
    compared += "variants: {answers: {}, everything: {data.learn: everything}}\n"
    (home / "compared.yaml").write_text(compared)
    out = script("compare.py", "--config", "compared.yaml", cwd=home)
    assert out.code == 0, out.err
    assert "everything" in out.out


def test_the_ids_of_a_talk_are_those_that_training_saw(home: Path) -> None:
    run = load(home / "runs" / "small")
    story = "Fay has a pot. Pam has a cup. Who has the cup?"
    turns = ask(story, "Pam")
    ids, _ = run.talking.ids(turns)
    prompt = run.context_ids(story)[0].tolist()
    assert ids[: len(prompt)].tolist() == prompt
    assert "".join(run.stream(story, temperature=0)) == "".join(run.answer(turns[:1], temperature=0))
    long = [*(turns * 8), Turn("user", "And the pot?")]
    "".join(run.answer(long, max_tokens=8))
    assert 1 < len(long) < 17 and long[0].role == "user" and long[-1].text == "And the pot?"
    # an answer ends where the context is full: no talk loses a part of a turn
    run.talking.ends = []
    assert len("".join(run.answer([Turn("user", "a" * 245)], stop="", max_tokens=99))) <= 10
    with pytest.raises(UserError, match="this turn has 302 tokens; the context holds 256"):
        run.answer([Turn("user", "a" * 300)])


def test_a_talk_reads_lines_and_a_mistake_ends_no_talk(home: Path) -> None:
    with started("sample.py", "--run", "small", "--chat", cwd=home, stdout=True) as talk:
        assert talk.wait() == 0  # its input is empty
    wrong = script("sample.py", "--run", "small", "--chat", "--prompt", "a", cwd=home)
    assert wrong.code == 2 and wrong.err.startswith("error: --chat: a talk begins with what you type")
    wrong = script("sample.py", "--run", "small", "--system", "a", cwd=home)
    assert wrong.err == "error: --system has no effect without --chat: give --chat as well, or leave it out\n"
    asked = well(script("sample.py", "--run", "small", cwd=home))
    assert "?\n" in asked  # a question of the language, and an answer


def read_for(master: int, expected: str, said: str = "") -> str:
    """Read a terminal until it has said something."""
    while expected not in said:
        said += os.read(master, 1 << 16).decode("utf-8", "replace")
    return said


def test_ctrl_c_ends_an_answer_and_a_second_one_the_talk(home: Path) -> None:
    """Signals come from the keys of a real terminal, and the talk goes on after the first."""
    master, slave = pty.openpty()
    arguments = "--run", "small", "--chat", "--plugin", "endless.py", "--max-tokens", "9999"
    with started("sample.py", *arguments, cwd=home, terminal=slave, session=True) as talk:
        os.close(slave)
        read_for(master, "> ")
        for _ in range(2):
            os.write(master, b"Who has the cup?\n")
            letter = load(home / "runs" / "small").tokenizer.decode([7])
            read_for(master, letter * 3)  # it is under way
            os.write(master, b"\x03")
            read_for(master, "> ")
            assert talk.poll() is None
        os.write(master, b"\x03")
        said = read_for(master, "stopped")
        assert talk.wait() == 130 and "Traceback" not in said
    os.close(master)


def test_a_run_that_did_not_learn_to_talk_says_so(home: Path) -> None:
    (home / "text.txt").write_text("the cat sat on the mat\n" * 50)
    plain = "data.format=text", "data.source=text.txt", "data.windows=random", "model.block_size=16"
    well(script("train.py", "--config", "small.yaml", "--name", "plain", *plain, cwd=home))
    ended = script("sample.py", "--run", "plain", "--chat", cwd=home)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "this run was not trained to talk: train one with data.format=chat" in ended.err
    ended = script("train.py", "--from-run", "plain", "data.format=chat", "data.windows=documents",
                   f"data.source={chat_file(home, *[ask('the cat', 'sat')] * 9)}", cwd=home)  # fmt: skip
    assert ended.code == 2 and "has no id that can mark a turn" in ended.err


@pytest.mark.slow
def test_an_imported_model_learns_a_chat_with_adapters_and_talks(home: Path) -> None:
    """The page of the docs, with a model of the architecture of SmolLM2 whose weights are random."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}
    _, tokenizer = hugging_face(SMOL, CHATML)
    config = transformers.LlamaConfig(
        **shape, num_key_value_heads=2, vocab_size=340, tie_word_embeddings=True, eos_token_id=3, bos_token_id=0
    )
    transformers.LlamaForCausalLM(config).save_pretrained(home / "smollm")
    tokenizer.save_pretrained(home / "smollm")
    path = chat_file(home, *[ask("Hi there", "Hello", "Who are you?", "a user", system="Be kind")] * 9)
    page = (ROOT / "minigpt/text/README.md").read_text("utf-8")
    [command] = re.findall(r"^python scripts/train.py (--from-hf (?:.*\\\n)*.*)", page, re.M)
    words = [
        word.replace("smollm2", "smollm").replace("my.jsonl", str(path))
        for word in shlex.split(command.replace("\\\n", ""))
    ]
    short = "training.max_steps=3", "training.device=cpu", "model.block_size=64"
    ended = script("train.py", *words, *short, cwd=home, imports=("peft",))
    assert ended.code == 0, ended.err
    assert "in the template of ChatML" in ended.out
    run = load(home / "runs" / "mine")
    assert run.talking.ids([Turn("user", "Hi there")], answering=True)[0].tolist() == tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi there"}], add_generation_prompt=True, return_dict=False
    )
    assert isinstance("".join(run.answer([Turn("user", "Hi there")], max_tokens=5)), str)
