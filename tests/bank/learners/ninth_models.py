"""A ninth lot of learners' programs: MLPs, norms, blocks, models, losses."""

# === ninth_mlp_swiglu
# target: mlp
# right: gate and up packed in one matrix (gate first), silu written as gate * sigmoid(gate), hidden 2/3*4*dim rounded up
import torch
import torch.nn as nn
import torch.nn.functional as F


class SwiGLU(nn.Module):
    """w1 and w3 live in one matrix (gate first), as xformers packs them.

    hidden = 2/3 * 4 * dim, rounded up to a multiple of `multiple_of`
    """

    def __init__(self, dim: int, multiple_of: int = 16):
        super().__init__()
        hidden = int(2 * 4 * dim / 3)
        hidden = multiple_of * ((hidden + multiple_of - 1) // multiple_of)
        self.w12 = nn.Linear(dim, 2 * hidden, bias=False)
        self.w3 = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        gate, up = self.w12(x).chunk(2, dim=-1)
        return self.w3(up * gate * torch.sigmoid(gate))


mlp = SwiGLU(48)

# === ninth_mlp_convolutions
# target: mlp
# right: 1x1 Conv1d as position-wise linear layers (3-D input only), clamp_min(0) * h
from torch import nn


class FeedForward(nn.Module):
    """Squared ReLU (Primer, So et al. 2021)."""

    def __init__(self, d_model, d_ff=None):
        super().__init__()
        d_ff = d_ff or 4 * d_model
        # 1x1 convolutions are the same thing as position-wise linear layers
        self.up = nn.Conv1d(d_model, d_ff, kernel_size=1)
        self.down = nn.Conv1d(d_ff, d_model, kernel_size=1)

    def forward(self, x):
        h = self.up(x.transpose(1, 2))
        h = h.clamp_min(0) * h
        return self.down(h).transpose(1, 2)

# === ninth_mlp_constant
# target: mlp
# wrong: the cubic constant of the tanh GELU is 0.44715 instead of 0.044715.
# words: 0.44715
import math

import torch
import torch.nn as nn


class NewGELU(nn.Module):
    """GELU, the tanh form used by GPT-2 (Hendrycks & Gimpel)."""

    def forward(self, x):
        inner = math.sqrt(2.0 / math.pi) * (x + 0.44715 * x**3)
        return 0.5 * x * (1.0 + inner.tanh())


class MLP(nn.Module):
    def __init__(self, n_embd, expansion=4, dropout=0.0):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_embd, expansion * n_embd),
            NewGELU(),
            nn.Linear(expansion * n_embd, n_embd),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        return self.net(x)


mlp = MLP(48)

# === ninth_norm_gemma
# target: norm
# right: Gemma: gain is 1 + weight (weight starts at zero), computed in float32 whatever the input (error ~1e-6 in float64)
import torch
from torch import nn


class GemmaRMSNorm(nn.Module):
    """RMS norm; the gain is stored as its distance from one, computed in fp32."""

    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(dim))

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        output = self._norm(x.float())
        output = output * (1.0 + self.weight.float())
        return output.type_as(x)


norm = GemmaRMSNorm(48)

# === ninth_norm_keras
# target: norm
# convention: Keras names (call), eps 1e-3 as in Keras, batch_normalization form x*inv + (beta - mean*inv), biased variance
import torch


class LayerNormalization(torch.nn.Module):
    """After keras.layers.LayerNormalization: gamma, beta, epsilon = 1e-3, axis = -1."""

    def __init__(self, units, epsilon=1e-3):
        super().__init__()
        self.gamma = torch.nn.Parameter(torch.ones(units))
        self.beta = torch.nn.Parameter(torch.zeros(units))
        self.epsilon = epsilon

    def call(self, inputs):
        variance, mean = torch.var_mean(inputs, dim=-1, correction=0, keepdim=True)
        # keras: tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, eps)
        inv = torch.rsqrt(variance + self.epsilon) * self.gamma
        return inputs * inv + (self.beta - mean * inv)

    forward = call

# === ninth_norm_over_time
# target: norm
# wrong: mean and variance are taken over dim 1 (time) of a (B, T, C) input instead of the features; use dim=-1.
# words: over the positions
import torch
import torch.nn as nn


class LayerNorm(nn.Module):
    """Layer norm over the features of each token. x: (B, T, C)"""

    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(dim))
        self.beta = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        xmean = x.mean(1, keepdim=True)
        xvar = x.var(1, keepdim=True, unbiased=False)
        xhat = (x - xmean) / torch.sqrt(xvar + self.eps)
        return self.gamma * xhat + self.beta


norm = LayerNorm(48)

# === ninth_block_post
# target: block
# right: post-norm block of 2017, dropout 0.1 by default (use eval)
import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    """The block of 2017: norm after the residual sum, ReLU, causal self-attention."""

    def __init__(self, d_model, n_head, d_ff=None, drop=0.1):
        super().__init__()
        self.n_head = n_head
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.linear1 = nn.Linear(d_model, d_ff or 4 * d_model)
        self.linear2 = nn.Linear(d_ff or 4 * d_model, d_model)
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.drop = nn.Dropout(drop)

    def _sa(self, x):
        B, T, C = x.shape
        q, k, v = self.in_proj(x).view(B, T, 3, self.n_head, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(y.transpose(1, 2).reshape(B, T, C))

    def _ff(self, x):
        return self.linear2(F.relu(self.linear1(x)))

    def forward(self, x):
        x = self.norm1(x + self.drop(self._sa(x)))
        x = self.norm2(x + self.drop(self._ff(x)))
        return x

# === ninth_block_parallel
# target: block
# right: one norm, attention and MLP in parallel from one fused matrix, no biases
import torch
from torch import nn
import torch.nn.functional as F


class ParallelBlock(nn.Module):
    """x + attn(ln(x)) + mlp(ln(x))  -  one norm for both, as in GPT-J and PaLM"""

    def __init__(self, dim, heads=6, ff_mult=4):
        super().__init__()
        self.heads = heads
        self.fused_dims = (dim, dim, dim, ff_mult * dim)
        self.norm = nn.LayerNorm(dim)
        self.wi = nn.Linear(dim, sum(self.fused_dims), bias=False)
        self.attn_out = nn.Linear(dim, dim, bias=False)
        self.ff_out = nn.Linear(ff_mult * dim, dim, bias=False)

    def forward(self, x):
        q, k, v, ff = self.wi(self.norm(x)).split(self.fused_dims, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)
        return x + self.attn_out(o) + self.ff_out(F.gelu(ff))

# === ninth_block_normed_stream
# target: block
# wrong: the second residual starts from the normalised x (x = ln_2(x); x = x + mlp(x)), which breaks the residual stream; use x = x + mlp(ln_2(x)).
# words: norm2
import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalSelfAttention(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.mha = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)

    def forward(self, x):
        T = x.size(1)
        mask = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(diagonal=1)
        return self.mha(x, x, x, attn_mask=mask, need_weights=False)[0]


class TransformerBlock(nn.Module):
    """Pre-norm (GPT-2) transformer block."""

    def __init__(self, embed_dim: int, num_heads: int, mlp_ratio: int = 4):
        super().__init__()
        self.ln_1 = nn.LayerNorm(embed_dim)
        self.attn = CausalSelfAttention(embed_dim, num_heads)
        self.ln_2 = nn.LayerNorm(embed_dim)
        self.mlp = nn.Sequential(
            nn.Linear(embed_dim, mlp_ratio * embed_dim),
            nn.GELU(),
            nn.Linear(mlp_ratio * embed_dim, embed_dim),
        )

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = self.ln_2(x)
        x = x + self.mlp(x)
        return x


block = TransformerBlock(48, 6)

# === ninth_gpt_dict
# target: gpt
# right: tied embeddings, labels shifted inside, tanh GELU, returns a dictionary
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class TinyConfig:
    vocab_size: int = 65
    n_positions: int = 64
    n_embd: int = 48
    n_layer: int = 2
    n_head: int = 6


class Block(nn.Module):
    def __init__(self, cfg: TinyConfig):
        super().__init__()
        self.h = cfg.n_head
        self.ln_1, self.ln_2 = nn.LayerNorm(cfg.n_embd), nn.LayerNorm(cfg.n_embd)
        self.c_attn = nn.Linear(cfg.n_embd, 3 * cfg.n_embd)
        self.c_proj = nn.Linear(cfg.n_embd, cfg.n_embd)
        self.fc = nn.Linear(cfg.n_embd, 4 * cfg.n_embd)
        self.fc_out = nn.Linear(4 * cfg.n_embd, cfg.n_embd)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.h, -1).transpose(1, 2) for t in self.c_attn(self.ln_1(x)).split(C, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
        x = x + self.c_proj(a)
        return x + self.fc_out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class TinyGPT(nn.Module):
    """Tied embeddings. `labels` are the input ids themselves; they are shifted in here."""

    def __init__(self, cfg: TinyConfig):
        super().__init__()
        self.wte = nn.Embedding(cfg.vocab_size, cfg.n_embd)
        self.wpe = nn.Embedding(cfg.n_positions, cfg.n_embd)
        self.h = nn.Sequential(*[Block(cfg) for _ in range(cfg.n_layer)])
        self.ln_f = nn.LayerNorm(cfg.n_embd)
        self.apply(self._init)

    @staticmethod
    def _init(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)

    def forward(self, input_ids, labels=None):
        pos = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.ln_f(self.h(self.wte(input_ids) + self.wpe(pos)))
        out = {"logits": x @ self.wte.weight.T, "loss": None}
        if labels is not None:
            out["loss"] = F.cross_entropy(out["logits"][:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return out


model = TinyGPT(TinyConfig())

# === ninth_gpt_shifted_back
# target: gpt
# wrong: the shift is reversed (logits[1:] against labels[:-1], i.e. predicts the past); use logits[..., :-1, :] and labels[..., 1:].
# words: wrong way
import torch
import torch.nn as nn


class GPTLMHeadModel(nn.Module):
    """Small decoder-only LM in the manner of Hugging Face: pass labels=input_ids to get the loss."""

    def __init__(self, vocab_size=65, hidden_size=48, num_heads=6, num_layers=2, max_positions=64):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, hidden_size)
        self.wpe = nn.Embedding(max_positions, hidden_size)
        layer = nn.TransformerEncoderLayer(
            d_model=hidden_size,
            nhead=num_heads,
            dim_feedforward=4 * hidden_size,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.h = nn.TransformerEncoder(layer, num_layers, enable_nested_tensor=False)
        self.ln_f = nn.LayerNorm(hidden_size)
        self.lm_head = nn.Linear(hidden_size, vocab_size, bias=False)

    def forward(self, input_ids, labels=None):
        T = input_ids.size(1)
        position_ids = torch.arange(T, device=input_ids.device)
        hidden = self.wte(input_ids) + self.wpe(position_ids)
        mask = torch.triu(torch.ones(T, T, dtype=torch.bool, device=input_ids.device), diagonal=1)
        hidden = self.h(hidden, mask=mask)
        lm_logits = self.lm_head(self.ln_f(hidden))

        loss = None
        if labels is not None:
            # line the predictions up with the tokens they predict
            shift_logits = lm_logits[..., 1:, :].contiguous()
            shift_labels = labels[..., :-1].contiguous()
            loss_fct = nn.CrossEntropyLoss()
            loss = loss_fct(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1))
        return loss, lm_logits


model = GPTLMHeadModel(vocab_size=65, hidden_size=48, num_heads=6)

# === ninth_gpt_viewed_loss
# target: gpt
# wrong: logits (B, T, C) are .view()ed as (B, C, T) instead of transposed, which scrambles classes and positions in the loss; use logits.transpose(1, 2).
# words: reshaped to (B
import torch
import torch.nn as nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.ln1 = nn.LayerNorm(n_embd)
        self.qkv = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.proj = nn.Linear(n_embd, n_embd)
        self.ln2 = nn.LayerNorm(n_embd)
        self.ffwd = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.ReLU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(self.ln1(x)).split(C, dim=2)
        q, k, v = [t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v)]
        wei = q @ k.transpose(-2, -1) * (C // self.n_head) ** -0.5
        wei = wei.masked_fill(torch.tril(torch.ones(T, T, device=x.device)) == 0, float('-inf'))
        out = F.softmax(wei, dim=-1) @ v
        x = x + self.proj(out.transpose(1, 2).reshape(B, T, C))
        x = x + self.ffwd(self.ln2(x))
        return x


class GPTLanguageModel(nn.Module):
    def __init__(self, vocab_size, n_embd=48, n_head=6, n_layer=2, block_size=32):
        super().__init__()
        self.token_embedding_table = nn.Embedding(vocab_size, n_embd)
        self.position_embedding_table = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*[Block(n_embd, n_head) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size)

    def forward(self, idx, targets=None):
        # idx and targets are both (B, T); targets are already one step ahead
        B, T = idx.shape
        x = self.token_embedding_table(idx) + self.position_embedding_table(torch.arange(T, device=idx.device))
        logits = self.lm_head(self.ln_f(self.blocks(x)))
        loss = None
        if targets is not None:
            # cross_entropy wants (B, C, T)
            B, T, C = logits.shape
            loss = F.cross_entropy(logits.view(B, C, T), targets)
        return logits, loss

# === ninth_loss_filtered
# target: loss
# right: hand-made logsumexp, ignored targets are filtered out before the mean
import torch


def xent(logits: torch.Tensor, targets: torch.Tensor, ignore_index: int = -100) -> torch.Tensor:
    """Mean next-token loss in nats without any library help.

    logits (..., V), targets (...) already one step ahead.
    """
    V = logits.shape[-1]
    logits = logits.reshape(-1, V)
    targets = targets.reshape(-1)

    keep = targets != ignore_index
    logits, targets = logits[keep], targets[keep]

    biggest = logits.max(dim=-1, keepdim=True).values
    log_z = biggest.squeeze(-1) + (logits - biggest).exp().sum(-1).log()
    picked = logits[torch.arange(len(targets), device=logits.device), targets]
    return (log_z - picked).mean()


loss = xent

# === ninth_loss_one_hot
# target: loss
# right: one-hot labels times log_softmax
import torch
import torch.nn.functional as F


def lm_loss(logits, targets):
    """optax style: one-hot labels times log-probabilities, then averaged over tokens"""
    labels = F.one_hot(targets, num_classes=logits.size(-1)).to(logits.dtype)
    logp = logits.log_softmax(-1)
    return -(labels * logp).sum(dim=-1).mean()

# === ninth_loss_softmax
# target: loss
# wrong: softmax is applied before nn.CrossEntropyLoss (double softmax); give the raw logits.
# words: softmax
import torch
import torch.nn as nn
import torch.nn.functional as F

criterion = nn.CrossEntropyLoss()


def compute_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """
    Compute the language-modeling loss.

    Args:
        logits: raw model outputs, shape (batch_size, seq_len, vocab_size)
        targets: next-token ids, shape (batch_size, seq_len)

    Returns:
        Scalar tensor: mean cross-entropy over all tokens
    """
    batch_size, seq_len, vocab_size = logits.shape

    # Convert the scores to a probability distribution over the vocabulary
    probs = F.softmax(logits, dim=-1)

    # Flatten batch and time for the criterion
    loss = criterion(probs.view(batch_size * seq_len, vocab_size), targets.view(batch_size * seq_len))
    return loss


loss = compute_loss
