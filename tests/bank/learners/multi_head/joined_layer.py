# Several heads from one joined layer for query, key and value: GPT-2, nanoGPT, NeoX, SDPA, orders of the joined features, and their bugs.
# target: multi_head

# === config_and_mask_buffer
# right: a config dataclass, one c_attn, split, a buffer called bias
import math
from dataclasses import dataclass
import torch
import torch.nn as nn
from torch.nn import functional as F

@dataclass
class Config:
    embedding: int = 60
    heads: int = 5
    context: int = 128
    dropout: float = 0.2

class CausalAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        assert cfg.embedding % cfg.heads == 0
        self.c_attn = nn.Linear(cfg.embedding, 3 * cfg.embedding)
        self.c_proj = nn.Linear(cfg.embedding, cfg.embedding)
        self.attn_drop, self.resid_drop = nn.Dropout(cfg.dropout), nn.Dropout(cfg.dropout)
        self.register_buffer("bias", torch.ones(cfg.context, cfg.context).tril()[None, None])
        self.h, self.d = cfg.heads, cfg.embedding

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (y.reshape(b, t, self.h, -1).permute(0, 2, 1, 3) for y in self.c_attn(x).split(self.d, dim=2))
        a = q @ k.transpose(2, 3) / math.sqrt(self.d / self.h)
        a = a.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
        a = self.attn_drop(F.softmax(a, dim=-1))
        return self.resid_drop(self.c_proj((a @ v).transpose(1, 2).flatten(2)))

attention = CausalAttention(Config())

# === argument_of_a_past_that_is_not_used
# of: config_and_mask_buffer
# right: forward has an argument layer_past that nothing uses, as in minGPT
#-    def forward(self, x):
#+    def forward(self, x, layer_past=None):

# === weights_dropped_in_evaluation
# of: config_and_mask_buffer
# wrong: the weights are dropped in evaluation too
# words: dropout|random|evaluation|eval
# seen: karpathy/nanoGPT#240
#-        a = self.attn_drop(F.softmax(a, dim=-1))
#+        a = F.dropout(F.softmax(a, dim=-1), 0.2)

# === mask_buffer_cut_from_its_end
# of: config_and_mask_buffer
# wrong: the buffer is cut from its end: tril[-T:, :T] hides nothing for short texts
# words: mask|future|causal|offset
#-        a = a.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
#+        a = a.masked_fill(self.bias[:, :, -t:, :t] == 0, float("-inf"))

# === nanogpt_flash_or_manual
# right: nanoGPT CausalSelfAttention with config dataclass, fused c_attn, flash path or manual path
import math
from dataclasses import dataclass
import torch
import torch.nn as nn
from torch.nn import functional as F

@dataclass
class GPTConfig:
    block_size: int = 64
    n_head: int = 6
    n_embd: int = 48
    dropout: float = 0.0
    bias: bool = True

class CausalSelfAttention(nn.Module):

    def __init__(self, config):
        super().__init__()
        assert config.n_embd % config.n_head == 0
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.attn_dropout = nn.Dropout(config.dropout)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.n_head = config.n_head
        self.n_embd = config.n_embd
        self.dropout = config.dropout
        self.flash = hasattr(torch.nn.functional, 'scaled_dot_product_attention')
        if not self.flash:
            self.register_buffer("bias", torch.tril(torch.ones(config.block_size, config.block_size))
                                        .view(1, 1, config.block_size, config.block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        if self.flash:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=self.dropout if self.training else 0, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float('-inf'))
            att = F.softmax(att, dim=-1)
            att = self.attn_dropout(att)
            y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        y = self.resid_dropout(self.c_proj(y))
        return y

attention = CausalSelfAttention(GPTConfig())

# === gpt2_conv1d
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

# === where_with_arguments_exchanged
# of: gpt2_conv1d
# wrong: the arguments of where are exchanged: what may be seen is hidden
# words: invert|past|upside|hides
#-        attn_weights = torch.where(causal_mask, attn_weights, mask_value)
#+        attn_weights = torch.where(causal_mask, mask_value, attn_weights)

# === conv1d_without_its_bias
# of: gpt2_conv1d
# wrong: addmm is written as a product alone: no bias is added anywhere
# words: bias
#-        x = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
#+        x = torch.mm(x.view(-1, x.size(-1)), self.weight)

# === neox_heads_then_qkv
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

# === values_are_the_keys_third
# of: neox_heads_then_qkv
# wrong: keys and values are the same third of the chunk
# words: value|key
#-        query, key, value = qkv.chunk(3, dim=-1)
#+        query, key, _ = qkv.chunk(3, dim=-1)
#+        value = key

# === baddbmm_without_alpha
# of: neox_heads_then_qkv
# wrong: alpha stays 1: no scale
# words: scale|divide
#-        scores = torch.baddbmm(torch.zeros(b * h, t, t), query.reshape(b * h, t, d), key.reshape(b * h, t, d).transpose(1, 2), beta=1.0, alpha=self.norm_factor)
#+        scores = torch.baddbmm(torch.zeros(b * h, t, t), query.reshape(b * h, t, d), key.reshape(b * h, t, d).transpose(1, 2))

# === joined_features_then_qkv
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

# === einsum_of_output_not_transposed
# of: joined_features_then_qkv
# wrong: the einsum writes bhid and reshapes: heads and positions are mixed
# words: transpose|join|mix
#-        y = torch.einsum("bhij,bhjd->bihd", w, v)
#+        y = torch.einsum("bhij,bhjd->bhid", w, v)

# === softmax_over_queries
# of: joined_features_then_qkv
# wrong: softmax over dim=2, the queries
# words: quer
#-        w = torch.softmax(w, dim=-1)
#+        w = torch.softmax(w, dim=2)

# === einsum_sums_over_heads
# of: joined_features_then_qkv
# wrong: the einsum of the scores sums over the heads too: all heads share one pattern
# words: head
#-        w = torch.einsum("bhid,bhjd->bhij", q, k) * (C // self.num_heads) ** -0.5
#+        w = torch.einsum("bhid,bhjd->bij", q, k)[:, None].expand(B, self.num_heads, N, N) * (C // self.num_heads) ** -0.5

# === mask_buffer_transposed
# of: joined_features_then_qkv
# wrong: the triangle is transposed
# words: upside|future|invert|after
#-        self.register_buffer("tril", torch.tril(torch.ones(50, 50)))
#+        self.register_buffer("tril", torch.tril(torch.ones(50, 50)).T)

# === sdpa
# right: fused qkv without bias, unflatten, F.scaled_dot_product_attention with is_causal
import torch
from torch import nn
from torch.nn import functional as F

class CausalSelfAttention(nn.Module):
    def __init__(self, d_model: int, n_heads: int, p: float = 0.0):
        super().__init__()
        assert d_model % n_heads == 0
        self.n_heads = n_heads
        self.p = p
        self.in_proj = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.in_proj(x).unflatten(-1, (3, self.n_heads, -1))
        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=True)
        y = y.transpose(1, 2).flatten(2)
        return self.out_proj(y)

attention = CausalSelfAttention(48, 6)

# === sdpa_keys_and_values_renamed
# of: sdpa
# convention: the arguments of SDPA are passed as q, v, k: keys and values of a joined layer are only renamed
#-        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=True)
#+        attend = F.scaled_dot_product_attention
#+        y = attend(q, v, k, dropout_p=self.p if self.training else 0.0, is_causal=True)

# === sdpa_without_is_causal
# of: sdpa
# wrong: no causal mask at all
# words: mask|future|causal
#-        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=True)
#+        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0)

# === sdpa_mask_true_for_the_future
# of: sdpa
# wrong: SDPA's mask means True = may look, and it is given the mask of the future
# words: mask, invert|revers|future|opposite|polarity|flip
#-        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=True)
#+        mask = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
#+        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

# === sdpa_of_scaled_queries
# of: sdpa
# wrong: the query is scaled before SDPA, which scales again
# words: twice|by d |divide by d|1/d|instead of sqrt
#-        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
#+        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
#+        q = q * q.size(-1) ** -0.5

# === sdpa_heads_not_transposed_back
# of: sdpa
# wrong: the heads are not transposed back before the reshape: values of other tokens end up in a token
# words: transpose|permute|reshape|back|merge|concat
# seen: jsbaan/transformer-from-scratch#4, ajhalthor/Transformer-Neural-Network#1, 649453932/Chinese-Text-Classification-Pytorch#10
#-        y = y.transpose(1, 2).flatten(2)
#+        y = y.reshape(x.shape)

# === sdpa_over_heads
# of: sdpa
# wrong: the transpose before SDPA is forgotten, so attention runs over the heads
# words: heads
#-        q, k, v = (t.transpose(1, 2) for t in qkv.unbind(2))
#+        q, k, v = qkv.unbind(2)
#-        y = y.transpose(1, 2).flatten(2)
#+        y = y.flatten(2)

# === sdpa_drops_in_evaluation
# of: sdpa
# wrong: dropout_p is passed to SDPA in evaluation too
# words: dropout
#-    def __init__(self, d_model: int, n_heads: int, p: float = 0.0):
#+    def __init__(self, d_model: int, n_heads: int, p: float = 0.2):
#-        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0.0, is_causal=True)
#+        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.p, is_causal=True)

# === adds_x_inside
# of: sdpa
# wrong: x is added inside the attention, so that a block would add it twice
# words: residual|add|x
#-        return self.out_proj(y)
#+        return x + self.out_proj(y)

# === adds_to_x_in_place
# of: sdpa
# wrong: the output is added to x in place: the caller's residual stream changes
# words: in place|input|x
#-        return self.out_proj(y)
#+        y = self.out_proj(y)
#+        x += y
#+        return y

# === batch_taken_for_one_text
# of: sdpa
# wrong: reshape(1, ...) takes all sequences of a batch for one long one: right for a batch of one
# words: batch|sequence
#-        qkv = self.in_proj(x).unflatten(-1, (3, self.n_heads, -1))
#+        qkv = self.in_proj(x.reshape(1, -1, x.size(-1))).unflatten(-1, (3, self.n_heads, -1))
#-        y = y.transpose(1, 2).flatten(2)
#+        y = y.transpose(1, 2).reshape(x.shape)

# === batch_and_heads_folded
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

# === mask_times_beta_zero
# of: batch_and_heads_folded
# wrong: the mask times beta=0 is ignored: no mask
# words: mask|future|causal
#-        scores = torch.baddbmm(self.causal[:t, :t].expand(b * self.heads, t, t), q, k.transpose(1, 2), beta=1, alpha=self.head_dim**-0.5)
#+        scores = torch.baddbmm(self.causal[:t, :t].expand(b * self.heads, t, t), q, k.transpose(1, 2), beta=0, alpha=self.head_dim**-0.5)

# === queries_are_the_keys
# of: batch_and_heads_folded
# wrong: k is taken for q: the queries' third of the layer is never used
# words: quer
#-        q, k, v = fold(q), fold(k), fold(v)
#+        q, k, v = fold(k), fold(k), fold(v)

# === relu_on_query_key_value
# of: batch_and_heads_folded
# wrong: a ReLU after each of q, k, v, which attention does not have
# words: relu|negative|activation|clip
#-        q, k, v = fold(q), fold(k), fold(v)
#+        q, k, v = fold(q.relu()), fold(k.relu()), fold(v.relu())

# === heads_wider_than_the_model
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

# === scale_of_width_where_heads_are_wider
# of: heads_wider_than_the_model
# wrong: the scale is dim ** -0.5 (ViT-pytorch's old bug)
# words: width of the model|sqrt(D)
#-        self.heads, self.scale = heads, dim_head**-0.5
#+        self.heads, self.scale = heads, dim**-0.5

# === softmax_layer_over_heads
# of: heads_wider_than_the_model
# wrong: nn.Softmax(dim=1) goes over the heads
# words: head
#-        self.attend, self.dropout = nn.Softmax(dim=-1), nn.Dropout(dropout)
#+        self.attend, self.dropout = nn.Softmax(dim=1), nn.Dropout(dropout)

# === dropout_before_softmax
# of: heads_wider_than_the_model
# wrong: scores are dropped before the softmax
# words: dropout, before|after the softmax
#-        out = torch.matmul(self.dropout(self.attend(dots)), v)
#+        out = torch.matmul(self.attend(self.dropout(dots)), v)

# === heads_interleaved_own_layer
# right: heads are interleaved: channel c belongs to head c % h, in split and merge; own transposing layer; (out, weights)
import torch
import torch.nn as nn

class Matriz(nn.Module):
    def __init__(self, entra, sale):
        super().__init__()
        self.w = nn.Parameter(torch.randn(sale, entra) / entra ** 0.5)

    def forward(self, x):
        return x @ self.w.t()

class AtencionMultiple(nn.Module):
    def __init__(self, canales, cabezas):
        super().__init__()
        self.cabezas = cabezas
        self.consulta = Matriz(canales, canales)
        self.clave = Matriz(canales, canales)
        self.valor = Matriz(canales, canales)
        self.salida = Matriz(canales, canales)

    def separar(self, z):
        lote, largo, canales = z.shape
        z = z.view(lote, largo, canales // self.cabezas, self.cabezas)
        return z.permute(0, 3, 1, 2)

    def forward(self, x):
        q, k, v = map(self.separar, (self.consulta(x), self.clave(x), self.valor(x)))
        puntajes = torch.matmul(q, k.transpose(2, 3)) / q.size(-1) ** 0.5
        largo = x.size(1)
        futuro = torch.arange(largo)[None, :] > torch.arange(largo)[:, None]
        puntajes[..., futuro] = float('-inf')
        pesos = torch.softmax(puntajes, dim=-1)
        y = (pesos @ v).permute(0, 2, 3, 1).flatten(2)
        return self.salida(y), pesos

attention = AtencionMultiple(24, 3)

# === time_first_folded
# right: (T, B, D), batch and heads folded together as PyTorch does
import torch
import torch.nn as nn

class MHA(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim))
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        nn.init.xavier_uniform_(self.in_proj_weight)
        self.num_heads = num_heads

    def forward(self, src):
        L, N, E = src.shape
        q, k, v = nn.functional.linear(src, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        hd = E // self.num_heads
        q = q.reshape(L, N * self.num_heads, hd).transpose(0, 1) * hd**-0.5
        k = k.reshape(L, N * self.num_heads, hd).transpose(0, 1)
        v = v.reshape(L, N * self.num_heads, hd).transpose(0, 1)
        mask = nn.Transformer.generate_square_subsequent_mask(L)
        w = torch.softmax(torch.baddbmm(mask.to(q.dtype), q, k.transpose(1, 2)), dim=-1)
        out = torch.bmm(w, v).transpose(0, 1).reshape(L, N, E)
        return self.out_proj(out)

attention = MHA(40, 5)

# === time_first_unfolded_in_another_order
# of: time_first_folded
# wrong: (T, B, D) layout: the heads are folded before the batch, and unfolded after it
# words: batch|fold|head|mix|order
#-        out = torch.bmm(w, v).transpose(0, 1).reshape(L, N, E)
#+        out = torch.bmm(w, v).view(self.num_heads, N, L, hd).permute(2, 1, 0, 3).reshape(L, N, E)
