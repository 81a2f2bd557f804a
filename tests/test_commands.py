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
from running import CONFIG, Ended, furnish, process, script

from minigpt.model import SamplingConfig


def refused(ended: Ended, code: int, *parts: str) -> None:
    """A refusal is one line on stderr (or one a mistake of a config), and never a traceback."""
    assert ended.code == code, ended.err
    for part in parts:
        assert part in ended.err
    assert "Traceback" not in ended.err
    assert ended.err.endswith("\n")


def well(ended: Ended) -> str:
    """What a command said that went well."""
    assert (ended.code, ended.err) == (0, "")
    return ended.out


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained run, `small`, and texts and configs that are wrong in every way."""
    folder = furnish(tmp_path_factory.mktemp("home"))
    well(script("train.py", "--config", "small.yaml", cwd=folder))
    (folder / "empty.txt").write_bytes(b"")
    (folder / "short.txt").write_bytes(b"the cat sat on a mat")
    (folder / "latin.txt").write_bytes("the cat\nsat\nat a caf\xe9 ".encode("latin-1") * 100)
    (folder / "binary.txt").write_bytes(bytes(range(128)) * 100)
    (folder / "no texts").mkdir()
    (folder / "hf").mkdir()
    (folder / "hf" / "model.safetensors").write_bytes(b"")
    twice = CONFIG.replace("sampling:", "training: {max_steps: 3}\nsampling:")
    (folder / "twice.yaml").write_text(twice, encoding="utf-8")
    many = "data: {source: text.txt}\nmodel:\n  n_layr: 2\n  n_embd: wide\n  n_layer: 0\n"
    (folder / "many.yaml").write_text(many, encoding="utf-8")
    (folder / "list.yaml").write_text("- 1\n- 2\n", encoding="utf-8")
    (folder / "broken.yaml").write_text("model: {n_layer: 2\n", encoding="utf-8")
    (folder / "latin.yaml").write_bytes(b"# caf\xe9\n")
    (folder / "latin prompt.txt").write_bytes(b"the caf\xe9")
    (folder / "file as runs").mkdir()
    furnish(folder / "file as runs")
    (folder / "file as runs" / "runs").write_bytes(b"")
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


def the_same_by_hand(home: Path, name: str) -> None:
    """A process that is started by hand ends and prints as one that is forked."""
    command, arguments, code, parts = MISTAKES[name]
    by_hand, forked = process(command, *arguments, cwd=home), script(command, *arguments, cwd=home)
    assert by_hand == forked
    refused(by_hand, code, *parts)


@pytest.mark.slow
def test_mistakes_in_processes_started_by_hand(home: Path, whole: bool) -> None:
    for name in MISTAKES if whole else random.Random(0).sample(sorted(MISTAKES), 2):
        the_same_by_hand(home, name)


def test_a_mistake_in_a_process_started_by_hand(home: Path) -> None:
    the_same_by_hand(home, "unknown key")


def test_a_mistake_makes_no_folder(home: Path) -> None:
    before = sorted(path.name for path in (home / "runs").iterdir())
    for name in ("unknown key", "short data", "leak", "nothing to resume"):
        script(MISTAKES[name][0], *MISTAKES[name][1], cwd=home)
    assert sorted(path.name for path in (home / "runs").iterdir()) == before


def test_without_any_run_one_is_told_how_to_make_one(tmp_path: Path) -> None:
    for command in (["sample.py"], ["show_attention.py", "--prompt", "a"], ["train.py", "--resume"]):
        ended = script(*command, cwd=tmp_path)
        refused(ended, 2, f"error: there is no run in {tmp_path}/runs yet: python scripts/train.py --config tiny.yaml")


def test_a_file_where_the_runs_should_be_is_an_input_output_error(home: Path) -> None:
    ended = script("train.py", "--config", "small.yaml", cwd=home / "file as runs")
    refused(ended, 5, "input/output error: ", "'runs'")


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
    assert sample(home, "--prompt", "the ", "--max-tokens", 0) == "the \n"
    assert len(sample(home)) == 20 + 1


def test_a_prompt_may_come_from_a_file(home: Path) -> None:
    (home / "prompt.txt").write_text("the cat\nsat", encoding="utf-8")
    assert sample(home, "--prompt-file", "prompt.txt") == sample(home, "--prompt", "the cat\nsat")


def test_equal_seeds_are_equal_texts_and_the_greedy_one_needs_none(home: Path) -> None:
    assert sample(home, "--seed", 1) == sample(home, "--seed", 1) != sample(home, "--seed", 2)
    greedy = [sample(home, "--temperature", 0, "--seed", seed) for seed in (1, 2)]
    assert greedy[0] == greedy[1] == sample(home, "--top-k", 1) == sample(home, "--top-p", 1e-6, "--seed", 9)
    assert greedy[0] == sample(home, "--min-p", 1, "--temperature", 3)


def test_without_the_cache_the_text_is_the_same_far_beyond_the_context(home: Path) -> None:
    arguments = ("--prompt", "the", "--max-tokens", 100)
    text = sample(home, *arguments)
    assert len(text) == 104
    assert text == sample(home, *arguments, "--no-cache")


def test_several_samples_are_those_of_the_seeds_that_follow(home: Path) -> None:
    singles = [sample(home, "--prompt", "a", "--seed", seed) for seed in (5, 6, 7)]
    assert len(set(singles)) == 3
    assert sample(home, "--prompt", "a", "--seed", 5, "--num-samples", 3) == "---\n".join(singles)


def test_a_stop_text_ends_the_sample_and_is_left_out(home: Path) -> None:
    whole = sample(home, "--prompt", "the", "--max-tokens", 60)[:-1]
    stop = whole[30:32]
    expected = whole[: whole.index(stop, 3)]
    assert sample(home, "--prompt", "the", "--max-tokens", 60, "--stop", stop) == expected + "\n"
    assert sample(home, "--prompt", "the", "--max-tokens", 60, "--stop", "") == whole + "\n"


def test_the_config_of_the_run_gives_the_defaults(home: Path) -> None:
    defaults = SamplingConfig()
    explicit = ("--temperature", defaults.temperature, "--seed", defaults.seed, "--max-tokens", 20, "--top-p", 1)
    assert sample(home, *explicit) == sample(home)
