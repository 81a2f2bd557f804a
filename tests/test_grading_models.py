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
ZEROS = "        state = torch.zeros(k.shape[-1], v.shape[-1])\n        total = torch.zeros(k.shape[-1])\n"
EARLY = "    outs = []\n" + ZEROS.replace("        ", "    ")
RIGHT = {
    "matrix": ("linear_attention", MATRIX, "right"),
    "recurrent": ("linear_attention", RECURRENT, "right"),
    "module": ("linear_attention", MODULE, "right"),
    "one head, epsilon": ("linear_attention", ONE_HEAD, "1e-06 is added"),
    "sequential": ("mlp", SEQUENTIAL, "right"),
    "gpt-2's": ("mlp", GPT2_MLP, "tanh form"),
    "relu": ("mlp", RELU_MLP, "ReLU"),
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
