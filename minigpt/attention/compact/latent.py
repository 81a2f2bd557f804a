"""Keys and values of all heads are read from one small vector a token, the latent, and only that is kept.

    c = norm(W_c x)      k_h = [K_h c, rotated(W_p x)]      v_h = V_h c      q_h = [Q_h x, rotated(P_h x)]

"DeepSeek-V2" (arXiv 2405.04434), where it is called multi-head latent attention, MLA. K_h could not be multiplied into
the query if a rotation stood between them. So only p more channels are rotated, whose key all heads share; the rest has
no position. The paper's large models make queries from a latent too; V2-Lite and this file do not.
New against grouped_query: the heads share a latent, and each reads it by matrices of its own.
Cost: O(T^2) in training as multi_head, with p more channels. A written token takes O(T H (r + p)): q_h' K_h c is
(K_h' q_h)' c, so K_h is multiplied into the query once, the query is compared with the latents themselves, and V_h is
applied to the mean of the latents. The keys and values of the heads are never computed.
Cache: r + p numbers a token a layer, in place of 2 H d.
Used in: DeepSeek-V2 to -V3.2, Kimi K2 and Kimi Linear, GLM-5.

B batch, H heads, T new positions, S positions so far, D model width, d width of a head, r of the latent, p rotated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from minigpt.attention.base import SoftmaxAttention
from minigpt.attention.cache import CompactCache, KVCache, Past
from minigpt.attention.edge import Edge
from minigpt.attention.norm import RMSNorm
from minigpt.attention.position import Shape
from minigpt.attention.softmax.multi_head import MultiHead, split_heads
from minigpt.config.options import Natural, Size


def go_through_the_latent(latent: Latent, multi_head: MultiHead) -> None:
    """The other kind's key and value matrices become the products of the two matrices of this one."""
    for up, layer in ((latent.key, multi_head.key), (latent.value, multi_head.value)):
        layer.weight.copy_(up.weight @ latent.latent.weight)  # (H d, D)
        layer.bias.copy_(up.weight @ latent.latent.bias)  # (H d)


def widen_the_values(latent: Latent, multi_head: MultiHead) -> None:
    """The other kind's heads have width d + p, as keys with rotated channels have; the last p of a value are zero."""
    H, d, p = latent.n_head, latent.d, latent.p
    for name in ("weight", "bias"):  # (r + p, D), (r + p)
        down, sign = latent.latent.get_parameter(name).split((latent.r, p))
        key, value = (torch.einsum("hdr, r... -> hd...", latent.by_head(up), down) for up in (latent.key, latent.value))
        key = torch.cat((key, sign.expand(H, *sign.shape)), dim=1)  # (H, d + p, ...)
        value = torch.cat((value, torch.zeros_like(key[:, d:])), dim=1)  # (H, d + p, ...)
        multi_head.key.get_parameter(name).copy_(key.flatten(0, 1))
        multi_head.value.get_parameter(name).copy_(value.flatten(0, 1))
    columns = latent.project.weight.unflatten(1, (H, d))  # (D, H, d)
    multi_head.project.weight.copy_(torch.cat((columns, columns.new_zeros(len(columns), H, p)), dim=2).flatten(1))


LOW = {"rotated": 0, "latent_norm": False, "latent": 5}


class Up(nn.Linear):
    """From the latent to the heads, without a bias. `fast/decoding.py` does not replace it: `by_head` reads it."""

    @property
    def is_matrix(self) -> bool:
        """Whether it does what its weight says: no hook changes its input or output."""
        return not (self._forward_hooks or self._forward_pre_hooks)


class Latent(SoftmaxAttention, kind="latent"):
    """In training keys and values are computed; with a cache, K_h and V_h are absorbed and only latents are kept."""

    edges: ClassVar[tuple[Edge, ...]] = (
        Edge("multi_head", "r = D, p = 0", LOW | {"latent": 16}, prepare=go_through_the_latent, without=("rotate",)),
        Edge("multi_head", "keys of rank r, p = 0", LOW, prepare=go_through_the_latent, without=("rotate",)),
        Edge(
            "multi_head",
            "keys of rank r, unscaled",
            LOW | {"scaled": False},
            {"scaled": False},
            prepare=go_through_the_latent,
            without=("rotate",),
        ),
        Edge(
            "multi_head",
            "p more channels, without positions",
            LOW | {"rotated": 2},
            {"head_dim": 6},
            prepare=widen_the_values,
            without=("rotate",),
        ),
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(MultiHead.Config):
        without = ("qk_norm", "qk_norm_epsilon")

        latent: Size | None = None
        """The width r of the latent; by default a quarter of the model's."""
        rotated: Natural | None = None
        """How many channels p are rotated; by default half as many as a head has. With 0, no position is rotated."""
        latent_norm: bool = True
        """Whether the latent is RMS-normalised."""

    config: Latent.Config

    def __init__(self, config: Latent.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        H, D, d = config.n_head, model.n_embd, config.head_dim or model.n_embd // config.n_head
        r = config.latent or max(D // 4, 1)
        p = config.rotated if config.rotated is not None else d // 2
        self.n_head, self.d, self.r, self.p = H, d, r, p
        bias, project_bias = (model.bias if own is None else own for own in (config.qkv_bias, config.project_bias))
        self.query = nn.Linear(D, H * (d + p), bias=bias)
        self.latent = nn.Linear(D, r + p, bias=bias)
        self.latent_norm = RMSNorm(r) if config.latent_norm else nn.Identity()
        self.key, self.value = Up(r, H * d, bias=False), Up(r, H * d, bias=False)
        self.project = nn.Linear(H * d, D, bias=project_bias)

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, aim = split_heads(self.query(x), self.n_head).split((self.d, self.p), dim=-1)  # (B, H, T, d), .. p)
        latent, sign = self.latent(x).unsqueeze(1).split((self.r, self.p), dim=-1)  # (B, 1, T, r), (B, 1, T, p)
        latent = self.latent_norm(latent)  # (B, 1, T, r)
        if self.p:
            aim, sign = self.position.rotate(aim, past.length), self.position.rotate(sign, past.length)
        if isinstance(past, CompactCache):
            query = query @ self.by_head(self.key)  # (B, H, T, r)
            key, value = latent, latent[..., self.r :]  # (B, 1, T, r), (B, 1, T, 0)
        else:
            key, value = (split_heads(up(latent[:, 0]), self.n_head) for up in (self.key, self.value))  # (B, H, T, d)
        sign = sign.expand(-1, key.shape[1], -1, -1)  # (B, H or 1, T, p)
        return torch.cat((query, aim), dim=-1), torch.cat((key, sign), dim=-1), value

    def by_head(self, layer: nn.Linear) -> Tensor:
        """The matrix of every head: (H, d, r)."""
        return layer.weight.view(self.n_head, self.d, self.r)

    def make_cache(self, length: int) -> Past:
        """Latents. A subclass with other keys or values, or other layers that make them, keeps those themselves."""
        absorbed = all(isinstance(up, Up) and up.is_matrix for up in (self.key, self.value))
        return CompactCache(length) if absorbed and type(self).qkv is Latent.qkv else KVCache(length)

    def recall(self, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
        if not isinstance(past, CompactCache):
            return super().recall(query, key, value, past)
        key, _ = past.append(key, value)  # (B, 1, S, r + p)
        mixed = self.mix(query, key, key)[..., : self.r]  # (B, H, T, r): the keys are the values
        return mixed @ self.by_head(self.value).mT  # (B, H, T, d)

    def scale(self, query: Tensor) -> float:
        return self.config.score_scale or ((self.d + self.p) ** -0.5 if self.config.scaled else 1.0)

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return self.project(super().output(mixed, x))  # (B, T, D)
