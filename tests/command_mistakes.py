"""Mistakes that users make with the commands: what was typed, the exit code, and what the one line must say.

The files that they name are made by the fixture `home` of test_commands.py.
"""

from __future__ import annotations

import shlex
from typing import Any

Mistake = tuple[str, list[str], int, list[str]]

TYPED: dict[str, tuple[Any, ...]] = {
    "no config": ("train.py", 2, "error: give --config FILE to start a run"),
    "missing config": ("train.py --config tinny.yaml", 2, "error: tinny.yaml: no such file"),
    "all mistakes at once": ("train.py --config many.yaml", 2,
     "many.yaml:3:3: model.n_layr: unknown key; did you mean 'n_layer'?",
     "many.yaml:4:11: model.n_embd: expected a whole number of at least 1 and at most 1,048,576, found 'wide'",
     "many.yaml:5:12: model.n_layer: expected a whole number of at least 1 and at most 1,000, found 0"),
    "unknown key": ("train.py --config small.yaml training.max_step=5", 2,
     "command line: training.max_step=5: training.max_step: unknown key; did you mean 'max_steps'?"),
    "stray argument": ("train.py --config small.yaml faster", 2, "error: unrecognised argument 'faster'"),
    "stray option": ("train.py --config small.yaml --fast", 2, "error: unrecognised argument '--fast'"),
    "option without its value": ("train.py --config", 2, "error: argument --config: expected one argument"),
    "both": ("train.py --config small.yaml --resume", 2, "error: --config and --resume: give one of them"),
    "a name that is a path": ("train.py --config small.yaml --name ../small", 2, "error: --name ../small: "),
    "missing data": ("train.py --config small.yaml data.source=txt.txt", 2,
     "error: data.source: no file or folder 'txt.txt'"),
    "short data": ("train.py --config small.yaml data.source=short.txt", 2,
     "split of short.txt has", "block_size + 1 = 17"),
    "leak": ("train.py --config small.yaml 'model.attention={kind: multi_head, n_head: 2, causal: false}'", 2,
     "error: layer 1 (multi_head) sees the future: a change of token 1 moved the output at position 0",
     "Likely cause: its option causal is false. --allow-leak trains it anyway"),
    "nothing to resume": ("train.py --resume tiny", 2, "error: there is no run tiny: neither tiny nor runs/tiny"),
    "not a run": ("train.py --resume 'no texts'", 2, "error: no texts: not a run (there is no config.yaml in it)"),
    "unknown character": ("sample.py --prompt 'the cat\nis Zed'", 2,
     "error: the prompt: unknown character 'Z' (U+005A) at index 11 (line 2, column 4)"),
    "temperature": ("sample.py --temperature -1", 2, "error: --temperature: expected a number of at least 0, f"),
    "temperature word": ("sample.py --temperature hot", 2, "argument --temperature: invalid float value: 'hot'"),
    "seed": ("sample.py --seed 18446744073709551616", 2,
     "error: --seed: expected a whole number of at least 0 and at most"),
    "top-k": ("sample.py --top-k 0", 2, "error: --top-k: expected a whole number of at least 1 and"),
    "num-samples": ("sample.py --num-samples 0", 2, "error: --num-samples: expected at least 1, found 0"),
    "missing prompt": ("sample.py --prompt-file no.txt", 2, "error: --prompt-file no.txt: no such file"),
    "two prompts": ("sample.py --prompt a --prompt-file a.txt", 2, "--prompt and --prompt-file: give"),
    "prompt in Latin-1": ("sample.py --prompt-file 'latin prompt.txt'", 2, "latin prompt.txt: not UTF-8 at byte 7"),
    "nothing to show": ("show_attention.py", 2, "error: --prompt: give a text to look at"),
    "long text to show": ("show_attention.py --prompt 'the cat sat on a mat'", 2, "the context holds 16"),
    "resumed under a name": ("train.py --resume --name other", 2, "error: --name and --resume: give one"),
    "other data": ("train.py --allow-data-change", 2, "error: --allow-data-change: give --resume as well"),
    "nobody's": ("train.py --config small.yaml 'data.source=~no/a'", 2, "no file or folder '~no/a'"),
    "picture without a folder": ("show_attention.py --prompt the --out 'no folder/maps.png'", 2,
     "error: no folder/maps.png: there is no folder no folder: make it first"),
    "picture of no known form": ("show_attention.py --prompt the --out a.gif", 2, "error: a.gif: the"),
    "no such layer": ("show_attention.py --prompt the --layer 2", 2, "--layer 2: the model"),
    "layer zero": ("show_attention.py --prompt the --layer 0", 2, "--layer 0: the model"),
    "no such head": ("show_attention.py --prompt the --head 3", 2, "--head 3: a layer has"),
    "a name almost": ("sample.py --run smal", 2, "there is no run smal", "; did you mean 'small'?"),
    "a number for a group": ("train.py --config small.yaml training.lora=8", 2,
     "expected a group of options, or null, as in training.lora={rank: 8}, found 8"),
    "special tokens of none": ("sample.py --special --prompt the", 2,
     "error: --special: the tokenizer of runs/small, char, has no special tokens"),
    "special tokens of nothing": ("sample.py --special", 2,
     "error: --special has no effect without --prompt: give --prompt as well"),
    "a profile that is not checked": ("train.py --config small.yaml --profile --skip-checks", 2,
     "error: --profile and --skip-checks: give one of them"),
    "a leak in what is not checked": ("train.py --config small.yaml --allow-leak --skip-checks", 2,
     "error: --allow-leak and --skip-checks: give one of them; unchecked"),
    "a leak in a comparison that is not checked": ("compare.py --config ladder.yaml --allow-leak --skip-checks", 2,
     "error: --allow-leak and --skip-checks: give one of them; unchecked"),
    "a rate for no training": ("swap.py --text text.txt training.threads=1 training.batch_size=4", 2,
     "error: training.batch_size has no effect without --steps: give --steps as well"),
    "windows for no training": ("swap.py --text text.txt training_length=8", 2,
     "error: training_length has no effect without --steps: give --steps as well"),
    "adapters where all weights are trained": ("swap.py --text text.txt --steps 3 'training.lora={rank: 4}'", 2,
     "training.lora: all weights are trained for --steps: leave it out"),
    "steps twice": ("swap.py --text text.txt --steps 3 training.max_steps=4", 2,
     "error: training.max_steps: --steps says how many"),
    "textbook's forms in fewer bits": ("sample.py --plain --weights int8", 2, "--plain and --weights: give"),
    "weights of no GGUF": ("export_hf.py --out hf --gguf-weights q8_0", 2,
     "error: --gguf-weights has no effect without --gguf: give --gguf as well"),
    "code in a GGUF": ("export_hf.py --gguf a.gguf --remote-code", 2,
     "error: --remote-code has no effect without --out"),
    "a price of no speed": ("plan.py --config small.yaml --price 2", 2,
     "error: --price has no effect without --hardware"),
    "a share of no speed": ("plan.py --config small.yaml --mfu 0.5", 2,
     "error: --mfu has no effect without --hardware"),
    "a hint into a folder": ("exercises.py --hint mean --out x", 2, "--hint and --out: give one of them"),
    "a kind in the table": ("kinds.py average --readme", 2, "a kind and --readme: give one of them"),
    "an exercise as another": ("check.py small.yaml --exercise mean --as rotary", 2,
     "error: --as and --exercise: give one of them"),
    "an import of nothing": ("import_hf.py ''", 2, "error: the source is empty: give a folder"),
    "an import of nobody": ("import_hf.py smollm3", 2, "did you mean 'smollm2'?", "as in HuggingFaceTB/"),
    "an import of a part": ("import_hf.py hf/model.safetensors", 2, "give the folder that it is in, hf"),
}  # fmt: skip


def mistake(typed: str, code: int, *parts: str) -> Mistake:
    """The script, its arguments, the exit code, and the parts of the line."""
    script, *arguments = shlex.split(typed)
    return script, arguments, code, list(parts)


MISTAKES = {name: mistake(*typed) for name, typed in TYPED.items()}
SEVERAL_LINES = {"all mistakes at once"}
