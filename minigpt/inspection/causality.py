"""The causality check: before the first step, each attention of a model is tested for leaks from the future.

A change of token t must not change any output before t: with ordinary inputs, and with inputs so large that a mask of
finite numbers (-1e4) no longer hides anything.

P probes (one for each changed token, and first the unchanged one), T positions, D model width.
"""

from __future__ import annotations

import copy
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from minigpt.attention import Attention
from minigpt.attention.cache import Past
from minigpt.inspection.trace import replaced
from minigpt.model.gpt import GPT, chain
from minigpt.system.errors import UserError
from minigpt.system.waiting import progress

LENGTH, CHANGES = 64, 12  # positions in the test, and how many of them are changed
ORDINARY, LARGE = 1.0, 1e4  # scale of the inputs; the scores grow with its square
TOLERANCE = 1e-9  # relative to the largest output: above rounding in float64, far below any leak


class LeakError(UserError):
    """An output of an attention depends on a later token."""


@torch.no_grad()
def check_causal(model: GPT) -> None:
    """Raises LeakError with the layer, the positions and the likely cause. The model is not changed."""
    noise = torch.Generator().manual_seed(0)
    T, D = min(model.config.block_size, LENGTH), model.config.n_embd
    changed = torch.linspace(1, T - 1, min(CHANGES, T - 1)).long()  # (P - 1,)
    inputs = {scale: _probes(scale, T, D, changed, noise) for scale in (ORDINARY, LARGE)}
    pasts = {scale: chain([Past() for _ in model.blocks]) for scale in inputs}
    attentions = model.attentions()
    shown = progress(attentions, "checking that no layer sees the future", len(attentions), "layers")
    for layer, attention in enumerate(shown):
        name, noisy = f"layer {layer} ({attention.kind})", _with_noise(attention, noise)
        for scale, x in inputs.items():
            try:
                out = noisy(x, pasts[scale][layer])  # (P, T, D)
            except RuntimeError as error:
                line = str(error).splitlines()[0]
                raise UserError(f"{name} fails in float64 (make tensors of the type that arrives): {line}") from error
            _judge(out, changed, scale, name, attention)


def _probes(scale: float, T: int, D: int, changed: Tensor, noise: torch.Generator) -> Tensor:
    """The same random tokens P times, each time but the first with one of them changed: (P, T, D)."""
    x = scale * torch.randn(1, T, D, dtype=torch.float64, generator=noise)  # (1, T, D)
    x = x.repeat(1 + len(changed), 1, 1)  # (P, T, D)
    for probe, t in enumerate(changed, start=1):
        x[probe, t] = scale * torch.randn(D, dtype=torch.float64, generator=noise)
    return x


def _with_noise(attention: Attention, noise: torch.Generator) -> Attention:
    """A copy in float64 with noise on all parameters: a layer whose weights start at zero would hide a leak."""
    clone = copy.deepcopy(attention).cpu().double().eval()  # in this order: not every device has float64
    for parameter in clone.parameters():
        parameter.add_(0.1 * torch.randn(parameter.shape, dtype=parameter.dtype, generator=noise))
    return clone


def _judge(out: Tensor, changed: Tensor, scale: float, name: str, attention: Attention) -> None:
    if not out.isfinite().all():
        raise LeakError(f"{name} makes NaN or infinity of large scores: does it mask by multiplying? Fill with -inf")
    moved = (out[1:] - out[0]).abs().amax(-1)  # (P - 1, T)
    early = torch.arange(out.shape[1]) < changed[:, None]  # (P - 1, T)
    leaks = early & (moved > TOLERANCE * out.abs().max())  # (P - 1, T)
    if not leaks.any():
        return
    probe = int(leaks.any(-1).nonzero()[0])
    positions = leaks[probe].nonzero()[:, 0].tolist()
    span = f"position {positions[0]}" if len(positions) == 1 else f"positions {positions[0]} to {positions[-1]}"
    if not getattr(attention.config, "causal", True):
        cause = "its option causal is false"
    elif scale == LARGE:
        cause = "its mask is a finite number such as -1e4, which large scores outweigh; fill with -inf"
    else:
        cause = "its mask is missing, transposed, or aligned to the wrong corner"
    raise LeakError(
        f"{name} sees the future: a change of token {int(changed[probe])} moved the output at {span}, with "
        f"{'very large' if scale == LARGE else 'ordinary'} scores. Likely cause: {cause}. --allow-leak trains it anyway"
    )


@torch.no_grad()
def idle_positions(model: GPT) -> list[str]:
    """A line for each effect of the position that an attention does not use, such as rotary in an average."""
    kind, idle = model.config.position.component.kind, dict[str, set[str]]()
    noise = torch.Generator().manual_seed(0)
    pasts = chain([Past() for _ in model.blocks])
    for original, past in zip(model.attentions(), pasts):
        attention = copy.deepcopy(original).eval()  # dropout would advance the global random generator
        acts = [method for method in ("rotate", "bias") if attention.position.acts_by(method)]
        used: set[str] = set()
        with ExitStack() as stack:
            for method in acts:
                stack.enter_context(replaced(attention.position, method, _spy(attention.position, method, used)))
            x = torch.randn(1, 2, model.config.n_embd, generator=noise).to(model.device)  # (1, 2, D)
            attention(x, past)
        for method in set(acts) - used:
            idle.setdefault(method, set()).add(attention.kind)
    lacks = {"rotate": "no queries and keys to rotate", "bias": "no scores to bias"}
    return [
        f"position {kind} does nothing in {', '.join(sorted(kinds))}: there are {lacks[method]}"
        for method, kinds in idle.items()
    ]


def _spy(position: Any, method: str, used: set[str]) -> Any:
    function = getattr(position, method)

    def spy(*arguments: Any) -> Any:
        used.add(method)
        return function(*arguments)

    return spy
