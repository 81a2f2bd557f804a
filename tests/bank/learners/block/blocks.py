# A block: attention and MLP with their norms and residuals; norm before or after, in parallel, from torch's layers, nested, as functions.
# target: block

# === prenorm_block
# right: x + attention(norm(x)), then x + mlp(norm(x))
import torch
from torch import nn
import torch.nn.functional as F

class Attention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.proj = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))

class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.ln1, self.attn, self.ln2 = nn.LayerNorm(d), Attention(d, h), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        x = x + self.mlp(self.ln2(x))
        return x

block = Block(48, 6)

# === postnorm_block
# of: prenorm_block
# convention: norms after the residual sums, as in the first Transformer
#-        x = x + self.attn(self.ln1(x))
#-        x = x + self.mlp(self.ln2(x))
#-        return x
#+        x = self.ln1(x + self.attn(x))
#+        return self.ln2(x + self.mlp(x))

# === norms_without_bias
# of: prenorm_block
# right: norms without a bias
#-        self.ln1, self.attn, self.ln2 = nn.LayerNorm(d), Attention(d, h), nn.LayerNorm(d)
#+        self.ln1, self.attn, self.ln2 = nn.LayerNorm(d, bias=False), Attention(d, h), nn.LayerNorm(d, bias=False)

# === residual_of_normed_input
# of: prenorm_block
# wrong: the residual adds the normed x, not x
# words: norm, residual|x +|instead
# seen: Howuhh/faster-trajectory-transformer#3
#-        x = x + self.attn(self.ln1(x))
#-        x = x + self.mlp(self.ln2(x))
#-        return x
#+        x = self.ln1(x)
#+        x = x + self.attn(x)
#+        x = self.ln2(x)
#+        return x + self.mlp(x)

# === second_residual_of_normed_input
# of: prenorm_block
# wrong: x is replaced by norm2(x) before the MLP: the second residual carries the normed x
# words: replaced by norm2(h)
#-        x = x + self.mlp(self.ln2(x))
#+        x = self.ln2(x)
#+        x = x + self.mlp(x)

# === attention_without_residual
# of: prenorm_block
# wrong: the attention's output replaces x instead of being added to it
# words: residual|add|x +
#-        x = x + self.attn(self.ln1(x))
#+        x = self.attn(self.ln1(x))

# === mlp_without_residual
# of: prenorm_block
# wrong: the second residual is missing
# words: second residual
#-        x = x + self.mlp(self.ln2(x))
#+        x = self.mlp(self.ln2(x))

# === parallel_though_not_announced
# of: prenorm_block
# wrong: the MLP reads the block's input and not what attention has added to it (GPT-J's parallel form, not announced)
# words: parallel|input|before|same
#-        x = x + self.attn(self.ln1(x))
#-        x = x + self.mlp(self.ln2(x))
#-        return x
#+        a = self.attn(self.ln1(x))
#+        m = self.mlp(self.ln2(x))
#+        return x + a + m

# === first_norm_used_twice
# of: prenorm_block
# wrong: the first norm is used twice, the second never
# words: norm
#-        x = x + self.mlp(self.ln2(x))
#+        x = x + self.mlp(self.ln1(x))

# === mlp_without_norm
# of: prenorm_block
# wrong: the MLP reads x without a norm
# words: norm
#-        self.ln1, self.attn, self.ln2 = nn.LayerNorm(d), Attention(d, h), nn.LayerNorm(d)
#+        self.ln1, self.attn = nn.LayerNorm(d), Attention(d, h)
#-        x = x + self.mlp(self.ln2(x))
#+        x = x + self.mlp(x)

# === mlp_before_attention
# of: prenorm_block
# wrong: the MLP comes before the attention
# words: order|before|first
#-        x = x + self.attn(self.ln1(x))
#-        x = x + self.mlp(self.ln2(x))
#+        x = x + self.mlp(self.ln2(x))
#+        x = x + self.attn(self.ln1(x))

# === block_whose_attention_divides_by_root_of_width
# of: prenorm_block
# wrong: the block is right, the attention in it divides by sqrt(D)
# words: width of the model|sqrt(D)|embedding
#-        return self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
#+        s = (q @ k.mT / d**0.5).masked_fill(torch.ones(t, t).triu(1).bool(), -float("inf"))
#+        return self.proj((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

# === block_writes_into_its_input
# of: prenorm_block
# wrong: x += changes the caller's input (the numbers returned are right)
# words: writes into its input
#-        x = x + self.attn(self.ln1(x))
#+        x += self.attn(self.ln1(x))

# === everything_in_one_class
# right: everything in one class
import math
import torch
import torch.nn.functional as F
from torch import nn

class Decoder(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.norm_1, self.norm_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.c_attn, self.c_proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc, self.fc_out = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        B, T, D = x.shape
        y = self.norm_1(x)
        q, k, v = (z.view(B, T, self.h, -1).transpose(1, 2) for z in self.c_attn(y).chunk(3, 2))
        a = (q @ k.mT / math.sqrt(D // self.h)).masked_fill(torch.ones(T, T).tril() == 0, -math.inf).softmax(-1)
        x = x + self.c_proj((a @ v).transpose(1, 2).reshape(B, T, D))
        return x + self.fc_out(F.gelu(self.fc(self.norm_2(x))))

block = Decoder(40, 5)

# === torch_attention_in_a_block
# right: a pre-norm block with residual dropout and nn.MultiheadAttention inside
import torch
import torch.nn as nn

class TransformerBlock(nn.Module):
    def __init__(self, embed_dim, num_heads, ff_mult=4, dropout=0.1):
        super().__init__()
        self.ln1 = nn.LayerNorm(embed_dim)
        self.ln2 = nn.LayerNorm(embed_dim)
        self.attn = nn.MultiheadAttention(embed_dim, num_heads, dropout=dropout, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(embed_dim, ff_mult * embed_dim),
            nn.GELU(),
            nn.Linear(ff_mult * embed_dim, embed_dim),
            nn.Dropout(dropout),
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        T = x.size(1)
        mask = torch.triu(torch.ones(T, T, dtype=torch.bool, device=x.device), diagonal=1)
        y = self.ln1(x)
        y, _ = self.attn(y, y, y, attn_mask=mask)
        x = x + self.drop(y)
        x = x + self.mlp(self.ln2(x))
        return x

model = TransformerBlock(48, 6)

# === time_first_block
# of: torch_attention_in_a_block
# right: nn.MultiheadAttention time-first, boolean mask True = blocked
#-        self.attn = nn.MultiheadAttention(embed_dim, num_heads, dropout=dropout, batch_first=True)
#+        self.attn = nn.MultiheadAttention(embed_dim, num_heads, dropout=dropout)
#-        T = x.size(1)
#+        T = x.size(0)

# === keys_and_values_not_normed
# of: torch_attention_in_a_block
# wrong: keys and values get x, only the queries are normalised
# words: norm
#-        y, _ = self.attn(y, y, y, attn_mask=mask)
#+        y, _ = self.attn(y, x, x, attn_mask=mask)

# === values_not_normed
# of: torch_attention_in_a_block
# wrong: the values of the attention are made from the raw input, query and key from the normed one
# words: value|norm
#-        y, _ = self.attn(y, y, y, attn_mask=mask)
#+        y, _ = self.attn(y, y, x, attn_mask=mask)

# === block_mask_inverted
# of: torch_attention_in_a_block
# wrong: nn.MultiheadAttention's bool mask hides what is true: tril hides the past (and leaves the last row without keys)
# words: mask|invert|past|future
#-        mask = torch.triu(torch.ones(T, T, dtype=torch.bool, device=x.device), diagonal=1)
#+        mask = torch.tril(torch.ones(T, T, dtype=torch.bool, device=x.device), diagonal=-1)

# === time_first_postnorm_block
# right: post-norm (original transformer), (T,B,C) time first, nn.MultiheadAttention, causal, ReLU MLP
import torch
from torch import nn

class PostNormBlock(nn.Module):
    """Vaswani et al.: LayerNorm(x + Sublayer(x)); input (T, B, C)"""
    def __init__(self, d_model, nhead, dim_feedforward=128, dropout=0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d_model, nhead, dropout=dropout)
        self.norm1 = nn.LayerNorm(d_model)
        self.ff = nn.Sequential(nn.Linear(d_model, dim_feedforward), nn.ReLU(), nn.Dropout(dropout), nn.Linear(dim_feedforward, d_model))
        self.norm2 = nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)

    def forward(self, src):
        mask = nn.Transformer.generate_square_subsequent_mask(src.size(0)).to(src.device)
        src2 = self.self_attn(src, src, src, attn_mask=mask)[0]
        src = self.norm1(src + self.drop(src2))
        return self.norm2(src + self.drop(self.ff(src)))

block = PostNormBlock(48, 6)

# === torch_encoder_layer
# right: nn.TransformerEncoderLayer, pre-norm, with a mask
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(d, h, 4 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1), dtype=x.dtype)
        return self.layer(x, src_mask=mask, is_causal=True)

block = Block(48, 6)

# === torch_encoder_layer_postnorm
# of: torch_encoder_layer
# convention: post-norm, as in the first Transformer
#-        self.layer = nn.TransformerEncoderLayer(d, h, 4 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
#+        self.layer = nn.TransformerEncoderLayer(d, h, 4 * d, dropout=0.0, activation="gelu", batch_first=True)

# === torch_encoder_layer_without_mask
# of: torch_encoder_layer
# wrong: no mask is passed
# words: mask|future
#-        return self.layer(x, src_mask=mask, is_causal=True)
#+        return self.layer(x)

# === palm_parallel_from_one_layer
# right: GPT-J/PaLM parallel block with one joined input layer
import torch
import torch.nn as nn
import torch.nn.functional as F

class ParallelBlock(nn.Module):
    """GPT-J / PaLM block: attention and feed-forward side by side, both read the same norm.

        y = x + attn(ln(x)) + mlp(ln(x))
    """

    def __init__(self, dim, heads, ff_mult=4):
        super().__init__()
        self.heads = heads
        self.splits = (dim, dim, dim, ff_mult * dim)
        self.ln = nn.LayerNorm(dim)
        self.fused_in = nn.Linear(dim, sum(self.splits), bias=False)   # q, k, v and the hidden layer
        self.attn_out = nn.Linear(dim, dim, bias=False)
        self.ff_out = nn.Linear(ff_mult * dim, dim, bias=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v, ff = self.fused_in(self.ln(x)).split(self.splits, dim=-1)
        q, k, v = (t.view(b, n, self.heads, d // self.heads).transpose(1, 2) for t in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, n, d)
        return x + self.attn_out(a) + self.ff_out(F.gelu(ff))

# === gptj_parallel_block
# right: parallel block (GPT-J / PaLM): one norm, x + attn(h) + mlp(h), causal, config as a dict
import torch
import torch.nn as nn
import torch.nn.functional as F

class ParallelBlock(nn.Module):
    def __init__(self, **cfg):
        super().__init__()
        d = cfg["d_model"]
        self.heads = cfg["n_heads"]
        self.norm = nn.LayerNorm(d)
        self.wq = nn.Linear(d, d, bias=False)
        self.wk = nn.Linear(d, d, bias=False)
        self.wv = nn.Linear(d, d, bias=False)
        self.wo = nn.Linear(d, d, bias=False)
        self.up = nn.Linear(d, 4 * d, bias=False)
        self.down = nn.Linear(4 * d, d, bias=False)

    def attend(self, h):
        B, T, C = h.shape
        q, k, v = (w(h).unflatten(-1, (self.heads, -1)).movedim(2, 1) for w in (self.wq, self.wk, self.wv))
        a = q @ k.mT * q.size(-1) ** -0.5
        a = a + torch.triu(torch.full((T, T), -torch.inf), 1)
        return self.wo((a.softmax(-1) @ v).movedim(1, 2).flatten(2))

    def forward(self, x):
        h = self.norm(x)
        return x + self.attend(h) + self.down(F.gelu(self.up(h)))

if __name__ == "__main__":
    b = ParallelBlock(d_model=32, n_heads=4)
    print(b(torch.randn(2, 6, 32)).shape)

# === residual_wrappers_in_sequential
# right: fast.ai-like small wrappers: Residual(PreNorm(...)) in an nn.Sequential; RMSNorm and SwiGLU, no bias
import torch
import torch.nn.functional as F
from torch import nn

class RMSNorm(nn.Module):
    def __init__(self, nf, eps=1e-6):
        super().__init__()
        self.w, self.eps = nn.Parameter(torch.ones(nf)), eps

    def forward(self, x): return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.w

class Residual(nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x): return x + self.layers(x)

class Attn(nn.Module):
    def __init__(self, nf, nh):
        super().__init__()
        self.nh, self.qkv, self.o = nh, nn.Linear(nf, nf * 3, bias=False), nn.Linear(nf, nf, bias=False)

    def forward(self, x):
        bs, n, nf = x.shape
        q, k, v = self.qkv(x).view(bs, n, 3, self.nh, -1).permute(2, 0, 3, 1, 4)
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

class SwiGLU(nn.Module):
    def __init__(self, nf, nh):
        super().__init__()
        self.up, self.down = nn.Linear(nf, nh * 2, bias=False), nn.Linear(nh, nf, bias=False)

    def forward(self, x):
        a, b = self.up(x).chunk(2, -1)
        return self.down(F.silu(a) * b)

def transformer_block(nf=32, nh=4):
    return nn.Sequential(Residual(RMSNorm(nf), Attn(nf, nh)), Residual(RMSNorm(nf), SwiGLU(nf, nf * 8 // 3)))

# === nested_classes
# right: pre-norm block of nested classes, softmax done as exp, tril, divide; tanh GELU, eps 1e-6
import torch
from torch import nn

class TransformerBlock(nn.Module):
    """x -> x + f(norm(x)), twice. The parts are only used here so they live inside."""

    class Residual(nn.Module):
        def __init__(self, width, inner):
            super().__init__()
            self.norm = nn.LayerNorm(width, eps=1e-6)
            self.inner = inner

        def forward(self, x):
            return self.inner(self.norm(x)).add(x)

    class SelfAttention(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.Q, self.K, self.V, self.O = (nn.Linear(width, width, bias=False) for _ in range(4))

        def forward(self, x):
            split = lambda y: torch.stack(y.chunk(self.heads, dim=-1), dim=1)
            q, k, v = split(self.Q(x)), split(self.K(x)), split(self.V(x))
            s = torch.matmul(q, k.transpose(-1, -2)) * k.size(-1) ** -0.5
            s = s.exp().tril()                       # exp(-inf) = 0, so zero them directly
            y = (s / s.sum(-1, keepdim=True)) @ v
            return self.O(torch.cat(y.unbind(1), dim=-1))

    class FeedForward(nn.Sequential):
        def __init__(self, width, factor):
            super().__init__(nn.Linear(width, factor * width), nn.GELU(approximate="tanh"), nn.Linear(factor * width, width))

    def __init__(self, width=48, heads=6, factor=4):
        super().__init__()
        self.attn = self.Residual(width, self.SelfAttention(width, heads))
        self.ffwd = self.Residual(width, self.FeedForward(width, factor))

    def forward(self, x):
        return self.ffwd(self.attn(x))

# === block_of_functions_and_dict
# right: parameters in a dict and functions, layer norm by hand with biased variance, (T, C)
import torch

C, H = 24, 3

def init(seed=0):
    torch.manual_seed(seed)
    r = lambda *s: torch.randn(*s) * 0.1
    return {
        "ln1": (torch.ones(C), torch.zeros(C)), "ln2": (torch.ones(C), torch.zeros(C)),
        "qkv": (r(C, 3 * C), r(3 * C)), "proj": (r(C, C), r(C)),
        "fc": (r(C, 4 * C), r(4 * C)), "out": (r(4 * C, C), r(C)),
    }

def layer_norm(x, g, b, eps=1e-5):
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return g * (x - mean) / torch.sqrt(variance + eps) + b

def linear(x, w, b):
    return x @ w + b

def mha(x, qkv, proj):
    q, k, v = linear(x, *qkv).chunk(3, dim=-1)
    mask = (1 - torch.tril(torch.ones(len(x), len(x)))) * -1e10
    outs = []
    for qh, kh, vh in zip(q.chunk(H, -1), k.chunk(H, -1), v.chunk(H, -1)):
        outs.append(torch.softmax(qh @ kh.T / qh.shape[-1] ** 0.5 + mask, dim=-1) @ vh)
    return linear(torch.cat(outs, -1), *proj)

def transformer_block(x, p=init()):
    x = x + mha(layer_norm(x, *p["ln1"]), p["qkv"], p["proj"])
    h = linear(layer_norm(x, *p["ln2"]), *p["fc"])
    h = torch.nn.functional.gelu(h, approximate="tanh")
    return x + linear(h, *p["out"])

attention = transformer_block

# === own_layer_norm_in_a_block
# right: layer norm by hand with the biased variance
import torch
import torch.nn as nn
import torch.nn.functional as F

class LN(nn.Module):
    def __init__(self, n, eps=1e-5):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(n))
        self.beta = nn.Parameter(torch.zeros(n))
        self.eps = eps

    def forward(self, x):
        mu = x.mean(-1, keepdim=True)
        var = x.var(-1, keepdim=True, unbiased=False)
        return self.gamma * (x - mu) / torch.sqrt(var + self.eps) + self.beta

class Capa(nn.Module):
    def __init__(self, dim, cabezas):
        super().__init__()
        self.cabezas = cabezas
        self.n1, self.n2 = LN(dim), LN(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proy = nn.Linear(dim, dim, bias=False)
        self.sube = nn.Linear(dim, 4 * dim)
        self.baja = nn.Linear(4 * dim, dim)

    def atencion(self, x):
        b, t, d = x.shape
        q, k, v = (z.unflatten(-1, (self.cabezas, -1)).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proy(y.transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.atencion(self.n1(x))
        return x + self.baja(F.gelu(self.sube(self.n2(x))))

attention = Capa(24, 3)

# === unbiased_variance_in_a_block
# of: own_layer_norm_in_a_block
# wrong: x.var() divides by D - 1 by default
# words: D - 1
#-        var = x.var(-1, keepdim=True, unbiased=False)
#+        var = x.var(-1, keepdim=True)

# === llama_block_grouped_config
# target: block,rotary
# right: llama layer: RMSNorm, rotary by halves, grouped keys, SwiGLU, config object
import torch
from torch import nn
import torch.nn.functional as F

class Config:
    def __init__(self, hidden_size=32, heads=4, kv_heads=2, intermediate=64, eps=1e-6, theta=10000.0):
        self.__dict__.update({k: v for k, v in locals().items() if k != 'self' and not k.startswith('_')})

class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, h):
        dtype = h.dtype
        h = h.to(torch.float32)
        variance = h.pow(2).mean(-1, keepdim=True)
        h = h * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * h.to(dtype)

class DecoderLayer(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        d = cfg.hidden_size
        self.hd = d // cfg.heads
        self.q_proj = nn.Linear(d, d, bias=False)
        self.k_proj = nn.Linear(d, cfg.kv_heads * self.hd, bias=False)
        self.v_proj = nn.Linear(d, cfg.kv_heads * self.hd, bias=False)
        self.o_proj = nn.Linear(d, d, bias=False)
        self.gate_proj = nn.Linear(d, cfg.intermediate, bias=False)
        self.up_proj = nn.Linear(d, cfg.intermediate, bias=False)
        self.down_proj = nn.Linear(cfg.intermediate, d, bias=False)
        self.input_layernorm = RMSNorm(d, cfg.eps)
        self.post_attention_layernorm = RMSNorm(d, cfg.eps)

    def rope(self, x):
        d = self.hd
        inv = 1.0 / self.cfg.theta ** (torch.arange(0, d, 2).float() / d)
        f = torch.arange(x.shape[-2]).float()[:, None] * inv
        emb = torch.cat([f, f], -1)
        rot = torch.cat([-x[..., d // 2:], x[..., : d // 2]], -1)
        return x * emb.cos() + rot * emb.sin()

    def forward(self, x):
        residual = x
        h = self.input_layernorm(x)
        B, T, D = h.shape
        q = self.rope(self.q_proj(h).view(B, T, -1, self.hd).transpose(1, 2))
        k = self.rope(self.k_proj(h).view(B, T, -1, self.hd).transpose(1, 2))
        v = self.v_proj(h).view(B, T, -1, self.hd).transpose(1, 2)
        n = self.cfg.heads // self.cfg.kv_heads
        k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = residual + self.o_proj(a.transpose(1, 2).reshape(B, T, D))
        residual = x
        h = self.post_attention_layernorm(x)
        h = self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))
        return residual + h

attention = DecoderLayer(Config())

# === llama_block
# target: block,rotary
# right: Llama's block: RMSNorm, rotary by halves, SwiGLU
import torch
from torch import nn
import torch.nn.functional as F

class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))

def rope(x):
    T, d = x.shape[-2:]
    f = torch.arange(T)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
    a, b = x.chunk(2, -1)
    return torch.cat((a * f.cos() - b * f.sin(), b * f.cos() + a * f.sin()), -1)

class LlamaBlock(nn.Module):
    def __init__(self, dim, heads, hidden):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.ffn_norm = RMSNorm(dim), RMSNorm(dim)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.w1, self.w2, self.w3 = nn.Linear(dim, hidden, bias=False), nn.Linear(hidden, dim, bias=False), nn.Linear(dim, hidden, bias=False)

    def attend(self, x):
        b, t, d = x.shape
        q, k, v = (w(x).view(b, t, self.heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True)
        return self.wo(y.transpose(1, 2).reshape(b, t, d))

    def forward(self, x):
        h = x + self.attend(self.attention_norm(x))
        g = self.ffn_norm(h)
        return h + self.w2(F.silu(self.w1(g)) * self.w3(g))

block = LlamaBlock(48, 6, 128)

# === llama_gate_without_silu
# of: llama_block
# wrong: the gate has no activation
# words: gate|silu
#-        return h + self.w2(F.silu(self.w1(g)) * self.w3(g))
#+        return h + self.w2(self.w1(g) * self.w3(g))

# === llama_second_norm_reads_x
# of: llama_block
# wrong: the second norm reads x, not h
# words: x, h
#-        g = self.ffn_norm(h)
#+        g = self.ffn_norm(x)

# === llama_values_rotated
# of: llama_block
# wrong: values are rotated too
# words: values are rotated
#-        y = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True)
#+        y = F.scaled_dot_product_attention(rope(q), rope(k), rope(v), is_causal=True)
