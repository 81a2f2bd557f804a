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
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.machine import seconds_each
from benchmarks.processes import take_turns
from benchmarks.report import Report, Row, Spread, columns
from minigpt.attention import Attention
from minigpt.attention.cache import Past
from minigpt.attention.position import NoPosition, Shape
from minigpt.config.options import hints, suggest
from minigpt.fast import make_fast
from minigpt.seeing.cost import bytes_of, counting
from minigpt.system.errors import UserError
from minigpt.training.precision import has_bfloat16

WIDTH, BASELINE = 128, "multi_head"
BLOCK = 0.05  # seconds that a measurement takes, at least
FITTED = 3  # the growth is fitted to so many of the longest contexts
DECODED = 16  # tokens in one measurement

TRAIN = columns("kind | T=context:,d | ms:.3f | x multi_head=ratio:.2f | peak MiB=peak_mib:,.2f | MFU=mfu:.1%")
GROWTH = columns("kind | to T=context:,d | ms ~ T^=time:.2f | peak ~ T^=memory:.2f")
DECODING = (
    "kind | ms at {near}=near_ms:.3f | ms at {far}=far_ms:.3f | far / near=ratio:.2f | cache B at {near}=near_bytes:,d"
    " | cache B at {far}=far_bytes:,d | B/token=bytes_per_token:,.1f | times smaller=smaller:,.1f"
)


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


def attention(report: Report) -> None:
    """Measure every kind, or some, at every context; cells that would take more than `--limit` seconds are left out."""
    options, device = report.options, report.device
    contexts, precision, rounds = sorted(set(options.contexts)), options.precision, report.repeat
    report.start([(contexts[-1], WIDTH, WIDTH)])
    if precision == "auto":
        precision = "bfloat16" if has_bfloat16(device) else "float32"  # as in training
    kinds = every_kind(device, options.kinds, precision == "bfloat16")
    cells = []
    for T in contexts:
        report.begin(f"{len(kinds)} kinds at a context of {T}")
        cells += [row | {"precision": precision} for row in train(kinds, T, rounds, options.limit)]
    cells.sort(key=lambda row: ([kind.name for kind in kinds].index(row["kind"]), row["context"]))
    title = f"one layer forward and backward, batch 1, {WIDTH} wide, {precision}, {rounds} rounds"
    report.add(title, TRAIN, cells)
    report.add(f"growth, fitted to the last {FITTED} contexts", GROWTH, [growth(kind.name, cells) for kind in kinds])
    near, far = contexts[0], contexts[-1]
    title, header = f"decoding one token after {near} and after {far} others", DECODING.format(near=near, far=far)
    report.add(title, columns(header), decode(kinds, near, far, rounds))
    on = "torch.cuda.max_memory_allocated" if device.type == "cuda" else "torch.profiler's allocations added up"
    report.notes += [
        f"peak MiB: the most memory of the pass's tensors at one time ({on}), without parameters and inputs",
        f"x {BASELINE}: the time over that of {BASELINE} in the same round",
        f"ms: the median (smallest..largest); a dash where a step might take more than {options.limit:g} s",
        "T^p: p is 1 for linear and 2 for quadratic growth; at short contexts, the overhead of the calls dominates",
        "cache: bytes in the cache of one layer after so many tokens; `times smaller` is relative to multi_head",
        "MFU: operations of the pass (three times those of forward), over the large square product below. As usual, "
        "the whole square of positions counts: a kernel that skips the masked half can exceed 100 %, and a running sum "
        "has almost no operations",
    ]


def every_kind(device: torch.device, names: Sequence[str] = (), low: bool = False) -> list[Kind]:
    """All registered kinds, or those named and the baseline, with some of its options. Raises UserError."""
    for name in names:
        if name not in Attention.kinds:
            raise UserError(f"--kinds: no kind {name!r}{suggest(name, Attention.kinds)}")
    shape, kinds = Shape(n_embd=WIDTH, position=NoPosition.Config()), []
    for name, component in Attention.kinds.items():
        if names and name not in (*names, BASELINE):
            continue
        for options in variants(component):
            config = component.Config(**options)
            title = ", ".join([name, *(f"{option}={value}" for option, value in options.items())])
            for option, mistake in config.mistakes_within(shape):
                raise UserError(f"{title}.{option}: {mistake}")
            kinds.append(Kind(title, config, device, low))
    return kinds


def variants(kind: type[Attention]) -> Sequence[Mapping[str, Any]]:
    """The options with which a kind is measured: the width of a window, or the number of key heads."""
    options = hints(kind.Config)
    if "window" in options:
        return [{"window": 64}]
    return [{"n_kv_head": heads} for heads in (1, 2, 4)] if "n_kv_head" in options else [{}]


def train(kinds: Sequence[Kind], T: int, repeat: int, limit: float) -> list[Row]:
    """A row for each kind at one context. All kinds take turns in each round."""
    measurements: dict[str, Callable[[], float]] = {}
    rows = {kind.name: Row(kind=kind.name, context=T, ms=None, ratio=None, peak_mib=None) for kind in kinds}
    for kind in kinds:
        if kind.pace * T**2 > limit:  # as if the time grew with the square of the context
            continue
        step = one_step(kind, T)
        kind.pace = seconds_each(step, 1, kind.device) / T**2
        step()
        rows[kind.name] |= {"peak_mib": peak_bytes(step, kind.device) / 2**20, "flops": flops(kind, T)}
        count = max(1, math.ceil(BLOCK / seconds_each(step, 1, kind.device)))
        measurements[kind.name] = partial(seconds_each, step, count, kind.device)
    spreads = take_turns(measurements, repeat)
    for name, seconds in spreads.items():
        rows[name] |= {"ms": seconds.times(1000), "flops_per_second": seconds.rate(rows[name]["flops"])}
        rows[name]["ratio"] = seconds.over(spreads[BASELINE]) if BASELINE in spreads else None
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
    row = Row(kind=name, context=done[-1]["context"] if done else None, time=None, memory=None)
    if len(done) > 1:
        T = [cell["context"] for cell in done]
        row["time"] = exponent(T, [cell["ms"].median for cell in done])
        row["memory"] = exponent(T, [cell["peak_mib"] for cell in done])
    return row


def exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """The p of y ~ x^p: the slope of log y over log x, by least squares."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


@torch.no_grad()
def decode(kinds: Sequence[Kind], near: int, far: int, repeat: int) -> list[Row]:
    """A row for each kind: milliseconds a token after `near` and after `far` others, and the bytes of its cache."""
    rows = []
    for kind in kinds:
        times = [(after(kind, near), after(kind, far)) for _ in range(repeat + 1)][1:]  # the first is a warm-up
        near_ms, far_ms = (Spread(column).times(1000) for column in zip(*times))
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
    return seconds_each(lambda: layer(token, past), DECODED, kind.device)
