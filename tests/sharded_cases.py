"""Trainings that several processes do together: each of them runs this file, and the first one writes what came out.

    RANK=0 WORLD_SIZE=2 ... python tests/sharded_cases.py FOLDER

Everything is in float64, in which only a mistake is larger than 1e-10.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from minigpt.attention import Attention, Past
from minigpt.config.options import from_dict
from minigpt.model.blocks import Block
from minigpt.model.config import ModelConfig
from minigpt.training import checkpoint, distributed, loop, optimizer
from minigpt.training.assemble import RunConfig, assemble, build_model, open_text, writer
from minigpt.training.sharding import is_sharded, whole

TEXT = "".join(f"{n} times {n} is {n * n}.\n" for n in range(400))
MODEL = {"n_layer": 2, "n_embd": 24, "block_size": 16, "attention": {"kind": "multi_head", "n_head": 3}}
TRAINING = {"batch_size": 7, "max_steps": 3, "warmup_steps": 1, "threads": 1, "device": "cpu", "precision": "float32"}
AGAIN = {"checkpoint_activations": True}
MODERN = {"norm": "rmsnorm", "position": "rotary", "mlp": "swiglu", "bias": False, "tied_head": False, "n_embd": 28}
MODERN |= {"attention": {"kind": "grouped_query", "n_head": 2, "n_kv_head": 1, "qk_norm": True}}
MIXED = ["value_residual", {"kind": "sliding_window", "window": 4}, "gated_delta_net", "indexer"]
STORIES = {"source": "stories", "stories": {"count": 60, "validation": 8}, "windows": "packed", "attend": "document"}
ADAPTERS = {"lora": {"rank": 3, "alpha": 6, "targets": ["query", "value", "mlp.up"]}}
CASES: dict[str, tuple[dict[str, Any], ...]] = {  # what differs in the model, in the training, and in the data
    "adamw": ({}, {"micro_batch_size": 2}),
    "muon": (MODERN, {"optimizer": "muon", "grad_clip": 0.1}),
    "many kinds, computed twice": ({"n_layer": 4, "attention": MIXED}, {"optimizer": "muon", **AGAIN}),
    "single numbers": ({"block": "one_number"}, {"grad_clip": 0.1}),
    "dropout": ({"dropout": 0.2}, AGAIN),
    "documents, computed twice": ({"attention": ["multi_head", "indexer"]}, AGAIN, STORIES),
    "adapters": ({"position": "rotary"}, ADAPTERS | AGAIN),
}
OF_DDP = {"some rows": ({"block": "some_rows"}, {"micro_batch_size": 1})}  # fully_shard wants each gradient in all
OF_FOUR = ("adamw", "many kinds, computed twice")  # what four processes learn; two and three learn all


class OneNumber(Block, kind="one_number"):
    """What a block adds is multiplied by a number of the block's own, which has no rows to share."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__(config, layer)
        self.share = nn.Parameter(torch.tensor(0.5))
        nn.init.orthogonal_(self.attention.get_submodule("query").weight)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        return x + self.share * (super().forward(x, past) - x)  # (B, T, D)


class SomeRows(Block, kind="some_rows"):
    """In training each block computes twice. A parameter is for few rows: a process may have none; another for none."""

    def __init__(self, config: ModelConfig, layer: int):
        super().__init__(config, layer)
        self.scale = nn.Parameter(torch.full((config.n_embd,), 0.5))
        self.never = nn.Parameter(torch.ones(config.n_embd))

    def forward(self, x: Tensor, past: Past) -> Tensor:
        some = x[:, 0, 0] > 0.02  # (B,)
        if some.any():
            x = torch.where(some[:, None, None], x * self.scale, x)  # (B, T, D)
        return super().forward(super().forward(x, past) if self.training else x, past)  # (B, T, D)


def gathered(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The whole tensors, in every process."""
    return {name: whole(tensor).detach().clone() for name, tensor in tensors.items()}


def exact_loss(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction=reduction)


def settings(folder: Path, parallel: str, model: dict[str, Any], training: dict[str, Any], data: Any = ()) -> RunConfig:
    """The config of a case; the folder has the text."""
    data = {"source": str(folder / "text.txt"), "tokenizer": "char"} | dict(data)
    return from_dict(
        RunConfig, {"data": data, "model": MODEL | model, "training": TRAINING | training | {"parallel": parallel}}
    )


def learned(config: RunConfig) -> dict[str, Tensor]:
    """Train, evaluate and write; returns the weights at the start and the end, the state, the losses, and the text."""
    torch.set_default_dtype(torch.float64)
    plain, optimizer.orthogonal = optimizer.orthogonal, lambda some, plain=optimizer.orthogonal: plain(some, some.dtype)
    loss, loop.next_token_loss = loop.next_token_loss, exact_loss
    try:
        corpus, tokenizer = open_text(config.data)
        weights = (lambda model: None) if config.training.lora else None  # adapters beside those of the start
        dataset, model, steps = assemble(config, corpus, tokenizer, weights=weights)
        assert is_sharded(model) == (config.training.parallel.component.kind == "fsdp" and distributed.world() > 1)
        start = {f"start {name}": value for name, value in gathered(checkpoint.tensors_of(model)).items()}
        records = list(loop.train(model, dataset, steps, config.training))
        losses = [record.loss for record in records] + [record.grad_norm for record in records]
        losses.append(loop.evaluate(model, dataset, "val", config.training))
        ids, written = torch.tensor([[0, 1, 2]]), writer(model, "float32", fast=False)  # (1, T)
        with torch.no_grad():
            logits = written.logits(written.last(ids, written.make_cache()))  # (1, V)
        end = gathered(checkpoint.tensors_of(model) | steps.state())
        return start | end | {"losses": torch.tensor(losses), "logits": logits}
    finally:
        torch.set_default_dtype(torch.float32)
        optimizer.orthogonal, loop.next_token_loss = plain, loss


def fresh_weights(folder: Path) -> dict[str, Tensor]:
    """For each kind of attention, whether a layer that was made in shards equals one that was made whole."""
    found, kinds = {}, list(Attention.kinds)
    for some in (kinds[start : start + 8] for start in range(0, len(kinds), 8)):
        config = settings(folder, "fsdp", {"attention": some, "n_layer": len(some)}, {})
        corpus, tokenizer = open_text(config.data)
        plain = checkpoint.tensors_of(build_model(config, tokenizer))
        parts = gathered(checkpoint.tensors_of(assemble(config, corpus, tokenizer)[1]))
        assert parts.keys() == plain.keys()
        equal = {name: torch.equal(parts[name], plain[name]) for name in plain}
        for layer, kind in enumerate(some):
            own = [same for name, same in equal.items() if name.startswith(f"blocks.{layer}.")]
            found[kind] = torch.tensor(len(own) > 0 and all(own))
    return found


def main(folder: Path) -> None:
    """All cases, with the whole model in each process and with shares of it."""
    distributed.start("cpu")
    for name, case in (CASES | OF_DDP).items():
        if distributed.world() == 4 and name not in OF_FOUR:
            continue
        for parallel in ("ddp", "fsdp") if distributed.world() > 1 and name in CASES else ("ddp",):
            found = learned(settings(folder, parallel, *case))
            if distributed.rank() == 0:
                save_file({key: value.contiguous() for key, value in found.items()}, folder / f"{name} {parallel}")
    found = fresh_weights(folder) if distributed.world() == 2 else {}
    if distributed.rank() == 0:
        save_file(found, folder / "fresh")
    distributed.wait_for_all()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
