"""A sixth lot of learners' programs: MLPs, blocks, models, losses, norms."""

# === sixth_mlp_drops
# target: mlp
# wrong: F.dropout is called without training=self.training, so units are dropped in evaluation too
# words: dropout is active
import torch.nn as nn
import torch.nn.functional as F


class FeedForward(nn.Module):
    def __init__(self, d_model=64, d_ff=256, dropout=0.2):
        super().__init__()
        self.linear1 = nn.Linear(d_model, d_ff)
        self.linear2 = nn.Linear(d_ff, d_model)
        self.p = dropout

    def forward(self, x):
        x = F.gelu(self.linear1(x))
        x = F.dropout(x, self.p)
        return self.linear2(x)

# === sixth_mlp_pico
# target: mlp
# right: picoGPT-like functions with weights (in, out) as arguments, exact GELU written with erf
import math

import torch


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def linear(x, w, b):
    # [m, in], [in, out], [out] -> [m, out]
    return x @ w + b


def ffn(x, w_up, b_up, w_down, b_down):
    """position-wise feed forward network: up, bend, down"""
    return linear(gelu(linear(x, w_up, b_up)), w_down, b_down)

# === sixth_mlp_gpt2
# target: mlp
# right: GPT-2's MLP: c_fc, tanh-approximated GELU, c_proj, dropout; names as in minGPT
import torch.nn as nn


class MLP(nn.Module):
    def __init__(self, n_embd, dropout=0.1, bias=True):
        super().__init__()
        self.c_fc = nn.Linear(n_embd, 4 * n_embd, bias=bias)
        self.gelu = nn.GELU(approximate="tanh")
        self.c_proj = nn.Linear(4 * n_embd, n_embd, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))

# === sixth_mlp_swiglu
# target: mlp
# right: llama's SwiGLU: w2(silu(w1 x) * w3 x), hidden size 2/3 of 4 dim rounded up to a multiple
import torch
import torch.nn.functional as F
from torch import nn


class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden_dim: int | None = None, multiple_of: int = 16):
        super().__init__()
        if hidden_dim is None:
            hidden_dim = int(2 * 4 * dim / 3)
        hidden_dim = multiple_of * ((hidden_dim + multiple_of - 1) // multiple_of)
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


if __name__ == "__main__":
    print(FeedForward(32)(torch.zeros(1, 3, 32)).shape)

# === sixth_block_french
# target: block
# right: French, nn.MultiheadAttention inside, attention normed once for q, k and v, GELU Sequential
import torch
from torch import nn


class BlocTransformeur(nn.Module):
    """Un bloc de decodeur, avec la norme avant chaque sous-couche."""

    def __init__(self, dimension=32, tetes=4, abandon=0.0):
        super().__init__()
        self.norme1 = nn.LayerNorm(dimension)
        self.attention = nn.MultiheadAttention(dimension, tetes, dropout=abandon, batch_first=True)
        self.norme2 = nn.LayerNorm(dimension)
        self.reseau = nn.Sequential(
            nn.Linear(dimension, 4 * dimension), nn.GELU(),
            nn.Linear(4 * dimension, dimension), nn.Dropout(abandon))

    def forward(self, x):
        masque = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        h = self.norme1(x)
        h, _ = self.attention(h, h, h, attn_mask=masque, need_weights=False)
        x = x + h
        return x + self.reseau(self.norme2(x))


if __name__ == "__main__":
    bloc = BlocTransformeur().eval()
    print(bloc(torch.randn(2, 9, 32)).shape)

# === sixth_block_no_residual
# target: block
# wrong: The second residual is missing: x = mlp(ln_2(x)) instead of x + mlp(ln_2(x))
# words: second residual
import torch
import torch.nn as nn
import torch.nn.functional as F


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Block(nn.Module):
    def __init__(self, n_embd=32, n_head=4):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = self.mlp(self.ln_2(x))
        return x

# === sixth_block_norm_stream
# target: block
# wrong: x is overwritten by its norm before the sum, so the residual stream is the normed x (x = norm(x); x = x + f(x))
# words: replaced by its norm
import torch
from torch import nn


class PreNormBlock(nn.Module):
    """Pre-LN transformer block, as in GPT-2."""

    def __init__(self, d_model=32, heads=4, d_ff=128, dropout=0.0):
        super().__init__()
        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.attn = nn.MultiheadAttention(d_model, heads, dropout=dropout, batch_first=True)
        self.ff = nn.Sequential(nn.Linear(d_model, d_ff), nn.GELU(), nn.Linear(d_ff, d_model))
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        n = x.size(1)
        mask = torch.triu(torch.ones(n, n, dtype=torch.bool, device=x.device), diagonal=1)
        x = self.norm1(x)
        x = x + self.drop(self.attn(x, x, x, attn_mask=mask, need_weights=False)[0])
        x = self.norm2(x)
        x = x + self.drop(self.ff(x))
        return x

# === sixth_block_wrappers
# target: block
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

# === sixth_block_lecture
# target: block
# right: Karpathy-lecture Block: x + sa(ln1(x)), x + ffwd(ln2(x)), ReLU feed forward, everything in one file
import torch
import torch.nn as nn
from torch.nn import functional as F

n_embd, n_head, block_size, dropout = 32, 4, 64, 0.1


class Head(nn.Module):
    def __init__(self, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer('tril', torch.tril(torch.ones(block_size, block_size)))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        B, T, C = x.shape
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
        wei = self.dropout(F.softmax(wei, dim=-1))
        return wei @ self.value(x)


class MultiHeadAttention(nn.Module):
    def __init__(self, num_heads, head_size):
        super().__init__()
        self.heads = nn.ModuleList([Head(head_size) for _ in range(num_heads)])
        self.proj = nn.Linear(n_embd, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(self.proj(torch.cat([h(x) for h in self.heads], dim=-1)))


class FeedFoward(nn.Module):
    """ a simple linear layer followed by a non-linearity """

    def __init__(self, n_embd):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.ReLU(),
                                 nn.Linear(4 * n_embd, n_embd), nn.Dropout(dropout))

    def forward(self, x):
        return self.net(x)


class Block(nn.Module):
    """ Transformer block: communication followed by computation """

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.sa = MultiHeadAttention(n_head, n_embd // n_head)
        self.ffwd = FeedFoward(n_embd)
        self.ln1 = nn.LayerNorm(n_embd)
        self.ln2 = nn.LayerNorm(n_embd)

    def forward(self, x):
        x = x + self.sa(self.ln1(x))
        x = x + self.ffwd(self.ln2(x))
        return x

# === sixth_gpt_positions_ids
# target: gpt
# wrong: The position embedding is looked up with the token ids instead of with 0..T-1, so positions are unknown to the model
# words: ids of the tokens
import torch
import torch.nn as nn

vocab_size, block_size, n_embd, n_head, n_layer = 65, 128, 32, 4, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(n_embd, n_head, batch_first=True)
        self.ffwd = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.ReLU(), nn.Linear(4 * n_embd, n_embd))
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)

    def forward(self, x):
        T = x.shape[1]
        mask = torch.triu(torch.full((T, T), float("-inf"), device=x.device), diagonal=1)
        h = self.ln1(x)
        x = x + self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.ffwd(self.ln2(x))


class GPTLanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.token_embedding_table = nn.Embedding(vocab_size, n_embd)
        self.position_embedding_table = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*[Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size)

    def forward(self, idx):
        B, T = idx.shape
        pos = torch.arange(T, device=idx.device)
        tok_emb = self.token_embedding_table(idx)        # (B,T,C)
        pos_emb = self.position_embedding_table(idx)     # (T,C)
        x = self.blocks(tok_emb + pos_emb)
        return self.lm_head(self.ln_f(x))


if __name__ == "__main__":
    print(GPTLanguageModel()(torch.randint(0, vocab_size, (2, 8))).shape)

# === sixth_gpt_leaks_in_eval
# target: gpt
# wrong: is_causal=self.training: in evaluation the attention sees the whole text
# words: no causal mask
import torch
import torch.nn as nn
import torch.nn.functional as F


class Attn(nn.Module):
    def __init__(self, dim, heads, p=0.1):
        super().__init__()
        self.heads, self.p = heads, p
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).reshape(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.p if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=self.training)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = Attn(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class TinyGPT(nn.Module):
    def __init__(self, vocab=64, dim=32, heads=4, layers=2, ctx=64):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(ctx, dim)
        self.layers = nn.Sequential(*[Layer(dim, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + self.pos.weight[: ids.shape[1]]
        return self.head(self.norm(self.layers(x)))

# === sixth_gpt_pico
# target: gpt
# right: picoGPT-like: only functions and a dict of weights, one text (T,), logits = x @ wte.T
"""GPT-2's forward pass as a handful of functions, for one sequence of ids."""
import torch


def gelu(x):
    return 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x ** 3)))


def layer_norm(x, g, b, eps=1e-5):
    mean = x.mean(-1, keepdim=True)
    variance = x.var(-1, keepdim=True, correction=0)
    return g * (x - mean) / torch.sqrt(variance + eps) + b


def linear(x, w, b):
    return x @ w + b


def attention(q, k, v, mask):
    return torch.softmax(q @ k.T / q.shape[-1] ** 0.5 + mask, dim=-1) @ v


def mha(x, c_attn, c_proj, n_head):
    qkv = linear(x, *c_attn)                                   # [n_seq, 3*n_embd]
    q, k, v = (t.split(t.shape[-1] // n_head, dim=-1) for t in qkv.chunk(3, dim=-1))
    mask = (1 - torch.tril(torch.ones(len(x), len(x)))) * -1e10
    heads = [attention(*qkv_h, mask) for qkv_h in zip(q, k, v)]
    return linear(torch.cat(heads, dim=-1), *c_proj)


def block(x, p, n_head):
    x = x + mha(layer_norm(x, *p["ln_1"]), p["c_attn"], p["c_proj"], n_head)
    h = gelu(linear(layer_norm(x, *p["ln_2"]), *p["mlp_up"]))
    return x + linear(h, *p["mlp_down"])


def gpt2(ids, params, n_head):
    x = params["wte"][ids] + params["wpe"][: len(ids)]
    for p in params["blocks"]:
        x = block(x, p, n_head)
    return layer_norm(x, *params["ln_f"]) @ params["wte"].T    # [n_seq, n_vocab]


def init_params(n_vocab=40, n_ctx=32, n_embd=24, n_layer=2, seed=0):
    g = torch.Generator().manual_seed(seed)
    r = lambda *s: torch.randn(*s, generator=g) * 0.2
    lin = lambda i, o: (r(i, o), r(o))
    ln = lambda: (1 + r(n_embd), r(n_embd))
    return dict(wte=r(n_vocab, n_embd), wpe=r(n_ctx, n_embd), ln_f=ln(), blocks=[
        dict(ln_1=ln(), ln_2=ln(), c_attn=lin(n_embd, 3 * n_embd), c_proj=lin(n_embd, n_embd),
             mlp_up=lin(n_embd, 4 * n_embd), mlp_down=lin(4 * n_embd, n_embd)) for _ in range(n_layer)])


if __name__ == "__main__":
    print(gpt2(torch.randint(0, 40, (10,)), init_params(), n_head=4).shape)

# === sixth_gpt_nano
# target: gpt
# right: nanoGPT-like: config dataclass, tied weights, learned positions, forward(idx, targets=None) -> (logits, loss), generate
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.nn import functional as F


@dataclass
class GPTConfig:
    block_size: int = 32
    vocab_size: int = 65
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 32
    dropout: float = 0.1


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n_head, self.dropout = c.n_head, c.dropout
        self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd)
        self.c_proj = nn.Linear(c.n_embd, c.n_embd)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).split(C, 2))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(c.n_embd), Attention(c)
        self.ln_2 = nn.LayerNorm(c.n_embd)
        self.mlp = nn.Sequential(nn.Linear(c.n_embd, 4 * c.n_embd), nn.GELU(),
                                 nn.Linear(4 * c.n_embd, c.n_embd), nn.Dropout(c.dropout))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, config: GPTConfig = GPTConfig()):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.lm_head.weight = self.wte.weight  # tied
        for name, p in self.named_parameters():
            if p.dim() == 2:
                std = 0.02 / math.sqrt(2 * config.n_layer) if name.endswith("c_proj.weight") else 0.02
                nn.init.normal_(p, std=std)

    def forward(self, idx, targets=None):
        B, T = idx.size()
        assert T <= self.config.block_size
        x = self.drop(self.wte(idx) + self.wpe(torch.arange(T, device=idx.device)))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss

    @torch.no_grad()
    def generate(self, idx, max_new_tokens, temperature=1.0):
        for _ in range(max_new_tokens):
            logits, _ = self(idx[:, -self.config.block_size:])
            probs = F.softmax(logits[:, -1] / temperature, dim=-1)
            idx = torch.cat((idx, torch.multinomial(probs, 1)), dim=1)
        return idx

# === sixth_loss_logsumexp
# target: loss
# right: logits and targets that are already shifted (nanoGPT's x, y), by hand with logsumexp and gather
import torch


def loss_fn(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """logits [B, T, V]; targets [B, T] are the NEXT ids (already shifted by the data loader). Mean, in nats."""
    log_z = torch.logsumexp(logits, dim=-1)
    right = torch.gather(logits, dim=-1, index=targets.unsqueeze(-1)).squeeze(-1)
    return (log_z - right).mean()


def get_batch(data, block_size, batch_size, generator=None):
    starts = torch.randint(len(data) - block_size, (batch_size,), generator=generator)
    x = torch.stack([data[s:s + block_size] for s in starts])
    y = torch.stack([data[s + 1:s + block_size + 1] for s in starts])
    return x, y


if __name__ == "__main__":
    x, y = get_batch(torch.arange(100), 8, 2)
    print(x, y, sep="\n")
    print(loss_fn(torch.zeros(2, 8, 100), y))  # ln(100) = 4.605

# === sixth_loss_of_a_model
# target: loss
# wrong: Not shifted at all: the logits at t are compared with the token at t, which the model was just given
# words: not shifted
import torch
import torch.nn.functional as F


def compute_loss(model, tokens):
    """How well does the causal model predict each next token of `tokens` (B, T)? Mean cross entropy in nats."""
    logits = model(tokens)          # (B, T, V)
    b, t, v = logits.shape
    return F.cross_entropy(logits.reshape(b * t, v), tokens.reshape(b * t))


def perplexity(model, tokens):
    with torch.no_grad():
        return compute_loss(model, tokens).exp().item()

# === sixth_loss_padding
# target: loss
# right: padding: the sum over real next tokens divided by their number, pad id given, log_softmax
import torch
import torch.nn.functional as F


def masked_next_token_loss(logits, tokens, pad_id=0):
    # predict tokens[:, 1:] from logits[:, :-1]
    logp = F.log_softmax(logits[:, :-1], dim=-1)
    labels = tokens[:, 1:]
    nll = -logp.gather(2, labels[:, :, None])[:, :, 0]
    keep = (labels != pad_id).to(nll.dtype)
    return (nll * keep).sum() / keep.sum().clamp(min=1)

# === sixth_loss_backwards
# target: loss
# wrong: Shifted the wrong way: logits[:, 1:] are compared with ids[:, :-1], so the previous token is 'predicted'
# words: wrong way
import torch.nn.functional as F


def next_token_loss(logits, ids):
    """logits: (B, T, V) of a causal model that was given ids (B, T)."""
    V = logits.size(-1)
    pred = logits[:, 1:, :].reshape(-1, V)
    true = ids[:, :-1].reshape(-1)
    return F.cross_entropy(pred, true)

# === sixth_loss_padding_counted
# target: loss
# wrong: With padding the masked sum is divided by all B*(T-1) positions, pads included, so the mean is too small
# words: still counts
import torch
import torch.nn.functional as F


def loss_with_padding(logits, ids, pad=0):
    """mean cross entropy of the next token; pads don't count"""
    targets = ids[:, 1:]
    losses = F.cross_entropy(logits[:, :-1].transpose(1, 2), targets, reduction="none")  # (B, T-1)
    mask = targets != pad
    losses = losses.masked_fill(~mask, 0.0)
    return losses.mean()


if __name__ == "__main__":
    ids = torch.tensor([[5, 3, 2, 0, 0, 0], [1, 2, 3, 4, 5, 6]])
    print(loss_with_padding(torch.randn(2, 6, 10), ids))

# === sixth_loss_ids
# target: loss
# right: function of logits (B,T,V) and the ids themselves (B,T): shifts inside, F.cross_entropy, mean
import torch.nn.functional as F


def language_model_loss(logits, input_ids):
    """The logits at position t predict the token at t + 1."""
    shift_logits = logits[..., :-1, :].contiguous()
    shift_labels = input_ids[..., 1:].contiguous()
    return F.cross_entropy(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1))

# === sixth_norm_function
# target: norm
# right: function layer_norm(x, weight, bias=None) with a bias that may be missing
import torch


def layer_norm(x, weight, bias=None, eps=1e-5):
    """Normalise the last axis to mean 0 and variance 1, then scale and (maybe) shift."""
    centred = x - x.mean(-1, keepdim=True)
    out = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps) * weight
    if bias is not None:
        out = out + bias
    return out


if __name__ == "__main__":
    x = torch.randn(2, 3, 8)
    ours = layer_norm(x, torch.ones(8), torch.zeros(8))
    theirs = torch.nn.functional.layer_norm(x, (8,))
    print(torch.allclose(ours, theirs, atol=1e-6))

# === sixth_norm_gamma
# target: norm
# right: module with gamma and beta, biased variance, eps under the root
import torch
from torch import nn


class LayerNorm(nn.Module):
    def __init__(self, features, eps=1e-5):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(features))
        self.beta = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(dim=-1, keepdim=True)
        var = x.var(dim=-1, keepdim=True, unbiased=False)
        x_hat = (x - mean) / torch.sqrt(var + self.eps)
        return self.gamma * x_hat + self.beta

# === sixth_norm_italian
# target: norm
# right: E[x^2]-E[x]^2 form, sums by einsum, Italian names, any leading axes
import torch
import torch.nn as nn


class NormaDiStrato(nn.Module):
    def __init__(self, canali: int, epsilon: float = 1e-5):
        super().__init__()
        self.canali = canali
        self.epsilon = epsilon
        self.scala = nn.Parameter(torch.ones(canali))
        self.spostamento = nn.Parameter(torch.zeros(canali))

    def forward(self, x):
        media = torch.einsum("...c->...", x) / self.canali
        media_quadrati = torch.einsum("...c,...c->...", x, x) / self.canali
        varianza = (media_quadrati - media ** 2).clamp(min=0)
        inverso = torch.rsqrt(varianza + self.epsilon)
        return (x - media[..., None]) * inverso[..., None] * self.scala + self.spostamento

# === sixth_norm_variance
# target: norm
# wrong: It divides by the variance instead of by the standard deviation
# words: variance, not by its root
import torch


def layernorm(x, g, b, eps: float = 1e-5):
    mean = torch.mean(x, dim=-1, keepdim=True)
    variance = torch.var(x, dim=-1, keepdim=True, correction=0)
    x = (x - mean) / (variance + eps)   # normalize x to have mean=0 and var=1 over last axis
    return g * x + b                    # scale and offset with gamma/beta params

# === sixth_norm_positions
# target: norm
# wrong: Mean and variance are taken over dim=1, which is time for (B,T,C): each channel is normalised over the text, future included
# words: over the positions
import torch
import torch.nn as nn


class LayerNorm(nn.Module):
    """ was BatchNorm1d (dim 0), now it's a layer norm """

    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(dim))
        self.beta = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        # x is (B, T, C)
        xmean = x.mean(1, keepdim=True)
        xvar = x.var(1, keepdim=True, unbiased=False)
        xhat = (x - xmean) / torch.sqrt(xvar + self.eps)
        return self.gamma * xhat + self.beta

# === sixth_norm_llama
# target: norm
# right: llama's RMSNorm: float32 inside, type_as, weight of ones
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
        output = self._norm(x.float()).type_as(x)
        return output * self.weight

# === sixth_norm_gemma
# target: norm
# right: function, Gemma-like gain stored around zero (1 + g), pure torch, type hints
import torch
from torch import Tensor


def rms_norm(x: Tensor, gain: Tensor, eps: float = 1e-6) -> Tensor:
    """Root mean square norm with the gain kept around zero, as Gemma does: (1 + gain) multiplies."""
    mean_square = torch.mean(torch.square(x), dim=-1, keepdim=True)
    return x / torch.sqrt(mean_square + eps) * (1.0 + gain)


if __name__ == "__main__":
    y = rms_norm(torch.randn(4, 16), torch.zeros(16))
    print(y.square().mean(-1))  # ones

# === sixth_norm_all
# target: norm
# wrong: The mean of squares has no dim, so one number for the whole batch and text is used (tokens see one another)
# words: without dim|all positions
import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, d_model, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.gamma = nn.Parameter(torch.ones(d_model))

    def forward(self, x):
        rms = torch.sqrt((x ** 2).mean() + self.eps)
        return x / rms * self.gamma

# === sixth_norm_normalize
# target: norm
# right: x-transformers-like: F.normalize times sqrt(dim) times g
import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.scale = dim ** 0.5
        self.g = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.normalize(x, dim=-1) * self.scale * self.g

# === sixth_norm_length
# target: norm
# wrong: It divides by the norm (root of the sum of squares) instead of by the root of the mean: outputs are sqrt(d) too small
# words: length of x
import torch
from torch import nn


class RMSNormalisierung(nn.Module):
    """x / RMS(x) * g   (Zhang & Sennrich 2019)"""

    def __init__(self, groesse, eps=1e-8):
        super().__init__()
        self.g = nn.Parameter(torch.ones(groesse))
        self.eps = eps

    def forward(self, x):
        rms = x.norm(p=2, dim=-1, keepdim=True)
        return self.g * x / (rms + self.eps)
