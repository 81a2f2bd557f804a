"""The commands as a user calls them: every mistake gives one clear line and an exit code, and every option works.

Each command runs in a forked process (see running.py). `pytest -m slow` repeats two mistakes (with `--whole` all of
them) in processes that are started as by hand.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from command_mistakes import MISTAKES, SEVERAL_LINES
from running import Ended, furnish, process, script, well

from minigpt.model import SamplingConfig


def refused(ended: Ended, code: int, *parts: str) -> None:
    """A refusal is one line on stderr (or one a mistake of a config), and never a traceback."""
    assert ended.code == code, ended.err
    for part in parts:
        assert part in ended.err
    assert "Traceback" not in ended.err
    assert ended.err.endswith("\n")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained run, `small`, and texts and configs that are wrong in every way."""
    folder = furnish(tmp_path_factory.mktemp("home"))
    well(script("train.py", "--config", "small.yaml", cwd=folder))
    (folder / "short.txt").write_bytes(b"the cat sat on a mat")
    (folder / "no texts").mkdir()
    (folder / "hf").mkdir()
    (folder / "hf" / "model.safetensors").write_bytes(b"")
    many = "data: {source: text.txt}\nmodel:\n  n_layr: 2\n  n_embd: wide\n  n_layer: 0\n"
    (folder / "many.yaml").write_text(many, encoding="utf-8")
    (folder / "latin prompt.txt").write_bytes(b"the caf\xe9")
    return folder


# ---- mistakes ----


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_an_exit_code(home: Path, name: str) -> None:
    command, arguments, code, parts = MISTAKES[name]
    ended = script(command, *arguments, cwd=home)
    refused(ended, code, *parts)
    assert ended.err.count("\n") == 1 or name in SEVERAL_LINES
    if command != "train.py":
        assert ended.out == ""


@pytest.mark.slow
def test_mistakes_in_processes_started_by_hand(home: Path, whole: bool) -> None:
    """Such a process ends and prints as one that is forked."""
    for name in MISTAKES if whole else random.Random(0).sample(sorted(MISTAKES), 2):
        command, arguments, code, parts = MISTAKES[name]
        by_hand = process(command, *arguments, cwd=home)
        assert by_hand == script(command, *arguments, cwd=home)
        refused(by_hand, code, *parts)


def test_a_mistake_makes_no_folder(home: Path) -> None:
    before = sorted(path.name for path in (home / "runs").iterdir())
    for name in ("unknown key", "short data", "leak", "nothing to resume"):
        script(MISTAKES[name][0], *MISTAKES[name][1], cwd=home)
    assert sorted(path.name for path in (home / "runs").iterdir()) == before


def test_without_any_run_one_is_told_how_to_make_one(tmp_path: Path) -> None:
    for command in (["sample.py"], ["show_attention.py", "--prompt", "a"], ["train.py", "--resume"]):
        ended = script(*command, cwd=tmp_path)
        refused(ended, 2, f"error: there is no run in {tmp_path}/runs yet: python scripts/train.py --config tiny.yaml")


def test_debug_shows_where_and_only_then(home: Path) -> None:
    quiet = script("sample.py", "--top-k", "0", cwd=home)
    ended = script("sample.py", "--top-k", "0", "--debug", cwd=home)
    assert ended.code == quiet.code == 2
    assert ended.err.startswith("Traceback (most recent call last):")
    assert ended.err.endswith(quiet.err)


def test_help_says_what_every_option_is_for(home: Path) -> None:
    for name in ("train.py", "sample.py", "show_attention.py"):
        text = well(script(name, "--help", cwd=home))
        options = re.findall(r"^  (--?\w[\w-]*)(.*)(?:\n {10,}(.*))?", text, flags=re.MULTILINE)
        assert options
        assert [name for name, rest, more in options if not (more or re.search(r" {2,}\S", rest))] == []


# ---- sampling ----


def sample(home: Path, *arguments: object) -> str:
    return well(script("sample.py", "--run", "small", *arguments, cwd=home))


def test_a_sample_is_the_prompt_and_so_many_tokens(home: Path) -> None:
    text = sample(home, "--prompt", "the ")
    assert text.startswith("the ") and len(text) == 4 + 20 + 1  # the config's max_tokens, and a line end
    assert sample(home, "--prompt", "the ", "--max-tokens", 5) == text[:9] + "\n"
    assert len(sample(home)) == 20 + 1


def test_a_prompt_may_come_from_a_file(home: Path) -> None:
    (home / "prompt.txt").write_text("the cat\nsat", encoding="utf-8")
    assert sample(home, "--prompt-file", "prompt.txt", "--max-tokens", 3).startswith("the cat\nsat")


def test_the_greedy_text_needs_no_seed_and_each_option_reaches_the_sampler(home: Path) -> None:
    greedy = sample(home, "--temperature", 0, "--seed", 1)
    assert greedy == sample(home, "--top-k", 1) == sample(home, "--top-p", 1e-6, "--seed", 9)
    assert greedy == sample(home, "--min-p", 1, "--temperature", 3)


def test_several_samples_are_those_of_the_seeds_that_follow(home: Path) -> None:
    singles = [sample(home, "--prompt", "a", "--seed", seed) for seed in (5, 6)]
    assert len({*singles}) == 2
    assert sample(home, "--prompt", "a", "--seed", 5, "--num-samples", 2, "--no-cache") == "---\n".join(singles)


def test_a_stop_text_ends_the_sample_and_is_left_out(home: Path) -> None:
    whole = sample(home, "--prompt", "the", "--max-tokens", 60)[:-1]
    stop = whole[30:32]
    expected = whole[: whole.index(stop, 3)]
    assert sample(home, "--prompt", "the", "--max-tokens", 60, "--stop", stop) == expected + "\n"


def test_the_config_of_the_run_gives_the_defaults(home: Path) -> None:
    defaults = SamplingConfig()
    explicit = ("--temperature", defaults.temperature, "--seed", defaults.seed, "--max-tokens", 20, "--top-p", 1)
    assert sample(home, *explicit) == sample(home)
