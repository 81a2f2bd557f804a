"""Attention: what every kind costs in training and in decoding as the context grows. Plugins are measured too.

One layer, forward and backward, without positions. Averages and linear kinds take O(T) time in training and O(1) a
token in decoding, and so does a window of a fixed width. The others compare every pair of positions: O(T^2) and O(T).

B batch (1 here), T positions, D model width.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.machine import seconds
from benchmarks.processes import in_turn
from benchmarks.report import Report, Row, Spread
from benchmarks.setting import Setting
from minigpt.attention import Attention
from minigpt.attention.cache import Past
from minigpt.attention.position import NoPosition, Shape
from minigpt.config.options import hints, suggest
from minigpt.fast import make_fast
from minigpt.inspection.cost import bytes_of, counting
from minigpt.system.errors import UserError
from minigpt.training.loop import has_bfloat16

CONTEXTS = (64, 128, 256, 512, 1024, 2048, 4096)
WIDTH, BASELINE = 128, "multi_head"
VARIANTS: dict[
    str, tuple[dict[str, Any], ...]
] = {  # an option, and the values with which kinds that have it are measured
    "n_kv_head": ({"n_kv_head": 1}, {"n_kv_head": 2}, {"n_kv_head": 4}),
    "window": ({"window": 64},),
}
BLOCK = 0.05  # seconds that a measurement takes, at least
LONGEST = 2**20  # context
FITTED = 3  # the growth is fitted to so many of the longest contexts
DECODED = 16  # tokens in one measurement

TRAIN = {
    "kind": ("kind", ""),
    "T": ("context", ",d"),
    "ms": ("ms", ".3f"),
    "x multi_head": ("ratio", ".2f"),
    "peak MiB": ("peak_mib", ",.2f"),
    "MFU": ("mfu", ".1%"),
}
GROWTH = {"kind": ("kind", ""), "to T": ("context", ",d"), "ms ~ T^": ("time", ".2f"), "peak ~ T^": ("memory", ".2f")}


@dataclass
class Kind:
    """A kind of attention and its config."""

    name: str
    config: Attention.Config
    device: torch.device
    low: bool = False  # whether matrix products are in bfloat16
    pace: float = 0.0  # seconds for each pair of positions, at the last context; predicts the next cell

    def layer(self, length: int) -> Attention:
        """A layer of this kind for a context of `length`, in its fast form, as it is trained."""
        shape = Shape(n_embd=WIDTH, block_size=length, position=NoPosition.Config())
        layer: Attention = self.config.component(self.config, shape).to(self.device)
        return make_fast(layer)


def run(
    setting: Setting,
    contexts: Sequence[int] = CONTEXTS,
    limit: float = 20.0,
    names: Sequence[str] = (),
    precision: str = "auto",
) -> Report:
    """Measure every kind, or some, at every context; cells that would take more than `limit` seconds are left out."""
    if not contexts or min(contexts) < 1 or max(contexts) > LONGEST:
        raise UserError(f"--contexts: expected lengths of 1 to {LONGEST:,}, as in 64,128,256")
    contexts = sorted(set(contexts))
    report = setting.report("attention", shapes=[(contexts[-1], WIDTH, WIDTH)])
    if precision == "auto":
        precision = "bfloat16" if has_bfloat16(setting.device) else "float32"  # the default of training
    kinds = every_kind(setting.device, names, precision == "bfloat16")
    cells = []
    for T in contexts:
        report.begin(f"{len(kinds)} kinds at a context of {T}")
        cells += [row | {"precision": precision} for row in train(kinds, T, setting.repeat, limit)]
    cells.sort(key=lambda row: ([kind.name for kind in kinds].index(row["kind"]), row["context"]))
    report.add(
        f"one layer forward and backward, batch 1, {WIDTH} wide, {precision}, {setting.repeat} rounds", TRAIN, cells
    )
    report.add(f"growth, fitted to the last {FITTED} contexts", GROWTH, [growth(kind.name, cells) for kind in kinds])
    near, far = contexts[0], contexts[-1]
    decoded = decode(kinds, near, far, setting.repeat)
    report.add(f"decoding one token after {near} and after {far} others", decoding_columns(near, far), decoded)
    on = "torch.cuda.max_memory_allocated" if setting.device.type == "cuda" else "torch.profiler's allocations added up"
    report.notes += [
        f"peak MiB: the most memory of the pass's tensors at one time ({on}), without parameters and inputs",
        f"x {BASELINE}: the time over that of {BASELINE} in the same round",
        f"ms: the median (smallest..largest); a dash where a step might take more than {limit:g} s",
        "T^p: p is 1 for linear and 2 for quadratic growth; at short contexts, the overhead of the calls dominates",
        "cache: bytes in the cache of one layer after so many tokens; `times smaller` is relative to multi_head",
        "MFU: operations of the pass (three times those of forward), over the large square product below. As usual, "
        "the whole square of positions counts: a kernel that skips the masked half can exceed 100 %, and a running sum "
        "has almost no operations",
    ]
    return report


def every_kind(device: torch.device, names: Sequence[str] = (), low: bool = False) -> list[Kind]:
    """All registered kinds, or those named and the baseline, with the options of VARIANTS. Raises UserError."""
    for name in names:
        if name not in Attention.kinds:
            raise UserError(f"--kinds: no kind {name!r}{suggest(name, Attention.kinds)}")
    shape = Shape(n_embd=WIDTH, position=NoPosition.Config())
    made = []
    for name, component in Attention.kinds.items():
        if names and name not in (*names, BASELINE):
            continue
        for options in variants(component):
            config = component.Config(**options)
            called = ", ".join([name, *(f"{option}={value}" for option, value in options.items())])
            for option, what in config.mistakes_within(shape):
                raise UserError(f"{called}.{option}: {what}")
            made.append(Kind(called, config, device, low))
    return made


def variants(kind: type[Attention]) -> Sequence[Mapping[str, Any]]:
    """The options with which a kind is measured: the width of a window, or the number of key heads."""
    known = hints(kind.Config)
    return next((VARIANTS[option] for option in ("window", "n_kv_head") if option in known), ({},))


# ---------------------------------------------------------------------------------------------- training


def train(kinds: Sequence[Kind], T: int, repeat: int, limit: float) -> list[Row]:
    """A row for each kind at one context. All kinds take turns in each round."""
    steps: dict[str, Callable[[], None]] = {}
    rows = {kind.name: Row(kind=kind.name, context=T, ms=None, ratio=None, peak_mib=None) for kind in kinds}
    for kind in kinds:
        if kind.pace * T**2 > limit:  # as if the time grew with the square of the context
            continue
        step = steps[kind.name] = one_step(kind, T)
        kind.pace = seconds(step, 1, kind.device) / T**2
        step()
        rows[kind.name] |= {"peak_mib": peak_bytes(step, kind.device) / 2**20, "flops": flops(kind, T)}
    counts = {name: repeats(step, kinds[0].device) for name, step in steps.items()}
    took: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(repeat):
        for name in in_turn(list(steps), turn):
            took[name].append(seconds(steps[name], counts[name], kinds[0].device) / counts[name])
    for name, values in took.items():
        rows[name]["ms"] = Spread(tuple(1e3 * value for value in values))
        rows[name]["ratio"] = Spread(tuple(values)).over(Spread(tuple(took[BASELINE]))) if BASELINE in took else None
        rows[name]["flops_per_second"] = Spread(tuple(rows[name]["flops"] / value for value in values))
    return list(rows.values())


def one_step(kind: Kind, T: int) -> Callable[[], None]:
    """A function that does forward and backward of one layer over T positions."""
    layer, x = kind.layer(T), torch.randn(1, T, WIDTH, device=kind.device, requires_grad=True)  # (1, T, D)

    def step() -> None:
        with torch.autocast(kind.device.type, dtype=torch.bfloat16, enabled=kind.low):
            y = layer(x)  # (1, T, D)
        y.sum().backward()
        x.grad = None
        layer.zero_grad(set_to_none=True)

    return step


def repeats(step: Callable[[], None], device: torch.device) -> int:
    """How many steps take at least BLOCK seconds."""
    return max(1, math.ceil(BLOCK / seconds(step, 1, device)))


def peak_bytes(step: Callable[[], None], device: torch.device) -> int:
    """The largest number of bytes that the tensors made in a step take at one time."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # or the profiler prints messages
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    assert profiler.profiler is not None and profiler.profiler.kineto_results is not None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def flops(kind: Kind, T: int) -> float:
    """Operations of forward and backward."""
    with torch.no_grad(), counting() as counter:
        kind.layer(T)(torch.zeros(1, T, WIDTH, device=kind.device))
    return 3.0 * counter.get_total_flops()


def growth(name: str, cells: Sequence[Row]) -> Row:
    """The powers of T with which time and memory grow, fitted to the longest contexts that were measured."""
    done = [row for row in cells if row["kind"] == name and row["ms"] is not None][-FITTED:]
    made = Row(kind=name, context=done[-1]["context"] if done else None, time=None, memory=None)
    if len(done) > 1:
        T = [row["context"] for row in done]
        made["time"] = exponent(T, [row["ms"].median for row in done])
        made["memory"] = exponent(T, [row["peak_mib"] for row in done])
    return made


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """The p of y ~ x^p: the slope of log y over log x, by least squares."""
    log_x, log_y = torch.tensor(x).double().log(), torch.tensor(y).double().log()  # (n,), (n,)
    log_x, log_y = log_x - log_x.mean(), log_y - log_y.mean()
    return float((log_x * log_y).sum() / log_x.square().sum())


# ---------------------------------------------------------------------------------------------- decoding


def decoding_columns(near: int, far: int) -> dict[str, tuple[str, str]]:
    """The columns of the table on decoding."""
    ms = {"kind": ("kind", ""), f"ms at {near}": ("near_ms", ".3f"), f"ms at {far}": ("far_ms", ".3f")}
    cache = {f"cache B at {near}": ("near_bytes", ",d"), f"cache B at {far}": ("far_bytes", ",d")}
    return {**ms, "far / near": ("ratio", ".2f"), **cache, "B/token": ("bytes_per_token", ",.1f"), **SMALLER}


SMALLER = {"times smaller": ("smaller", ",.1f")}


@torch.no_grad()
def decode(kinds: Sequence[Kind], near: int, far: int, repeat: int) -> list[Row]:
    """A row for each kind: milliseconds a token after `near` and after `far` others, and the bytes of its cache."""
    rows = []
    for kind in kinds:
        times = [(after(kind, near), after(kind, far)) for _ in range(repeat + 1)][1:]  # the first is a warm-up
        near_ms, far_ms = (Spread(tuple(1e3 * value for value in column)) for column in zip(*times))
        row = Row(kind=kind.name, near_ms=near_ms, far_ms=far_ms, ratio=far_ms.over(near_ms))
        row |= {"near_bytes": bytes_of(filled(kind, near)[1]), "far_bytes": bytes_of(filled(kind, far)[1])}
        rows.append(row | {"bytes_per_token": row["far_bytes"] / far})
    largest = next((row["far_bytes"] for row in rows if row["kind"] == BASELINE), None)
    return [row | {"smaller": largest / row["far_bytes"] if largest else None} for row in rows]


def filled(kind: Kind, length: int, more: int = 0) -> tuple[Attention, Past]:
    """A layer and its cache after `length` positions, with room for `more`."""
    layer = kind.layer(length + more).eval()
    past = layer.make_cache(length + more)
    layer(torch.randn(1, length, WIDTH, device=kind.device), past)
    return layer, past


def after(kind: Kind, length: int) -> float:
    """Seconds to decode one token after `length` others."""
    layer, past = filled(kind, length, DECODED)
    token: Tensor = torch.randn(1, 1, WIDTH, device=kind.device)  # (1, 1, D)
    return seconds(lambda: layer(token, past), DECODED, kind.device) / DECODED
