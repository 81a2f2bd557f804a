"""Learners' programs, a fourth lot: heads, grouped queries and caches, written in styles that the first three have not."""

# === fourth_hf_conv1d
# target: multi_head
# right: GPT-2's Conv1D, a weight (in, out), and a bias buffer of bools
import torch
from torch import nn

class Conv1D(nn.Module):
    def __init__(self, nf, nx):
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.empty(nx, nf))
        self.bias = nn.Parameter(torch.zeros(nf))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x):
        size_out = x.size()[:-1] + (self.nf,)
        x = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return x.view(size_out)

class GPT2Attention(nn.Module):
    def __init__(self, embed_dim, num_heads, max_positions=64):
        super().__init__()
        self.register_buffer("bias", torch.tril(torch.ones((max_positions, max_positions), dtype=torch.bool)).view(1, 1, max_positions, max_positions), persistent=False)
        self.embed_dim, self.num_heads, self.head_dim, self.split_size = embed_dim, num_heads, embed_dim // num_heads, embed_dim
        self.c_attn = Conv1D(3 * embed_dim, embed_dim)
        self.c_proj = Conv1D(embed_dim, embed_dim)

    def _split_heads(self, tensor):
        return tensor.view(tensor.size()[:-1] + (self.num_heads, self.head_dim)).permute(0, 2, 1, 3)

    def _merge_heads(self, tensor):
        tensor = tensor.permute(0, 2, 1, 3).contiguous()
        return tensor.view(tensor.size()[:-2] + (self.num_heads * self.head_dim,))

    def forward(self, hidden_states):
        query, key, value = self.c_attn(hidden_states).split(self.split_size, dim=2)
        query, key, value = self._split_heads(query), self._split_heads(key), self._split_heads(value)
        attn_weights = torch.matmul(query, key.transpose(-1, -2)) / (value.size(-1) ** 0.5)
        query_length, key_length = query.size(-2), key.size(-2)
        causal_mask = self.bias[:, :, key_length - query_length : key_length, :key_length]
        mask_value = torch.full([], torch.finfo(attn_weights.dtype).min, dtype=attn_weights.dtype)
        attn_weights = torch.where(causal_mask, attn_weights, mask_value)
        attn_weights = nn.functional.softmax(attn_weights, dim=-1)
        attn_output = self._merge_heads(torch.matmul(attn_weights, value))
        return self.c_proj(attn_output), attn_weights

attention = GPT2Attention(48, 6)

# === fourth_hf_split_order
# target: multi_head
# wrong: the merge forgets the permute: heads and positions are mixed
# words: transpose|permute|mix
# like: fourth_hf_conv1d
#-        tensor = tensor.permute(0, 2, 1, 3).contiguous()
#-        return tensor.view(tensor.size()[:-2] + (self.num_heads * self.head_dim,))
#+        b, h, t, d = tensor.shape
#+        return tensor.reshape(b, t, h * d)

# === fourth_hf_scale_of_split
# target: multi_head
# wrong: divides by the root of split_size, the whole width
# words: width of the model|sqrt(D)
# like: fourth_hf_conv1d
#-        attn_weights = torch.matmul(query, key.transpose(-1, -2)) / (value.size(-1) ** 0.5)
#+        attn_weights = torch.matmul(query, key.transpose(-1, -2)) / (self.split_size ** 0.5)

# === fourth_hf_where_swapped
# target: multi_head
# wrong: the arguments of where are exchanged: what may be seen is hidden
# words: invert|past|upside|hides
# like: fourth_hf_conv1d
#-        attn_weights = torch.where(causal_mask, attn_weights, mask_value)
#+        attn_weights = torch.where(causal_mask, mask_value, attn_weights)

# === fourth_hf_value_bias
# target: multi_head
# wrong: addmm is written as a product alone: no bias is added anywhere
# words: bias
# like: fourth_hf_conv1d
#-        x = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
#+        x = torch.mm(x.view(-1, x.size(-1)), self.weight)

# === fourth_fused_heads_first
# target: multi_head
# right: NeoX: the fused layer is read as (H, 3, d)
import torch
import torch.nn as nn
import torch.nn.functional as F

class NeoX(nn.Module):
    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.head_size = hidden_size // num_attention_heads
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.norm_factor = self.head_size**-0.5

    def forward(self, hidden_states):
        qkv = self.query_key_value(hidden_states)
        qkv = qkv.view(qkv.size()[:-1] + (self.num_attention_heads, 3 * self.head_size)).transpose(1, 2)
        query, key, value = qkv.chunk(3, dim=-1)
        b, h, t, d = query.shape
        scores = torch.baddbmm(torch.zeros(b * h, t, t), query.reshape(b * h, t, d), key.reshape(b * h, t, d).transpose(1, 2), beta=1.0, alpha=self.norm_factor)
        scores = scores.view(b, h, t, t) + torch.triu(torch.full((t, t), float("-inf")), diagonal=1)
        out = torch.matmul(F.softmax(scores, -1), value)
        return self.dense(out.transpose(1, 2).contiguous().view(b, t, h * d))

attention = NeoX(60, 5)

# === fourth_fused_values_cut
# target: multi_head
# wrong: keys and values are the same third of the chunk
# words: value|key
# like: fourth_fused_heads_first
#-        query, key, value = qkv.chunk(3, dim=-1)
#+        query, key, _ = qkv.chunk(3, dim=-1)
#+        value = key

# === fourth_fused_alpha_missing
# target: multi_head
# wrong: alpha stays 1: no scale
# words: scale|divide
# like: fourth_fused_heads_first
#-        scores = torch.baddbmm(torch.zeros(b * h, t, t), query.reshape(b * h, t, d), key.reshape(b * h, t, d).transpose(1, 2), beta=1.0, alpha=self.norm_factor)
#+        scores = torch.baddbmm(torch.zeros(b * h, t, t), query.reshape(b * h, t, d), key.reshape(b * h, t, d).transpose(1, 2))

# === fourth_fused_last
# target: multi_head
# right: the fused layer is read as (H, d, 3)
import torch
from torch import nn

class LastAxis(nn.Module):
    def __init__(self, channels=42, num_heads=3):
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(channels, channels * 3, bias=False)
        self.proj = nn.Linear(channels, channels)
        self.register_buffer("tril", torch.tril(torch.ones(50, 50)))

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, self.num_heads, C // self.num_heads, 3).permute(4, 0, 2, 1, 3).unbind(0)
        w = torch.einsum("bhid,bhjd->bhij", q, k) * (C // self.num_heads) ** -0.5
        w = w.masked_fill(self.tril[:N, :N].logical_not(), -torch.inf)
        w = torch.softmax(w, dim=-1)
        y = torch.einsum("bhij,bhjd->bihd", w, v)
        return self.proj(y.reshape(B, N, C))

attention = LastAxis()

# === fourth_einsum_output_letters
# target: multi_head
# wrong: the einsum writes bhid and reshapes: heads and positions are mixed
# words: transpose|join|mix
# like: fourth_fused_last
#-        y = torch.einsum("bhij,bhjd->bihd", w, v)
#+        y = torch.einsum("bhij,bhjd->bhid", w, v)

# === fourth_einsum_softmax_dim_two
# target: multi_head
# wrong: softmax over dim=2, the queries
# words: quer
# like: fourth_fused_last
#-        w = torch.softmax(w, dim=-1)
#+        w = torch.softmax(w, dim=2)

# === fourth_einsum_contracts_heads
# target: multi_head
# wrong: the einsum of the scores sums over the heads too: all heads share one pattern
# words: head
# like: fourth_fused_last
#-        w = torch.einsum("bhid,bhjd->bhij", q, k) * (C // self.num_heads) ** -0.5
#+        w = torch.einsum("bhid,bhjd->bij", q, k)[:, None].expand(B, self.num_heads, N, N) * (C // self.num_heads) ** -0.5

# === fourth_mask_zero_row_first
# target: multi_head
# wrong: the buffer is transposed: triu instead of tril
# words: upside|future|invert|after
# like: fourth_fused_last
#-        self.register_buffer("tril", torch.tril(torch.ones(50, 50)))
#+        self.register_buffer("tril", torch.tril(torch.ones(50, 50)).T)

# === fourth_parameter_dict
# target: multi_head
# right: matrices (D, D) in a ParameterDict, x @ W, biases apart
import math
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.weights = nn.ParameterDict({n: nn.Parameter(torch.randn(dim, dim) / math.sqrt(dim)) for n in ("q", "k", "v", "o")})
        self.biases = nn.ParameterDict({n: nn.Parameter(torch.zeros(dim)) for n in ("q", "k", "v", "o")})

    def lin(self, name, x):
        return x @ self.weights[name] + self.biases[name]

    def forward(self, x):
        b, n, c = x.shape
        heads = lambda y: y.reshape(b, n, self.heads, c // self.heads).swapaxes(1, 2)
        q, k, v = heads(self.lin("q", x)), heads(self.lin("k", x)), heads(self.lin("v", x))
        s = (q / math.sqrt(math.sqrt(c / self.heads))) @ (k / math.sqrt(math.sqrt(c / self.heads))).swapaxes(2, 3)
        s -= 1e30 * torch.triu(torch.ones(n, n), 1)
        p = torch.exp(s - s.max(dim=-1, keepdim=True).values)
        p = p / p.sum(-1, keepdim=True)
        return self.lin("o", (p @ v).swapaxes(1, 2).reshape(b, n, c))

attention = Attention(44, 4)

# === fourth_dict_sum_of_columns
# target: multi_head
# wrong: the exponentials are divided by the sums of the columns
# words: column|quer
# like: fourth_parameter_dict
#-        p = p / p.sum(-1, keepdim=True)
#+        p = p / p.sum(-2, keepdim=True)

# === fourth_dict_one_fourth_root
# target: multi_head
# wrong: only the query is divided by the fourth root
# words: fourth|sqrt
# like: fourth_parameter_dict
#-        s = (q / math.sqrt(math.sqrt(c / self.heads))) @ (k / math.sqrt(math.sqrt(c / self.heads))).swapaxes(2, 3)
#+        s = (q / math.sqrt(math.sqrt(c / self.heads))) @ k.swapaxes(2, 3)

# === fourth_dict_values_of_x
# target: multi_head
# wrong: the values are x itself, cut into heads
# words: value
# like: fourth_parameter_dict
#-        q, k, v = heads(self.lin("q", x)), heads(self.lin("k", x)), heads(self.lin("v", x))
#+        q, k, v = heads(self.lin("q", x)), heads(self.lin("k", x)), heads(x)

# === fourth_list_fused_heads
# target: multi_head
# right: a list of heads, each with one fused layer, bmm
import torch
import torch.nn as nn

class OneHead(nn.Module):
    def __init__(self, width, size):
        super().__init__()
        self.size, self.qkv = size, nn.Linear(width, 3 * size, bias=False)

    def forward(self, x, hidden):
        q, k, v = torch.split(self.qkv(x), self.size, dim=-1)
        a = torch.bmm(q, k.permute(0, 2, 1)).mul_(self.size**-0.5).masked_fill_(hidden, float("-inf"))
        return torch.bmm(a.softmax(2), v)

class ManyHeads(nn.Module):
    def __init__(self, width, n):
        super().__init__()
        self.heads = nn.ModuleList(OneHead(width, width // n) for _ in range(n))
        self.mix = nn.Linear(width, width)

    def forward(self, x):
        hidden = torch.ones(x.size(1), x.size(1)).triu(1).bool()
        return self.mix(torch.cat([head(x, hidden) for head in self.heads], 2))

attention = ManyHeads(48, 6)

# === fourth_list_stacked
# target: multi_head
# wrong: the heads are stacked in front of the positions and reshaped: positions and heads are mixed
# words: transpose|join|mix
# like: fourth_list_fused_heads
#-        return self.mix(torch.cat([head(x, hidden) for head in self.heads], 2))
#+        return self.mix(torch.stack([head(x, hidden) for head in self.heads], 1).reshape(x.shape))

# === fourth_list_reversed
# target: multi_head
# convention: the heads are joined in reverse order: they are learned, and so is the projection
# like: fourth_list_fused_heads
#-        return self.mix(torch.cat([head(x, hidden) for head in self.heads], 2))
#+        return self.mix(torch.cat([head(x, hidden) for head in reversed(self.heads)], 2))

# === fourth_mha_torch_additive
# target: multi_head
# right: nn.MultiheadAttention with positional arguments, a float mask, average weights returned too
import torch
from torch import nn

class SelfAttention(nn.MultiheadAttention):
    def __init__(self, dim, heads):
        super().__init__(dim, heads, batch_first=True, bias=False)

    def forward(self, x):
        mask = torch.full((x.size(1),) * 2, -torch.inf).triu(diagonal=1)
        out, weights = super().forward(x, x, x, need_weights=True, attn_mask=mask, average_attn_weights=False)
        return out

attention = SelfAttention(48, 6)

# === fourth_mha_torch_is_causal_only
# target: multi_head
# wrong: the mask is of the wrong kind: a float mask of ones and zeros is added
# words: added|add|nothing is hidden|mask
# like: fourth_mha_torch_additive
#-        mask = torch.full((x.size(1),) * 2, -torch.inf).triu(diagonal=1)
#+        mask = torch.ones(x.size(1), x.size(1)).tril()

# === fourth_mha_torch_batch_first
# target: multi_head
# convention: batch_first is left out and the mask is made for the first axis: x is (T, B, D)
# like: fourth_mha_torch_additive
#-        super().__init__(dim, heads, batch_first=True, bias=False)
#+        super().__init__(dim, heads, bias=False)
#-        mask = torch.full((x.size(1),) * 2, -torch.inf).triu(diagonal=1)
#+        mask = torch.full((x.size(0),) * 2, -torch.inf).triu(diagonal=1)

# === fourth_inner_width
# target: multi_head
# right: the heads are wider than D / H: x-transformers
import torch
import torch.nn as nn
import torch.nn.functional as F

class Attention(nn.Module):
    def __init__(self, dim, heads=8, dim_head=64, dropout=0.0):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads, self.scale = heads, dim_head**-0.5
        self.attend, self.dropout = nn.Softmax(dim=-1), nn.Dropout(dropout)
        self.to_qkv = nn.Linear(dim, inner_dim * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner_dim, dim), nn.Dropout(dropout))

    def forward(self, x):
        b, n, _ = x.shape
        q, k, v = map(lambda t: t.view(b, n, self.heads, -1).transpose(1, 2), self.to_qkv(x).chunk(3, dim=-1))
        dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        dots = dots.masked_fill(torch.ones((n, n), dtype=torch.bool).triu(1), -torch.finfo(dots.dtype).max)
        out = torch.matmul(self.dropout(self.attend(dots)), v)
        return self.to_out(out.transpose(1, 2).flatten(2))

attention = Attention(40, heads=4, dim_head=16, dropout=0.1)

# === fourth_inner_scale_dim
# target: multi_head
# wrong: the scale is dim ** -0.5 (ViT-pytorch's old bug)
# words: width of the model|sqrt(D)
# like: fourth_inner_width
#-        self.heads, self.scale = heads, dim_head**-0.5
#+        self.heads, self.scale = heads, dim**-0.5

# === fourth_inner_softmax_one
# target: multi_head
# wrong: nn.Softmax(dim=1) goes over the heads
# words: head
# like: fourth_inner_width
#-        self.attend, self.dropout = nn.Softmax(dim=-1), nn.Dropout(dropout)
#+        self.attend, self.dropout = nn.Softmax(dim=1), nn.Dropout(dropout)

# === fourth_inner_dropout_scores
# target: multi_head
# wrong: dropout is applied to the scores, before the softmax
# words: dropout, before
# like: fourth_inner_width
#-        out = torch.matmul(self.dropout(self.attend(dots)), v)
#+        out = torch.matmul(self.attend(self.dropout(dots)), v)

# === fourth_inner_no_projection
# target: multi_head
# wrong: the two layers of to_out are exchanged for an Identity and the inner width is returned cut
# words: projection
# like: fourth_inner_width
#-        return self.to_out(out.transpose(1, 2).flatten(2))
#+        return out.transpose(1, 2).flatten(2)[..., : x.shape[-1]]

# === fourth_vmap
# target: multi_head
# right: vmap over batch and heads of a function for one head
import torch
from torch import nn
from torch.func import vmap

def one(q, k, v):
    s = (q @ k.T) / q.shape[1] ** 0.5
    i = torch.arange(len(q))
    return torch.softmax(torch.where(i[:, None] < i[None], -torch.inf, s), 1) @ v

class Mapped(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.i, self.o = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        q, k, v = self.i(x).unflatten(2, (3, self.h, -1)).permute(2, 0, 3, 1, 4)
        return self.o(vmap(vmap(one))(q, k, v).transpose(1, 2).flatten(2))

attention = Mapped(40, 5)

# === fourth_vmap_strict
# target: multi_head
# wrong: i <= j hides the token itself, and nan_to_num the first row
# words: itself|own|diagonal
# like: fourth_vmap
#-    return torch.softmax(torch.where(i[:, None] < i[None], -torch.inf, s), 1) @ v
#+    return torch.softmax(torch.where(i[:, None] <= i[None], -torch.inf, s), 1).nan_to_num() @ v

# === fourth_gqa_enable
# target: grouped_query
# right: SDPA with enable_gqa
import torch
from torch import nn
import torch.nn.functional as F

class GQA(nn.Module):
    def __init__(self, dim, n_heads, n_kv_heads):
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = n_heads, n_kv_heads, dim // n_heads
        self.wqkv = nn.Linear(dim, (n_heads + 2 * n_kv_heads) * self.head_dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        B, L, _ = x.shape
        kv = self.n_kv_heads * self.head_dim
        q, k, v = self.wqkv(x).split([self.n_heads * self.head_dim, kv, kv], dim=-1)
        q = q.view(B, L, self.n_heads, self.head_dim).transpose(1, 2)
        k, v = (y.view(B, L, self.n_kv_heads, self.head_dim).transpose(1, 2) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.wo(y.transpose(1, 2).reshape(B, L, -1))

attention = GQA(96, 8, 2)

# === fourth_gqa_repeat_both
# target: grouped_query
# convention: keys and values are both tiled with repeat
# like: fourth_gqa_enable
#-        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
#+        n = self.n_heads // self.n_kv_heads
#+        y = F.scaled_dot_product_attention(q, k.repeat(1, n, 1, 1), v.repeat(1, n, 1, 1), is_causal=True)

# === fourth_gqa_repeat_values
# target: grouped_query
# wrong: the values are tiled with repeat, the keys repeat_interleaved
# words: tile|values of another
# like: fourth_gqa_enable
#-        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
#+        n = self.n_heads // self.n_kv_heads
#+        y = F.scaled_dot_product_attention(q, k.repeat_interleave(n, 1), v.repeat(1, n, 1, 1), is_causal=True)

# === fourth_gqa_last_group
# target: grouped_query
# wrong: all heads use the last key head
# words: last
# like: fourth_gqa_enable
#-        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
#+        y = F.scaled_dot_product_attention(q, k[:, -1:].expand_as(q), v[:, -1:].expand_as(q), is_causal=True)

# === fourth_gqa_scale_kv
# target: grouped_query
# wrong: the scale is that of D divided by the number of key heads
# words: D/G|sqrt(D
# like: fourth_gqa_enable
#-        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
#+        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=(96 // self.n_kv_heads) ** -0.5)

# === fourth_gqa_groups_einsum
# target: grouped_query
# right: grouped einsum, keys never repeated, query heads (G, R)
import torch
from torch import nn

class Grouped(nn.Module):
    def __init__(self, d_model=72, num_heads=6, num_kv_heads=3):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.d_head = num_heads, num_kv_heads, d_model // num_heads
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, num_kv_heads * self.d_head)
        self.v_proj = nn.Linear(d_model, num_kv_heads * self.d_head)
        self.o_proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q_proj(x).view(b, n, self.num_kv_heads, self.num_heads // self.num_kv_heads, self.d_head)
        k = self.k_proj(x).view(b, n, self.num_kv_heads, self.d_head)
        v = self.v_proj(x).view(b, n, self.num_kv_heads, self.d_head)
        s = torch.einsum("bigrd,bjgd->bgrij", q, k) / self.d_head**0.5
        s = s.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf)
        y = torch.einsum("bgrij,bjgd->bigrd", s.softmax(-1), v)
        return self.o_proj(y.flatten(2))

attention = Grouped()

# === fourth_gqa_einsum_sums_groups
# target: grouped_query
# convention: the output's heads are written as (R, G): another order of the heads before the learned projection
# like: fourth_gqa_groups_einsum
#-        y = torch.einsum("bgrij,bjgd->bigrd", s.softmax(-1), v)
#+        y = torch.einsum("bgrij,bjgd->birgd", s.softmax(-1), v)

# === fourth_mqa
# target: grouped_query
# wrong: the one key head of multi-query attention is not scaled by its own width but by D
# words: width of the model|sqrt(D)
import torch
from torch import nn

class MQA(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.d = h, d
        self.q, self.kv, self.o = nn.Linear(d, d), nn.Linear(d, 2 * d // h), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q = self.q(x).view(b, t, self.h, d // self.h).transpose(1, 2)
        k, v = self.kv(x)[:, None].chunk(2, -1)
        a = (q @ k.transpose(-1, -2)) * self.d**-0.5
        a = a + torch.triu(torch.full((t, t), float("-inf")), 1)
        return self.o((a.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

attention = MQA(60, 5)

# === fourth_cache_hf
# target: multi_head,cache
# right: past_key_value tuples and use_cache, as in Hugging Face's models
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, hidden_size, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(4))

    def _shape(self, t, n, b):
        return t.view(b, n, self.num_heads, self.head_dim).transpose(1, 2).contiguous()

    def forward(self, hidden_states, past_key_value=None, output_attentions=False, use_cache=False):
        bsz, q_len, _ = hidden_states.size()
        query = self._shape(self.q_proj(hidden_states), q_len, bsz)
        key = self._shape(self.k_proj(hidden_states), -1, bsz)
        value = self._shape(self.v_proj(hidden_states), -1, bsz)
        if past_key_value is not None:
            key = torch.cat([past_key_value[0], key], dim=2)
            value = torch.cat([past_key_value[1], value], dim=2)
        past_key_value = (key, value) if use_cache else None
        kv_len = key.size(2)
        w = torch.matmul(query, key.transpose(2, 3)) / self.head_dim**0.5
        causal = torch.arange(kv_len)[None, :] > torch.arange(kv_len - q_len, kv_len)[:, None]
        w = w.masked_fill(causal, torch.finfo(w.dtype).min)
        w = nn.functional.softmax(w, dim=-1)
        out = torch.matmul(w, value).transpose(1, 2).reshape(bsz, q_len, -1)
        return self.o_proj(out), (w if output_attentions else None), past_key_value

attention = Attention(48, 6)

# === fourth_cache_hf_new_only
# target: multi_head,cache
# wrong: the new keys alone are handed on
# words: overwritten|only|keeps|last call
# like: fourth_cache_hf
#-        if past_key_value is not None:
#-            key = torch.cat([past_key_value[0], key], dim=2)
#-            value = torch.cat([past_key_value[1], value], dim=2)
#-        past_key_value = (key, value) if use_cache else None
#+        new = (key, value) if use_cache else None
#+        if past_key_value is not None:
#+            key = torch.cat([past_key_value[0], key], dim=2)
#+            value = torch.cat([past_key_value[1], value], dim=2)
#+        past_key_value = new

# === fourth_cache_hf_upper_left
# target: multi_head,cache
# wrong: the mask of a chunk starts at position 0
# words: corner|upper left|position
# like: fourth_cache_hf
#-        causal = torch.arange(kv_len)[None, :] > torch.arange(kv_len - q_len, kv_len)[:, None]
#+        causal = torch.arange(kv_len)[None, :] > torch.arange(q_len)[:, None]

# === fourth_cache_hf_values_forgotten
# target: multi_head,cache
# wrong: the cached values are concatenated the other way round
# words: value
# like: fourth_cache_hf
#-            value = torch.cat([past_key_value[1], value], dim=2)
#+            value = torch.cat([value, past_key_value[1]], dim=2)

# === fourth_cache_gpt_fast
# target: multi_head,cache
# right: gpt-fast: input_pos is a tensor of positions, the module holds a KVCache module
import torch
from torch import nn
import torch.nn.functional as F

class KVCache(nn.Module):
    def __init__(self, batch, length, heads, d):
        super().__init__()
        self.register_buffer("k_cache", torch.zeros(batch, heads, length, d))
        self.register_buffer("v_cache", torch.zeros(batch, heads, length, d))

    def update(self, input_pos, k, v):
        self.k_cache[: k.shape[0], :, input_pos] = k
        self.v_cache[: k.shape[0], :, input_pos] = v
        return self.k_cache[: k.shape[0]], self.v_cache[: k.shape[0]]

class Attention(nn.Module):
    def __init__(self, dim, n_head, block_size=32):
        super().__init__()
        self.n_head, self.head_dim = n_head, dim // n_head
        self.wqkv, self.wo = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.kv_cache = KVCache(4, block_size, n_head, self.head_dim)
        self.register_buffer("causal_mask", torch.tril(torch.ones(block_size, block_size, dtype=torch.bool)))

    def forward(self, x, input_pos=None):
        b, t, d = x.shape
        if input_pos is None:
            input_pos = torch.arange(t)
        q, k, v = (y.view(b, t, self.n_head, self.head_dim).transpose(1, 2) for y in self.wqkv(x).split(d, dim=-1))
        k, v = self.kv_cache.update(input_pos, k, v)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.causal_mask[None, None, input_pos])
        return self.wo(y.transpose(1, 2).reshape(b, t, d))

attention = Attention(48, 6)

# === fourth_cache_dynamic
# target: multi_head,cache
# right: a DynamicCache class in the file, filled by update(key, value, layer)
import torch
from torch import nn
import torch.nn.functional as F

class DynamicCache:
    def __init__(self):
        self.key_cache, self.value_cache = [], []

    def get_seq_length(self, layer_idx=0):
        return self.key_cache[layer_idx].shape[-2] if len(self.key_cache) > layer_idx else 0

    def update(self, key, value, layer_idx):
        if len(self.key_cache) <= layer_idx:
            self.key_cache.append(key)
            self.value_cache.append(value)
        else:
            self.key_cache[layer_idx] = torch.cat([self.key_cache[layer_idx], key], dim=-2)
            self.value_cache[layer_idx] = torch.cat([self.value_cache[layer_idx], value], dim=-2)
        return self.key_cache[layer_idx], self.value_cache[layer_idx]

class SelfAttention(nn.Module):
    def __init__(self, d_model, n_heads, layer_idx=0):
        super().__init__()
        self.n_heads, self.layer_idx = n_heads, layer_idx
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, x, past_key_values=None):
        B, T, D = x.shape
        q, k, v = (p(x).view(B, T, self.n_heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)
        S = k.shape[2]
        mask = torch.ones(T, S, dtype=torch.bool).tril(diagonal=S - T)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(y.transpose(1, 2).reshape(B, T, D))

attention = SelfAttention(48, 6)

# === fourth_cache_dynamic_not_summed
# target: multi_head,cache
# wrong: the cache's keys are replaced by the newest instead of concatenated
# words: overwritten|only|keeps|last call
# like: fourth_cache_dynamic
#-            self.key_cache[layer_idx] = torch.cat([self.key_cache[layer_idx], key], dim=-2)
#-            self.value_cache[layer_idx] = torch.cat([self.value_cache[layer_idx], value], dim=-2)
#+            old = self.key_cache[layer_idx], self.value_cache[layer_idx]
#+            self.key_cache[layer_idx], self.value_cache[layer_idx] = key, value
#+            return torch.cat([old[0], key], dim=-2), torch.cat([old[1], value], dim=-2)

# === fourth_cache_dynamic_is_causal
# target: multi_head,cache
# wrong: is_causal=True with a cache: the mask is aligned to the upper left
# words: corner|upper left|is_causal
# like: fourth_cache_dynamic
#-        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
#+        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
