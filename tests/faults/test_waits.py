"""Waits: what takes long says so, ends at Ctrl-C, and takes no more memory than it needs."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import tiktoken
from running import command_line, environment, furnish, small_text
from tiktoken_ext import openai_public

from minigpt import tokenizer, waiting
from minigpt.tokenizer import BPE, LONGEST, PIECES, parts
from minigpt.waiting import aside, progress

DNA = random.Random(0).randbytes(16_000_000).translate(b"ACGT" * 64).decode()
WORD = DNA[:200_000]
TEXT = (
    small_text(800)
    + "I don't, he'LL; x=12345/6\n\n\n  if (a_b):\n\t\treturn 'é'\r\n" * 300
    + "多读书。多看报。少吃零食。" * 400
)


# ---- learning pieces ----


@pytest.mark.parametrize("name", ["one word", "blanks", "text"])
def test_a_text_of_any_kind_is_cut_into_bounded_parts(name: str) -> None:
    text = {"one word": WORD, "blanks": " \n" * 10_000, "text": TEXT}[name]
    cut = list(parts(text))
    assert "".join(cut) == text and max(map(len, cut)) <= LONGEST
    assert list(parts("")) == []


@pytest.mark.parametrize("pattern", ["ours", "cl100k_base", "o200k_base"])
def test_the_parts_of_a_text_have_the_ids_of_the_whole(pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No piece of any tokenizer is cut: an encoding of every pattern, with ranks of our own, gives the same."""
    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: {})
    pieces = PIECES if pattern == "ours" else openai_public.ENCODING_CONSTRUCTORS[pattern]()["pat_str"]
    ranks = {bytes([byte]): byte for byte in range(256)} | {
        b"th": 256,
        b"the": 257,
        b" c": 258,
        b"  ": 259,
        b".\n": 260,
    }
    encoding = tiktoken.Encoding("test", pat_str=pieces, mergeable_ranks=ranks, special_tokens={})
    whole = encoding.encode_ordinary(TEXT)
    assert [id for part in parts(TEXT) for id in encoding.encode_ordinary(part)] == whole
    assert len(list(parts(TEXT))) > 10


def test_the_vocabulary_of_a_text_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = BPE.fit(BPE.Config(vocab_size=400), [TEXT])
    monkeypatch.setattr(tokenizer, "parts", lambda text: [text])
    assert BPE.fit(BPE.Config(vocab_size=400), [TEXT]).pieces == learned.pieces


@pytest.mark.parametrize("text", [WORD, " " * 400_000], ids=["one word", "blanks"])
def test_a_word_without_end_is_learned_from(text: str) -> None:
    """Whole, it would take a square of time: two minutes."""
    learned = BPE.fit(BPE.Config(vocab_size=300), [text])
    assert learned.decode(learned.encode(text)) == text
    assert learned.vocab_size > 260


def test_learning_says_that_it_is_under_way_and_ends_at_a_signal(tmp_path: Path) -> None:
    (tmp_path / "dna.txt").write_text(DNA, encoding="utf-8")
    furnish(tmp_path)
    arguments = ["--config", "small.yaml", "data.source=dna.txt", "data.tokenizer={kind: bpe, vocab_size: 50000}"]
    for signum, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        command = command_line("train.py", *arguments)
        with subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True) as running:
            assert running.stderr
            assert running.stderr.readline().startswith("training the tokenizer: ")
            running.send_signal(signum)
            _, err = running.communicate(timeout=60)
            assert (running.returncode, err.splitlines()[-1]) == (code, "stopped")
    assert not (tmp_path / "runs").exists()


def test_learning_ends_with_whoever_asked_for_it(tmp_path: Path) -> None:
    """SIGKILL leaves no process behind that goes on learning."""
    code = "from minigpt.tokenizer import BPE; BPE.fit(BPE.Config(vocab_size=50000), [open('dna.txt').read()])"
    (tmp_path / "dna.txt").write_text(DNA, encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), stderr=subprocess.PIPE
    ) as asks:
        assert asks.stderr and asks.stderr.readline()
        asks.kill()
        assert asks.stderr.read() == b""  # which the learner has too: it ends when both are gone


# ---- progress ----


def test_lines_come_after_two_seconds_and_then_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(waiting, "perf_counter", lambda: float(next(clock)))
    assert list(progress(range(20), "counting", 20, "numbers")) == list(range(20))
    said = capsys.readouterr().err.splitlines()
    assert said == [f"counting: {n} of 20 numbers, {n} s" for n in (2, 4, 8, 16)]


def test_a_call_set_aside_returns_and_raises_as_it_would() -> None:
    assert aside(lambda: 3, "three") == 3
    with pytest.raises(ZeroDivisionError):
        aside(lambda: 1 // 0, "nothing")
