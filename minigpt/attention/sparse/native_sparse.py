"""Three views of the past: every block in short, the best blocks in full, and a window.

    compressed  softmax over the blocks that have ended, each with one key and one value, the means of the block
    chosen      softmax over the own block and the k - 1 blocks that have the largest weights in the compressed view
    window      softmax over the last w positions
    o_t = sum over the views of sigmoid(gate_t) * view_t

"Native Sparse Attention" (NSA, arXiv 2502.11089). New against block top-k: the choice is learned, since the compressed
view, which makes it, is part of the output; heads that share keys choose together, so that the chosen keys are loaded
once; and a window reads near tokens, so that the other views can read far ones. Each view has its own keys and values.
The mean over a block is learned, one weight for each place in the block, where the paper has a small network; the same
blocks are compressed and chosen here, and the first block is not always read.

Cost: T (T / m + k m + w) d for a training pass with a kernel for blocks (here masked, T^2 d), T / m + k m + w products
for a written token (here T). Cache: 6 G d numbers a token, of which only the chosen view needs all positions. DeepSeek
trained a model of 27 billion parameters with it.

B batch, H query heads, G key heads, T query positions, S key positions, N blocks of m positions, d width of a head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention.base import repeat_kv
from minigpt.attention.cache import Past
from minigpt.attention.edge import Edge
from minigpt.attention.position import Shape, distance
from minigpt.attention.softmax.grouped_query import GroupedQuery
from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.attention.sparse.choice import best
from minigpt.config.options import Count


def only(view: int, native_sparse: NativeSparse, multi_head: MultiHead) -> None:
    """One gate is open, the others are closed, and the other kind gets the keys and values of the open view."""
    native_sparse.gate.weight.zero_()
    native_sparse.gate.bias.fill_(-1e3).chunk(3)[view].fill_(1e3)
    for views, layer in ((native_sparse.key, multi_head.key), (native_sparse.value, multi_head.value)):
        layer.weight.copy_(views.weight.chunk(3)[view])
        layer.bias.copy_(views.bias.chunk(3)[view])


def only_compressed(native_sparse: NativeSparse, multi_head: MultiHead) -> None:
    """The compressed view alone."""
    only(0, native_sparse, multi_head)


def only_chosen(native_sparse: NativeSparse, multi_head: MultiHead) -> None:
    """The chosen view alone; blocks are chosen by the mean of the keys that this view reads."""
    native_sparse.places.zero_()
    for part in (native_sparse.key.weight, native_sparse.key.bias):
        part.chunk(3)[0].copy_(part.chunk(3)[1])
    only(1, native_sparse, multi_head)


def only_window(native_sparse: NativeSparse, multi_head: MultiHead) -> None:
    """The window alone."""
    only(2, native_sparse, multi_head)


class NativeSparse(GroupedQuery, kind="native_sparse"):
    """Each head has three views, which gates add up. `weights` spreads the weight of a block over its tokens."""

    order_blind = False  # blocks and the window depend on where a key is
    rows_sum_to_one = False  # until the first block has ended, the compressed view is empty
    chooses = True
    muon: ClassVar[Mapping[str, bool]] = {"gate.weight": False}
    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("multi_head", "only compressed, blocks of one", own={"block": 1}, prepare=only_compressed),
        Edge("block_top_k", "only chosen", own={"block": 2}, other={"block": 2}, prepare=only_chosen),
        Edge("sliding_window", "only the window", own={"window": 3}, other={"window": 3}, prepare=only_window),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(GroupedQuery.Config):
        meaning: ClassVar[dict[str, str]] = {"k": "blocks"}

        block: Count | None = None
        """How many positions a block has; by default a sixteenth of the context, and at least two."""
        k: Count = 3
        """How many blocks are read in full, the own one included."""
        window: Count | None = None
        """How many positions the window has; by default a quarter of the context."""

    config: NativeSparse.Config

    def __init__(self, config: NativeSparse.Config, model: Shape, layer: int = 0):
        G = config.n_kv_head or config.n_head
        MultiHead.__init__(self, config, model, layer, 3 * G)
        self.block = config.block or max(2, model.block_size // 16)
        self.window = config.window or max(1, model.block_size // 4)
        self.places = nn.Parameter(torch.zeros(2, self.block))  # logits of the means of keys and values
        self.gate = nn.Linear(model.n_embd, 3 * config.n_head)

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().qkv(x, past)  # (B, H, T, d), (B, 3G, T, d) twice
        return query.repeat(1, 3, 1, 1), key, value  # the query is (B, 3H, T, d)

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        past = self.mask(query.shape[2], key.shape[2], query.device)  # (T, S)
        query, keys = query[:, : self.n_head], key.chunk(3, dim=1)  # (B, H, T, d), (B, G, S, d) three times
        short, full, near = (self.scores(query, k) + self.bias(query, k) for k in keys)  # (B, H, T, S) each
        compressed, share = self.compressed(short, past)  # (B, H, T, S), (B, H, T, N)
        selected = repeat_kv(self.selection(share, past), self.n_head)  # (B, H, T, S)
        window = distance(query.shape[2], key.shape[2], past.device) < self.window  # (T, S)
        full, near = (s.masked_fill(~(past & visible), -torch.inf) for s, visible in ((full, selected), (near, window)))
        return torch.cat((compressed, self.normalise(full), self.normalise(near)), dim=1)  # (B, 3H, T, S)

    def compressed(self, scores: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """The weights of the blocks, spread over their places (B, H, T, S), and as logarithms (B, H, T, N)."""
        S, m = scores.shape[3], self.block
        of_key, of_value = self.places.to(scores.dtype).softmax(dim=-1)  # (m,) each
        over = F.pad(past, (0, -S % m)).unflatten(1, (-1, m)).all(dim=-1)  # (T, N): the whole block is past
        match = F.pad(scores, (0, -S % m)).unflatten(3, (-1, m)) @ of_key  # (B, H, T, N): query . mean key
        hidden = ~over & over.any(dim=-1, keepdim=True)  # (T, N): a softmax over nothing would not be a number
        share = match.masked_fill(hidden, -torch.inf).log_softmax(dim=-1)  # (B, H, T, N)
        spread = share.exp().masked_fill(~over, 0.0)[..., None] * of_value  # (B, H, T, N, m)
        return spread.flatten(3)[..., :S], share.masked_fill(~over, -torch.inf)

    def selection(self, share: Tensor, past: Tensor) -> Tensor:
        """Whether the heads that share a key head read key s in full: (B, G, T, S)."""
        T, S = past.shape
        number = torch.arange(S, device=share.device) // self.block  # (S,): the block of each position
        own = number[S - T :, None] == number[:: self.block]  # (T, N)
        together = share.unflatten(1, (self.n_kv_head // 3, -1)).logsumexp(dim=2)  # (B, G, T, N)
        return best(together.masked_fill(own, torch.inf), self.config.k)[..., number]  # (B, G, T, S)

    def head_note(self, head: int) -> str:
        view = ("compressed", "chosen", "window")[head // self.n_head]
        return f"{view} view of head {head % self.n_head + 1}"

    def head_gates(self, x: Tensor) -> Tensor:
        return self.gate(x).sigmoid().mT  # (B, 3H, T)

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        gated = mixed * self.head_gates(x)[..., None]  # (B, 3H, T, d)
        return super().output(gated.unflatten(1, (3, -1)).sum(dim=1), x)  # (B, T, D)
