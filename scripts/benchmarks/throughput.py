"""Throughput and sampling: tokens a second in training and in writing. All programs do the same amount of work.

All models are GPT-2: learned positions, LayerNorm, GELU, a tied head, random weights. In training: AdamW, gradients
clipped at 1; nanoGPT uses its own optimizer, transformers uses torch's; both run in a minimal loop whose batches cost
almost no time. minigpt runs its own training loop. In writing, with a cache and without, and with weights of fewer
bits, all programs sample from the whole distribution at temperature 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.processes import interleave
from benchmarks.report import Report, Row, columns
from benchmarks.worker import Spec, plain_minigpt
from minigpt.seeing.cost import cost

LAPTOP = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64, "vocab_size": 65}
BABY = {"n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256, "vocab_size": 65}
GPT2 = {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024, "vocab_size": 50257}
RATIOS = "x nanoGPT:.2f | x transformers:.2f"
TRAINING = columns(
    "program=who | parameters:,d | type=precision | tokens/s=tokens_per_second:,.0f"
    f" | {RATIOS} | FLOP/token=flops_per_token:,.0f | MFU=mfu:.1%"
)
WRITING = columns(
    "program=who | weights | parameters:,d | tokens/s=tokens_per_second:,.1f"
    f" | {RATIOS} | same text uncached=same | MFU=mfu:.2%"
)
PASSES = 3  # forward passes that a step of training costs: backward costs two
FEW = 200  # tokens that the larger model writes
WARM_UP = 8  # tokens, before the writing that is timed; training warms up for a whole block


def train(report: Report) -> None:
    """Measure every shape, in blocks of `--steps`. Raises UserError."""
    steps, precisions = report.options.steps, ("float32", "auto")
    models = [(LAPTOP, 12, steps), (LAPTOP, 16, steps), *[(BABY, 64, max(1, steps // 10))] * report.options.large]
    report.start([(B * shape["block_size"], shape["n_embd"], 4 * shape["n_embd"]) for shape, B, _ in models], ALONE)
    minigpt: dict[str, Spec] = {f"minigpt, {precision}": {"precision": precision} for precision in precisions}
    if report.device.type == "cuda":
        minigpt["minigpt, CUDA graphs"] = {"precision": "auto", "cuda_graphs": True}
    for shape, batch, count in models:
        blocks = f"{report.repeat} blocks of {count} steps each"
        title = report.begin(f"training: {describe(shape)}, batch {batch}, {blocks}, in turn")
        report.add(title, TRAINING, measure(report, minigpt, count, do="train", shape=shape, batch=batch))
    report.notes += [
        "tokens/s and ratios: the median (smallest..largest). A ratio is taken of the blocks of one round",
        "MFU: operations of the model a second (three times those of a forward pass, see minigpt/seeing/cost.py), "
        "over those of the large square product of the same type, which is measured below",
        "the biases of transformers' GPT-2 cannot be turned off; all programs use the exact GELU",
    ]


def sample(report: Report) -> None:
    """Measure the small model with a batch of 1 and of 16; with `--large`, also GPT-2 (124M). Raises UserError."""
    tokens, cached = report.options.tokens, {"weights": "float32", "cache": True}
    small = {"minigpt": {**cached, "check": tokens}, "minigpt, no cache": {**cached, "cache": False}}
    large = {f"minigpt, {weights}": {**cached, "weights": weights} for weights in ("float32", "bfloat16", "int8")}
    models = [(LAPTOP, 1, tokens, small), (LAPTOP, 16, tokens, small)]
    models += [(GPT2, 1, FEW, large)] * report.options.large
    report.start([(batch, shape["n_embd"], 4 * shape["n_embd"]) for shape, batch, *_ in models], ALONE)
    for shape, batch, count, minigpt in models:
        blocks = f"{report.repeat} times {count} tokens each"
        title = report.begin(f"sampling: {describe(shape)}, batch {batch}, {blocks}, in turn")
        rows = measure(report, minigpt, count, do="sample", shape=shape, batch=batch, positions=count + 1)
        for row in rows:
            if "same" in row:
                row["same"] = "yes" if row["same"] else "NO"
            row["weights"], row["precision"] = row["precision"], "float32"
        report.add(title, WRITING, rows)
    report.notes += [
        "tokens/s: of all texts of a batch together; the median (smallest..largest). Ratios are taken in each round",
        "beyond the context of T tokens, minigpt restarts its window every T/2 tokens, with a cache or without; "
        "nanoGPT (which has no cache) moves its window by one token; transformers can do neither, so its model has a "
        "position for every token and attends to all of them",
        "same text uncached: minigpt writes the same tokens with the cache and without it; tested before it is timed",
        "MFU: the operations of reading each new token once, even if more was computed, over the float32 product below",
    ]


ALONE = "transformers alone"


def measure(report: Report, minigpt: Mapping[str, Spec], count: int, **common: Any) -> list[Row]:
    """Let minigpt, with each of some options, and the other programs take turns: a row for each of them.

    `common`: what the specs of all have. A ratio above 1 means more tokens a second than the other program.
    """
    specs = {name: report.spec(program="minigpt", **common, **options) for name, options in minigpt.items()}
    specs |= {name: report.spec(program=program, **common) for name, program in report.others().items()}
    training, shape, rows = common["do"] == "train", common["shape"], []
    measured = interleave(specs, count, report.repeat, count if training else min(count, WARM_UP))
    tokens = count * common["batch"] * (shape["block_size"] if training else 1)
    flops = flops_per_token(shape) * (PASSES if training else 1)
    for name, (facts, seconds) in measured.items():
        row: Row = {"who": name, "precision": "float32", **facts, "flops_per_token": flops}
        row |= {"tokens_per_second": seconds.rate(tokens), "flops_per_second": seconds.rate(tokens * flops)}
        ratios = {f"x {other}": measured[other][1].over(seconds) for other in report.others() if other != name}
        rows.append(row | ratios)
    return rows


def flops_per_token(shape: dict[str, int]) -> float:
    """Operations of a forward pass for one token, of minigpt's model of a shape."""
    return cost(plain_minigpt({"shape": shape})).flops_per_token


def describe(shape: dict[str, int]) -> str:
    """A shape as text."""
    return "{n_layer} layers, {n_head} heads, {n_embd} wide, context {block_size}, {vocab_size} tokens".format(**shape)
