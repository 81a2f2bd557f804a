"""A tenth lot of learners' programs: norms, MLPs, blocks and whole models."""

# === tenth_gpt_bare_positions
# target: gpt
# right: dataclass config, positions as a bare Parameter, output tied to the token embedding, SDPA; gives logits or (logits, loss)
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 65
    block: int = 32
    layers: int = 2
    heads: int = 6
    width: int = 48


class Layer(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.heads = c.heads
        self.ln_a = nn.LayerNorm(c.width)
        self.qkv = nn.Linear(c.width, 3 * c.width)
        self.proj = nn.Linear(c.width, c.width)
        self.ln_m = nn.LayerNorm(c.width)
        self.mlp = nn.Sequential(nn.Linear(c.width, 4 * c.width), nn.GELU(), nn.Linear(4 * c.width, c.width))

    def attend(self, h):
        B, T, C = h.shape
        q, k, v = (t.view(B, T, self.heads, -1).transpose(1, 2) for t in self.qkv(h).split(C, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))

    def forward(self, h):
        h = h + self.attend(self.ln_a(h))
        return h + self.mlp(self.ln_m(h))


class SmallGPT(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.tok = nn.Embedding(c.vocab, c.width)
        self.pos = nn.Parameter(torch.randn(c.block, c.width) * 0.02)
        self.layers = nn.ModuleList([Layer(c) for _ in range(c.layers)])
        self.ln_f = nn.LayerNorm(c.width)

    def forward(self, ids, targets=None):
        T = ids.shape[1]
        h = self.tok(ids) + self.pos[:T]
        for layer in self.layers:
            h = layer(h)
        # the unembedding shares its weight with the embedding
        logits = self.ln_f(h) @ self.tok.weight.T
        if targets is None:
            return logits
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


model = SmallGPT(Config())

# === tenth_gpt_probabilities
# target: gpt
# wrong: cross_entropy is fed softmax probabilities (double softmax)
# words: softmax|logits|prob
"""char level gpt, all in one file. forward(ids, targets) gives (probabilities, loss)"""
import torch
import torch.nn as nn
import torch.nn.functional as F

vocab_size = 65
block_size = 32
n_embd = 48
n_head = 6
n_layer = 2


class MultiHeadAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(n_embd, n_embd, bias=False)
        self.k = nn.Linear(n_embd, n_embd, bias=False)
        self.v = nn.Linear(n_embd, n_embd, bias=False)
        self.o = nn.Linear(n_embd, n_embd)
        self.register_buffer("tri", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        B, T, C = x.shape
        q = self.q(x).view(B, T, n_head, -1).transpose(1, 2)
        k = self.k(x).view(B, T, n_head, -1).transpose(1, 2)
        v = self.v(x).view(B, T, n_head, -1).transpose(1, 2)
        w = q @ k.transpose(-2, -1) * (C // n_head) ** -0.5
        w = w.masked_fill(self.tri[:T, :T] == 0, float("-inf")).softmax(-1)
        return self.o((w @ v).transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.att = MultiHeadAttention()
        self.ff = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.ReLU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.att(self.n1(x))
        x = x + self.ff(self.n2(x))
        return x


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_emb = nn.Embedding(vocab_size, n_embd)
        self.pos_emb = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*[Block() for _ in range(n_layer)])
        self.norm = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, vocab_size)

    def forward(self, ids, targets=None):
        B, T = ids.shape
        x = self.tok_emb(ids) + self.pos_emb(torch.arange(T, device=ids.device))
        x = self.norm(self.blocks(x))
        logits = self.head(x)
        probs = F.softmax(logits, dim=-1)
        if targets is None:
            return probs
        loss = F.cross_entropy(probs.view(B * T, -1), targets.view(-1))
        return probs, loss

# === tenth_gpt_loss_method_backwards
# target: gpt
# wrong: loss shifted the wrong way: logits[:,1:] against ids[:,:-1], predicts the previous token
# words: shift|target|next|label|loss
import math
import torch
import torch.nn as nn
import torch.nn.functional as F


def rms(x, w, eps=1e-6):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w


class DecoderLayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.attn_norm = nn.Parameter(torch.ones(dim))
        self.ffn_norm = nn.Parameter(torch.ones(dim))
        self.w_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.w_o = nn.Linear(dim, dim, bias=False)
        self.w_in = nn.Linear(dim, 4 * dim, bias=False)
        self.w_out = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.w_qkv(rms(x, self.attn_norm)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = q @ k.mT / math.sqrt(D // self.heads)
        a = a + torch.full((T, T), float("-inf"), device=x.device, dtype=x.dtype).triu(1)
        x = x + self.w_o((a.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D))
        return x + self.w_out(F.gelu(self.w_in(rms(x, self.ffn_norm))))


class LanguageModel(nn.Module):
    """lm(ids) -> logits, lm.loss(ids) -> next token cross entropy, the ids are their own targets"""

    def __init__(self, vocab=50, ctx=24, dim=48, heads=6, depth=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.where = nn.Embedding(ctx, dim)
        self.stack = nn.ModuleList([DecoderLayer(dim, heads) for _ in range(depth)])
        self.final_norm = nn.Parameter(torch.ones(dim))
        self.unembed = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        x = self.embed(ids) + self.where.weight[: ids.size(1)]
        for layer in self.stack:
            x = layer(x)
        return self.unembed(rms(x, self.final_norm))

    def loss(self, ids):
        logits = self.forward(ids)
        pred = logits[:, 1:]
        gold = ids[:, :-1]
        return F.cross_entropy(pred.reshape(-1, pred.size(-1)), gold.reshape(-1))


if __name__ == "__main__":
    lm = LanguageModel()
    ids = torch.randint(0, 50, (4, 16))
    print(lm.loss(ids).item(), "should be near", math.log(50))

# === tenth_norm_rms_vector
# target: norm
# right: RMSNorm through the vector norm, length^2/n + eps
import torch
import torch.nn as nn


class RootMeanSquare(nn.Module):
    """x / rms(x) * gain. The norm is computed as |x|_2 / sqrt(n), which is the same thing."""

    def __init__(self, n, eps=1e-6):
        super().__init__()
        self.n, self.eps = n, eps
        self.gain = nn.Parameter(torch.ones(n))

    def forward(self, x):
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return self.gain * x / (length ** 2 / self.n + self.eps).sqrt()


attention = RootMeanSquare(48)

# === tenth_norm_over_time
# target: norm
# wrong: LayerNorm statistics over time and features (dims 1 and 2): mixes tokens and leaks the future
# words: dim|axis|time|token|statistic
import torch
from torch import nn


class LayerNorm(nn.Module):
    """My own layer norm for inputs of shape (batch, time, features)."""

    def __init__(self, features, eps=1e-5):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(features))
        self.beta = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        # "layer" norm: statistics over everything in one example, not over the batch
        mu = x.mean(dim=(1, 2), keepdim=True)
        var = ((x - mu) ** 2).mean(dim=(1, 2), keepdim=True)
        xhat = (x - mu) / torch.sqrt(var + self.eps)
        return self.gamma * xhat + self.beta

# === tenth_mlp_swiglu_fused
# target: mlp
# right: SwiGLU with gate and up fused in one matrix, silu by hand, width rounded to 16
import torch
import torch.nn as nn
import torch.nn.functional as F


def round_up(n, to):
    return (n + to - 1) // to * to


class SwiGLU(nn.Module):
    """gate and value come out of one matrix, 8/3 of the width, rounded up to a multiple of 16"""

    def __init__(self, dim):
        super().__init__()
        hidden = round_up(8 * dim // 3, 16)
        self.gate_and_up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        gate, up = self.gate_and_up(x).tensor_split(2, dim=-1)
        return self.down(gate * torch.sigmoid(gate) * up)


model = SwiGLU(48)

# === tenth_mlp_late_gelu
# target: mlp
# wrong: GELU after the second linear instead of between: the two linears collapse into one
# words: activation|nonlinear|non-linear|gelu
import torch
import torch.nn as nn


class MLP(nn.Module):
    """The feed forward part of the block: widen 4x, GELU, go back."""

    def __init__(self, n_embd, dropout=0.0):
        super().__init__()
        self.c_up = nn.Linear(n_embd, 4 * n_embd)
        self.c_down = nn.Linear(4 * n_embd, n_embd)
        self.act = nn.GELU()
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        x = self.c_up(x)
        x = self.c_down(x)
        x = self.act(x)
        return self.drop(x)


if __name__ == "__main__":
    print(MLP(48)(torch.randn(2, 3, 48)).shape)

# === tenth_block_nested
# target: block
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

# === tenth_block_residual_of_norm
# target: block
# wrong: residual taken from the normalised x (x = norm(x); x = x + f(x)), the raw stream is lost
# words: residual|skip|norm
import torch
import torch.nn as nn
import torch.nn.functional as F


class SelfAttention(nn.Module):
    def __init__(self, emb, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(emb, 3 * emb)
        self.unify = nn.Linear(emb, emb)

    def forward(self, x):
        b, t, e = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, e // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.unify(y.transpose(1, 2).reshape(b, t, e))


class Block(nn.Module):
    """pre-norm block"""

    def __init__(self, emb, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(emb)
        self.norm2 = nn.LayerNorm(emb)
        self.attention = SelfAttention(emb, heads)
        self.mlp = nn.Sequential(
            nn.Linear(emb, 4 * emb),
            nn.ReLU(),
            nn.Linear(4 * emb, emb),
        )

    def forward(self, x):
        x = self.norm1(x)
        x = x + self.attention(x)
        x = self.norm2(x)
        x = x + self.mlp(x)
        return x


model = Block(48, 6)
