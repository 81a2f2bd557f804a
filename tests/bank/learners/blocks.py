"""Learners' programs: an MLP, a block, and a whole small GPT."""

# === mlp_sequential
# target: mlp
# right: up, GELU, down in a Sequential
from torch import nn

class FeedForward(nn.Module):
    def __init__(self, n_embd):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd), nn.Dropout(0.1))

    def forward(self, x):
        return self.net(x)

mlp = FeedForward(48)

# === mlp_parameters
# target: mlp
# right: matrices as Parameters, the tanh form of GELU by hand
import math
import torch
from torch import nn

class MLP(nn.Module):
    def __init__(self, d_model, d_mlp):
        super().__init__()
        self.W_in = nn.Parameter(torch.randn(d_model, d_mlp) * 0.02)
        self.b_in = nn.Parameter(torch.zeros(d_mlp))
        self.W_out = nn.Parameter(torch.randn(d_mlp, d_model) * 0.02)
        self.b_out = nn.Parameter(torch.zeros(d_model))

    def gelu(self, x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def forward(self, x):
        return self.gelu(torch.einsum("btd,dm->btm", x, self.W_in) + self.b_in) @ self.W_out + self.b_out

mlp = MLP(36, 144)

# === mlp_swiglu
# target: mlp
# right: SwiGLU as in Llama
import torch.nn.functional as F
from torch import nn

class MLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))

mlp = MLP(48, 128)

# === mlp_relu
# target: mlp
# right: ReLU, as in the first Transformer
import torch
from torch import nn

class PositionwiseFeedForward(nn.Module):
    def __init__(self, d_model=40, d_ff=160, dropout=0.1):
        super().__init__()
        self.w_1, self.w_2, self.dropout = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model), nn.Dropout(dropout)

    def forward(self, x):
        return self.w_2(self.dropout(self.w_1(x).relu()))

mlp = PositionwiseFeedForward()

# === mlp_without_activation
# target: mlp
# wrong: no activation: two linear maps are one linear map
# words: activation|linear|GELU|ReLU
from torch import nn

class FeedForward(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n, 4 * n), nn.Linear(4 * n, n))

    def forward(self, x):
        return self.net(x)

mlp = FeedForward(48)

# === mlp_activation_last
# target: mlp
# wrong: the activation stands after the second layer
# words: activation|GELU|after|second|end
import torch.nn.functional as F
from torch import nn

class MLP(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.up, self.down = nn.Linear(n, 4 * n), nn.Linear(4 * n, n)

    def forward(self, x):
        return F.gelu(self.down(self.up(x)))

mlp = MLP(48)

# === mlp_activation_twice
# target: mlp
# wrong: an activation after each layer
# words: activation|GELU|after|second|twice
import torch.nn.functional as F
from torch import nn

class MLP(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.up, self.down = nn.Linear(n, 4 * n), nn.Linear(4 * n, n)

    def forward(self, x):
        return F.gelu(self.down(F.gelu(self.up(x))))

mlp = MLP(48)

# === mlp_activation_first
# target: mlp
# wrong: the activation is applied to the input and not to the hidden layer
# words: activation|input|before|first
from torch import nn

class MLP(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.layers = nn.Sequential(nn.ReLU(), nn.Linear(n, 4 * n), nn.Linear(4 * n, n))

    def forward(self, x):
        return self.layers(x)

mlp = MLP(48)

# === mlp_gate_without_silu
# target: mlp
# wrong: the gate of SwiGLU has no SiLU: a product of two linear maps
# words: silu|activation|gate
from torch import nn

class MLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down_proj(self.gate_proj(x) * self.up_proj(x))

mlp = MLP(48, 128)

# === mlp_with_residual
# target: mlp
# wrong: adds x inside, so that a block would add it twice
# words: residual|adds x|add|twice
import torch.nn.functional as F
from torch import nn

class MLP(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(n, 4 * n), nn.Linear(4 * n, n)

    def forward(self, x):
        return x + self.fc2(F.gelu(self.fc1(x)))

mlp = MLP(48)

# === mlp_mixes_tokens
# target: mlp
# wrong: the hidden layer is divided by its spread over time (dim=1): tokens see one another
# words: token|position|time|future
import torch
from torch import nn

class MLP(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(n, 4 * n), nn.Linear(4 * n, n)

    def forward(self, x):
        h = torch.relu(self.fc1(x))
        h = h / (h.std(dim=1, keepdim=True, correction=0) + 1e-5)
        return self.fc2(h)

mlp = MLP(48)

# === block_prenorm
# target: block
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

# === block_llama
# target: block
# right: RMSNorm and SwiGLU
import torch
from torch import nn
import torch.nn.functional as F

class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))

class Attention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(d, d, bias=False) for _ in range(4))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (w(x).view(b, t, self.h, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        s = q @ k.mT / (d // self.h) ** 0.5 + torch.full((t, t), float("-inf")).triu(1)
        return self.wo((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

class FeedForward(nn.Module):
    def __init__(self, d, hidden):
        super().__init__()
        self.w1, self.w2, self.w3 = nn.Linear(d, hidden, bias=False), nn.Linear(hidden, d, bias=False), nn.Linear(d, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))

class TransformerBlock(nn.Module):
    def __init__(self, dim=48, n_heads=6):
        super().__init__()
        self.attention, self.feed_forward = Attention(dim, n_heads), FeedForward(dim, 128)
        self.attention_norm, self.ffn_norm = RMSNorm(dim), RMSNorm(dim)

    def forward(self, x):
        h = x + self.attention(self.attention_norm(x))
        return h + self.feed_forward(self.ffn_norm(h))

block = TransformerBlock()

# === block_inline
# target: block
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

# === block_postnorm
# target: block
# convention: norms after the residual sums, as in the first Transformer
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
        self.attn, self.ln1, self.ln2 = Attention(d, h), nn.LayerNorm(d), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.ReLU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = self.ln1(x + self.attn(x))
        return self.ln2(x + self.mlp(x))

block = Block(48, 6)

# === block_residual_from_norm
# target: block
# wrong: the residual adds the normed x, not x
# words: norm, residual|x +|instead
# seen: Howuhh/faster-trajectory-transformer#3
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
        x = self.ln1(x)
        x = x + self.attn(x)
        x = self.ln2(x)
        return x + self.mlp(x)

block = Block(48, 6)

# === block_without_residual
# target: block
# wrong: the attention's output replaces x instead of being added to it
# words: residual|add|x +
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
        x = self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))

block = Block(48, 6)

# === block_parallel
# target: block
# wrong: the MLP reads the block's input and not what attention has added to it (GPT-J's parallel form, not announced)
# words: parallel|input|before|same
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
        a = self.attn(self.ln1(x))
        m = self.mlp(self.ln2(x))
        return x + a + m

block = Block(48, 6)

# === block_one_norm
# target: block
# wrong: the first norm is used twice, the second never
# words: norm
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
        return x + self.mlp(self.ln1(x))

block = Block(48, 6)

# === block_no_second_norm
# target: block
# wrong: the MLP reads x without a norm
# words: norm
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
        self.ln1, self.attn = nn.LayerNorm(d), Attention(d, h)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(x)

block = Block(48, 6)

# === block_bug_in_attention
# target: block
# wrong: the block is right, the attention in it divides by sqrt(D)
# words: width of the model|sqrt(D)|embedding
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h, self.qkv, self.proj = h, nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        s = (q @ k.mT / d**0.5).masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        return self.proj((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))

class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.ln1, self.attn, self.ln2 = nn.LayerNorm(d), Attention(d, h), nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))

block = Block(48, 6)

# === block_mlp_first
# target: block
# wrong: the MLP comes before the attention
# words: order|before|first
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
        x = x + self.mlp(self.ln2(x))
        return x + self.attn(self.ln1(x))

block = Block(48, 6)
