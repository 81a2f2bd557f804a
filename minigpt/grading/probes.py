"""The inputs on which a learner's answer is compared with the reference.

The following choices decide which bugs can be seen and distinguished: sizes that differ from each other and from 3
(queries, keys, values), no power of two as number of heads (three formulas for ALiBi slopes would agree), T <= d where
weights are measured from outside, lengths 11, 5 and 1, a batch of at least 2, random biases, and inputs times 8 to
1000: a leak through a fill of -100, -1e3, -1e4 or -1e5 shows only if the scores are that large.

B batch, T query positions, S key positions, D model width, d width of a head.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from minigpt.grading.target import Probe, Sizes

LENGTHS = (11, 5, 1)
SCALES = (8.0, 15.0, 30.0, 100.0, 1000.0)
CHUNKS = (4, 1, 1, 5)
BATCH = 2


def numbers(*shape: int, seed: int) -> Tensor:
    """Normally distributed numbers in float64, the same in every run."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def sequence_probes(sizes: Sizes, scales: tuple[float, ...] = SCALES) -> list[Probe]:
    """Inputs x (B, T, D): three lengths, then the longest one times each of `scales`."""
    probes = [Probe(tokens(T), {"x": numbers(BATCH, T, sizes["D"], seed=10 + T)}) for T in LENGTHS]
    x = probes[0].inputs["x"]  # (B, 11, D)
    return probes + [Probe(f"inputs times {scale:g}", {"x": x * scale}, scale) for scale in scales]


def cache_probes(sizes: Sizes) -> list[Probe]:
    """The probes of `sequence_probes`, and x (B, T, D) in chunks, as in decoding with a cache."""
    chunked = [Probe(f"chunks of {'+'.join(map(str, CHUNKS))} tokens", probe.inputs, probe.size, CHUNKS)
               for probe in sequence_probes(sizes) if probe.inputs["x"].shape[1] == sum(CHUNKS)]  # fmt: skip
    return [chunked[0], *sequence_probes(sizes), *chunked[1:]]


def pair_probes(sizes: Sizes, names: tuple[str, ...]) -> list[Probe]:
    """Inputs query (B, T, d), key (B, S, d) and value (B, S, e), those in `names`; T = S, and then T < S."""

    def inputs(T: int, S: int, scale: float = 1.0) -> Mapping[str, Tensor]:
        shapes = {"query": (T, sizes["d"]), "key": (S, sizes["d"]), "value": (S, sizes["e"])}
        seeds = {"query": 1, "key": 2, "value": 3}
        made = {name: numbers(BATCH, *shapes[name], seed=10 * T + S + seeds[name]) for name in names}
        return {name: tensor if name == "value" else tensor * scale for name, tensor in made.items()}

    probes = [Probe(tokens(T), inputs(T, T)) for T in LENGTHS]
    probes += [Probe(f"inputs times {scale:g}", inputs(11, 11, scale), scale) for scale in SCALES]
    fewer = [Probe(f"{T} {'query' if T == 1 else 'queries'}, 11 keys", inputs(T, 11), optional=True) for T in (5, 1)]
    return probes + fewer


def tokens(T: int) -> str:
    """ "1 token", "5 tokens"."""
    return f"{T} token{'' if T == 1 else 's'}"
