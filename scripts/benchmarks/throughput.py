"""Throughput: tokens a second in training. All programs train the same shape with the same amount of work.

All models are GPT-2: learned positions, LayerNorm, GELU, a tied head; AdamW, gradients clipped at 1. nanoGPT uses its
own optimizer, transformers uses torch's; both run in a minimal loop whose batches cost almost no time. minigpt runs its
own training loop.
"""

from __future__ import annotations

from typing import Any

from benchmarks.processes import Measured, interleave
from benchmarks.report import Report, Row, rate
from benchmarks.setting import Setting
from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.inspection.cost import cost
from minigpt.model import GPT, ModelConfig

LAPTOP = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64, "vocab_size": 65}
BABY = {"n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 256, "vocab_size": 65}
OTHERS = ("nanoGPT", "transformers")
COLUMNS = {
    "program": ("who", ""),
    "parameters": ("parameters", ",d"),
    "type": ("precision", ""),
    "tokens/s": ("tokens_per_second", ",.0f"),
    **{f"x {program}": (f"x {program}", ".2f") for program in OTHERS},
    "FLOP/token": ("flops_per_token", ",.0f"),
    "MFU": ("mfu", ".1%"),
}
TRAINING = 3  # forward passes that a step costs: backward costs two


def run(setting: Setting, steps: int = 20, large: bool = False) -> Report:
    """Measure every shape, in blocks of `steps` steps. Raises UserError."""
    tasks: list[tuple[dict[str, int], int, int]] = [(LAPTOP, 12, steps), (LAPTOP, 16, steps)]
    if large:
        tasks.append((BABY, 64, max(1, steps // 10)))
    shapes = [(b * s["block_size"], s["n_embd"], 4 * s["n_embd"]) for s, b, _ in tasks]
    report = setting.report("throughput", "transformers alone", shapes)
    for shape, batch, count in tasks:
        specs = {"minigpt, float32": setting.spec(do="train", program="minigpt", precision="float32")}
        specs["minigpt, auto"] = setting.spec(do="train", program="minigpt", precision="auto")
        if setting.device.type == "cuda":
            specs["minigpt, CUDA graphs"] = setting.spec(
                do="train", program="minigpt", precision="auto", cuda_graphs=True
            )
        specs |= {name: setting.spec(do="train", program=program) for name, program in setting.others().items()}
        specs = {name: {**spec, "shape": shape, "batch": batch} for name, spec in specs.items()}
        title = f"training: {describe(shape)}, batch {batch}, {setting.repeat} blocks of {count} steps each, in turn"
        report.begin(title)
        found = interleave(specs, count, setting.repeat, warm_up=count)
        tokens = count * batch * shape["block_size"]
        report.add(title, COLUMNS, rows(found, tokens, TRAINING * flops_per_token(shape)))
    report.notes += [
        "tokens/s and ratios: the median (smallest..largest). A ratio is taken of the blocks of one round",
        "MFU: operations of the model a second (three times those of a forward pass, see minigpt/inspection/cost.py), "
        "over those of the large square product of the same type, which is measured below",
        "the biases of transformers' GPT-2 cannot be turned off; all programs use the exact GELU",
    ]
    return report


def rows(found: dict[str, Measured], tokens: int, flops: float) -> list[Row]:
    """A row for each program. A ratio above 1 means more tokens a second than the other program."""
    made = []
    for name, measured in found.items():
        row: Row = {"who": name, "precision": "float32", **measured.facts, "flops_per_token": flops}
        row["tokens_per_second"] = rate(tokens, measured.seconds)
        row["flops_per_second"] = rate(tokens * flops, measured.seconds)
        for program in OTHERS:
            if program in found and program != name:
                row[f"x {program}"] = found[program].seconds.over(measured.seconds)
        made.append(row)
    return made


def model_config(shape: dict[str, int]) -> ModelConfig:
    """The config of minigpt's model of a shape."""
    sizes: dict[str, Any] = {key: shape[key] for key in ("n_layer", "n_embd", "block_size")}
    return ModelConfig(**sizes, bias=False, attention=MultiHead.Config(n_head=shape["n_head"]))


def flops_per_token(shape: dict[str, int]) -> float:
    """Operations of a forward pass for one token."""
    return cost(GPT(model_config(shape), shape["vocab_size"])).flops_per_token


def describe(shape: dict[str, int]) -> str:
    """A shape as text."""
    return "{n_layer} layers, {n_head} heads, {n_embd} wide, context {block_size}, {vocab_size} tokens".format(**shape)
