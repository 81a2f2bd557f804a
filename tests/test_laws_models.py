"""Means, norms, MLPs, blocks, GPTs and losses: right ones obey their laws, and each bug has its sentence."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from minigpt.checks.laws.law import Judged
from minigpt.checks.laws.loss import WantedLoss
from minigpt.checks.laws.target import JUDGES, find_target, recognise
from minigpt.checks.reading.reading import Reading
from minigpt.checks.reading.shadows import Ids

SOURCE = """\
import math
import torch
from torch import nn
from torch.nn import functional as F

def running_mean(x):
    T = x.shape[1]
    seen = torch.ones(T, T).tril()
    return seen / seen.sum(1, keepdim=True) @ x

class Norm(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = x.var(-1, keepdim=True, unbiased=False)
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.weight + self.bias

class MLP(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x):
        hidden = F.gelu(self.up(x))
        return self.down(hidden)

class Attention(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = (y.view(B, T, 2, D // 2).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT / math.sqrt(D // 2)
        scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D))

class Block(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.norm1, self.norm2, self.attention, self.mlp = Norm(D), Norm(D), Attention(D), MLP(D)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return x

class GPT(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.tokens, self.positions, self.norm, self.head = (
            nn.Embedding(13, D), nn.Embedding(9, D), Norm(D), nn.Linear(D, 13, bias=False))
        self.blocks = nn.ModuleList(Block(D) for _ in range(2))

    def forward(self, ids):
        x = self.tokens(ids)
        x = x + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

def loss(logits, targets):
    chosen = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return chosen
"""
THINGS = {"running_mean": "running_mean", "norm": "Norm", "mlp": "MLP", "block": "Block", "gpt": "GPT", "loss": "loss"}
MEAN, NORMED = (
    "    seen = torch.ones(T, T).tril()",
    "(x - mean) / torch.sqrt(variance + 1e-5) * self.weight + self.bias",
)
HIDDEN, FIRST, SECOND = "F.gelu(self.up(x))", "x = x + self.attention(self.norm1(x))", "x = x + self.mlp(self.norm2(x))"
ADDED, CHAIN = "x = x + self.positions(torch.arange(ids.shape[1]))", "            x = block(x)"
LOSS = "F.cross_entropy(logits.flatten(0, 1), targets.flatten())"
RIGHT: list[tuple[str, str, str, str]] = [  # (target, old, new, what the note says)
    *((name, "", "", "") for name in THINGS),
    ("running_mean", "seen / seen.sum(1, keepdim=True) @ x", "x.cumsum(1) / torch.arange(1, T + 1)[:, None]", ""),
    ("running_mean", "seen / seen.sum(1, keepdim=True) @ x",
     "torch.zeros(T, T).masked_fill(seen == 0, -torch.inf).softmax(-1) @ x", ""),
    ("running_mean", "seen / seen.sum(1, keepdim=True) @ x",
     "torch.stack([x[:, : t + 1].mean(1) for t in range(T)], 1)", ""),
    ("norm", NORMED, "F.layer_norm(x, (x.shape[-1],), self.weight, self.bias)", ""),
    ("norm", NORMED, "x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * self.weight + self.bias", "RMSNorm"),
    ("norm", NORMED, "self.weight * (x - mean) / (x.std(-1, keepdim=True) + 1e-5) + self.bias", "Annotated"),
    ("mlp", HIDDEN, "self.up(x); hidden = 0.5 * hidden * (1 + torch.erf(hidden / 2**0.5))", ""),
    ("mlp", HIDDEN, "self.up(x).relu()", "ReLU"),
    ("block", FIRST, "x = self.attention(self.norm1(x)) + x", ""),
    ("block", f"{FIRST}\n        {SECOND}", "x = self.norm1(x + self.attention(x)); x = self.norm2(x + self.mlp(x))",
     "post-norm"),
    ("gpt", ADDED, "x = x + self.positions.weight[: ids.shape[1]]", ""),
    ("gpt", "Block(D) for _ in range(2))", "Block(D) for _ in range(2)); self.head.weight = self.tokens.weight", ""),
    ("loss", LOSS, "-logits.log_softmax(-1).gather(2, targets[..., None]).mean()", ""),
    ("loss", LOSS, "(logits.logsumexp(-1) - logits.gather(2, targets[..., None])[..., 0]).mean()", ""),
]  # fmt: skip
WRONG = [  # (target, old, new, what is found, the code of the line)
    ("running_mean", MEAN, MEAN.replace("tril()", "tril(-1)"), "leaves itself out|divided by zero", ""),
    ("running_mean", "tril()", "tril(1)", "one too long", "@ x"),
    ("running_mean", "tril()", "triu()", "upside down", "@ x"),
    ("running_mean", "seen.sum(1, keepdim=True)", "seen.sum(0, keepdim=True)", "the columns are divided", "@ x"),
    ("running_mean", "seen / seen.sum(1, keepdim=True)", "seen", "not divided", "@ x"),
    ("running_mean", "seen / seen.sum(1, keepdim=True)", "seen / T", "the length of the text", "@ x"),
    ("running_mean", "seen / seen.sum(1, keepdim=True) @ x", "x.cumsum(2)", "along the features", "cumsum"),
    ("norm", "(x - mean) / ", "x / ", "does not subtract the mean", ""),
    ("norm", "torch.sqrt(variance + 1e-5)", "(variance + 1e-5)", "variance, not by its root", ""),
    ("norm", "unbiased=False", "unbiased=True", "unbiased", ""),
    ("norm", "1e-5", "0.5", "too large", ""),
    ("norm", "variance + 1e-5", "variance", "no epsilon", ""),
    ("mlp", HIDDEN, "self.up(x)", "no activation", ""),
    ("mlp", HIDDEN, "self.up(x)\n        return F.gelu(self.down(hidden))", "after the second", "return F.gelu"),
    ("mlp", "return self.down", "return x + self.down", "x is added inside the MLP", ""),
    ("mlp", HIDDEN, "F.sigmoid(self.up(x))", "a sigmoid", ""),
    ("block", FIRST, "x = self.attention(self.norm1(x))", "first residual is missing|without adding x", ""),
    ("block", SECOND, "x = self.mlp(self.norm2(x))", "second residual is missing", ""),
    ("block", FIRST, "x = self.norm1(x); x = x + self.attention(x)", "the normed x", ""),
    ("block", SECOND, "x = x + self.mlp(x) + 0 * self.norm2(x)", "second norm is missing", ""),
    ("block", "self.norm2(x)", "self.norm1(x)", "one norm is used for both", ""),
    ("block", f"{FIRST}\n        {SECOND}", f"{SECOND}\n        {FIRST}", "order is exchanged", ""),
    ("block", "triu(1)", "triu(2)", "token 0 sees 0, 1", "softmax"),
    ("gpt", CHAIN, "            x = self.blocks[0](x)", "one and the same block", ""),
    ("gpt", CHAIN, "            y = block(x)\n        x = y", "never counts", ""),
    ("gpt", ADDED, "pass", "no position", ""),
    ("gpt", "self.positions(torch.arange(ids.shape[1]))", "self.positions(ids % 9)", "ids of the tokens", ""),
    ("gpt", "torch.arange(ids.shape[1])", "torch.arange(len(ids))[:, None]", "number of the sequence in the batch", ""),
    ("gpt", "torch.arange(ids.shape[1])", "torch.arange(1, ids.shape[1] + 1)", "start at 1", ""),
    ("gpt", "self.head(self.norm(x))", "self.head(x)", "final norm is missing", ""),
    ("gpt", "self.head(self.norm(x))", "self.head(self.norm(x)).softmax(-1)", "softmax is applied to the logits", ""),
    ("gpt", "self.head(self.norm(x))", "self.head(self.norm(x)).roll(1, 1)", "stand at the place of token", ""),
    ("gpt", "math.sqrt(D // 2)", "math.sqrt(D)", "in block 1, in the attention, .*divided by sqrt", ""),
    ("loss", LOSS, "F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())", "shifted once more", ""),
    ("loss", LOSS, "F.cross_entropy(logits.softmax(-1).flatten(0, 1), targets.flatten())", "a softmax is applied", ""),
    ("loss", LOSS, "F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction='sum')", "the sum over all", ""),
    ("loss", LOSS, "F.cross_entropy(logits.reshape(2, 13, 5), targets)", "reshaped", ""),
    ("loss", LOSS, "F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction='none')", "mean is missing", ""),
    ("loss", LOSS, "F.nll_loss(logits.flatten(0, 1), targets.flatten())", "log_softmax is missing", ""),
    ("loss", LOSS, "F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0)", "as padding", ""),
]  # fmt: skip


@pytest.fixture(autouse=True)
def in_double() -> Iterator[None]:
    """Parameters and constants in float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def read(folder: Path, target: str, old: str, new: str) -> tuple[Reading, Ids, Any]:
    """The reading of one thing of the source, with a line of it changed: its output's meanings, and what is wanted."""
    assert old in SOURCE
    path = folder / "learner.py"
    path.write_text(SOURCE.replace(old, new) if old else SOURCE)
    linecache.checkcache(str(path))
    space: dict[str, Any] = {"__name__": "learner"}
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad(), Reading(str(path)) as reading:
        exec(compile(path.read_text(), str(path), "exec"), space)
        thing = space[THINGS[target]]
        if isinstance(thing, type):
            thing = thing(8).double().eval()
            reading.parameters(thing)
        wanted = find_target("gpt").wanted(5)
        if target == "gpt":
            ids = torch.randperm(13, generator=draw)[:10].view(2, 5)
            reading.ids(ids)
            y = thing(ids)
        else:
            x = torch.randn(2, 5, 13 if target == "loss" else 8, dtype=torch.float64, generator=draw)
            reading.text(x)
            targets = torch.tensor([[3, 7, 1, 9, 5], [8, 2, 0, 6, 4]])
            wanted = WantedLoss(**vars(wanted), ids=targets, targets=targets) if target == "loss" else wanted
            y = thing(x, targets) if target == "loss" else thing(x)
    return reading, reading.shadows.ids(y), wanted


def said(folder: Path, target: str, old: str, new: str) -> Judged:
    """What the laws say."""
    return JUDGES[target](*read(folder, target, old, new))


@pytest.mark.parametrize(("target", "old", "new", "note"), RIGHT)
def test_a_right_part_or_model_obeys_every_law(tmp_path: Path, target: str, old: str, new: str, note: str) -> None:
    judged = said(tmp_path, target, old, new)
    assert judged.broken == []
    notes = " ".join(one.actual for one in judged.notes)
    assert note in notes if note else not notes, notes


@pytest.mark.parametrize(("target", "old", "new", "found", "code"), WRONG)
def test_a_bug_is_told_by_its_sentence(tmp_path: Path, target: str, old: str, new: str, found: str, code: str) -> None:
    broken = said(tmp_path, target, old, new).broken
    assert broken, "it is called right"
    assert re.search(found, broken[0].actual), broken[0].actual
    assert broken[0].law and broken[0].expected and broken[0].mend
    assert code in linecache.getline(str(tmp_path / "learner.py"), broken[0].line)


@pytest.mark.parametrize(("target", "old", "new", "nearest"), [
    *((name, "", "", name) for name in ("running_mean", "norm", "mlp", "block")),
    ("block", f"{FIRST}\n        {SECOND}", "x = self.attention(x)", "softmax"),
    *((*one[:3], "running_mean") for one in RIGHT if one[0] == "running_mean"),
])  # fmt: skip
def test_a_program_is_recognised_by_what_was_read(
    tmp_path: Path, target: str, old: str, new: str, nearest: str
) -> None:
    reading, ids, _ = read(tmp_path, target, old, new)
    assert recognise(reading, ids) == nearest
