"""An eighth lot of learners' programs: MLPs, blocks, models, losses, norms."""

# === eighth_mlp_tanh
# target: mlp
# right: tanh GELU by hand, ModuleDict, dropout
import math
import torch
import torch.nn as nn


class NewGELU(nn.Module):
    """ the tanh approximation used by GPT-2 and BERT (google's repo) """

    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class MLP(nn.Module):
    def __init__(self, n_embd, resid_pdrop=0.1):
        super().__init__()
        self.mlp = nn.ModuleDict(dict(
            c_fc=nn.Linear(n_embd, 4 * n_embd),
            c_proj=nn.Linear(4 * n_embd, n_embd),
            act=NewGELU(),
            dropout=nn.Dropout(resid_pdrop),
        ))

    def forward(self, x):
        m = self.mlp
        return m.dropout(m.c_proj(m.act(m.c_fc(x))))


mlp = MLP(48)

# === eighth_mlp_erf
# target: mlp
# wrong: erf(x) instead of erf(x / sqrt(2)) in the GELU
# words: erf(x / sqrt(2))
import torch
from torch import nn


def gelu(x):
    """Exact GELU, x * Phi(x), with Phi the normal cdf written with the error function."""
    return x * 0.5 * (1.0 + torch.erf(x))


class FeedForward(nn.Module):
    """Position-wise feed-forward layer with a GELU, hidden size 4 * d_model."""

    def __init__(self, d_model, d_ff=None):
        super().__init__()
        d_ff = d_ff or 4 * d_model
        self.linear_in = nn.Linear(d_model, d_ff)
        self.linear_out = nn.Linear(d_ff, d_model)

    def forward(self, x):
        return self.linear_out(gelu(self.linear_in(x)))

# === eighth_mlp_flax
# target: mlp
# right: flax port: kernels (in, 2, out), up first then gate, silu written out
# port of a flax MlpBlock: kernels are stored (in, out), both input kernels stacked on a middle axis
import torch
from torch import nn


def lecun_normal(*shape, fan_in):
    return nn.Parameter(torch.randn(*shape) * fan_in ** -0.5)


class MlpBlock(nn.Module):
    """SwiGLU: wo(silu(gate) * up), no biases."""

    def __init__(self, emb_dim: int, mlp_dim: int | None = None):
        super().__init__()
        mlp_dim = mlp_dim or emb_dim * 8 // 3
        self.wi = lecun_normal(emb_dim, 2, mlp_dim, fan_in=emb_dim)
        self.wo = lecun_normal(mlp_dim, emb_dim, fan_in=mlp_dim)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        up, gate = torch.einsum("...d,dgf->...gf", inputs, self.wi).unbind(-2)
        return torch.einsum("...f,fd->...d", up * (gate * gate.sigmoid()), self.wo)

# === eighth_mlp_t5
# target: mlp
# right: T5 v1.1 gated GELU, dropout on the hidden layer, no biases
import torch
import torch.nn as nn


class GatedGeluDense(nn.Module):
    """GEGLU as in T5 v1.1: two input maps, one of them goes through the GELU; no biases."""

    def __init__(self, d_model, d_ff, dropout_rate=0.1):
        super().__init__()
        self.wi_0 = nn.Linear(d_model, d_ff, bias=False)
        self.wi_1 = nn.Linear(d_model, d_ff, bias=False)
        self.wo = nn.Linear(d_ff, d_model, bias=False)
        self.dropout = nn.Dropout(dropout_rate)
        self.act = nn.GELU()

    def forward(self, hidden_states):
        hidden_gelu = self.act(self.wi_0(hidden_states))
        hidden_linear = self.wi_1(hidden_states)
        hidden_states = self.dropout(hidden_gelu * hidden_linear)
        return self.wo(hidden_states)


mlp = GatedGeluDense(48, 128)

# === eighth_norm_unbiased
# target: norm
# wrong: x.var(dim=-1) is the unbiased variance (divides by n-1); needs unbiased=False
# words: D - 1
import torch
import torch.nn as nn


class LayerNorm(nn.Module):
    """My own nn.LayerNorm over the last dimension."""

    def __init__(self, features, eps=1e-5):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(features))
        self.beta = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        var = x.var(dim=-1, keepdim=True)
        x_hat = (x - mean) / torch.sqrt(var + self.eps)
        return self.gamma * x_hat + self.beta


norm = LayerNorm(48)

# === eighth_norm_float32
# target: norm
# right: float32 statistics whatever the input type (about 1e-6 off a float64 reference)
import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        # statistics in float32 whatever the input is
        output = self._norm(x.float()).type_as(x)
        return output * self.weight

# === eighth_norm_length
# target: norm
# wrong: F.normalize divides by the L2 norm, not the root mean square; missing factor sqrt(dim)
# words: length of x
import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    """Root mean square layer norm (Zhang & Sennrich 2019), no mean, no bias."""

    def __init__(self, dim):
        super().__init__()
        self.g = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.normalize(x, dim=-1) * self.g

# === eighth_norm_squares
# target: norm
# right: variance as E[x^2] - E[x]^2, clamped at 0; rsqrt
import torch
import torch.nn as nn


class LayerNorm(nn.Module):
    """Var[x] = E[x^2] - E[x]^2; bias can be switched off."""

    def __init__(self, ndim, bias=True, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None
        self.eps = eps

    def forward(self, inp):
        mu = inp.mean(-1, keepdim=True)
        var = (inp * inp).mean(-1, keepdim=True) - mu * mu
        out = (inp - mu) * (var.clamp_min(0) + self.eps).rsqrt() * self.weight
        return out if self.bias is None else out + self.bias


norm = LayerNorm(48)

# === eighth_block_time_first
# target: block
# right: nn.MultiheadAttention time-first, boolean mask True = blocked
import torch
import torch.nn as nn


class Block(nn.Module):
    """Pre-norm decoder block on top of nn.MultiheadAttention. Time first: x is (T, B, C)."""

    def __init__(self, n_embd, n_head, dropout=0.1):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = nn.MultiheadAttention(n_embd, n_head, dropout=dropout)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd),
            nn.GELU(),
            nn.Linear(4 * n_embd, n_embd),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        T, B, C = x.shape
        # True = may NOT be attended
        attn_mask = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        h = self.ln_1(x)
        a, _ = self.attn(h, h, h, attn_mask=attn_mask, need_weights=False)
        x = x + a
        x = x + self.mlp(self.ln_2(x))
        return x


block = Block(48, 6)

# === eighth_block_palm
# target: block
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

# === eighth_block_normed_stream
# target: block
# wrong: x = self.norm2(x) overwrites the residual stream, so the second residual starts from the normed x; should be x = x + self.ff(self.norm2(x))
# words: replaced by norm2(h)
import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfAttention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d)
        self.o = nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, t, d))


class TransformerBlock(nn.Module):
    """pre-LN transformer block"""

    def __init__(self, d, h):
        super().__init__()
        self.norm1 = nn.LayerNorm(d)
        self.norm2 = nn.LayerNorm(d)
        self.attn = SelfAttention(d, h)
        self.ff = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        x = self.norm2(x)
        x = x + self.ff(x)
        return x


block = TransformerBlock(48, 6)

# === eighth_block_post
# target: block
# right: original 2017 post-norm order, ReLU, declared in the docstring
import math
import torch
import torch.nn as nn


class PostNormBlock(nn.Module):
    """Decoder-only layer with the norm AFTER each residual sum, as in the 2017 paper (post-LN), ReLU."""

    def __init__(self, d_model, n_heads, d_ff=None, dropout=0.1):
        super().__init__()
        d_ff = d_ff or 4 * d_model
        self.n_heads = n_heads
        self.w_q = nn.Linear(d_model, d_model)
        self.w_k = nn.Linear(d_model, d_model)
        self.w_v = nn.Linear(d_model, d_model)
        self.w_o = nn.Linear(d_model, d_model)
        self.ff1 = nn.Linear(d_model, d_ff)
        self.ff2 = nn.Linear(d_ff, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.drop = nn.Dropout(dropout)

    def self_attention(self, x):
        B, T, D = x.shape
        d_k = D // self.n_heads
        q = self.w_q(x).view(B, T, self.n_heads, d_k).transpose(1, 2)
        k = self.w_k(x).view(B, T, self.n_heads, d_k).transpose(1, 2)
        v = self.w_v(x).view(B, T, self.n_heads, d_k).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / math.sqrt(d_k)
        causal = torch.tril(torch.ones(T, T, device=x.device)).bool()
        scores = scores.masked_fill(~causal, float("-inf"))
        z = scores.softmax(dim=-1) @ v
        return self.w_o(z.transpose(1, 2).contiguous().view(B, T, D))

    def forward(self, x):
        x = self.norm1(x + self.drop(self.self_attention(x)))
        x = self.norm2(x + self.drop(self.ff2(torch.relu(self.ff1(x)))))
        return x

# === eighth_gpt_nano
# target: gpt
# right: weight tying by assigning lm_head.weight to wte; ignore_index=-1
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class GPTConfig:
    block_size: int = 32
    vocab_size: int = 65
    n_layer: int = 2
    n_head: int = 6
    n_embd: int = 48
    dropout: float = 0.1


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.resid_dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        B, T, C = x.size()
        nh = self.config.n_head
        q, k, v = (t.view(B, T, nh, C // nh).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        p = self.config.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).reshape(B, T, C)))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = nn.Sequential(nn.Linear(config.n_embd, 4 * config.n_embd), nn.GELU(approximate='tanh'),
                                 nn.Linear(4 * config.n_embd, config.n_embd), nn.Dropout(config.dropout))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """forward(idx, targets): targets are already moved by one, targets[:, t] is the token after idx[:, t]."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(config.vocab_size, config.n_embd),
            wpe=nn.Embedding(config.block_size, config.n_embd),
            drop=nn.Dropout(config.dropout),
            h=nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
            ln_f=nn.LayerNorm(config.n_embd),
        ))
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight  # weight tying
        self.apply(self._init_weights)

    def _init_weights(self, module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, mean=0.0, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, idx, targets=None):
        b, t = idx.size()
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss


model = GPT(GPTConfig())

# === eighth_gpt_softmax
# target: gpt
# wrong: softmax before F.cross_entropy (double softmax); pass the raw logits to the loss
# words: a softmax is applied to the logits
import torch
import torch.nn as nn
import torch.nn.functional as F


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class MiniGPT(nn.Module):
    """forward(tokens, targets) -> (predictions, loss), targets[:, t] follows tokens[:, t]"""

    def __init__(self, vocab_size=50, dim=48, heads=6, layers=2, max_len=32):
        super().__init__()
        self.tok = nn.Embedding(vocab_size, dim)
        self.pos = nn.Embedding(max_len, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab_size)

    def forward(self, tokens, targets=None):
        x = self.tok(tokens) + self.pos(torch.arange(tokens.size(1), device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        out = F.softmax(self.head(self.norm(x)), dim=-1)
        if targets is None:
            return out, None
        return out, F.cross_entropy(out.flatten(0, 1), targets.flatten())

# === eighth_gpt_llama
# target: gpt
# right: Llama with RMSNorm; post_attention_layernorm is the pre-MLP norm (HF name); no post-norm; -100
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class LlamaConfig:
    vocab_size: int = 61
    hidden_size: int = 48
    num_heads: int = 6
    num_layers: int = 2
    rope_theta: float = 10000.0
    rms_eps: float = 1e-6


class RMSNorm(nn.Module):
    def __init__(self, d, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x):
        return self.weight * x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()


def rope(x, theta):
    n, d = x.shape[-2:]
    inv = theta ** (-torch.arange(0, d, 2, device=x.device, dtype=x.dtype) / d)
    ang = torch.arange(n, device=x.device, dtype=x.dtype)[:, None] * inv
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * ang.cos() - b * ang.sin(), b * ang.cos() + a * ang.sin()), dim=-1)


class DecoderLayer(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c.hidden_size
        self.c = c
        self.input_layernorm = RMSNorm(d, c.rms_eps)
        self.post_attention_layernorm = RMSNorm(d, c.rms_eps)  # HF name: it is the norm in front of the MLP
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.gate_proj, self.up_proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, 3 * d, bias=False)
        self.down_proj = nn.Linear(3 * d, d, bias=False)

    def forward(self, x):
        b, n, d = x.shape
        residual = x
        h = self.input_layernorm(x)
        q, k, v = (p(h).view(b, n, self.c.num_heads, -1).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rope(q, self.c.rope_theta), rope(k, self.c.rope_theta)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = residual + self.o_proj(a.transpose(1, 2).reshape(b, n, d))
        residual = x
        h = self.post_attention_layernorm(x)
        return residual + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class LlamaForCausalLM(nn.Module):
    """labels are the input ids themselves (pad with -100); the shift happens in here."""

    def __init__(self, config: LlamaConfig):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(config) for _ in range(config.num_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids, labels=None):
        h = self.embed_tokens(input_ids)
        for layer in self.layers:
            h = layer(h)
        logits = self.lm_head(self.norm(h))
        if labels is None:
            return {"logits": logits}
        shift_logits = logits[..., :-1, :].contiguous()
        shift_labels = labels[..., 1:].contiguous()
        loss = F.cross_entropy(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1), ignore_index=-100)
        return {"loss": loss, "logits": logits}

# === eighth_gpt_positions_of_batch
# target: gpt
# wrong: positional encoding indexed by the batch axis: pe[:x.size(0)] of shape (B,1,C) is added by batch row; should be pe[:x.size(1)] moved to (1,T,C)
# words: number of the sequence in the batch|along the batch
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=512):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer('pe', pe)

    def forward(self, x):
        return x + self.pe[:x.size(0)]


class TransformerLM(nn.Module):
    """Small GPT. src: (batch, time) token ids; targets: (batch, time), the next tokens."""

    def __init__(self, ntoken=50, d_model=48, nhead=6, nlayers=2, dropout=0.1):
        super().__init__()
        self.d_model = d_model
        self.embedding = nn.Embedding(ntoken, d_model)
        self.pos_encoder = PositionalEncoding(d_model)
        layer = nn.TransformerEncoderLayer(d_model, nhead, 4 * d_model, dropout, activation='gelu',
                                           batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, nlayers, norm=nn.LayerNorm(d_model), enable_nested_tensor=False)
        self.decoder = nn.Linear(d_model, ntoken)

    def forward(self, src, targets=None):
        x = self.embedding(src) * math.sqrt(self.d_model)
        x = self.pos_encoder(x)
        T = src.size(1)
        mask = torch.triu(torch.full((T, T), float('-inf'), dtype=x.dtype, device=src.device), diagonal=1)
        logits = self.decoder(self.encoder(x, mask=mask))
        if targets is None:
            return logits
        return logits, F.cross_entropy(logits.reshape(-1, logits.size(-1)), targets.reshape(-1))


model = TransformerLM()

# === eighth_loss_gather
# target: loss
# right: log_softmax + gather, mean over non-pad targets
import torch


def next_token_loss(logits, tokens, pad_id=0):
    """Mean negative log-likelihood of token t+1 given logits t; pad targets are left out.

    logits (B, T, V), tokens (B, T)
    """
    logp = torch.log_softmax(logits[:, :-1], dim=-1)
    target = tokens[:, 1:]
    nll = -logp.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    keep = target.ne(pad_id).to(nll.dtype)
    return (nll * keep).sum() / keep.sum().clamp(min=1)


loss = next_token_loss

# === eighth_loss_shifted_back
# target: loss
# wrong: shift in the wrong direction: logits[:, 1:] against input_ids[:, :-1]; should be logits[:, :-1] against input_ids[:, 1:]
# words: wrong way
import torch
import torch.nn.functional as F


def language_modeling_loss(logits: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
    """
    Next-token prediction loss.

    logits:    (batch, seq_len, vocab) output of the model for input_ids
    input_ids: (batch, seq_len)
    """
    shifted_logits = logits[:, 1:, :]
    shifted_labels = input_ids[:, :-1]
    return F.cross_entropy(
        shifted_logits.reshape(-1, shifted_logits.size(-1)),
        shifted_labels.reshape(-1),
    )

# === eighth_loss_pads_count
# target: loss
# wrong: (per_token * mask).mean() divides by all positions, pads included; should be (per_token * mask).sum() / mask.sum()
# words: still counts
import torch
import torch.nn.functional as F


def masked_lm_loss(logits, tokens, pad_token_id=0):
    """Average next-token cross entropy over the real (non-pad) target tokens."""
    b, t, v = logits.shape
    targets = tokens[:, 1:]
    per_token = F.cross_entropy(logits[:, :-1].reshape(-1, v), targets.reshape(-1), reduction="none")
    per_token = per_token.view(b, t - 1)
    mask = (targets != pad_token_id).to(per_token.dtype)
    return (per_token * mask).mean()


loss = masked_lm_loss
