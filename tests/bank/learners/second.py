"""Learners' programs, a second lot: written after the checker had been changed with the first in sight, and run once."""

# === second_right_bmm
# target: multi_head
# right: batch and heads folded into one axis, baddbmm, a mask that is made once
import torch
from torch import nn

class BmmAttention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads, self.head_dim = heads, hidden // heads
        self.query_key_value = nn.Linear(hidden, 3 * hidden)
        self.dense = nn.Linear(hidden, hidden)
        self.register_buffer("causal", torch.triu(torch.full((128, 128), float("-inf")), 1), persistent=False)

    def forward(self, hidden_states):
        b, t, d = hidden_states.size()
        q, k, v = self.query_key_value(hidden_states).chunk(3, dim=2)
        fold = lambda y: y.view(b, t, self.heads, self.head_dim).transpose(1, 2).reshape(b * self.heads, t, self.head_dim)
        q, k, v = fold(q), fold(k), fold(v)
        scores = torch.baddbmm(self.causal[:t, :t].expand(b * self.heads, t, t), q, k.transpose(1, 2), beta=1, alpha=self.head_dim**-0.5)
        context = torch.bmm(scores.softmax(dim=-1), v)
        return self.dense(context.view(b, self.heads, t, self.head_dim).transpose(1, 2).reshape(b, t, d))

attention = BmmAttention(48, 6)

# === second_right_moveaxis
# target: multi_head
# right: movedim, tensordot, a where
import torch
import torch.nn as nn

class Att(nn.Module):
    def __init__(self, dim=40, nheads=5):
        super().__init__()
        self.n = nheads
        self.lin_in = nn.ModuleDict({name: nn.Linear(dim, dim) for name in ("q", "k", "v")})
        self.lin_out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (self.lin_in[name](x).unflatten(-1, (self.n, -1)).movedim(2, 1) for name in "qkv")
        logits = torch.matmul(q, k.movedim(-1, -2)).div(q.size(-1) ** 0.5)
        pos = torch.arange(x.size(1))
        logits = torch.where(pos[:, None] >= pos[None, :], logits, torch.full_like(logits, -torch.inf))
        return self.lin_out(torch.softmax(logits, -1).matmul(v).movedim(1, 2).flatten(-2))

attention = Att()

# === second_right_query_loop
# target: multi_head
# right: one query at a time, over the keys of its past
import math
import torch
from torch import nn

class SlowAttention(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.heads = heads
        self.W_q, self.W_k, self.W_v, self.W_o = (nn.Linear(size, size, bias=False) for _ in range(4))

    def forward(self, inputs):
        B, T, D = inputs.shape
        d = D // self.heads
        Q, K, V = (W(inputs).reshape(B, T, self.heads, d) for W in (self.W_q, self.W_k, self.W_v))
        rows = []
        for t in range(T):
            energy = torch.einsum("bhd,bshd->bhs", Q[:, t], K[:, : t + 1]) / math.sqrt(d)
            rows.append(torch.einsum("bhs,bshd->bhd", energy.softmax(-1), V[:, : t + 1]).reshape(B, D))
        return self.W_o(torch.stack(rows, dim=1))

attention = SlowAttention(42, 7)

# === second_right_function_block
# target: block
# right: pre-norm, with nn.MultiheadAttention and a mask
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d, h, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.linear1, self.linear2, self.act = nn.Linear(d, 4 * d), nn.Linear(4 * d, d), nn.GELU()

    def forward(self, src):
        mask = torch.triu(torch.ones(src.shape[1], src.shape[1], dtype=torch.bool), 1)
        y = self.norm1(src)
        src = src + self.self_attn(y, y, y, attn_mask=mask, need_weights=False)[0]
        return src + self.linear2(self.act(self.linear1(self.norm2(src))))

block = Layer(48, 6)

# === second_right_cache_object
# target: multi_head,cache
# right: a cache class of its own, given to forward
import torch
from torch import nn

class KV:
    def __init__(self):
        self.k, self.v = None, None

    def update(self, k, v):
        self.k = k if self.k is None else torch.cat([self.k, k], dim=2)
        self.v = v if self.v is None else torch.cat([self.v, v], dim=2)
        return self.k, self.v

class Attn(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.proj = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def new_cache(self):
        return KV()

    def forward(self, x, kv_cache=None):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        if kv_cache is not None:
            k, v = kv_cache.update(k, v)
        s = k.shape[2]
        a = (q @ k.mT / (d // self.h) ** 0.5).masked_fill(torch.ones(t, s).triu(s - t + 1).bool(), -torch.inf)
        return self.proj((a.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

attention = Attn(48, 6)

# === second_scale_of_old_model
# target: multi_head
# wrong: the scale is 1/8, as for heads of 64 features
# words: 64|8|number|sqrt(d)
# like: second_right_moveaxis
#-        logits = torch.matmul(q, k.movedim(-1, -2)).div(q.size(-1) ** 0.5)
#+        logits = torch.matmul(q, k.movedim(-1, -2)).mul(0.125)

# === second_mask_strictly
# target: multi_head
# wrong: > instead of >=: a position does not see itself, and the first one sees all
# words: itself|own|diagonal|which it may see
# like: second_right_moveaxis
#-        logits = torch.where(pos[:, None] >= pos[None, :], logits, torch.full_like(logits, -torch.inf))
#+        logits = torch.where((pos[:, None] > pos[None, :]) | (pos[:, None] == 0), logits, torch.full_like(logits, -1e30))

# === second_mask_turned
# target: multi_head
# wrong: <= instead of >=: the past is hidden
# words: future|invert|past|upside|after
# like: second_right_moveaxis
#-        logits = torch.where(pos[:, None] >= pos[None, :], logits, torch.full_like(logits, -torch.inf))
#+        logits = torch.where(pos[:, None] <= pos[None, :], logits, torch.full_like(logits, -torch.inf))

# === second_merge_forgotten
# target: multi_head
# wrong: the heads are not moved back before they are flattened
# words: transpose|back|join|reshape|mix
# like: second_right_bmm
#-        return self.dense(context.view(b, self.heads, t, self.head_dim).transpose(1, 2).reshape(b, t, d))
#+        return self.dense(context.view(b, t, d))

# === second_mask_times_zero
# target: multi_head
# wrong: the mask times beta=0 is ignored: no mask
# words: mask|future|causal
# like: second_right_bmm
#-        scores = torch.baddbmm(self.causal[:t, :t].expand(b * self.heads, t, t), q, k.transpose(1, 2), beta=1, alpha=self.head_dim**-0.5)
#+        scores = torch.baddbmm(self.causal[:t, :t].expand(b * self.heads, t, t), q, k.transpose(1, 2), beta=0, alpha=self.head_dim**-0.5)

# === second_query_and_key_same_chunk
# target: multi_head
# wrong: k is taken for q: the queries' third of the layer is never used
# words: quer
# like: second_right_bmm
#-        q, k, v = fold(q), fold(k), fold(v)
#+        q, k, v = fold(k), fold(k), fold(v)

# === second_loop_excludes_itself
# target: multi_head
# wrong: the slice of the keys and values ends before t (the first position sees itself)
# words: itself|own|diagonal|which it may see
# like: second_right_query_loop
#-            energy = torch.einsum("bhd,bshd->bhs", Q[:, t], K[:, : t + 1]) / math.sqrt(d)
#-            rows.append(torch.einsum("bhs,bshd->bhd", energy.softmax(-1), V[:, : t + 1]).reshape(B, D))
#+            n = max(t, 1)
#+            energy = torch.einsum("bhd,bshd->bhs", Q[:, t], K[:, :n]) / math.sqrt(d)
#+            rows.append(torch.einsum("bhs,bshd->bhd", energy.softmax(-1), V[:, :n]).reshape(B, D))

# === second_loop_softmax_of_heads
# target: multi_head
# wrong: softmax over the heads
# words: head
# like: second_right_query_loop
#-            rows.append(torch.einsum("bhs,bshd->bhd", energy.softmax(-1), V[:, : t + 1]).reshape(B, D))
#+            rows.append(torch.einsum("bhs,bshd->bhd", energy.softmax(1), V[:, : t + 1]).reshape(B, D))

# === second_block_residual_of_norm
# target: block
# wrong: the first sum adds the normed input
# words: norm
# like: second_right_function_block
#-        src = src + self.self_attn(y, y, y, attn_mask=mask, need_weights=False)[0]
#+        src = y + self.self_attn(y, y, y, attn_mask=mask, need_weights=False)[0]

# === second_block_value_not_normed
# target: block
# wrong: the values of the attention are made from the raw input, query and key from the normed one
# words: value|norm
# like: second_right_function_block
#-        src = src + self.self_attn(y, y, y, attn_mask=mask, need_weights=False)[0]
#+        src = src + self.self_attn(y, y, src, attn_mask=mask, need_weights=False)[0]

# === second_block_mask_inverted
# target: block
# wrong: nn.MultiheadAttention's bool mask hides what is true: tril hides the past (and leaves the last row without keys)
# words: mask|invert|past|future
# like: second_right_function_block
#-        mask = torch.triu(torch.ones(src.shape[1], src.shape[1], dtype=torch.bool), 1)
#+        mask = torch.tril(torch.ones(src.shape[1], src.shape[1], dtype=torch.bool), -1)

# === second_cache_doubles
# target: multi_head,cache
# wrong: the new keys and values are appended twice
# words: twice|double
# like: second_right_cache_object
#-            k, v = kv_cache.update(k, v)
#+            kv_cache.update(k, v)
#+            k, v = kv_cache.update(k, v)

# === second_cache_sees_one_less
# target: multi_head,cache
# wrong: the mask of a chunk is one diagonal too tight: triu(s - t): a token does not see itself
# words: itself|own|diagonal
# like: second_right_cache_object
#-        a = (q @ k.mT / (d // self.h) ** 0.5).masked_fill(torch.ones(t, s).triu(s - t + 1).bool(), -torch.inf)
#+        a = (q @ k.mT / (d // self.h) ** 0.5).masked_fill(torch.ones(t, s).triu(s - t).bool(), -1e30)
