"""Helpers for the tests of the benchmark: a stand-in for nanoGPT, and a parser of what a suite prints and writes.

The stand-in is a bigram table with nanoGPT's interface.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from running import SCRIPTS, Ended, furnish, script

from benchmarks import trainings

MODEL = '''
"""A substitute: the next token depends only on the last one."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import cross_entropy


@dataclass
class GPTConfig:
    vocab_size: int
    block_size: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float = 0.0
    bias: bool = True


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        print("this is no answer")
        self.table = nn.Embedding(config.vocab_size, config.vocab_size)

    def forward(self, ids, targets=None):
        logits = self.table(ids)
        return logits, None if targets is None else cross_entropy(logits.flatten(0, 1), targets.reshape(-1))

    def configure_optimizers(self, decay, rate, betas, device_type):
        return torch.optim.AdamW(self.parameters(), lr=rate, betas=betas, weight_decay=decay)

    @torch.no_grad()
    def generate(self, ids, count):
        for _ in range(count):
            ids = torch.cat((ids, torch.multinomial(self(ids)[0][:, -1].softmax(-1), 1)), 1)
        return ids
'''

TRAIN = '''
"""A substitute: each step trains the table on the whole text."""
import os
import pickle
import sys

import numpy as np
import torch
from model import GPT, GPTConfig

for word in sys.argv[1:]:
    if not word.startswith("--"):
        with open(word) as file:
            exec(file.read())
options = dict(word[2:].split("=") for word in sys.argv[1:] if word.startswith("--"))
torch.manual_seed(1337)
with open("data/shakespeare_char/meta.pkl", "rb") as file:
    shape = {"vocab_size": pickle.load(file)["vocab_size"]}
shape |= {name: int(options[name]) for name in ("block_size", "n_layer", "n_head", "n_embd")}
model = GPT(GPTConfig(**shape))
optimizer = model.configure_optimizers(0.0, 0.1, (0.9, 0.99), options["device"])
ids = torch.from_numpy(np.fromfile("data/shakespeare_char/train.bin", np.uint16).astype(np.int64))[None]
for step in range(int(options["max_iters"]) + 1):
    loss = model(ids[:, :-1], ids[:, 1:])[1]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"iter {step}: loss {loss.item():.4f}")
os.makedirs("out-shakespeare-char", exist_ok=True)
torch.save({"model": model.state_dict(), "model_args": shape, "seed": torch.initial_seed()},
           "out-shakespeare-char/ckpt.pt")
'''

CONFIG = """\
data: {source: text.txt}
model: {n_layer: 1, n_embd: 16, block_size: 64, attention: {kind: multi_head, n_head: 2}}
training: {batch_size: 4, max_steps: 6, eval_every: 3, sample_every: 0, checkpoint_every: 6, device: cpu}
sampling: {max_tokens: 5}
"""

# A suite that measures for moments. The commands that it times are forks, unless they are Python statements.
BRIEFLY = """
import os, runpy, subprocess, sys
sys.path[:1] = [{scripts!r}, {tests!r}]
from fork_server import Forked, hurry
from benchmarks import attention, commands, machine, processes, shared, tricks

class Command(Forked):
    def __init__(self, command, cwd, **_):
        heard, said = os.pipe()
        pid = os.fork()
        if not pid:
            os.setsid()
            os.dup2(said, 1)
            os.dup2(said, 2)
            os.chdir(cwd)
            sys.argv, sys.path[0] = list(command[1:]), os.path.dirname(command[1])
            sys.stdout.reconfigure(line_buffering=True)
            hurry()
        os.close(said)
        super().__init__(pid, open(os.devnull, "w"), open(heard, encoding="utf-8"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stdin.close()
        self.stdout.close()
        self.wait()

def begun(command, **options):
    return real(command, **options) if command[1].startswith("-") else Command(command, **options)

machine.BRIEF = attention.BLOCK = 0.001
shared.SETTLE, shared.WARM_UP, shared.BLOCK, commands.WARM_UP = 0.2, 0.1, 0.1, 0
tricks.TOKENS, tricks.SIZE["n_layer"] = 1024, 1
for model in tricks.MODELS.values():
    model["n_layer"] = 1
real, processes.subprocess = subprocess.Popen, type(sys)("subprocess")
vars(processes.subprocess).update(vars(subprocess), Popen=begun)
runpy.run_path(sys.path[0] + "/benchmark.py", run_name="__main__")
"""


def briefly(home: Path, *arguments: str, imports: tuple[str, ...] = ()) -> Ended:
    """Run a suite of the benchmark in a fork. So are the commands of which it takes the time."""
    code = BRIEFLY.format(scripts=str(SCRIPTS), tests=str(Path(__file__).parent))
    (home / "brief.py").write_text(code, encoding="utf-8")
    return script(home / "brief.py", *arguments, cwd=home, imports=imports)


def furnish_checkout(folder: Path) -> Path:
    """Put a text, a config and a checkout into a folder."""
    furnish(folder, CONFIG)
    made = folder / "nanoGPT"
    (made / "config").mkdir(parents=True)
    for name, text in {"model.py": MODEL, "train.py": TRAIN, "configurator.py": "", trainings.CONFIG: ""}.items():
        (made / name).write_text(text, encoding="utf-8")
    return folder


def files(folder: Path) -> dict[str, bytes]:
    """The files of a folder and their bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def numbers(ended: Ended, home: Path, suite: str) -> dict[str, Any]:
    """The JSON of a suite that ended without errors, after its tables were compared with the printed ones."""
    assert (ended.code, ended.out.splitlines()[-1]) == (0, f"runs/benchmark-{suite}.json has the numbers"), ended.err
    found: dict[str, Any] = json.loads((home / "runs" / f"benchmark-{suite}.json").read_text("utf-8"))
    for table in found["tables"]:
        printed = iter(ended.out[ended.out.index(table["title"]) :].splitlines()[3:])
        for row, line in zip(table["rows"], printed):
            assert shown(line) == [
                as_shown(row.get(key), text) for key, text in zip(table["columns"].values(), shown(line))
            ]
    assert {row["precision"] for row in found["matmul"]} == {"float32", "bfloat16"}
    assert found["machine"]["threads"] == 1
    assert all(word in ended.out for word in ("threads", "torch", "transformers", "GFLOP/s"))
    return found


def shown(line: str) -> list[str]:
    """The cells of a printed row."""
    return re.split(r"\s{2,}", line.strip())


def as_shown(value: Any, text: str) -> str:
    """A number of the JSON, with as many digits as the printed cell."""
    if value is None or isinstance(value, str):
        return value or "-"
    if isinstance(value, dict):
        middle, *rest = re.fullmatch(r"(\S+)(?: \((.*)\.\.(.*)\))?", text).groups()  # type: ignore[union-attr]
        low_high = [as_shown(value[key], cell) for key, cell in zip(("min", "max"), rest) if cell]
        return as_shown(value["median"], middle) + (f" ({low_high[0]}..{low_high[1]})" if low_high else "")
    if "e" in text:
        return f"{value:.1e}"
    digits = len(text.rstrip("%").partition(".")[2])
    if text.endswith("%"):
        return f"{value:.{digits}%}"
    return f"{value:{'+' if text[0] in '+-' else ''}{',' if ',' in text else ''}.{digits}f}"
