"""An indexer: small heads with one key a token score the past, and the large heads read the k tokens that score best.

    I_ts = sum over small heads j of w_tj ReLU(p_tj . l_s)
    weights_t = softmax over s in best_k(I_ts) of (q_t . k_s / sqrt(d))

DeepSeek Sparse Attention ("DeepSeek-V3.2", arXiv 2512.02556). New against top-k: one set of heads chooses, another
reads. The small heads are few and narrow, and choose the same tokens for all large heads. A choice has no gradient, so
the small heads learn from a loss of their own: the softmax of their scores over the past should equal the mean weights
of the large heads, if these saw the whole past,

    loss = mean over t of KL(mean over heads of softmax(q_t . k_s / sqrt(d)) || softmax(I_t))

and from this loss alone; its gradient does not reach the rest of the model. (The paper first trains the indexer in this
way beside full attention, and later compares over the chosen tokens only.)

Cost: T^2 c a small head for the choice and T k d for what is read, with a kernel (here masked, and in training T^2 d
for the loss); T c + k d for a written token with a kernel (here T d). Cache: 2 D + c numbers a token; each head's key
stores an equal part of the small key.
Used in DeepSeek-V3.2 and GLM-5, there with latent attention.

B batch, H heads, I small heads, T query positions, S key positions, D model width, d and c widths of a large and a
small head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from minigpt.attention.cache import Past
from minigpt.attention.edge import Edge
from minigpt.attention.position import Shape
from minigpt.attention.softmax.multi_head import MultiHead, split_heads
from minigpt.attention.sparse.choice import best
from minigpt.attention.sparse.top_k import TopK
from minigpt.config.options import Count
from minigpt.system.errors import Mistake


def scores_as_the_head(indexer: Indexer, top_k: TopK) -> None:
    """Two small heads, with the large head's query and its negative: ReLU(q . k) - ReLU(-q . k) = q . k."""
    indexer.index_query.weight.copy_(torch.cat((indexer.query.weight, -indexer.query.weight)))
    indexer.index_query.bias.copy_(torch.cat((indexer.query.bias, -indexer.query.bias)))
    indexer.index_key.load_state_dict(indexer.key.state_dict())
    indexer.index_weight.weight.zero_()
    indexer.index_weight.bias.copy_(torch.tensor([1.0, -1.0]))


class Indexer(MultiHead, kind="indexer"):
    """Multi-head attention to the `k` tokens that small heads have chosen."""

    chooses = True
    muon: ClassVar[Mapping[str, bool]] = {"index_weight.weight": False}
    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("multi_head", "k >= T", own={"k": 1000}),
        Edge(
            "top_k",
            "one head, which is its own indexer",
            own={"n_head": 1, "n_index_head": 2, "index_dim": 16, "k": 3},
            other={"n_head": 1, "k": 3},
            prepare=scores_as_the_head,
            without=("bias",),  # a bias is added to the large heads only
        ),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(MultiHead.Config):
        k: Count = 4
        """How many keys a query reads."""
        n_index_head: Count = 4
        """How many small heads choose them."""
        index_dim: Count | None = None
        """The width of a small head; by default that of a large one, or the next multiple of `n_head`."""

        def mistakes_within(self, model: Shape) -> Iterator[Mistake]:
            yield from super().mistakes_within(model)
            if self.index_dim is not None and self.index_dim % self.n_head:
                yield (
                    "index_dim",
                    f"the {self.n_head} heads carry equal parts of it: make it a multiple of {self.n_head}",
                )

    config: Indexer.Config

    def __init__(self, config: Indexer.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        D = model.n_embd
        self.width = config.head_dim or D // config.n_head
        self.index_dim = config.index_dim or -(-self.width // config.n_head) * config.n_head
        self.index_query = nn.Linear(D, config.n_index_head * self.index_dim, bias=model.bias)
        self.index_key = nn.Linear(D, self.index_dim, bias=model.bias)
        self.index_weight = nn.Linear(D, config.n_index_head, bias=model.bias)
        self.own_loss: Tensor | None = None

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().qkv(x, past)  # (B, H, T, d) each
        x = x.detach()  # the gradient of the choice's own loss ends here
        small = self.position.rotate(split_heads(self.index_query(x), self.config.n_index_head), past.length)
        small = torch.cat((small.transpose(1, 2).flatten(2), self.index_weight(x)), dim=-1)  # (B, T, I c + I)
        small_key = self.position.rotate(self.index_key(x)[:, None], past.length)  # (B, 1, T, c)
        query = torch.cat((query, small[:, None].expand(-1, self.n_head, -1, -1)), dim=-1)  # (B, H, T, d + I c + I)
        return query, torch.cat((key, split_heads(small_key[:, 0], self.n_head)), dim=-1), value  # d + c / H wide

    def index(self, query: Tensor, key: Tensor) -> Tensor:
        """The scores of the small heads together: (B, 1, T, S)."""
        d, n, c = self.width, self.config.n_index_head, self.index_dim
        small, weight = query[:, 0, :, d:].split((n * c, n), dim=-1)  # (B, T, I c), (B, T, I)
        small_key = key[..., d:].transpose(1, 2).flatten(2)  # (B, S, c)
        matches = (split_heads(small, n) @ small_key[:, None].mT).relu()  # (B, I, T, S)
        return (n * c) ** -0.5 * (weight.mT[..., None] * matches).sum(dim=1, keepdim=True)  # (B, 1, T, S)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return super().scores(query[..., : self.width], key[..., : self.width])  # (B, H, T, S)

    def masked(self, scores: Tensor) -> Tensor:
        """Scores (B, H, T, S), -inf where the mask is false."""
        return scores.masked_fill(~self.mask(scores.shape[2], scores.shape[3], scores.device), -torch.inf)

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        visible = best(self.masked(self.index(query, key)), self.config.k)  # (B, 1, T, S)
        scores = self.masked(self.scores(query, key) + self.bias(query, key))  # (B, H, T, S)
        return self.normalise(scores.masked_fill(~visible, -torch.inf))  # (B, H, T, S)

    def stages(self, query: Tensor, key: Tensor) -> dict[str, Tensor]:
        index = self.masked(self.index(query, key)).expand(-1, self.n_head, -1, -1)  # (B, H, T, S)
        return {"index": index, **super().stages(query, key)}

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            self.own_loss = self.loss_of_the_choice(query, key)
        return super().mix(query, key, value)  # (B, H, T, d)

    def loss_of_the_choice(self, query: Tensor, key: Tensor) -> Tensor:
        """The mean of KL(large heads' mean weights over the whole past || small heads' softmax), in nats: ()."""
        with torch.no_grad():
            wanted = self.normalise(self.masked(self.scores(query, key) + self.bias(query, key))).mean(
                dim=1
            )  # (B, T, S)
        predicted = self.masked(self.index(query, key)).log_softmax(dim=-1)[:, 0]  # (B, T, S)
        surprise = torch.xlogy(wanted, wanted) - wanted * predicted.masked_fill(predicted.isinf(), 0.0)  # (B, T, S)
        return surprise.sum(dim=-1).mean()

    def extra_loss(self) -> Tensor | None:
        loss, self.own_loss = self.own_loss, None
        return loss
