"""Sampling: tokens a second, with a cache and without, and with weights of fewer bits.

All programs sample from the whole distribution at temperature 1. Their models have random weights.
"""

from __future__ import annotations

from typing import Any

from benchmarks.processes import interleave
from benchmarks.report import Report
from benchmarks.setting import Setting
from benchmarks.throughput import LAPTOP, OTHERS, describe, flops_per_token, rows

GPT2 = {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024, "vocab_size": 50257}
COLUMNS = {
    "program": ("who", ""),
    "weights": ("weights", ""),
    "parameters": ("parameters", ",d"),
    "tokens/s": ("tokens_per_second", ",.1f"),
    **{f"x {program}": (f"x {program}", ".2f") for program in OTHERS},
    "same text uncached": ("same", ""),
    "MFU": ("mfu", ".2%"),
}
WARM_UP = 8
WEIGHTS = ("float32", "bfloat16", "int8")


def run(setting: Setting, tokens: int = 512, large: bool = False, large_tokens: int = 200) -> Report:
    """Measure the small model with a batch of 1 and of 16; with `large`, also GPT-2 (124M). Raises UserError."""
    report = setting.report(
        "sampling",
        alone="transformers alone",
        shapes=[(batch, 128, 512) for batch in (1, 16)] + [(1, 768, 3072)] * large,
    )
    for batch in (1, 16):
        cached = {"weights": "float32", "cache": True, "check": tokens}
        uncached = {"weights": "float32", "cache": False}
        add_table(report, setting, LAPTOP, batch, tokens, {"minigpt": cached, "minigpt, no cache": uncached})
    if large:
        every = {f"minigpt, {weights}": {"weights": weights, "cache": True} for weights in WEIGHTS}
        add_table(report, setting, GPT2, 1, large_tokens, every)
    report.notes += [
        "tokens/s: of all texts of a batch together; the median (smallest..largest). Ratios are taken in each round",
        "beyond the context of T tokens, minigpt restarts its window every T/2 tokens, with a cache or without; "
        "nanoGPT (which has no cache) moves its window by one token; transformers can do neither, so its model has a "
        "position for every token and attends to all of them",
        "same text uncached: minigpt writes the same tokens with the cache and without it; tested before it is timed",
        "MFU: the operations of reading each new token once, even if more was computed, over the float32 product below",
    ]
    return report


def add_table(
    report: Report, setting: Setting, shape: dict[str, int], batch: int, tokens: int, ours: dict[str, dict[str, Any]]
) -> None:
    """Add one table: minigpt with several settings beside the other programs."""
    specs = {name: setting.spec(do="sample", program="minigpt", **how) for name, how in ours.items()}
    specs |= {
        name: setting.spec(do="sample", program=program, positions=tokens + 1)
        for name, program in setting.others().items()
    }
    specs = {name: {**spec, "shape": shape, "batch": batch} for name, spec in specs.items()}
    title = f"sampling: {describe(shape)}, batch {batch}, {setting.repeat} times {tokens} tokens each, in turn"
    report.begin(title)
    found = interleave(specs, tokens, setting.repeat, min(tokens, WARM_UP))
    made = rows(found, tokens * batch, flops_per_token(shape))
    for row in made:
        if "same" in row:
            row["same"] = "yes" if row["same"] else "NO"
        row["weights"], row["precision"] = row["precision"], "float32"
    report.add(title, COLUMNS, made)
