"""The commands as a user calls them: every mistake gives one clear line and an exit code, and every option works.

Each command runs in a forked process (see running.py). `pytest -m slow` repeats eight mistakes (with `--whole` all of
them) in processes that are started as by hand.
"""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest
from running import CONFIG, Ended, furnish, process, script

from minigpt.model.sampling import SamplingConfig


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

Mistake = tuple[str, list[str], int, list[str]]

TRAIN = ["--config", "small.yaml"]
MISTAKES: dict[str, Mistake] = {
    "no config": ("train.py", [], 2, ["error: give --config FILE to start a run"]),
    "missing config": ("train.py", ["--config", "tinny.yaml"], 2, ["error: tinny.yaml: no such file"]),
    "config is a folder": ("train.py", ["--config", "no texts"], 2, ["error: no texts: not a file"]),
    "config is a list": ("train.py", ["--config", "list.yaml"], 2, ["error: list.yaml:1:1: a config is a group"]),
    "config is not YAML": ("train.py", ["--config", "broken.yaml"], 2, ["error: broken.yaml:2:1: not YAML"]),
    "config is not UTF-8": ("train.py", ["--config", "latin.yaml"], 2, ["error: latin.yaml: not UTF-8: byte 5"]),
    "key twice": (
        "train.py",
        ["--config", "twice.yaml"],
        2,
        ["error: twice.yaml:4:1: duplicate key 'training' (first at twice.yaml:3:1)"],
    ),
    "all mistakes at once": (
        "train.py",
        ["--config", "many.yaml"],
        2,
        [
            "many.yaml:3:3: model.n_layr: unknown key; did you mean 'n_layer'?",
            "many.yaml:4:11: model.n_embd: expected a whole number of at least 1 and at most 1,048,576, found 'wide'",
            "many.yaml:5:12: model.n_layer: expected a whole number of at least 1 and at most 1,000, found 0",
        ],
    ),
    "unknown key": (
        "train.py",
        [*TRAIN, "training.max_step=5"],
        2,
        ["command line: training.max_step=5: training.max_step: unknown key; did you mean 'max_steps'?"],
    ),
    "wrong type": (
        "train.py",
        [*TRAIN, "training.max_steps=many"],
        2,
        ["expected a whole number of at least 1 and at most 1,000,000,000, found"],
    ),
    "wrong range": ("train.py", [*TRAIN, "model.dropout=1"], 2, ["model.dropout: expected a number of at least 0 and"]),
    "unknown kind": (
        "train.py",
        [*TRAIN, "model.attention=multihead"],
        2,
        ["model.attention: unknown kind 'multihead'; did you mean 'multi_head'?"],
    ),
    "heads do not divide": (
        "train.py",
        [*TRAIN, "model.attention={kind: multi_head, n_head: 3}"],
        2,
        ["attention.n_head: 3 heads do not divide n_embd, 16"],
    ),
    "stray argument": ("train.py", [*TRAIN, "faster"], 2, ["error: unrecognised argument 'faster'"]),
    "stray option": ("train.py", [*TRAIN, "--fast"], 2, ["error: unrecognised argument '--fast'"]),
    "option without its value": ("train.py", ["--config"], 2, ["error: argument --config: expected one argument"]),
    "both": ("train.py", [*TRAIN, "--resume"], 2, ["error: --config and --resume: give one of them"]),
    "a name that is a path": ("train.py", [*TRAIN, "--name", "../small"], 2, ["error: --name ../small: "]),
    "missing data": (
        "train.py",
        [*TRAIN, "data.source=txt.txt"],
        2,
        ["error: data.source: no file or folder 'txt.txt'"],
    ),
    "misspelt name": ("train.py", [*TRAIN, "data.source=storys"], 2, ["did you mean 'stories'?"]),
    "empty data": ("train.py", [*TRAIN, "data.source=empty.txt"], 2, ["empty.txt is empty: there is nothing to learn"]),
    "folder without text": ("train.py", [*TRAIN, "data.source=no texts"], 2, ["no texts contains no text"]),
    "short data": ("train.py", [*TRAIN, "data.source=short.txt"], 2, ["split of short.txt has", "block_size + 1 = 17"]),
    "data in Latin-1": (
        "train.py",
        [*TRAIN, "data.source=latin.txt"],
        2,
        ["latin.txt: byte 20 (line 3) is 0xe9: this is"],
    ),
    "binary data": (
        "train.py",
        [*TRAIN, "data.source=binary.txt"],
        2,
        ["binary.txt: byte 0 (line 1) is 0x00: this is a"],
    ),
    "leak": (
        "train.py",
        [*TRAIN, "model.attention={kind: multi_head, n_head: 2, causal: false}"],
        2,
        [
            "error: layer 1 (multi_head) sees the future: a change of token 1 moved the output at position 0",
            "Likely cause: its option causal is false. --allow-leak trains it anyway",
        ],
    ),
    "nothing to resume": (
        "train.py",
        ["--resume", "tiny"],
        2,
        ["error: there is no run tiny: neither tiny nor runs/tiny"],
    ),
    "not a run": (
        "train.py",
        ["--resume", "no texts"],
        2,
        ["error: no texts: not a run (there is no config.yaml in it)"],
    ),
    "resumed at its end": ("train.py", ["--resume", "small"], 2, ["small has done all its 8 steps; give it more"]),
    "resumed with another model": (
        "train.py",
        ["--resume", "small", "training.max_steps=9", "model.n_layer=2"],
        2,
        ["error: --resume: model.n_layer cannot change from 1 to 2"],
    ),
    "resumed with another optimizer": (
        "train.py",
        ["--resume", "small", "training.max_steps=9", "training.optimizer=muon"],
        2,
        ["error: --resume: training.optimizer cannot change from "],
    ),
    "sample of no run": (
        "sample.py",
        ["--run", "tiny"],
        2,
        ["error: there is no run tiny: neither tiny nor runs/tiny"],
    ),
    "unknown character": (
        "sample.py",
        ["--prompt", "the cat\nis Zed"],
        2,
        ["error: the prompt: unknown character 'Z' (U+005A) at index 11 (line 2, column 4)"],
    ),
    "temperature": (
        "sample.py",
        ["--temperature", "-1"],
        2,
        ["error: --temperature: expected a number of at least 0, f"],
    ),
    "temperature nan": ("sample.py", ["--temperature", "nan"], 2, ["error: --temperature: expected a number"]),
    "temperature word": (
        "sample.py",
        ["--temperature", "hot"],
        2,
        ["argument --temperature: invalid float value: 'hot'"],
    ),
    "top-k": ("sample.py", ["--top-k", "0"], 2, ["error: --top-k: expected a whole number of at least 1 and"]),
    "top-p": (
        "sample.py",
        ["--top-p", "1.5"],
        2,
        ["error: --top-p: expected a number above 0 and at most 1, found 1.5"],
    ),
    "min-p": ("sample.py", ["--min-p", "-0.5"], 2, ["error: --min-p: expected a number of at least 0 and at most 1"]),
    "max-tokens": (
        "sample.py",
        ["--max-tokens", "-1"],
        2,
        ["error: --max-tokens: expected a whole number of at least 0"],
    ),
    "seed": (
        "sample.py",
        ["--seed", str(2**64)],
        2,
        ["error: --seed: expected a whole number of at least 0 and at most"],
    ),
    "num-samples": ("sample.py", ["--num-samples", "0"], 2, ["error: --num-samples: expected at least 1, found 0"]),
    "sample option": ("sample.py", ["--hot"], 2, ["error: unrecognised argument '--hot'"]),
    "missing prompt": ("sample.py", ["--prompt-file", "no.txt"], 2, ["error: --prompt-file no.txt: no such file"]),
    "two prompts": ("sample.py", ["--prompt", "a", "--prompt-file", "a.txt"], 2, ["--prompt and --prompt-file: give"]),
    "prompt in Latin-1": (
        "sample.py",
        ["--prompt-file", "latin prompt.txt"],
        2,
        ["latin prompt.txt: not UTF-8 at byte 7"],
    ),
    "nothing to show": ("show_attention.py", [], 2, ["error: --prompt: give a text to look at"]),
    "long text to show": ("show_attention.py", ["--prompt", "the cat sat on a mat"], 2, ["the context holds 16"]),
    "a picture and text": (
        "show_attention.py",
        ["--prompt", "the", "--out", "a.png", "--text"],
        2,
        ["--out and --text"],
    ),
    "resumed under a name": ("train.py", ["--resume", "--name", "other"], 2, ["error: --name and --resume: give one"]),
    "other data": ("train.py", ["--allow-data-change"], 2, ["error: --allow-data-change: give --resume as well"]),
    "nobody's": ("train.py", ["--config", "small.yaml", "data.source=~no/a"], 2, ["no file or folder '~no/a'"]),
    "picture without a folder": (
        "show_attention.py",
        ["--prompt", "the", "--out", "no folder/maps.png"],
        2,
        ["error: no folder/maps.png: there is no folder no folder: make it first"],
    ),
    "picture of no known form": (
        "show_attention.py",
        ["--prompt", "the", "--out", "a.gif"],
        2,
        ["error: a.gif: the"],
    ),
    "no such layer": ("show_attention.py", ["--prompt", "the", "--layer", "2"], 2, ["--layer 2: the model"]),
    "layer zero": (
        "show_attention.py",
        ["--prompt", "the", "--layer", "0"],
        2,
        ["--layer 0: the model"],
    ),
    "no such head": (
        "show_attention.py",
        ["--prompt", "the", "--head", "3"],
        2,
        ["--head 3: a layer has"],
    ),
    "a name almost": ("sample.py", ["--run", "smal"], 2, ["there is no run smal", "; did you mean 'small'?"]),
    "a name that leads out": (
        "train.py",
        ["--config", "small.yaml", "--name", "../x"],
        2,
        ["error: --name ../x: a run is named by letters"],
    ),
    "a number for a group": (
        "train.py",
        ["--config", "small.yaml", "training.lora=8"],
        2,
        ["expected a group of options, or null, as in training.lora={rank: 8}, found 8"],
    ),
    "special tokens of none": (
        "sample.py",
        ["--special", "--prompt", "the"],
        2,
        ["error: --special: the tokenizer of runs/small, char, has no special tokens"],
    ),
    "special tokens of nothing": (
        "sample.py",
        ["--special"],
        2,
        ["error: --special has no effect without --prompt: give --prompt as well"],
    ),
    "a leak in what is not checked": (
        "train.py",
        ["--config", "small.yaml", "--allow-leak", "--skip-checks"],
        2,
        ["error: --allow-leak and --skip-checks: give one of them; unchecked"],
    ),
    "a leak in a comparison that is not checked": (
        "compare.py",
        ["--config", "ladder.yaml", "--allow-leak", "--skip-checks"],
        2,
        ["error: --allow-leak and --skip-checks: give one of them; unchecked"],
    ),
    "a rate for no training": (
        "swap.py",
        ["--text", "text.txt", "training.threads=1", "training.batch_size=4"],
        2,
        ["error: training.batch_size has no effect without --steps: give --steps as well"],
    ),
    "windows for no training": (
        "swap.py",
        ["--text", "text.txt", "training_length=8"],
        2,
        ["error: training_length has no effect without --steps: give --steps as well"],
    ),
    "steps twice": (
        "swap.py",
        ["--text", "text.txt", "--steps", "3", "training.max_steps=4"],
        2,
        ["error: training.max_steps: --steps says how many"],
    ),
    "textbook's forms in fewer bits": (
        "sample.py",
        ["--plain", "--weights", "int8"],
        2,
        ["--plain and --weights: give"],
    ),
    "weights of no GGUF": (
        "export_hf.py",
        ["--out", "hf", "--gguf-weights", "q8_0"],
        2,
        ["error: --gguf-weights has no effect without --gguf: give --gguf as well"],
    ),
    "code in a GGUF": (
        "export_hf.py",
        ["--gguf", "a.gguf", "--remote-code"],
        2,
        ["error: --remote-code has no effect without --out"],
    ),
    "a price of no speed": (
        "plan.py",
        ["--config", "small.yaml", "--price", "2"],
        2,
        ["error: --price has no effect without --hardware"],
    ),
    "a share of no speed": (
        "plan.py",
        ["--config", "small.yaml", "--mfu", "0.5"],
        2,
        ["error: --mfu has no effect without --hardware"],
    ),
    "a hint into a folder": (
        "exercises.py",
        ["--hint", "mean", "--out", "x"],
        2,
        ["--hint and --out: give one of them"],
    ),
    "a kind in the table": ("kinds.py", ["average", "--readme"], 2, ["a kind and --readme: give one of them"]),
    "an exercise as another": (
        "check.py",
        ["small.yaml", "--exercise", "mean", "--as", "rotary"],
        2,
        ["error: --as and --exercise: give one of them"],
    ),
    "an import of nothing": ("import_hf.py", [""], 2, ["error: the source is empty: give a folder"]),
    "an import of nobody": ("import_hf.py", ["smollm3"], 2, ["did you mean 'smollm2'?", "as in HuggingFaceTB/"]),
    "an import of a part": ("import_hf.py", ["hf/model.safetensors"], 2, ["give the folder that it is in, hf"]),
}
SEVERAL_LINES = {"all mistakes at once"}


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
    for name in MISTAKES if whole else random.Random(0).sample(sorted(MISTAKES), 5):
        the_same_by_hand(home, name)


def test_two_mistakes_in_a_process_started_by_hand(home: Path) -> None:
    for name in ("unknown key", "top-p"):
        the_same_by_hand(home, name)


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
        assert len(options) > 4
        assert all(len(rest.split()) > 3 or more for _, rest, more in options)


# ---- damage ----


def test_a_damaged_checkpoint_is_passed_over_or_refused(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "runs", tmp_path / "runs")
    checkpoints = tmp_path / "runs" / "small" / "checkpoints"

    def damage(step: int) -> None:
        with (checkpoints / f"step-{step:06d}" / "model.safetensors").open("r+b") as file:
            file.seek(1000)
            file.write(b"\x00\x01")

    damage(8)
    ended = script("sample.py", "--prompt", "the", cwd=tmp_path)
    assert ended.code == 0
    assert re.fullmatch(r"skipped: .*step-000008/model\.safetensors: its SHA-256 is not .*\n", ended.err)
    assert ended.out.startswith("the")
    damage(4)
    for command in (["sample.py"], ["show_attention.py", "--prompt", "a"], ["train.py", "--resume"]):
        ended = script(*command, cwd=tmp_path)
        refused(ended, 4, "checkpoint refused: skipped: ", "step-000008/model.safetensors", "step-000004/model")
        assert ended.err.count("\n") == 1


def test_a_divergence_ends_the_run_before_the_step_is_taken(tmp_path: Path) -> None:
    furnish(tmp_path)
    hot = ("training.optimizer.kind=adamw", "training.optimizer.learning_rate=1e30", "training.warmup_steps=0")
    ended = script("train.py", "--config", "small.yaml", *hot, cwd=tmp_path)
    refused(ended, 3, "diverged: step 2: the loss is ", "lower the learning rate")
    assert ended.err.count("\n") == 1
    assert "NaN" not in (tmp_path / "runs" / "small" / "metrics.jsonl").read_text("utf-8")
    early = ("training.checkpoint_every=1", "training.eval_every=1", "--name", "early")
    refused(script("train.py", "--config", "small.yaml", *hot, *early, cwd=tmp_path), 3, "the validation loss is ")
    refused(script("sample.py", "--run", "early", cwd=tmp_path), 4, "there is no checkpoint here yet")


def test_a_leak_can_be_trained_on_purpose(home: Path) -> None:
    leak = "model.attention={kind: multi_head, n_head: 2, causal: false}"
    out = well(script("train.py", "--config", "small.yaml", "--name", "leak", "--allow-leak", leak, cwd=home))
    assert "done: 8 steps" in out


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
