"""The checker on what is larger than attention, and on linear attention: right answers in several styles are right, and
every sentence is given to an answer with this bug, never another one."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from minigpt.grading.grade import grade_answer
from minigpt.grading.load import find_answer, run_file
from minigpt.grading.report import Report
from minigpt.grading.target import fill
from minigpt.grading.targets import find_target

HEAD = "import math\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


def grade(folder: Path, target: str, code: str) -> Report:
    """The report on a learner's file."""
    path = folder / "learner.py"
    path.write_text(HEAD + textwrap.dedent(code), encoding="utf-8")
    announced = find_target(target)
    return grade_answer(find_answer(run_file(path), announced, path), announced)


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
PLAIN_LOSS = changed(GPT, ("logits = self.lm_head(x[:, [-1], :])", "logits = self.lm_head(x)"))
RIGHT = {
    "matrix": ("linear_attention", MATRIX, "right"),
    "recurrent": ("linear_attention", RECURRENT, "right"),
    "module": ("linear_attention", MODULE, "right"),
    "one head, epsilon": ("linear_attention", ONE_HEAD, "1e-06 is added"),
    "sequential": ("mlp", SEQUENTIAL, "right"),
    "gpt-2's": ("mlp", GPT2_MLP, "tanh form"),
    "relu": ("mlp", RELU_MLP, "ReLU"),
    "nanoGPT's block": ("block", NANO, "right"),
    "PyTorch's layer": ("block", TORCH_LAYER, "right"),
    "LLaMA's norms": ("block", LLAMA, "RMSNorm"),
    "a mask as an argument": ("block", MASKED, "right"),
    "a norm by hand": ("block", OWN_NORM, "right"),
    "nanoGPT, tied head": ("gpt", GPT, "last position's logits only"),
    "lecture, relu": ("gpt", LECTURE, "ReLU"),
    "loss of the ids": ("gpt", OWN_LOSS, "right"),
    "no loss": ("gpt", PLAIN, "right"),
    "labels": ("gpt", LABELS, "labels are the ids"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_answers_are_right(name: str, tmp_path: Path) -> None:
    target, code, expected = RIGHT[name]
    report = grade(tmp_path, target, code)
    assert report.verdict.startswith("right"), report
    assert report.verdict == "right" if expected == "right" else expected in " ".join(report.names), report


WRONG = {
    "linear_attention": {
        "feature map is missing": (MATRIX, ("F.elu(query) + 1, F.elu(key) + 1", "query, key")),
        "keys only": (MATRIX, ("F.elu(query) + 1", "query")),
        "normaliser is missing": (MATRIX, (" / products.sum(-1, keepdim=True)", "")),
        "sums of the columns": (MATRIX, ("products.sum(-1, keepdim=True)", "products.sum(-2)[..., None]")),
        "still a softmax": (MATRIX, ("products / products.sum(-1, keepdim=True)",
                                     "products.masked_fill(mask == 0, -torch.inf).softmax(-1)")),
        "one step behind": (RECURRENT, ("            total = total + f\n", ""),
                            ("            rows.append(g @ state / (g @ total))",
                             "            rows.append(g @ state / (g @ total + 1e-6))\n            total = total + f")),
        "state holds the newest token only": (RECURRENT, ("state = state + torch.outer", "state = torch.outer")),
        "state and normaliser are not set back": (RECURRENT, (ZEROS, ""), ("    outs = []\n", EARLY)),
        "sums over the heads too": (MODULE, ('"bhtd,bhtd->bht", q, z)', '"bhtd,bhtd->bt", q, z)[:, None]')),
        "only the normaliser is causal": (MODULE, (".cumsum(dim=2)\n        z", ".sum(2, keepdim=True)\n        z"),
                                          ('"bhtd,bhtde->bhte", q, kv', '"bhtd,bhde->bhte", q, kv[:, :, 0]')),
        "feature map is relu, not": (ONE_HEAD, ("F.elu(self.query(x)) + 1, F.elu(self.key(x)) + 1",
                                                "F.relu(self.query(x)), F.relu(self.key(x))")),
    },
    "mlp": {
        "no activation": (SEQUENTIAL, ("nn.GELU(), ", "")),
        "after the second linear layer": (SEQUENTIAL, ("nn.GELU(), nn.Linear(40, 10)", "nn.Linear(40, 10), nn.GELU()")),
        "is SiLU": (SEQUENTIAL, ("GELU", "SiLU")),
        "without its root": (GPT2_MLP, ("math.sqrt(2 / math.pi)", "(2 / math.pi)")),
        "x is added inside": (RELU_MLP, ("return self.net(x)", "return x + self.net(x)")),
    },
    "block": {
        "first residual is missing": (NANO, ("x = x + self.attn(", "x = self.attn(")),
        "second residual is missing": (NANO, ("x = x + self.mlp(", "x = self.mlp(")),
        "post-norm": (NANO, ("x = x + self.attn(self.ln_1(x))", "x = self.ln_1(x + self.attn(x))"),
                      ("x = x + self.mlp(self.ln_2(x))", "x = self.ln_2(x + self.mlp(x))")),
        "norms are applied to what attention and MLP return": (
            NANO, ("self.attn(self.ln_1(x))", "self.ln_1(self.attn(x))"), ("self.mlp(self.ln_2(x))",
                                                                          "self.ln_2(self.mlp(x))")),
        "one norm is used for both": (NANO, ("self.mlp(self.ln_2(x))", "self.mlp(self.ln_1(x))")),
        "x is replaced by norm1(x)": (NANO, ("x = x + self.attn(self.ln_1(x))",
                                             "x = self.ln_1(x)\n        x = x + self.attn(x)")),
        "MLP reads the block's input x": (NANO, ("x = x + self.attn(self.ln_1(x))", "h = x + self.attn(self.ln_1(x))"),
                                          ("x = x + self.mlp(self.ln_2(x))", "x = h + self.mlp(self.ln_2(x))")),
        "second norm is missing": (NANO, ("self.mlp(self.ln_2(x))", "self.mlp(x)")),
        "in the attention: you divide the scores by sqrt(D)": (NANO, ("k.size(-1)", "C")),
        "in the attention: there is no causal mask": (
            NANO, ("        att = att.masked_fill(torch.ones(T, T).tril() == 0, float(\"-inf\"))\n", "")),
        "in the MLP: there is no activation": (NANO, ("F.gelu(self.c_fc(x))", "self.c_fc(x)")),
        "x.var() gives": (OWN_NORM, (", unbiased=False", "")),
        "divides by the variance, not by its root": (OWN_NORM, ("torch.sqrt(var + 1e-5)", "(var + 1e-5)")),
        "epsilon is 0.01": (OWN_NORM, ("1e-5", "1e-2")),
        "no epsilon": (OWN_NORM, ("var + 1e-5", "var")),
    },
    "gpt": {
        "shifted once more": (PLAIN_LOSS, ("logits.view(-1, logits.size(-1)), targets.view(-1)",
                                           "logits[:, :-1].reshape(-1, 17), targets[:, 1:].reshape(-1)")),
        "the loss is not shifted": (OWN_LOSS, ("logits[:, :-1].reshape", "logits.reshape"),
                                    ("ids[:, 1:].reshape", "ids.reshape")),
        "shifted twice": (OWN_LOSS, ("logits[:, :-1].reshape", "logits[:, :-2].reshape"),
                          ("ids[:, 1:].reshape", "ids[:, 2:].reshape")),
        "before cross entropy": (LECTURE, ("F.cross_entropy(logits, ", "F.cross_entropy(F.softmax(logits, dim=-1), ")),
        "no position is added": (GPT, (" + self.transformer.wpe(pos)", "")),
        "the positions start at 1": (GPT, ("torch.arange(0, T, dtype=torch.long)", "torch.arange(1, T + 1)")),
        "the position 0": (GPT, ("torch.arange(0, T, dtype=torch.long)", "torch.zeros(T, dtype=torch.long)")),
        "the final norm is missing": (PLAIN, ("self.norm(x) @", "x @")),
        "only the last position's logits": (PLAIN, ("self.norm(x) @", "self.norm(x)[:, -1:] @")),
        "return probabilities": (PLAIN, ("return logits", "return logits.softmax(-1)")),
        "in the attention: there is no causal mask": (
            LECTURE, ("        wei = wei.masked_fill(self.tril[:T, :T] == 0, float(\"-inf\"))\n", "")),
        "each block reads the embeddings": (GPT, ("x = self.transformer.drop(", "e = self.transformer.drop("),
                                            ("x = block(x)", "x = block(e)")),
        "one and the same block": (GPT, ("[Block(config[\"n_embd\"], config[\"n_head\"]) for _ in range(config["
                                         "\"n_layer\"])]", "[Block(20, 5)] * 2")),
        "divided by sqrt(D) = sqrt(20)": (PLAIN, ("self.tokens(ids) +", "self.tokens(ids) / 20**0.5 +")),
        "not their mean": (LECTURE, ("targets.view(B * T))", "targets.view(B * T), reduction=\"sum\")")),
        "view mixes": (LECTURE, ("        logits = logits.view(B * T, C)\n", ""),
                       ("F.cross_entropy(logits, targets.view(B * T))",
                        "F.cross_entropy(logits.view(B, C, T), targets)")),
        "in every block: the first residual": (GPT, ("x = x + self.attn(", "x = self.attn(")),
    },
}  # fmt: skip
CASES = [(target, part) for target, cases in WRONG.items() for part in cases]


@pytest.mark.parametrize(("target", "part"), CASES)
def test_a_bug_is_named(target: str, part: str, tmp_path: Path) -> None:
    code, *changes = WRONG[target][part]
    report = grade(tmp_path, target, changed(code, *changes))
    assert report.verdict == "wrong" and not report.measured, report
    assert part in report.names[0], report
    assert len(report.names) == 1 and report.fixes, report


def test_a_sentence_holds_the_sizes() -> None:
    target = find_target("mlp")
    assert "from 7 to 7" in fill(target.bugs[0].sentence, target.sizes)
