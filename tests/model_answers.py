"""Learners' files for the checker: linear attention, MLPs, blocks and models in the styles that people write."""

from __future__ import annotations


def changed(code: str, *changes: tuple[str, str]) -> str:
    """A file with lines replaced, each of which must be there."""
    for old, new in changes:
        assert old in code, old
        code = code.replace(old, new)
    return code


MATRIX = """
def linear_attention(query, key, value):
    q, k = F.elu(query) + 1, F.elu(key) + 1
    products = q @ k.transpose(-2, -1)
    mask = torch.tril(torch.ones(products.shape[-2:]))
    products = products * mask
    return products / products.sum(-1, keepdim=True) @ value
"""
RECURRENT = """
def phi(x):
    return torch.where(x > 0, x + 1, x.exp())

def linear_attention(q, k, v):
    outs = []
    for b in range(q.shape[0]):
        state = torch.zeros(k.shape[-1], v.shape[-1])
        total = torch.zeros(k.shape[-1])
        rows = []
        for t in range(q.shape[1]):
            f = phi(k[b, t])
            state = state + torch.outer(f, v[b, t])
            total = total + f
            g = phi(q[b, t])
            rows.append(g @ state / (g @ total))
        outs.append(torch.stack(rows))
    return torch.stack(outs)
"""
MODULE = """
class LinearAttention(nn.Module):
    def __init__(self, d_model, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_heads, C // self.n_heads).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = torch.einsum("bhtd,bhte->bhtde", k, v).cumsum(dim=2)
        z = k.cumsum(dim=2)
        num = torch.einsum("bhtd,bhtde->bhte", q, kv)
        den = torch.einsum("bhtd,bhtd->bht", q, z)
        y = num / den[..., None]
        return self.proj(y.transpose(1, 2).reshape(B, T, C))

attention = LinearAttention(18, 3)
"""
ONE_HEAD = """
class Head(nn.Module):
    def __init__(self, n, d):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(n, d, bias=False) for _ in range(3))

    def forward(self, x):
        q, k, v = F.elu(self.query(x)) + 1, F.elu(self.key(x)) + 1, self.value(x)
        w = (q @ k.mT).tril()
        return (w @ v) / (w.sum(-1, keepdim=True) + 1e-6)

attention = Head(12, 7)
"""
SEQUENTIAL = """
layer = nn.Sequential(nn.Linear(10, 40), nn.GELU(), nn.Linear(40, 10), nn.Dropout(0.2))
"""
GPT2_MLP = """
class Conv1D(nn.Module):
    def __init__(self, nf, nx):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(nx, nf).normal_(0, 0.02))
        self.bias = nn.Parameter(torch.zeros(nf))

    def forward(self, x):
        return x @ self.weight + self.bias

def new_gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))

class MLP(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.c_fc, self.c_proj = Conv1D(4 * n, n), Conv1D(n, 4 * n)

    def forward(self, x):
        return self.c_proj(new_gelu(self.c_fc(x)))

mlp = MLP(9)
"""
RELU_MLP = """
class FeedForward(nn.Module):
    def __init__(self, n_embd):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.ReLU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        return self.net(x)

mine = FeedForward(9)
"""
BLOCK = """
class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head):
        super().__init__()
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.n_head, self.n_embd = n_head, n_embd

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(torch.ones(T, T).tril() == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)

class MLP(nn.Module):
    def __init__(self, n_embd):
        super().__init__()
        self.c_fc = nn.Linear(n_embd, 4 * n_embd)
        self.c_proj = nn.Linear(4 * n_embd, n_embd)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.dropout(self.c_proj(F.gelu(self.c_fc(x))))

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
"""
NANO = (
    BLOCK
    + """
block = Block(20, 5)
"""
)
TORCH_LAYER = """
block = nn.TransformerEncoderLayer(20, 5, 80, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)
"""
LLAMA = """
class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight

class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.attention_norm, self.ffn_norm = RMSNorm(dim), RMSNorm(dim)
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(dim, dim, bias=False) for _ in range(4))
        self.w1, self.w2 = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        B, T, D = x.shape
        z = self.attention_norm(x)
        q, k, v = (w(z).view(B, T, self.heads, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(y.transpose(1, 2).reshape(B, T, D))
        return x + self.w2(F.gelu(self.w1(self.ffn_norm(x))))

block = Block(20, 5)
"""
MASKED = (
    BLOCK.replace("def forward(self, x):\n        B, T, C", "def forward(self, x, mask=None):\n        B, T, C")
    .replace(
        'att.masked_fill(torch.ones(T, T).tril() == 0, float("-inf"))', 'att.masked_fill(mask == 0, float("-inf"))'
    )
    .replace(
        "def forward(self, x):\n        x = x + self.attn(self.ln_1(x))",
        "def forward(self, x, mask):\n        x = x + self.attn(self.ln_1(x), mask)",
    )
    + """
block = Block(20, 5)
"""
)
OWN_NORM = (
    BLOCK.replace("nn.LayerNorm(n_embd)", "Norm(n_embd)")
    + """
class Norm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        var = x.var(-1, keepdim=True, unbiased=False)
        return self.gamma * (x - mean) / torch.sqrt(var + 1e-5) + self.beta

block = Block(20, 5)
"""
)
GPT = (
    BLOCK
    + """
class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(config["vocab_size"], config["n_embd"]),
            wpe=nn.Embedding(config["block_size"], config["n_embd"]),
            drop=nn.Dropout(config["dropout"]),
            h=nn.ModuleList([Block(config["n_embd"], config["n_head"]) for _ in range(config["n_layer"])]),
            ln_f=nn.LayerNorm(config["n_embd"]),
        ))
        self.lm_head = nn.Linear(config["n_embd"], config["vocab_size"], bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx, targets=None):
        B, T = idx.size()
        pos = torch.arange(0, T, dtype=torch.long)
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

model = GPT(dict(vocab_size=17, block_size=12, n_embd=20, n_head=5, n_layer=2, dropout=0.1))
"""
)
LECTURE = """
n_embd, n_head, n_layer, block_size, vocab_size, dropout = 20, 5, 2, 8, 17, 0.2

class Head(nn.Module):
    def __init__(self, head_size):
        super().__init__()
        self.key = nn.Linear(n_embd, head_size, bias=False)
        self.query = nn.Linear(n_embd, head_size, bias=False)
        self.value = nn.Linear(n_embd, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x):
        B, T, C = x.shape
        k, q = self.key(x), self.query(x)
        wei = q @ k.transpose(-2, -1) * k.shape[-1] ** -0.5
        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ self.value(x)

class MultiHeadAttention(nn.Module):
    def __init__(self, num_heads, head_size):
        super().__init__()
        self.heads = nn.ModuleList([Head(head_size) for _ in range(num_heads)])
        self.proj = nn.Linear(head_size * num_heads, n_embd)

    def forward(self, x):
        return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.sa = MultiHeadAttention(n_head, n_embd // n_head)
        self.ffwd = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.ReLU(), nn.Linear(4 * n_embd, n_embd))
        self.ln1, self.ln2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)

    def forward(self, x):
        x = x + self.sa(self.ln1(x))
        return x + self.ffwd(self.ln2(x))

class GPTLanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.token_embedding_table = nn.Embedding(vocab_size, n_embd)
        self.position_embedding_table = nn.Embedding(block_size, n_embd)
        self.blocks = nn.Sequential(*[Block() for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size)

    def forward(self, idx, targets=None):
        B, T = idx.shape
        x = self.token_embedding_table(idx) + self.position_embedding_table(torch.arange(T))
        logits = self.lm_head(self.ln_f(self.blocks(x)))
        if targets is None:
            return logits, None
        B, T, C = logits.shape
        logits = logits.view(B * T, C)
        return logits, F.cross_entropy(logits, targets.view(B * T))

model = GPTLanguageModel()
"""
OWN_LOSS = (
    BLOCK
    + """
class Model(nn.Module):
    def __init__(self, V, D, H, L, C):
        super().__init__()
        self.tokens = nn.Embedding(V, D)
        self.positions = nn.Parameter(torch.zeros(1, C, D))
        self.layers = nn.ModuleList(Block(D, H) for _ in range(L))
        self.norm = nn.LayerNorm(D)
        self.n_head = H

    def forward(self, ids):
        x = self.tokens(ids) + self.positions[:, : ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = self.norm(x) @ self.tokens.weight.T
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))
        return {"logits": logits, "loss": loss}

model = Model(17, 20, 5, 2, 16)
"""
)
PLAIN = OWN_LOSS.replace(
    """        loss = F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))
        return {"logits": logits, "loss": loss}
""",
    """        return logits
""",
)
LABELS = (
    OWN_LOSS.replace("def forward(self, ids)", "def forward(self, ids, labels=None)")
    .replace("ids[:, 1:]", "labels[:, 1:]")
    .replace("        loss = F", "        loss = None if labels is None else F")
)
ZEROS = "        state = torch.zeros(k.shape[-1], v.shape[-1])\n        total = torch.zeros(k.shape[-1])\n"
EARLY = "    outs = []\n" + ZEROS.replace("        ", "    ")
POST = changed(
    NANO,
    ("x = x + self.attn(self.ln_1(x))", "x = self.ln_1(x + self.attn(x))"),
    ("x = x + self.mlp(self.ln_2(x))", "x = self.ln_2(x + self.mlp(x))"),
)
SWIGLU = """
class SwiGLU(nn.Module):
    def __init__(self, n, width):
        super().__init__()
        self.w1, self.w3, self.w2 = nn.Linear(n, width), nn.Linear(n, width), nn.Linear(width, n)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))

mlp = SwiGLU(9, 24)
"""
ROTARY = """
def turn(x):
    T, d = x.shape[-2:]
    angles = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
    even, odd = x[..., ::2], x[..., 1::2]
    pairs = (even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos())
    return torch.stack(pairs, -1).flatten(-2)
""" + changed(
    OWN_LOSS,
    ("        att = (q", "        q, k = turn(q), turn(k)\n        att = (q"),
    (" + self.positions[:, : ids.shape[1]]", ""),
    ("        self.positions = nn.Parameter(torch.zeros(1, C, D))\n", ""),
    ("17, 20, 5, 2", "17, 30, 5, 2"),
)
PLAIN_LOSS = changed(GPT, ("logits = self.lm_head(x[:, [-1], :])", "logits = self.lm_head(x)"))
