"""A seventh lot of learners' programs: MLPs, blocks, models, losses, norms."""

# === seventh_loss_shifted_twice
# target: loss
# wrong: shifted twice: the targets y are already the inputs moved by one and the function shifts them again
# words: shifted once more
import torch
import torch.nn.functional as F

def get_batch(data, block_size, batch_size, generator=None):
    ix = torch.randint(len(data) - block_size, (batch_size,), generator=generator)
    x = torch.stack([data[i:i + block_size] for i in ix])
    y = torch.stack([data[i + 1:i + 1 + block_size] for i in ix])
    return x, y

def next_token_loss(logits, y):
    """logits (B, T, V) from x; y (B, T) from get_batch, that is y[:, t] is the token after x[:, t]"""
    logits = logits[:, :-1, :]
    y = y[:, 1:]
    return F.cross_entropy(logits.flatten(0, 1), y.flatten())

if __name__ == "__main__":
    data = torch.randint(0, 30, (200,))
    x, y = get_batch(data, 16, 4)
    table = torch.randn(30, 30)
    print(next_token_loss(table[x], y))

# === seventh_block_nanogpt
# target: block
# right: pre-norm nanoGPT block, causal, exact GELU, 4x MLP
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
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))

class MLP(nn.Module):
    def __init__(self, n_embd):
        super().__init__()
        self.c_fc = nn.Linear(n_embd, 4 * n_embd)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * n_embd, n_embd)

    def forward(self, x):
        return self.c_proj(self.gelu(self.c_fc(x)))

class Block(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = MLP(n_embd)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x

block = Block(48, 6)

# === seventh_mlp_no_activation
# target: mlp
# wrong: the activation is created but never called, so the two layers are one linear map
# words: no activation
import torch.nn as nn
import torch

class PositionwiseFeedForward(nn.Module):
    "Implements FFN equation: max(0, x W1 + b1) W2 + b2"
    def __init__(self, d_model, d_ff, dropout=0.1):
        super(PositionwiseFeedForward, self).__init__()
        self.w_1 = nn.Linear(d_model, d_ff)
        self.w_2 = nn.Linear(d_ff, d_model)
        self.relu = nn.ReLU()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = self.w_1(x)
        x = self.dropout(x)
        return self.w_2(x)

if __name__ == "__main__":
    ffn = PositionwiseFeedForward(32, 128)
    print(ffn(torch.ones(2, 4, 32))[0].shape)

# === seventh_norm_pico
# target: norm
# right: NumPy/picoGPT style function layer_norm(x, g, b)
import torch

def layer_norm(x, g, b, eps: float = 1e-5):
    mean = torch.mean(x, axis=-1, keepdims=True)
    variance = torch.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return g * (x - mean) / torch.sqrt(variance + eps) + b

# === seventh_gpt_no_final_norm
# target: gpt
# wrong: the final LayerNorm is created but not applied before the head
# words: final norm is missing
import torch
import torch.nn as nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.attn, self.proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.attn(self.ln1(x)).view(B, T, 3, self.n_head, C // self.n_head).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.ln2(x))

class GPT(nn.Module):
    def __init__(self, vocab_size=65, block_size=32, n_embd=32, n_head=4, n_layer=2):
        super().__init__()
        self.tok_emb = nn.Embedding(vocab_size, n_embd)
        self.pos_emb = nn.Parameter(torch.randn(1, block_size, n_embd) * 0.02)
        self.blocks = nn.Sequential(*[Block(n_embd, n_head) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx):
        b, t = idx.size()
        x = self.tok_emb(idx) + self.pos_emb[:, :t, :]
        x = self.blocks(x)
        logits = self.head(x)
        return logits

model = GPT(65, 32)

# === seventh_norm_unbiased
# target: norm
# wrong: the variance is the unbiased one (division by n-1) instead of the biased one that LayerNorm uses
# words: D - 1
import torch
from torch import nn

class NormaCapa(nn.Module):
    def __init__(self, caracteristicas, eps=1e-5):
        super().__init__()
        self.peso = nn.Parameter(torch.ones(caracteristicas))
        self.sesgo = nn.Parameter(torch.zeros(caracteristicas))
        self.eps = eps

    def forward(self, x):
        media = x.mean(dim=-1, keepdim=True)
        varianza = x.var(dim=-1, keepdim=True)
        return self.peso * (x - media) / (varianza + self.eps).sqrt() + self.sesgo

if __name__ == "__main__":
    x = torch.randn(3, 24)
    print(NormaCapa(24)(x).std(-1))

# === seventh_mlp_squared_relu
# target: mlp
# right: squared ReLU (Primer / modded-nanoGPT), functional with a dict of weights, weights stored (in, out)
import torch

def init_mlp(d, hidden, seed=0):
    g = torch.Generator().manual_seed(seed)
    return {
        "W_in": torch.randn(d, hidden, generator=g) / d ** 0.5,
        "W_out": torch.randn(hidden, d, generator=g) / hidden ** 0.5,
    }

def mlp(params, x):
    h = torch.relu(x @ params["W_in"]) ** 2
    return h @ params["W_out"]

if __name__ == "__main__":
    p = init_mlp(48, 192)
    print(mlp(p, torch.randn(4, 48)).shape)

# === seventh_norm_by_hand
# target: norm
# right: by hand, biased variance, eps 1e-5 inside the root, weight and bias
import torch
import torch.nn as nn

class LayerNorm(nn.Module):
    def __init__(self, ndim, eps=1e-5):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(ndim))
        self.beta = nn.Parameter(torch.zeros(ndim))
        self.eps = eps

    def forward(self, x):
        xmean = x.mean(-1, keepdim=True)
        xvar = x.var(-1, keepdim=True, unbiased=False)
        xhat = (x - xmean) / torch.sqrt(xvar + self.eps)
        return self.gamma * xhat + self.beta

layernorm = LayerNorm(48)

# === seventh_gpt_positions_of_batch
# target: gpt
# wrong: the positional encoding is indexed with x.size(0) on batch-first input, so positions are added along the batch and not along the time axis
# words: number of the sequence in the batch|along the batch
import math
import torch
import torch.nn as nn

class PositionalEncoding(nn.Module):
    def __init__(self, d_model, dropout=0.1, max_len=500):
        super().__init__()
        self.dropout = nn.Dropout(p=dropout)
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer('pe', pe)

    def forward(self, x):
        x = x + self.pe[:x.size(0)]
        return self.dropout(x)

class TransformerLM(nn.Module):
    """tokens (batch, time) -> logits (batch, time, vocab)"""
    def __init__(self, ntoken, d_model=32, nhead=4, nlayers=2, dropout=0.1):
        super().__init__()
        self.embedding = nn.Embedding(ntoken, d_model)
        self.pos_encoder = PositionalEncoding(d_model, dropout)
        self.layers = nn.ModuleList([
            nn.TransformerEncoderLayer(d_model, nhead, 4 * d_model, dropout, batch_first=True) for _ in range(nlayers)
        ])
        self.decoder = nn.Linear(d_model, ntoken)

    def forward(self, src):
        x = self.pos_encoder(self.embedding(src))
        causal = torch.triu(torch.ones(src.size(1), src.size(1), dtype=torch.bool, device=src.device), 1)
        for layer in self.layers:
            x = layer(x, src_mask=causal)
        return self.decoder(x)

if __name__ == "__main__":
    lm = TransformerLM(40).eval()
    print(lm(torch.randint(40, (3, 7))).shape)

# === seventh_block_normed_stream
# target: block
# wrong: x itself is replaced by its normalised version before the attention, so the residual carries norm(x) instead of x (meant to be pre-norm)
# words: replaced by norm1(x)
import torch
import torch.nn as nn
import torch.nn.functional as F

class TransformerBlock(nn.Module):
    """pre-norm decoder block"""
    def __init__(self, dim, heads, mlp_ratio=4):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, dim * mlp_ratio)
        self.fc2 = nn.Linear(dim * mlp_ratio, dim)

    def attention(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        x = F.scaled_dot_product_attention(*qkv, is_causal=True)
        return self.proj(x.transpose(1, 2).reshape(B, N, C))

    def forward(self, x):
        x = self.norm1(x)
        x = x + self.attention(x)
        x = x + self.fc2(F.gelu(self.fc1(self.norm2(x))))
        return x

if __name__ == "__main__":
    blk = TransformerBlock(48, 6)
    x = torch.randn(2, 8, 48)
    assert blk(x).shape == x.shape

# === seventh_loss_pads_count
# target: loss
# wrong: padded positions are zeroed but the mean is taken over all positions, pads included
# words: still counts
import torch
import torch.nn as nn
import torch.nn.functional as F

class MaskedLMLoss(nn.Module):
    """next-token cross entropy, averaged over the non-padding targets"""
    def __init__(self, pad_token=0):
        super().__init__()
        self.pad_token = pad_token

    def forward(self, logits, ids):
        logits = logits[:, :-1, :]
        target = ids[:, 1:]
        per_token = F.cross_entropy(logits.transpose(1, 2), target, reduction="none")
        mask = (target != self.pad_token).float()
        return (per_token * mask).mean()

loss_fn = MaskedLMLoss(pad_token=0)

# === seventh_gpt_encoder_layers
# target: gpt
# right: built from nn.TransformerEncoder layers (norm_first) with a causal mask, sinusoidal positions, embedding scaled by sqrt(d), untied head with bias
import math
import torch
from torch import nn

class PetitGPT(nn.Module):
    def __init__(self, vocab=50, d=32, tetes=4, couches=2, long_max=64):
        super().__init__()
        self.d = d
        self.embed = nn.Embedding(vocab, d)
        pe = torch.zeros(long_max, d)
        pos = torch.arange(long_max).unsqueeze(1)
        div = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
        pe[:, 0::2] = torch.sin(pos * div)
        pe[:, 1::2] = torch.cos(pos * div)
        self.register_buffer("pe", pe)
        couche = nn.TransformerEncoderLayer(d, tetes, 4 * d, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.corps = nn.TransformerEncoder(couche, couches, norm=nn.LayerNorm(d), enable_nested_tensor=False)
        self.sortie = nn.Linear(d, vocab)

    def forward(self, jetons):
        T = jetons.shape[1]
        x = self.embed(jetons) * math.sqrt(self.d) + self.pe[:T]
        masque = nn.Transformer.generate_square_subsequent_mask(T, device=jetons.device)
        x = self.corps(x, mask=masque, is_causal=True)
        return self.sortie(x)

if __name__ == "__main__":
    modele = PetitGPT()
    jetons = torch.randint(0, 50, (2, 10))
    logits = modele(jetons)
    print(logits.shape, sum(p.numel() for p in modele.parameters()))

# === seventh_block_one_residual
# target: block
# wrong: the residual connection around the MLP is forgotten
# words: second residual is missing
import torch
import torch.nn as nn

class FeedForward(nn.Module):
    def __init__(self, n_embd):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd),
            nn.ReLU(),
            nn.Linear(4 * n_embd, n_embd),
            nn.Dropout(0.1),
        )

    def forward(self, x):
        return self.net(x)

class Block(nn.Module):
    """ Transformer block: communication followed by computation (pre-norm, causal) """
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.sa = nn.MultiheadAttention(n_embd, n_head, batch_first=True)
        self.ffwd = FeedForward(n_embd)
        self.ln1 = nn.LayerNorm(n_embd)
        self.ln2 = nn.LayerNorm(n_embd)

    def forward(self, x):
        T = x.size(1)
        h = self.ln1(x)
        mask = torch.triu(torch.ones(T, T, dtype=torch.bool, device=x.device), 1)
        x = x + self.sa(h, h, h, attn_mask=mask, need_weights=False)[0]
        x = self.ffwd(self.ln2(x))
        return x

block = Block(48, 6)

# === seventh_block_parallel
# target: block
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

# === seventh_gpt_llama
# target: gpt
# right: LLaMA-like: RMSNorm, half-split rotary, SwiGLU, no bias, untied head, configuration as a dict
import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIG = dict(vocab=60, dim=32, layers=2, heads=4, ffn=80, theta=10000.0)

class Norm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.g = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return self.g * x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()

def rope(x, theta):
    T, D = x.shape[-2:]
    ang = torch.arange(T)[:, None] / theta ** (torch.arange(0, D, 2) / D)
    a, b = x[..., :D // 2], x[..., D // 2:]
    return torch.cat((a * ang.cos() - b * ang.sin(), b * ang.cos() + a * ang.sin()), -1)

class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        d = c["dim"]
        self.att_norm, self.ffn_norm = Norm(d), Norm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(d, c["ffn"], bias=False), nn.Linear(d, c["ffn"], bias=False)
        self.down = nn.Linear(c["ffn"], d, bias=False)

    def forward(self, x):
        h = self.att_norm(x)
        B, T, C = h.shape
        q, k, v = (f(h).view(B, T, self.c["heads"], -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(rope(q, self.c["theta"]), rope(k, self.c["theta"]), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(B, T, C))
        h = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))

class TinyLlama(nn.Module):
    def __init__(self, config=CONFIG):
        super().__init__()
        self.tok = nn.Embedding(config["vocab"], config["dim"])
        self.layers = nn.Sequential(*[Layer(config) for _ in range(config["layers"])])
        self.norm = Norm(config["dim"])
        self.lm_head = nn.Linear(config["dim"], config["vocab"], bias=False)

    def forward(self, tokens):
        return self.lm_head(self.norm(self.layers(self.tok(tokens))))

if __name__ == "__main__":
    torch.manual_seed(0)
    net = TinyLlama()
    print(net(torch.randint(60, (1, 12))).shape)

# === seventh_norm_rms
# target: norm
# right: LLaMA RMSNorm, float32 upcast, eps 1e-6, weight only
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

norm = RMSNorm(48)

# === seventh_mlp_swiglu
# target: mlp
# right: SwiGLU: w2(silu(w1 x) * w3 x), hidden 2/3*4d rounded up to a multiple, no bias
import torch
from torch import nn
import torch.nn.functional as F

class FeedForward(nn.Module):
    def __init__(self, dim: int, hidden_dim: int, multiple_of: int = 16):
        super().__init__()
        hidden_dim = int(2 * hidden_dim / 3)
        hidden_dim = multiple_of * ((hidden_dim + multiple_of - 1) // multiple_of)
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))

if __name__ == "__main__":
    print(FeedForward(48, 4 * 48)(torch.randn(2, 3, 48)).shape)

# === seventh_loss_smoothed
# target: loss
# right: class, log_softmax by hand, label smoothing 0.1 (uniform over the vocabulary), pad id 0 masked, mean over real target tokens, shift inside
import torch
import torch.nn as nn

class NextTokenLoss(nn.Module):
    def __init__(self, pad_id=0, smoothing=0.1):
        super().__init__()
        self.pad_id = pad_id
        self.smoothing = smoothing

    def forward(self, logits, tokens):
        """logits (B, T, V) predicted from tokens (B, T)"""
        logits, target = logits[:, :-1], tokens[:, 1:]
        logp = logits - logits.logsumexp(dim=-1, keepdim=True)
        nll = -logp.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        smooth = -logp.mean(dim=-1)
        loss = (1 - self.smoothing) * nll + self.smoothing * smooth
        keep = (target != self.pad_id).to(loss.dtype)
        return (loss * keep).sum() / keep.sum()

loss = NextTokenLoss(pad_id=0)

# === seventh_gpt_nano
# target: gpt
# right: nanoGPT: learned positions, pre-norm blocks, final norm, head tied to the token embedding, returns logits for all positions (or logits and loss)
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
    bias: bool = False

class CausalSelfAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.n_head = c.n_head
        self.c_attn = nn.Linear(c.n_embd, 3 * c.n_embd, bias=c.bias)
        self.c_proj = nn.Linear(c.n_embd, c.n_embd, bias=c.bias)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))

class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln_1 = nn.LayerNorm(c.n_embd, bias=c.bias)
        self.attn = CausalSelfAttention(c)
        self.ln_2 = nn.LayerNorm(c.n_embd, bias=c.bias)
        self.mlp = nn.ModuleDict(dict(
            c_fc=nn.Linear(c.n_embd, 4 * c.n_embd, bias=c.bias),
            c_proj=nn.Linear(4 * c.n_embd, c.n_embd, bias=c.bias),
        ))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x))))

class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(config.vocab_size, config.n_embd),
            wpe=nn.Embedding(config.block_size, config.n_embd),
            h=nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
            ln_f=nn.LayerNorm(config.n_embd, bias=config.bias),
        ))
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        b, t = idx.size()
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.transformer.wte(idx) + self.transformer.wpe(pos)
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        if targets is None:
            return logits
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss

model = GPT(GPTConfig())

# === seventh_loss_hf
# target: loss
# right: logits at t against token t+1 (shift inside), labels -100 are left out of the mean (HF convention)
import torch
from torch.nn import CrossEntropyLoss

def causal_lm_loss(logits, labels):
    # Shift so that tokens < n predict n
    shift_logits = logits[..., :-1, :].contiguous()
    shift_labels = labels[..., 1:].contiguous()
    loss_fct = CrossEntropyLoss()
    return loss_fct(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1))

if __name__ == "__main__":
    print(causal_lm_loss(torch.randn(2, 6, 11), torch.randint(11, (2, 6))))

# === seventh_loss_unshifted
# target: loss
# wrong: the logits are compared with the same positions of the input tokens; the shift by one is missing
# words: not shifted
import torch
import torch.nn.functional as F

def lm_loss(model_output, tokens):
    """mean cross entropy of predicting the next token; model_output (B, T, V) comes from tokens (B, T)"""
    B, T, V = model_output.shape
    predictions = model_output.reshape(B * T, V)
    targets = tokens.reshape(B * T)
    return F.cross_entropy(predictions, targets)

if __name__ == '__main__':
    tokens = torch.randint(0, 20, (4, 12))
    print(lm_loss(torch.randn(4, 12, 20), tokens))

# === seventh_mlp_gate_product
# target: mlp
# wrong: SwiGLU gate misplaced: silu is applied to the product of gate and up branch instead of to the gate alone
# words: product of gate
import torch
import torch.nn as nn

class LlamaMLP(nn.Module):
    """SwiGLU feed-forward"""
    def __init__(self, hidden_size=48, intermediate_size=128):
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x) * self.up_proj(x)))

mlp = LlamaMLP(48, 128)

# === seventh_block_writes
# target: block
# wrong: x += changes the caller's input tensor in place (the returned numbers are right, the input is overwritten)
# words: writes into its input
import torch
import torch.nn as nn
import torch.nn.functional as F

class RMSNorm(nn.Module):
    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x):
        return x / torch.sqrt((x ** 2).mean(-1, keepdim=True) + self.eps) * self.weight

class DecoderBlock(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = RMSNorm(d), RMSNorm(d)
        self.wqkv, self.wo = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.w1, self.w2 = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)

    def attn(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.h, -1).transpose(1, 2) for t in self.wqkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).flatten(2))

    def forward(self, x):
        x += self.attn(self.n1(x))
        x = x + self.w2(F.relu(self.w1(self.n2(x))).square())
        return x

block = DecoderBlock(48, 6)

# === seventh_block_post
# target: block
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

# === seventh_mlp_gpt2
# target: mlp
# right: GPT-2 MLP: c_fc, tanh-GELU written out, c_proj, dropout, 4x wide
import math
import torch
import torch.nn as nn

class NewGELU(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))

class MLP(nn.Module):
    def __init__(self, n_embd, pdrop=0.1):
        super().__init__()
        self.c_fc = nn.Linear(n_embd, 4 * n_embd)
        self.act = NewGELU()
        self.c_proj = nn.Linear(4 * n_embd, n_embd)
        self.dropout = nn.Dropout(pdrop)

    def forward(self, x):
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))

mlp = MLP(48)

# === seventh_norm_length
# target: norm
# wrong: divides by the Euclidean norm (root of the sum) instead of the root of the mean of squares; the factor sqrt(dim) is missing
# words: length of x
import torch
import torch.nn as nn

class RMSNorm(nn.Module):
    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(d))

    def forward(self, x):
        sq = torch.sum(x * x, dim=-1, keepdim=True)
        return self.scale * x * torch.rsqrt(sq + self.eps)

norm = RMSNorm(48)
