"""Makes the runs of this folder, each with the code of its time, which also records what it computes with them.

    git worktree add ../then 94256ec                              # the commit that stands beside the name below
    python tests/runs_of_old/make.py format-1 ../then
    git worktree remove ../then

    python tests/runs_of_old/make.py format-4 .                   # this format, when its number is new

A format gets a run when its number is new, from the code that writes it, and keeps that run for ever.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROMPT = "the cat sat on"
STEPS, MORE = 20, 4

TRAINING = f"batch_size: 4, max_steps: {STEPS}, eval_every: 4, sample_every: 0, checkpoint_every: {STEPS}, device: cpu"
SHAPE = "n_layer: 1, n_embd: 8, block_size: 16"
TWO_LAYERS = "n_layer: 2, n_embd: 8, block_size: 16"
HEADS = "{kind: multi_head, n_head: 2}"
ADAMW = "{kind: adamw, learning_rate: 0.1}"
MUON = "{kind: muon, learning_rate: 0.1, adamw_learning_rate: 0.1}"
GROUPED = "{kind: grouped_query, n_head: 4, n_kv_head: 2, qk_norm: true, head_dim: 4}"
OTHER_PARTS = "norm: rmsnorm, norm_weights: false, mlp: swiglu, mlp_width: 12, position: rotary, bias: false"

OWN_PARTS = "position: fading_4, norm: tanh_4, mlp: {kind: sigmoid_4, width: 12}, block: shares_4"
OWN_KINDS = "attention: [{kind: near_4, n_head: 2}, {kind: running_4, n_head: 2}]"

RUNS = {  # name: (the commit whose code makes it, the model, the optimizer)
    "format-1-tanh": ("493b785", f"{SHAPE}, mlp: gelu, attention: {HEADS}", ADAMW),
    "format-1-either": ("acb62f0", f"{SHAPE}, mlp: gelu, attention: {HEADS}", ADAMW),
    "format-1": ("94256ec", f"{TWO_LAYERS}, mlp: gelu, position: rotary, attention: {GROUPED}", ADAMW),
    "format-2": ("66702cf", f"{SHAPE}, {OTHER_PARTS}, attention: {HEADS}", ADAMW),
    "format-3-muon": ("360729f", f"{SHAPE}, {OTHER_PARTS}, zero_start: true, attention: {HEADS}", MUON),
    "format-3": ("6b905c0", f"{SHAPE}, attention: {{kind: delta_net, n_head: 2}}", ADAMW),
    "format-4": ("", f"{SHAPE}, mlp: {{kind: geglu, width: 12}}, position: rotary, attention: {GROUPED}", ADAMW),
    "format-4-plugin": ("", f"{TWO_LAYERS}, {OWN_PARTS}, {OWN_KINDS}", MUON),
}
PLUGINS = {"format-4-plugin": ("format-4-plugin/plugins/plugin_of_format_4.py", "letters_4")}  # and its tokenizer
COMPARISON = "38aabf0"  # whose code makes the comparison of comparison.yaml

RECORD = f"""
import json, minigpt, sys, torch
for plugin in sys.argv[1:]:
    minigpt.load_plugin(plugin)
run = minigpt.load("runs/run", device="cpu")
with torch.no_grad():
    logits = run.model(run.prompt_ids({PROMPT!r}))[0, -1]
text = run.generate({PROMPT!r}, temperature=0, max_tokens=30)
print(json.dumps({{"text": text, "logits": logits.tolist()}}))
"""


def do(checkout: Path, folder: Path, *arguments: str) -> str:
    """What a Python of the checkout prints, in a folder."""
    variables = {"PYTHONPATH": str(checkout), "MINIGPT_DATA": str(folder / "data"), "OMP_NUM_THREADS": "1"}
    command, variables = [sys.executable, *arguments], os.environ | variables
    return subprocess.run(command, cwd=folder, env=variables, check=True, stdout=subprocess.PIPE, text=True).stdout


def last_loss(run: Path) -> float:
    """The newest validation loss of a run."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text("utf-8").splitlines()]
    return float([line["val/loss"] for line in lines if "val/loss" in line][-1])


def make_run(name: str, checkout: Path, folder: Path) -> Path:
    """A run of the checkout, with what it computes recorded in expected.json."""
    (_, model, optimizer), (plugin, tokenizer) = RUNS[name], PLUGINS.get(name, ("", "char"))
    data = f"data: {{source: text.txt, tokenizer: {tokenizer}}}"
    config = f"{data}\nmodel: {{{model}}}\ntraining: {{{TRAINING}, optimizer: {optimizer}}}\n"
    own = ("--plugin", str(HERE / plugin)) if plugin else ()
    (folder / "run.yaml").write_text(config, encoding="utf-8")
    train, run = str(checkout / "scripts" / "train.py"), folder / "runs" / "run"
    do(checkout, folder, train, "--config", "run.yaml", *own)
    recorded = do(checkout, folder, "-c", RECORD, *own[1:])
    expected: dict[str, Any] = {"prompt": PROMPT, **json.loads(recorded)}
    expected["loss"] = last_loss(run)
    shutil.copytree(run, folder / "saved")
    do(checkout, folder, train, "--resume", "runs/run", f"training.max_steps={STEPS + MORE}", *own)
    expected["loss_after_more_steps"] = last_loss(run)
    (folder / "saved" / "expected.json").write_text(json.dumps(expected) + "\n", encoding="utf-8")
    return folder / "saved"


def make_comparison(checkout: Path, folder: Path) -> Path:
    """The comparison of comparison.yaml, by the checkout."""
    shutil.copy(HERE / "comparison.yaml", folder)
    do(checkout, folder, str(checkout / "scripts" / "compare.py"), "--config", "comparison.yaml")
    return folder / "runs" / "compare" / "comparison"


def main(name: str, checkout: Path) -> None:
    """Make the run or the comparison of this name, and put it here."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        shutil.copy(HERE / "text.txt", folder)
        made = make_comparison(checkout, folder) if name == "comparison" else make_run(name, checkout, folder)
        shutil.rmtree(HERE / name, ignore_errors=True)
        left_out = (".*", "loss.svg", "samples.txt", "environment.json", "page.html", "results.csv", "speeds.json")
        shutil.copytree(made, HERE / name, ignore=shutil.ignore_patterns(*left_out))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]).resolve())
