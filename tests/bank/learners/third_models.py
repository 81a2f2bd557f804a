"""Learners' programs, a third lot, written before its author had seen the list of bugs or the bank: models."""

# === third_mean_numpy
# target: running_mean
# right: two loops that fill a tensor
import torch


def average(x):
    B, T, C = x.shape
    out = torch.zeros((B, T, C))
    for b in range(B):
        for t in range(T):
            out[b, t] = torch.mean(x[b, : t + 1], dim=0)
    return out

# === third_mean_cumsum
# target: running_mean
# wrong: cumsum along the features
# words: feature|axis|dim|along
import torch


def average(x):
    counts = torch.arange(1, x.shape[1] + 1).view(1, -1, 1)
    return torch.cumsum(x, dim=-1) / counts

# === third_dot
# target: dot_product
# right: dot products by bmm, mask by where
import torch


def dot_product(x):
    T = x.shape[1]
    wei = torch.bmm(x, x.transpose(1, 2))
    i = torch.arange(T)
    wei = torch.where(i[:, None] >= i[None, :], wei, -torch.inf)
    return torch.bmm(torch.softmax(wei, dim=2), x)

# === third_dot_scaled_mean
# target: dot_product
# wrong: the last axis is averaged (cosine-like) by normalising the keys first
# words: normal|length|cosine|norm
import torch
import torch.nn.functional as F


def dot_product(x):
    T = x.shape[1]
    wei = torch.bmm(x, F.normalize(x, dim=-1).transpose(1, 2))
    wei = wei.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
    return torch.bmm(torch.softmax(wei, dim=2), x)

# === third_weights
# target: attention_weights
# right: the maximum is taken off by hand
import math

import torch


def attention_weights(q, k):
    scores = torch.einsum("...td,...sd->...ts", q, k) / math.sqrt(q.shape[-1])
    T, S = scores.shape[-2:]
    hidden = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
    scores = scores.masked_fill(hidden, float("-inf"))
    e = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    return e / e.sum(dim=-1, keepdim=True)

# === third_weights_overflow
# target: attention_weights
# wrong: the maximum is not taken off: exp of large scores overflows
# words: overflow|maximum|nan|large
# like: third_weights
#-    e = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
#+    e = torch.exp(scores)

# === third_swiglu
# target: mlp
# right: SwiGLU, as in Llama
import torch.nn as nn
import torch.nn.functional as F


class FeedForward(nn.Module):
    def __init__(self, dim, hidden_dim):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


model = FeedForward(48, 128)

# === third_mlp_gpt2
# target: mlp
# right: GPT-2's MLP with its own tanh GELU and dropout
import math

import torch
import torch.nn as nn


class NewGELU(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class MLP(nn.Module):
    def __init__(self, n_embd):
        super().__init__()
        self.c_fc = nn.Linear(n_embd, 4 * n_embd)
        self.act = NewGELU()
        self.c_proj = nn.Linear(4 * n_embd, n_embd)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))


model = MLP(48)

# === third_mlp_no_activation
# target: mlp
# wrong: the activation is made, and never called
# words: activation|linear
# like: third_mlp_gpt2
#-        return self.dropout(self.c_proj(self.act(self.c_fc(x))))
#+        return self.dropout(self.c_proj(self.c_fc(x)))

# === third_block
# target: block
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

# === third_block_residual_replaced
# target: block
# wrong: the residual of the MLP is forgotten
# words: residual|x +
# like: third_block
#-        x = x + self.mlp(self.ln2(x))
#+        x = self.mlp(self.ln2(x))

# === third_block_keys_unnormed
# target: block
# wrong: keys and values get x, only the queries are normalised
# words: norm
# like: third_block
#-        y, _ = self.attn(y, y, y, attn_mask=mask)
#+        y, _ = self.attn(y, x, x, attn_mask=mask)

# === third_block_norm_used_twice
# target: block
# wrong: the first norm is used for the MLP too
# words: norm
# like: third_block
#-        x = x + self.mlp(self.ln2(x))
#+        x = x + self.mlp(self.ln1(x))

# === third_block_no_mask
# target: block
# wrong: the block's attention has no mask
# words: future|later|mask
# like: third_block
#-        y, _ = self.attn(y, y, y, attn_mask=mask)
#+        y, _ = self.attn(y, y, y)

# === third_gpt_dict
# target: gpt
# right: dict config, learned positions, separate submodules, logits only
import torch
import torch.nn as nn

CONFIG = {"vocab_size": 53, "context_length": 32, "emb_dim": 48, "n_heads": 6, "n_layers": 2, "drop_rate": 0.1, "qkv_bias": False}


class MultiHeadAttention(nn.Module):
    def __init__(self, d_in, d_out, context_length, dropout, num_heads, qkv_bias=False):
        super().__init__()
        self.d_out, self.num_heads, self.head_dim = d_out, num_heads, d_out // num_heads
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("mask", torch.triu(torch.ones(context_length, context_length), diagonal=1))

    def forward(self, x):
        b, num_tokens, _ = x.shape
        keys = self.W_key(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        queries = self.W_query(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        values = self.W_value(x).view(b, num_tokens, self.num_heads, self.head_dim).transpose(1, 2)
        attn_scores = queries @ keys.transpose(2, 3)
        attn_scores.masked_fill_(self.mask.bool()[:num_tokens, :num_tokens], -torch.inf)
        attn_weights = self.dropout(torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1))
        context_vec = (attn_weights @ values).transpose(1, 2).contiguous().view(b, num_tokens, self.d_out)
        return self.out_proj(context_vec)


class LayerNorm(nn.Module):
    def __init__(self, emb_dim):
        super().__init__()
        self.eps = 1e-5
        self.scale = nn.Parameter(torch.ones(emb_dim))
        self.shift = nn.Parameter(torch.zeros(emb_dim))

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        var = x.var(dim=-1, keepdim=True, unbiased=False)
        return self.scale * (x - mean) / torch.sqrt(var + self.eps) + self.shift


class FeedForward(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(cfg["emb_dim"], 4 * cfg["emb_dim"]), nn.GELU(), nn.Linear(4 * cfg["emb_dim"], cfg["emb_dim"])
        )

    def forward(self, x):
        return self.layers(x)


class TransformerBlock(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.att = MultiHeadAttention(
            cfg["emb_dim"], cfg["emb_dim"], cfg["context_length"], cfg["drop_rate"], cfg["n_heads"], cfg["qkv_bias"]
        )
        self.ff = FeedForward(cfg)
        self.norm1 = LayerNorm(cfg["emb_dim"])
        self.norm2 = LayerNorm(cfg["emb_dim"])
        self.drop_shortcut = nn.Dropout(cfg["drop_rate"])

    def forward(self, x):
        shortcut = x
        x = self.drop_shortcut(self.att(self.norm1(x)))
        x = x + shortcut
        shortcut = x
        x = self.drop_shortcut(self.ff(self.norm2(x)))
        return x + shortcut


class GPTModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok_emb = nn.Embedding(cfg["vocab_size"], cfg["emb_dim"])
        self.pos_emb = nn.Embedding(cfg["context_length"], cfg["emb_dim"])
        self.drop_emb = nn.Dropout(cfg["drop_rate"])
        self.trf_blocks = nn.Sequential(*[TransformerBlock(cfg) for _ in range(cfg["n_layers"])])
        self.final_norm = LayerNorm(cfg["emb_dim"])
        self.out_head = nn.Linear(cfg["emb_dim"], cfg["vocab_size"], bias=False)

    def forward(self, in_idx):
        seq_len = in_idx.shape[1]
        x = self.tok_emb(in_idx) + self.pos_emb(torch.arange(seq_len, device=in_idx.device))
        x = self.trf_blocks(self.drop_emb(x))
        return self.out_head(self.final_norm(x))


model = GPTModel(CONFIG)

# === third_gpt_dict_unbiased
# target: gpt
# wrong: the norm's variance is the unbiased one
# words: unbiased|d - 1|n - 1|variance|correction
# like: third_gpt_dict
#-        var = x.var(dim=-1, keepdim=True, unbiased=False)
#+        var = x.var(dim=-1, keepdim=True)

# === third_gpt_dict_scale
# target: gpt
# wrong: the scores are divided by the root of the model's width
# words: sqrt(d)|width of the model
# like: third_gpt_dict
#-        attn_weights = self.dropout(torch.softmax(attn_scores / keys.shape[-1] ** 0.5, dim=-1))
#+        attn_weights = self.dropout(torch.softmax(attn_scores / self.d_out**0.5, dim=-1))

# === third_gpt_dict_no_positions
# target: gpt
# wrong: the positions are made, and never added
# words: position
# like: third_gpt_dict
#-        x = self.tok_emb(in_idx) + self.pos_emb(torch.arange(seq_len, device=in_idx.device))
#+        x = self.tok_emb(in_idx)

# === third_gpt_dict_shortcut
# target: gpt
# wrong: the second shortcut is that of the first
# words: residual|shortcut|x +
# like: third_gpt_dict
#-        x = x + shortcut
#-        shortcut = x
#+        x = x + shortcut

# === third_gpt_nano
# target: gpt
# right: nanoGPT: dataclass config, targets, tied weights, SDPA, ignore_index, last position only without targets
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


class LayerNorm(nn.Module):
    def __init__(self, ndim, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, input):
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.resid_dropout = nn.Dropout(config.dropout)
        self.n_head, self.n_embd, self.dropout = config.n_head, config.n_embd, config.dropout

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.resid_dropout(self.c_proj(y))


class MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x):
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = LayerNorm(config.n_embd, bias=config.bias)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x


@dataclass
class GPTConfig:
    block_size: int = 64
    vocab_size: int = 61
    n_layer: int = 3
    n_head: int = 4
    n_embd: int = 32
    dropout: float = 0.0
    bias: bool = False


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(
            dict(
                wte=nn.Embedding(config.vocab_size, config.n_embd),
                wpe=nn.Embedding(config.block_size, config.n_embd),
                drop=nn.Dropout(config.dropout),
                h=nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
                ln_f=LayerNorm(config.n_embd, bias=config.bias),
            )
        )
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        b, t = idx.size()
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is not None:
            logits = self.lm_head(x)
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        else:
            logits = self.lm_head(x[:, [-1], :])
            loss = None
        return logits, loss


model = GPT(GPTConfig())

# === third_gpt_nano_loop
# target: gpt
# wrong: every block gets the embedding: only the last block counts
# words: block
# like: third_gpt_nano
#-        for block in self.transformer.h:
#-            x = block(x)
#+        emb = x
#+        for block in self.transformer.h:
#+            x = block(emb)

# === third_gpt_nano_loss_softmax
# target: gpt
# wrong: softmax before cross_entropy, which applies one of its own
# words: softmax
# like: third_gpt_nano
#-            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
#+            probs = F.softmax(logits, dim=-1)
#+            loss = F.cross_entropy(probs.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)

# === third_gpt_nano_shift_again
# target: gpt
# wrong: the targets are already shifted, and forward shifts them once more
# words: shift
# like: third_gpt_nano
#-            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
#+            last = logits[:, :-1].reshape(-1, logits.size(-1))
#+            loss = F.cross_entropy(last, targets[:, 1:].reshape(-1), ignore_index=-1)

# === third_gpt_nano_reversed_positions
# target: gpt
# wrong: the position embedding is looked up with the batch's index, one position for the whole row
# words: position
# like: third_gpt_nano
#-        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
#+        pos = torch.arange(0, b, dtype=torch.long, device=idx.device)[:, None]

# === third_gpt_sinus
# target: gpt
# right: sinusoidal positions in a buffer, embeddings times sqrt(D), post-lecture style with generate
import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=100):
        super().__init__()
        pe = torch.zeros(max_len, d_model)
        position = torch.arange(max_len).unsqueeze(1)
        div = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe[:, 0::2] = torch.sin(position * div)
        pe[:, 1::2] = torch.cos(position * div)
        self.register_buffer("pe", pe.unsqueeze(0))

    def forward(self, x):
        return x + self.pe[:, : x.size(1)]


class LanguageModel(nn.Module):
    def __init__(self, vocab, d_model, heads, depth):
        super().__init__()
        self.d_model = d_model
        self.embed = nn.Embedding(vocab, d_model)
        self.pos = PositionalEncoding(d_model)
        layer = nn.TransformerEncoderLayer(d_model, heads, 4 * d_model, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(d_model), enable_nested_tensor=False)
        self.head = nn.Linear(d_model, vocab)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1), dtype=torch.get_default_dtype())
        x = self.pos(self.embed(tokens) * math.sqrt(self.d_model))
        return self.head(self.blocks(x, mask=mask, is_causal=True))

    @torch.no_grad()
    def generate(self, tokens, n):
        for _ in range(n):
            tokens = torch.cat([tokens, self(tokens)[:, -1].argmax(-1, keepdim=True)], 1)
        return tokens


model = LanguageModel(70, 48, 6, 2)

# === third_gpt_sinus_no_mask
# target: gpt
# wrong: no mask is passed to the encoder
# words: future|later|mask
# like: third_gpt_sinus
#-        return self.head(self.blocks(x, mask=mask, is_causal=True))
#+        return self.head(self.blocks(x))
