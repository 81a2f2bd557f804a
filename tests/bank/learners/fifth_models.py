"""Learners' programs, a fifth lot, by an author who has not seen the checker: linear attention, MLPs, losses, blocks and whole models."""

# === fifth_block_norm_without_bias
# target: block
# right: nanoGPT block with its own LayerNorm without bias
import math
import torch
import torch.nn as nn
from torch.nn import functional as F

class LayerNorm(nn.Module):
    """ LayerNorm but with an optional bias. """

    def __init__(self, ndim, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(ndim))
        self.bias = nn.Parameter(torch.zeros(ndim)) if bias else None

    def forward(self, input):
        return F.layer_norm(input, self.weight.shape, self.weight, self.bias, 1e-5)

class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)
        self.n_head = n_head

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=None, dropout_p=0, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))

class MLP(nn.Module):
    def __init__(self, n_embd):
        super().__init__()
        self.c_fc = nn.Linear(n_embd, 4 * n_embd, bias=False)
        self.c_proj = nn.Linear(4 * n_embd, n_embd, bias=False)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x)))

class Block(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.ln_1 = LayerNorm(n_embd, bias=False)
        self.attn = CausalSelfAttention(n_embd, n_head)
        self.ln_2 = LayerNorm(n_embd, bias=False)
        self.mlp = MLP(n_embd)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        x = x + self.mlp(self.ln_2(x))
        return x

attention = Block(48, 6)

# === fifth_linear_relu_and_more
# target: linear_attention
# right: cumulative sums of outer products, ReLU feature map plus a small constant
import torch

def phi(u):
    return torch.relu(u) + 1e-3

def linattn(q, k, v):
    # all (B, h, T, d)
    fq, fk = phi(q), phi(k)
    kv = torch.cumsum(fk.unsqueeze(-1) * v.unsqueeze(-2), dim=-3)
    zaehler = (fq.unsqueeze(-2) @ kv).squeeze(-2)
    nenner = (fq * torch.cumsum(fk, dim=-2)).sum(-1, keepdim=True)
    return zaehler / nenner

attention = linattn

# === fifth_gpt_sines
# target: gpt
# right: sinusoidal positions, embeddings scaled by sqrt(d), (T,) ids without a batch also work
import math
import torch
from torch import nn
import torch.nn.functional as F

def sinus(T, d):
    pe = torch.zeros(T, d)
    position = torch.arange(T).unsqueeze(1)
    div_term = torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
    pe[:, 0::2] = torch.sin(position * div_term)
    pe[:, 1::2] = torch.cos(position * div_term)
    return pe

class Lage(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.n1, self.n2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.W = nn.Parameter(torch.randn(3, h, d, d // h) * d ** -0.5)
        self.O = nn.Parameter(torch.randn(h, d // h, d) * d ** -0.5)
        self.f1, self.f2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        y = self.n1(x)
        q, k, v = torch.einsum('...td,chde->c...hte', y, self.W)
        s = q @ k.mT / q.shape[-1] ** 0.5
        s = s.masked_fill(torch.ones(s.shape[-2:]).triu(1).bool(), -torch.inf)
        x = x + torch.einsum('...hte,hed->...td', s.softmax(-1) @ v, self.O)
        return x + self.f2(F.gelu(self.f1(self.n2(x))))

class KleinesGPT(nn.Module):
    def __init__(self, woerter=40, d=32, h=4, lagen=2, laenge=32):
        super().__init__()
        self.d = d
        self.E = nn.Embedding(woerter, d)
        self.register_buffer('pe', sinus(laenge, d))
        self.lagen = nn.ModuleList(Lage(d, h) for _ in range(lagen))
        self.norm = nn.LayerNorm(d)
        self.kopf = nn.Linear(d, woerter)

    def forward(self, ids):
        x = self.E(ids) * math.sqrt(self.d) + self.pe[: ids.shape[-1]]
        for lage in self.lagen:
            x = lage(x)
        return self.kopf(self.norm(x))

attention = KleinesGPT()

# === fifth_block_torch_german
# target: block
# right: nn.MultiheadAttention with a boolean mask (True = forbidden), German names, a leftover nn.Identity
import torch
import torch.nn as nn

class Schicht(nn.Module):
    def __init__(self, breite, koepfe, abfall=0.1):
        super().__init__()
        self.norm1 = nn.LayerNorm(breite)
        self.achtung = nn.MultiheadAttention(breite, koepfe, dropout=abfall, batch_first=True)
        self.norm2 = nn.LayerNorm(breite)
        self.netz = nn.Sequential(
            nn.Linear(breite, 4 * breite), nn.ReLU(),
            nn.Linear(4 * breite, breite), nn.Dropout(abfall))
        self.ende = nn.Identity()

    def forward(self, x):
        t = x.shape[1]
        verboten = torch.triu(torch.ones(t, t, dtype=torch.bool, device=x.device), 1)
        n = self.norm1(x)
        a, _ = self.achtung(n, n, n, attn_mask=verboten, need_weights=False)
        x = x + a
        return self.ende(x + self.netz(self.norm2(x)))

attention = Schicht(32, 4)

# === fifth_loss_one_hot
# target: loss
# right: jax translation: one-hot times log_softmax
import torch
import torch.nn.functional as F

def loss_fn(logits, tokens):
    V = logits.shape[-1]
    logp = F.log_softmax(logits[:, :-1], dim=-1)
    onehot = F.one_hot(tokens[:, 1:], V).to(logp.dtype)
    return -torch.sum(onehot * logp) / (logp.shape[0] * logp.shape[1])

attention = loss_fn

# === fifth_gpt_lecture
# target: gpt
# right: lecture notebook GPT with list of heads, block size 8
import torch
import torch.nn as nn
from torch.nn import functional as F

block_size = 8
n_embd = 24
n_head = 3
n_layer = 2
dropout = 0.2
vocab_size = 65
device = 'cpu'

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
        k = self.key(x)
        q = self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1]**-0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float('-inf'))
        wei = self.dropout(F.softmax(wei, dim=-1))
        return wei @ self.value(x)

class MultiHeadAttention(nn.Module):
    def __init__(self, num_heads, head_size):
        super().__init__()
        self.heads = nn.ModuleList([Head(head_size) for _ in range(num_heads)])
        self.proj = nn.Linear(head_size * num_heads, n_embd)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        out = torch.cat([h(x) for h in self.heads], dim=-1)
        return self.dropout(self.proj(out))

class FeedFoward(nn.Module):
    def __init__(self, n_embd):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd),
            nn.ReLU(),
            nn.Linear(4 * n_embd, n_embd),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        return self.net(x)

class Block(nn.Module):
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

class GPTLanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.token_embedding_table = nn.Embedding(vocab_size, n_embd)
        self.position_embedding_table = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*[Block(n_embd, n_head=n_head) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size)

    def forward(self, idx, targets=None):
        B, T = idx.shape
        tok_emb = self.token_embedding_table(idx)
        pos_emb = self.position_embedding_table(torch.arange(T, device=device))
        x = tok_emb + pos_emb
        x = self.blocks(x)
        x = self.ln_f(x)
        logits = self.lm_head(x)
        if targets is None:
            loss = None
        else:
            B, T, C = logits.shape
            loss = F.cross_entropy(logits.view(B * T, C), targets.view(B * T))
        return logits, loss

    def generate(self, idx, max_new_tokens):
        for _ in range(max_new_tokens):
            idx_cond = idx[:, -block_size:]
            logits, loss = self(idx_cond)
            probs = F.softmax(logits[:, -1, :], dim=-1)
            idx = torch.cat((idx, torch.multinomial(probs, num_samples=1)), dim=1)
        return idx

attention = GPTLanguageModel()

# === fifth_loss_backwards
# target: loss
# wrong: shifted in the wrong direction: the logits at t are scored on the token at t - 1
# words: wrong way
import torch

def lm_loss(lg, ids):
    lg = lg[:, 1:]
    y = ids[:, :-1]
    lp = lg - lg.logsumexp(-1, keepdim=True)
    return -lp.gather(2, y[..., None]).mean()

attention = lm_loss

# === fifth_block_unbiased
# target: block
# wrong: the layer norm by hand uses the unbiased variance (x.var with its default)
# words: D - 1
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
        var = x.var(-1, keepdim=True)
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

# === fifth_mlp_raw
# target: mlp
# right: raw (in, out) weights with the tanh GELU written out
import math
import torch
from torch import nn

def new_gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))

class Conv1D(nn.Module):
    def __init__(self, nf, nx):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(nx, nf) * 0.02)
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x):
        return torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight).view(*x.shape[:-1], -1)

class MLP(nn.Module):
    def __init__(self, nx, n_state):
        super().__init__()
        self.c_fc = Conv1D(n_state, nx)
        self.c_proj = Conv1D(nx, n_state)

    def forward(self, x):
        return self.c_proj(new_gelu(self.c_fc(x)))

attention = MLP(24, 96)

# === fifth_linear_state
# target: linear_attention
# right: recurrent state S and z in a loop, heads-last
import torch
from torch import nn

class LinearTransformerAttention(nn.Module):
    def __init__(self, d_model, n_heads, eps=1e-6):
        super().__init__()
        self.n_heads, self.eps = n_heads, eps
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.out_projection = nn.Linear(d_model, d_model)
        self.phi = lambda x: torch.nn.functional.elu(x) + 1

    def forward(self, x):
        N, L, D = x.shape
        H = self.n_heads
        q = self.phi(self.query_projection(x).view(N, L, H, -1))
        k = self.phi(self.key_projection(x).view(N, L, H, -1))
        v = self.value_projection(x).view(N, L, H, -1)
        S = x.new_zeros(N, H, D // H, D // H)
        z = x.new_zeros(N, H, D // H)
        out = []
        for t in range(L):
            S = S + torch.einsum("nhd,nhm->nhdm", k[:, t], v[:, t])
            z = z + k[:, t]
            num = torch.einsum("nhd,nhdm->nhm", q[:, t], S)
            den = torch.einsum("nhd,nhd->nh", q[:, t], z) + self.eps
            out.append((num / den[..., None]).reshape(N, D))
        return self.out_projection(torch.stack(out, dim=1))

attention = LinearTransformerAttention(32, 4)

# === fifth_gpt_no_positions
# target: gpt
# wrong: the position embedding is computed but never added
# words: position
import torch
from torch import nn
import torch.nn.functional as F
from types import SimpleNamespace

cfg = SimpleNamespace(vocab=50, ctx=16, width=24, heads=3, layers=2)

class Bloque(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        d = cfg.width
        self.cabezas = cfg.heads
        self.norma1, self.norma2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.red = nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d))

    def forward(self, x):
        B, T, D = x.shape
        y = self.norma1(x)
        q, k, v = (f(y).view(B, T, self.cabezas, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        s = q @ k.transpose(-1, -2) / (D // self.cabezas) ** 0.5
        s = s.masked_fill(torch.tril(torch.ones(T, T)) == 0, float('-inf'))
        x = x + self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D))
        return x + self.red(self.norma2(x))

class Modelo(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tokens = nn.Embedding(cfg.vocab, cfg.width)
        self.posiciones = nn.Embedding(cfg.ctx, cfg.width)
        self.bloques = nn.ModuleList([Bloque(cfg) for _ in range(cfg.layers)])
        self.norma = nn.LayerNorm(cfg.width)
        self.cabeza = nn.Linear(cfg.width, cfg.vocab, bias=False)

    def forward(self, ids, objetivos=None):
        T = ids.shape[1]
        x = self.tokens(ids)
        p = self.posiciones(torch.arange(T, device=ids.device))
        for bloque in self.bloques:
            x = bloque(x)
        logits = self.cabeza(self.norma(x))
        if objetivos is None:
            return logits, None
        return logits, F.cross_entropy(logits.transpose(1, 2), objetivos)

attention = Modelo(cfg)

# === fifth_block_llama_grouped
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

# === fifth_mlp_swiglu_joined
# target: mlp
# right: SwiGLU with a joined gate and up layer
import torch
import torch.nn as nn
import torch.nn.functional as F

class FeedForward(nn.Module):
    def __init__(self, dim, hidden_dim, multiple_of=8):
        super().__init__()
        hidden_dim = int(2 * hidden_dim / 3)
        hidden_dim = multiple_of * ((hidden_dim + multiple_of - 1) // multiple_of)
        self.gate_up = nn.Linear(dim, 2 * hidden_dim, bias=False)
        self.down = nn.Linear(hidden_dim, dim, bias=False)

    def forward(self, x):
        gate, up = torch.chunk(self.gate_up(x), 2, dim=-1)
        return self.down(up * F.silu(gate))

attention = FeedForward(32, 128)

# === fifth_loss_classes_second
# target: loss
# right: class dimension moved to dim 1, padding ignored, mean over the valid tokens
import torch
import torch.nn.functional as F

class PerdidaSiguiente(torch.nn.Module):
    def __init__(self, relleno=-1):
        super().__init__()
        self.relleno = relleno

    def forward(self, logits, ids):
        prediccion = logits[:, :-1].permute(0, 2, 1)
        objetivo = ids[:, 1:]
        return F.cross_entropy(prediccion.float(), objetivo, ignore_index=self.relleno)

attention = PerdidaSiguiente()

# === fifth_linear_square
# target: linear_attention
# right: elu + 1, quadratic form with tril
import torch
import torch.nn.functional as F

def linear_attention(q, k, v):
    q = F.elu(q) + 1
    k = F.elu(k) + 1
    a = torch.tril(q @ k.transpose(-1, -2))
    return (a @ v) / a.sum(dim=-1, keepdim=True)

attention = linear_attention

# === fifth_gpt_each_reads_embeddings
# target: gpt
# wrong: each block gets the embedding instead of the output of the block before it
# words: embeddings
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

class GPT2Config:
    vocab_size = 64
    n_positions = 32
    n_embd = 32
    n_head = 4
    n_layer = 3
    layer_norm_epsilon = 1e-5

class GPT2Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        d = config.n_embd
        self.ln_1 = nn.LayerNorm(d, eps=config.layer_norm_epsilon)
        self.ln_2 = nn.LayerNorm(d, eps=config.layer_norm_epsilon)
        self.n_head = config.n_head
        self.c_attn = nn.Linear(d, 3 * d)
        self.c_proj = nn.Linear(d, d)
        self.fc_in = nn.Linear(d, 4 * d)
        self.fc_out = nn.Linear(4 * d, d)

    def attn(self, h):
        B, T, D = h.shape
        q, k, v = (t.view(B, T, self.n_head, -1).transpose(1, 2) for t in self.c_attn(h).chunk(3, -1))
        w = q @ k.mT / math.sqrt(q.size(-1))
        w = w + torch.full((T, T), torch.finfo(w.dtype).min).triu(1)
        return self.c_proj((w.softmax(-1) @ v).transpose(1, 2).flatten(2))

    def forward(self, hidden_states):
        hidden_states = hidden_states + self.attn(self.ln_1(hidden_states))
        ff = self.fc_out(F.gelu(self.fc_in(self.ln_2(hidden_states)), approximate='tanh'))
        return hidden_states + ff

class GPT2LMHeadModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.n_positions, config.n_embd)
        self.h = nn.ModuleList([GPT2Block(config) for _ in range(config.n_layer)])
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)

    def forward(self, input_ids):
        position_ids = torch.arange(input_ids.shape[-1])[None]
        inputs_embeds = self.wte(input_ids) + self.wpe(position_ids)
        for block in self.h:
            hidden_states = block(inputs_embeds)
        hidden_states = self.ln_f(hidden_states)
        return hidden_states @ self.wte.weight.T

attention = GPT2LMHeadModel(GPT2Config())

# === fifth_block_no_second_residual
# target: block
# wrong: the second sublayer has no residual connection
# words: second residual
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class BlockConfig:
    n_embd: int = 40
    n_head: int = 5
    dropout: float = 0.0

class SelfAttn(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.query = nn.Linear(c.n_embd, c.n_embd)
        self.key = nn.Linear(c.n_embd, c.n_embd)
        self.value = nn.Linear(c.n_embd, c.n_embd)
        self.proj = nn.Linear(c.n_embd, c.n_embd)

    def forward(self, x):
        B, T, C = x.size()
        nh = self.c.n_head
        q = self.query(x).view(B, T, nh, C // nh).transpose(1, 2)
        k = self.key(x).view(B, T, nh, C // nh).transpose(1, 2)
        v = self.value(x).view(B, T, nh, C // nh).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) / (k.size(-1) ** 0.5)
        att = att + torch.triu(torch.full((T, T), float('-inf')), diagonal=1)
        y = att.softmax(-1) @ v
        return self.proj(y.transpose(1, 2).contiguous().view(B, T, C))

class TransformerBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.ln1 = nn.LayerNorm(c.n_embd)
        self.ln2 = nn.LayerNorm(c.n_embd)
        self.attn = SelfAttn(c)
        self.ff = nn.Sequential(
            nn.Linear(c.n_embd, 4 * c.n_embd),
            nn.GELU(approximate='tanh'),
            nn.Linear(4 * c.n_embd, c.n_embd),
            nn.Dropout(c.dropout),
        )

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        out = self.ff(self.ln2(x))
        return out

attention = TransformerBlock(BlockConfig())

# === fifth_gpt_no_final_norm
# target: gpt
# wrong: no final norm before the head
# words: final norm
import torch
import torch.nn as nn
import torch.nn.functional as F

class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, D))
        return x + self.mlp(self.ln2(x))

class MiniGPT(nn.Module):
    def __init__(self, vocab_size=48, block_size=16, d=32, h=4, n_layer=2):
        super().__init__()
        self.tok_emb = nn.Embedding(vocab_size, d)
        self.pos_emb = nn.Parameter(torch.zeros(1, block_size, d))
        nn.init.normal_(self.pos_emb, std=0.02)
        self.drop = nn.Dropout(0.1)
        self.blocks = nn.Sequential(*[Block(d, h) for _ in range(n_layer)])
        self.head = nn.Linear(d, vocab_size, bias=False)

    def forward(self, idx, targets=None):
        b, t = idx.size()
        x = self.drop(self.tok_emb(idx) + self.pos_emb[:, :t, :])
        x = self.blocks(x)
        logits = self.head(x)
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss

attention = MiniGPT()

# === fifth_loss_not_shifted
# target: loss
# wrong: not shifted: the logits at t are scored on the token at t itself
# words: not shifted
import torch.nn.functional as F

def next_token_loss(logits, ids):
    """cross entropy of the next tokens of ids (B, T)"""
    B, T, V = logits.shape
    logits = logits.reshape(B * T, V)
    ids = ids.reshape(B * T)
    return F.cross_entropy(logits, ids)

attention = next_token_loss

# === fifth_mlp_silu_of_product
# target: mlp
# wrong: SwiGLU applies silu to the product of gate and up instead of to the gate
# words: product
import torch
from torch import nn
from types import SimpleNamespace

class GatedMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, hidden_state):
        return self.down_proj(self.act_fn(self.gate_proj(hidden_state) * self.up_proj(hidden_state)))

attention = GatedMLP(SimpleNamespace(hidden_size=32, intermediate_size=88))

# === fifth_loss_softmax_twice
# target: loss
# wrong: softmax before cross_entropy, which applies log_softmax once more
# words: softmax
import torch
import torch.nn as nn

class Verlust(nn.Module):
    def __init__(self):
        super().__init__()
        self.ce = nn.CrossEntropyLoss()

    def forward(self, logits, ziele):
        B, T, V = logits.shape
        p = torch.softmax(logits, dim=-1)
        return self.ce(p.view(B * T, V), ziele.view(B * T))

attention = Verlust()

# === fifth_block_dict
# target: block
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

# === fifth_gpt_tied
# target: gpt
# right: nanoGPT-like, tied weights, forward(idx, targets=None) -> (logits, loss), logits at all positions
import math
from dataclasses import dataclass
import torch
import torch.nn as nn
from torch.nn import functional as F

@dataclass
class GPTConfig:
    block_size: int = 16
    vocab_size: int = 50
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 32
    dropout: float = 0.0

class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.n_head = config.n_head
        self.register_buffer("bias", torch.tril(torch.ones(config.block_size, config.block_size))
                             .view(1, 1, config.block_size, config.block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float('-inf'))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))

class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd)
        self.mlp = nn.Sequential(nn.Linear(config.n_embd, 4 * config.n_embd), nn.GELU(),
                                 nn.Linear(4 * config.n_embd, config.n_embd), nn.Dropout(config.dropout))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))

class GPT(nn.Module):
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
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        b, t = idx.size()
        pos = torch.arange(0, t, dtype=torch.long, device=idx.device)
        x = self.transformer.drop(self.transformer.wte(idx) + self.transformer.wpe(pos))
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        logits = self.lm_head(x)
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss

attention = GPT(GPTConfig())

# === fifth_loss_hugging_face
# target: loss
# right: shift inside, logits and ids, HF style
import torch.nn as nn

def causal_lm_loss(logits, labels):
    shift_logits = logits[..., :-1, :].contiguous()
    shift_labels = labels[..., 1:].contiguous()
    loss_fct = nn.CrossEntropyLoss()
    return loss_fct(shift_logits.view(-1, shift_logits.size(-1)), shift_labels.view(-1))

attention = causal_lm_loss

# === fifth_mlp_squared_relu
# target: mlp
# right: squared ReLU (Primer), weights stored transposed with F.linear
import torch
import torch.nn as nn
import torch.nn.functional as F

class Vorwaerts(nn.Module):
    def __init__(self, breite, faktor=4):
        super().__init__()
        self.auf = nn.Parameter(torch.randn(faktor * breite, breite) / breite ** 0.5)
        self.ab = nn.Parameter(torch.randn(breite, faktor * breite) / (faktor * breite) ** 0.5)

    def forward(self, x):
        h = F.relu(F.linear(x, self.auf)).square()
        return F.linear(h, self.ab)

attention = Vorwaerts(16)

# === fifth_block_normed_stream
# target: block
# wrong: the residuals start from the normed input
# words: norm
import torch
import torch.nn as nn
import torch.nn.functional as F

class Attention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d)
        self.o = nn.Linear(d, d)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(B, T, D))

class PreNormBlock(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn = Attention(d, h)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = self.ln1(x)
        x = x + self.attn(x)
        x = self.ln2(x)
        x = x + self.mlp(x)
        return x

attention = PreNormBlock(32, 4)

# === fifth_mlp_nanogpt
# target: mlp
# right: nanoGPT MLP
import torch.nn as nn

class MLP(nn.Module):
    def __init__(self, n_embd, dropout=0.1, bias=True):
        super().__init__()
        self.c_fc    = nn.Linear(n_embd, 4 * n_embd, bias=bias)
        self.gelu    = nn.GELU()
        self.c_proj  = nn.Linear(4 * n_embd, n_embd, bias=bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = self.c_fc(x)
        x = self.gelu(x)
        x = self.c_proj(x)
        x = self.dropout(x)
        return x

attention = MLP(32)

# === fifth_gpt_llama
# target: gpt
# right: rotary by pairs, RMSNorm, SwiGLU, no biases, loss shifted inside when labels are given
import torch
from torch import nn
import torch.nn.functional as F

class Norm(nn.Module):
    def __init__(s, d):
        super().__init__()
        s.g = nn.Parameter(torch.ones(d))
    def forward(s, x):
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * s.g

def rope(x):
    n, d = x.shape[-2:]
    a = torch.arange(n)[:, None] * 10000 ** (-torch.arange(0, d, 2) / d)
    e, o = x[..., ::2], x[..., 1::2]
    return torch.stack([e * a.cos() - o * a.sin(), e * a.sin() + o * a.cos()], -1).flatten(-2)

class Layer(nn.Module):
    def __init__(s, d, h, f):
        super().__init__()
        s.h = h
        s.a, s.b = Norm(d), Norm(d)
        s.q, s.k, s.v, s.o = [nn.Linear(d, d, bias=False) for _ in range(4)]
        s.w1, s.w3 = nn.Linear(d, f, bias=False), nn.Linear(d, f, bias=False)
        s.w2 = nn.Linear(f, d, bias=False)
    def forward(s, x):
        y = s.a(x)
        q, k, v = [l(y).unflatten(-1, (s.h, -1)).transpose(1, 2) for l in (s.q, s.k, s.v)]
        z = F.scaled_dot_product_attention(rope(q), rope(k), v, is_causal=True)
        x = x + s.o(z.transpose(1, 2).flatten(2))
        y = s.b(x)
        return x + s.w2(F.silu(s.w1(y)) * s.w3(y))

class LM(nn.Module):
    def __init__(s, V, d, h, f, L):
        super().__init__()
        s.emb = nn.Embedding(V, d)
        s.layers = nn.Sequential(*[Layer(d, h, f) for _ in range(L)])
        s.norm = Norm(d)
        s.head = nn.Linear(d, V, bias=False)
    def forward(s, ids, labels=None):
        logits = s.head(s.norm(s.layers(s.emb(ids))))
        if labels is None:
            return logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return loss, logits

attention = LM(60, 32, 4, 80, 2)

# === fifth_loss_logsumexp
# target: loss
# right: already shifted targets, log-sum-exp by hand
import torch

def nll(logits, targets):
    # targets[b, t] is the token that follows position t
    lse = torch.logsumexp(logits, dim=-1)
    picked = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return (lse - picked).mean()

attention = nll

# === fifth_mlp_linear
# target: mlp
# wrong: no nonlinearity between the two layers
# words: no activation
import torch.nn as nn

class FeedFoward(nn.Module):
    """ a simple linear layer followed by a non-linearity """

    def __init__(self, n_embd, dropout=0.0):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd),
            nn.Identity(),
            nn.Linear(4 * n_embd, n_embd),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        return self.net(x)

attention = FeedFoward(32)

# === fifth_linear_chunked_exp
# target: linear_attention
# right: chunked with a carried state, exp feature map, a column of ones in v as normaliser
import torch
import torch.nn as nn

class ChunkedLinear(nn.Module):
    def __init__(self, dim, head, chunk=4):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * head, bias=False)
        self.proj = nn.Linear(head, dim)
        self.chunk = chunk

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = q.exp(), k.exp()
        v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
        state = 0
        ys = []
        for qc, kc, vc in zip(q.split(self.chunk, 1), k.split(self.chunk, 1), v.split(self.chunk, 1)):
            y = torch.tril(qc @ kc.mT) @ vc
            if torch.is_tensor(state):
                y = y + qc @ state
            state = state + kc.mT @ vc
            ys.append(y)
        y = torch.cat(ys, 1)
        return self.proj(y[..., :-1] / y[..., -1:])

attention = ChunkedLinear(24, 12)

# === fifth_linear_no_normaliser
# target: linear_attention
# wrong: the normaliser is missing
# words: normaliser
import torch
from torch import nn
import torch.nn.functional as F

class LinearAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        context = torch.einsum('bhnd,bhne->bhnde', k, v).cumsum(dim=2)
        out = torch.einsum('bhnd,bhnde->bhne', q, context)
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))

attention = LinearAttention(32, 4)

# === fifth_linear_elu_alone
# target: linear_attention
# wrong: the feature map is elu without + 1, so features and normaliser can be negative
# words: elu without
import torch
import torch.nn.functional as F

def causal_linear(Q, K, V):
    """Q, K: (B, T, D), V: (B, T, M)"""
    Q, K = F.elu(Q), F.elu(K)
    KV = torch.einsum("btd,btm->btdm", K, V).cumsum(1)
    Z = 1.0 / torch.einsum("btd,btd->bt", Q, K.cumsum(1))
    return torch.einsum("btd,btdm,bt->btm", Q, KV, Z)

attention = causal_linear
