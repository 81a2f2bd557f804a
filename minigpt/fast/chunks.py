"""Linear attention in chunks: a matrix of weights within each chunk, a state between them; O(T) instead of O(T^2).

"Gated Linear Attention Transformers with Hardware-Efficient Training" (arXiv 2312.06635) for sums with a decay, and
"Parallelizing Linear Transformers with the Delta Rule over Sequence Length" (arXiv 2406.06484) for writes that replace.
All chunks of a segment are computed at once; only the states need a loop over the chunks. Segments keep the
intermediate tensors small.

B batch, H heads, T positions, N chunks of c positions, d width of a query and a key, e width of a value, g 1 or d.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

SIZE = 32  # positions of a chunk: 16 and 64 are slower, and decays of single channels allow 32 at most, see `overlap`
SEGMENT = 1024  # positions that are computed at once: with more, the intermediates leave the cache of the CPU
SHORT = 8  # positions between which each decay is computed, where decays of single channels have no bound
FORGOTTEN = -100.0  # a smaller log decay of a channel counts as this one: both leave nothing, and sums stay exact


def chunked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor,
    log_decay: Tensor | None = None,
    strength: Tensor | None = None,
    bounded: bool = True,
) -> tuple[Tensor, Tensor]:
    """S_t = a_t S_(t-1) + k_t v_t', or with a strength b_t, S_t = a_t S_(t-1) + b_t k_t (v_t - k_t a_t S_(t-1))'.

    query and key (B, H, T, d), value (B, H, T, e), state (B, H, d, e) before the first token, log_decay = log a
    (B, H, T, g) and strength (B, H, T, 1), all of one type -> what the queries read (B, H, T, e), the last state.
    `bounded`: no decay of a single channel is below e^-5.
    """
    mixed, T = list[Tensor](), query.shape[2]
    if log_decay is not None and log_decay.shape[-1] > 1 and not bounded:
        log_decay = log_decay.clamp(min=FORGOTTEN)  # (B, H, T, d)
    for start in range(0, T, SEGMENT):
        end = min(start + SEGMENT, T)
        c = min(SIZE, end - start)
        q, k, v, a, b = (
            None if part is None else cut(part[:, :, start:end], c)  # (B, H, N, c, ...)
            for part in (query, key, value, log_decay, strength)
        )
        assert q is not None and k is not None and v is not None
        out, state = segment(q, k, v, state, a, b, bounded)  # (B, H, N, c, e), (B, H, d, e)
        mixed.append(out.flatten(2, 3)[:, :, : end - start])  # (B, H, up to SEGMENT, e)
    return torch.cat(mixed, dim=2), state


def cut(part: Tensor, c: int) -> Tensor:
    """(B, H, T, n) -> (B, H, N, c, n), padded with zeros: a token of zeros writes nothing, and forgets nothing."""
    return F.pad(part, (0, 0, 0, -part.shape[2] % c)).unflatten(2, (-1, c))


def segment(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor,
    log_decay: Tensor | None,
    strength: Tensor | None,
    bounded: bool,
) -> tuple[Tensor, Tensor]:
    """N chunks (B, H, N, c, ...) and the state before them: what is read (B, H, N, c, e), and the state after."""
    total = None if log_decay is None else log_decay.cumsum(dim=3)  # (B, H, N, c, g)
    reads, leaves = query, key  # (B, H, N, c, d): a query's reading of the state before, a key's part of the one after
    if total is not None:
        reads, leaves = query * total.exp(), key * (total[..., -1:, :] - total).exp()  # (B, H, N, c, d) each
    within = overlap(query, key, total, bounded)  # (B, H, N, c, c)
    if strength is None:
        states = entering(state, leaves.mT @ value, total)  # (B, H, N + 1, d, e)
        return within @ value + reads @ states[:, :, :-1], states[:, :, -1]
    strong = key * strength  # (B, H, N, c, d)
    read = strong if total is None else strong * total.exp()  # (B, H, N, c, d): reads the value that a write replaces
    writes = torch.cat((value * strength, read), dim=-1)  # (B, H, N, c, e + d)
    earlier = overlap(strong, key, total, bounded).tril(-1)  # (B, H, N, c, c): what earlier writes of the chunk add
    rest = torch.linalg.solve_triangular(earlier, writes, upper=False, unitriangular=True)  # (B, H, N, c, e + d)
    new, read = rest.split([value.shape[-1], key.shape[-1]], dim=-1)  # (B, H, N, c, e), (B, H, N, c, d)
    states = replacing(state, leaves.mT @ new, leaves.mT @ read, total)  # (B, H, N + 1, d, e)
    written = new - read @ states[:, :, :-1]  # (B, H, N, c, e)
    return within @ written + reads @ states[:, :, :-1], states[:, :, -1]


def overlap(query: Tensor, key: Tensor, total: Tensor | None, bounded: bool = True) -> Tensor:
    """query_t . key_s (B, H, N, c, d) times the decays in between, zero in the future: (B, H, N, c, c).

    Decays of single channels (g = d), counted from the middle of the chunk, multiply the query and divide the key: with
    32 positions and decays above e^-5, neither factor exceeds e^80, which float32 can represent.
    """
    if total is None:
        return (query @ key.mT).tril()
    if total.shape[-1] == 1:
        return query @ key.mT * fading(total[..., 0])
    if not bounded:
        return halved(query, key, total)
    middle = total[..., total.shape[3] // 2, None, :]  # (B, H, N, 1, d)
    return ((query * (total - middle).exp()) @ (key * (middle - total).exp()).mT).tril()


def halved(query: Tensor, key: Tensor, total: Tensor) -> Tensor:
    """As `overlap`, whatever the decays of single channels. The second half sees the first through its last position,
    so that no factor exceeds one (the secondary chunks of arXiv 2312.06635); then each half is divided again.
    """
    c, half = query.shape[3], query.shape[3] // 2
    if c <= SHORT:
        return torch.einsum("bhntd, bhnsd, bhndts -> bhnts", query, key, fading(total.mT))
    (q, later), (earlier, k), (a, b) = (part.tensor_split([half], dim=3) for part in (query, key, total))
    end = a[..., -1:, :]  # (B, H, N, 1, d)
    across = (later * (b - end).exp()) @ (earlier * (end - a).exp()).mT  # (B, H, N, c - half, half)
    upper, lower = F.pad(halved(q, earlier, a), (0, c - half)), torch.cat((across, halved(later, k, b)), dim=-1)
    return torch.cat((upper, lower), dim=3)  # (B, H, N, c, c)


def fading(total: Tensor) -> Tensor:
    """exp(total_t - total_s) for s <= t, else 0: (..., n) -> (..., n, n)."""
    future = torch.ones(total.shape[-1], total.shape[-1], dtype=torch.bool, device=total.device).triu(1)  # (n, n)
    return (total[..., :, None] - total[..., None, :]).masked_fill(future, -torch.inf).exp()


def entering(state: Tensor, added: Tensor, total: Tensor | None) -> Tensor:
    """The states before each of N chunks and after the last: (B, H, N + 1, d, e). Each adds `added` (B, H, N, d, e)."""
    parts = torch.cat((state[:, :, None], added), dim=2)  # (B, H, N + 1, d, e)
    if total is None:
        return parts.cumsum(dim=2)
    last = total[..., -1, :]  # (B, H, N, g)
    if last.shape[-1] == 1:
        between = fading(F.pad(last[..., 0].cumsum(dim=2), (1, 0)))  # (B, H, N + 1, N + 1)
        return (between @ parts.flatten(3)).view_as(parts)
    states, decays = [state], last.exp()[..., None].unbind(2)  # N of (B, H, d, 1)
    for keep, new in zip(decays, added.unbind(2)):
        states.append(torch.addcmul(new, keep, states[-1]))  # (B, H, d, e)
    return torch.stack(states, dim=2)


def replacing(state: Tensor, added: Tensor, removed: Tensor, total: Tensor | None) -> Tensor:
    """As `entering`; each chunk also subtracts `removed` (B, H, N, d, d) @ the state before it: (B, H, N + 1, d, e)."""
    B, H, N, d, e = added.shape
    decay = torch.eye(d, dtype=state.dtype, device=state.device)  # (d, d)
    if total is not None:
        decay = total[..., -1, :].exp()[..., None] * decay  # (B, H, N, d, d)
    steps = (decay - removed).transpose(0, 2).flatten(1, 2).unbind(0)  # N of (H B, d, d)
    states = [state.transpose(0, 1).flatten(0, 1)]  # (H B, d, e)
    for step, new in zip(steps, added.transpose(0, 2).flatten(1, 2).unbind(0)):
        states.append(torch.baddbmm(new, step, states[-1]))  # (H B, d, e)
    return torch.stack(states).view(N + 1, H, B, d, e).transpose(0, 2)
