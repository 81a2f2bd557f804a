"""The table of minigpt/training/README.md: the peak that a plan says, beside what real steps and an evaluation take.

python tests/plan_table.py      # Markdown; each shape in a process of its own, some seconds each
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from minigpt.config.options import load
from minigpt.training.assemble import RunConfig
from minigpt.training.fake import simulate
from minigpt.training.memory import Job

SHAPES = {
    "tiny.yaml, float32": (50, "tiny.yaml", "training.precision=float32"),
    "tiny.yaml, bfloat16": (50, "tiny.yaml", "training.precision=bfloat16"),
    "tiny.yaml, AdamW": (50, "tiny.yaml", "training.optimizer={kind: adamw}", "training.precision=float32"),
    "tiny.yaml, 4 micro-batches": (50, "tiny.yaml", "training.micro_batch_size=8", "training.precision=float32"),
    "tiny.yaml, gated_delta_net": (50, "tiny.yaml", "model.attention=gated_delta_net", "training.precision=float32"),
    "tiny.yaml, textbook's forms": (50, "tiny.yaml", "training.fast=false", "training.precision=float32"),
    "6 layers of 384, dropout": (65, "tiny.yaml", "model.n_layer=6", "model.n_embd=384", "model.dropout=0.2",
                                 "model.block_size=256", "training.batch_size=8", "training.precision=float32"),
    "ALiBi, 4 windows at a time": (50, "tiny.yaml", "model.position=alibi", "training.micro_batch_size=4",
                                  "training.precision=float32"),
    "adapters": (50, "tiny.yaml", "training.lora.rank=8", "training.precision=float32"),
    "50,257 tokens": (50_257, "tiny.yaml", "model.n_embd=256", "training.batch_size=8", "training.precision=float32"),
    "context 2,048": (50, "tiny.yaml", "model.block_size=2048", "training.batch_size=2", "training.precision=float32"),
    "GPT-2, one window": (50_257, "gpt2.yaml", "training.batch_size=1", "training.precision=float32"),
}  # fmt: skip


def measure(vocab_size: int, name: str, *overrides: str) -> None:
    """Print the plan's peak, that of torch's allocator, and by how much the process has grown, in bytes."""
    from test_planning import allocated

    torch.set_num_threads(1)
    config = load(RunConfig, name, list(overrides))
    planned = simulate(Job(config.model, vocab_size, config.training)).peak
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with tempfile.TemporaryDirectory() as folder:
        taken = allocated(config, Path(folder), vocab_size, grown := [])
    print(planned, taken, max(0, grown[0] - before))


def main() -> None:
    print("| shape | planned | torch's allocator | error | process |\n|---|---|---|---|---|")
    worst = 0.0
    for name, (vocab_size, *arguments) in SHAPES.items():
        command = [sys.executable, __file__, str(vocab_size), *map(str, arguments)]
        planned, taken, grown = map(int, subprocess.run(command, stdout=-1, check=True).stdout.split()[-3:])
        error = planned / taken - 1
        worst = max(worst, abs(error))
        print(f"| {name} | {planned / 1e6:,.1f} MB | {taken / 1e6:,.1f} MB | {error:+.2%} | {grown / 1e6:,.0f} MB |")
    print(f"\nThe largest error is {worst:.2%}.")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure(int(sys.argv[1]), *sys.argv[2:])
    else:
        main()
