"""Tricks: what each part of `minigpt/fast` is worth. Each is turned off once, in training and in sampling.

Each variant runs in a process of its own. They take turns, so that other programs on the machine slow all of them down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.processes import interleave
from benchmarks.report import Report, Row, columns
from benchmarks.worker import Spec
from minigpt.fast import decoding, switch
from minigpt.fast.convolution import FFT
from minigpt.fast.guard import FORMS
from minigpt.fast.joined import IN_TRAINING
from minigpt.fast.switch import KERNELS

SIZE = {"n_layer": 4, "n_embd": 128, "block_size": 128}
MODERN = {**SIZE, "position": "rotary", "norm": "rmsnorm", "mlp": "swiglu", "bias": False, "tied_head": False}
LONG = {**SIZE, "block_size": 1024}
MODELS: dict[str, dict[str, Any]] = {
    "multi_head": {**MODERN, "attention": "multi_head"},
    "average_matrix": {**SIZE, "attention": "average_matrix"},
    "delta_net": {**SIZE, "attention": "delta_net"},
    "path": {**SIZE, "attention": "path"},
    "soft_cap, 1,024 positions": {**LONG, "attention": "soft_cap"},
    "sliding_window, 1,024 positions": {**LONG, "attention": {"kind": "sliding_window", "window": 64}},
    "long_convolution, 1,024 positions": {**LONG, "attention": "long_convolution"},
    "GPT-2's shape, 16 texts": {**SIZE, "attention": "multi_head"},
}
VOCABULARY, TOKENS = 65, 16 * 128  # in a batch of training
TEXTS = {"GPT-2's shape, 16 texts": 16}  # written at the same time; the others write one
WHERE = {  # the model with which a trick is measured, since it uses it; the others: multi_head
    "running sums": "average_matrix",
    "chunks": "delta_net",
    "states of fixed size": "delta_net",
    "rewritten keys": "path",
    "queries in parts": "soft_cap, 1,024 positions",
    "windows by blocks": "sliding_window, 1,024 positions",
    "convolution by FFT": "long_convolution, 1,024 positions",
    "waves as a state": "long_convolution, 1,024 positions",
    "no oneDNN": "GPT-2's shape, 16 texts",  # the only one with GELU
}
COLUMNS = columns("turned off=who | model | ms:.3f | x without it=slower:.3f")


def tricks(report: Report) -> None:
    """Measure every trick, in blocks of `--steps` in training or of `--tokens` in sampling. Raises UserError."""
    report.start()
    steps, tokens = report.options.steps, report.options.tokens
    for work, precision in (("a training step", "float32"), ("a training step in bfloat16", "bfloat16")):
        add(report, work, steps, used_in_training(precision), {"do": "train", "precision": precision})
    add(report, "a sampled token", tokens, used_in_sampling(), {"do": "sample", "weights": "float32", "cache": True})
    report.notes.append("x without it: the time without the trick over the time with all; median (smallest..largest)")


def used_in_training(precision: str) -> list[str]:
    """The tricks that a training step in this precision uses: not those of decoding alone."""
    methods = {trick: {method for (_, method), form in FORMS.items() if form.trick == trick} for trick in switch.TRICKS}
    used = [trick for trick, own in methods.items() if not own or own - {"recall", "make_cache"}]
    return [trick for trick in used if trick != KERNELS and (precision == "bfloat16" or trick != IN_TRAINING)]


def used_in_sampling() -> list[str]:
    """The tricks that a sampled token uses: not those that need many positions, a gradient, or both."""
    return [trick for trick in (*switch.TRICKS, *decoding.TRICKS) if trick not in (IN_TRAINING, FFT, KERNELS)]


def add(report: Report, work: str, count: int, used: Sequence[str], spec: Spec) -> None:
    """Add one table: all tricks on, then each one off, then all off."""
    rows = list[Row]()
    for model, options in MODELS.items():
        in_model = [trick for trick in used if WHERE.get(trick, "multi_head") == model]
        if not in_model:
            continue
        off: dict[str, list[str]] = {"nothing": [], **{trick: [trick] for trick in in_model}, "all of them": [*used]}
        T = options["block_size"]
        batch = TOKENS // T if spec["do"] == "train" else TEXTS.get(model, 1)
        shape = {**SIZE, "block_size": T, "vocab_size": VOCABULARY}
        common = {**spec, "program": "minigpt", "batch": batch, "shape": shape, "model": options}
        report.begin(f"{work}, {model}, {batch} x {T}, {report.repeat} blocks of {count}, in turn")
        specs = {name: report.spec(**common, without=without) for name, without in off.items()}
        measured = interleave(specs, count, report.repeat, warm_up=count)
        for name, (_, seconds) in measured.items():
            slower = seconds.over(measured["nothing"][1])
            rows.append(Row(who=name, model=model, ms=seconds.times(1000 / count), slower=slower))
    report.add(f"{work}, {report.repeat} rounds", COLUMNS, rows)
