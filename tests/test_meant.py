"""What an answer may be meant as, and how it is made into something that can be checked: functions with matrices of
their own, heads, weights or a loss instead of x, positions that were not announced, classes of unknown names."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from minigpt.grading.clock import Clock
from minigpt.grading.grade import grade_answer
from minigpt.grading.load import find_answer, run_file
from minigpt.grading.report import Report
from minigpt.grading.targets import find_target

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n"


def check(folder: Path, announced: str, code: str) -> Report:
    """The report on a learner's file, without a process of its own."""
    path, target = folder / "answer.py", find_target(announced)
    path.write_text(HEAD + textwrap.dedent(code), encoding="utf-8")
    answer = find_answer(run_file(path), target, path)
    answer.clock = Clock(100.0)  # time enough on any machine
    return grade_answer(answer, target)


def passes(report: Report, words: str = "") -> None:
    assert report.verdict == ("right, in another convention" if words else "right"), report
    assert words in " ".join(report.names), report


def is_wrong(report: Report, words: str) -> None:
    assert report.verdict == "wrong" and words in " ".join(report.names) and not report.measured, report


CLOSED = """
def heads(x, w):
    B, T, D = x.shape
    q, k, v = (F.linear(x, w[name]).view(B, T, 3, D // 3).transpose(1, 2) for name in "qkv")
    scores = (q @ k.mT / (D // 3) ** 0.5).masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
    return F.linear((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, D), w["o"])
"""
READ = "W = {name: torch.randn(21, 21) for name in 'qkvo'}\n" + CLOSED + "def attention(x):\n    return heads(x, W)\n"
DEFAULT = CLOSED + "def attention(x, w={name: torch.randn(21, 21) for name in 'qkvo'}):\n    return heads(x, w)\n"
GIVEN = (
    CLOSED + "def attention(x, w_q, w_k, w_v, w_o):\n    return heads(x, {'q': w_q, 'k': w_k, 'v': w_v, 'o': w_o})\n"
)
MADE = (
    "def init_params(d_model, seed=0):\n    return {name: torch.randn(d_model, d_model) for name in 'qkvo'}\n"
    + CLOSED.replace("def heads(x, w)", "def attention(params, x)").replace("w[", "params[")
)


@pytest.mark.parametrize("code", [READ, DEFAULT, MADE], ids=["of its file", "by default", "made by another function"])
def test_a_function_has_the_matrices_that_it_reads(code: str, tmp_path: Path) -> None:
    passes(check(tmp_path, "multi_head", code))
    is_wrong(check(tmp_path, "multi_head", code.replace("triu(1)", "triu(2)")), "also sees the next token")


def test_a_function_is_given_matrices_by_their_names(tmp_path: Path) -> None:
    code = GIVEN.replace("3, D // 3", "4, D // 4").replace("(D // 3)", "(D // 4)")
    passes(check(tmp_path, "multi_head", code))
    is_wrong(check(tmp_path, "multi_head", code.replace("(D // 4) ** 0.5", "D ** 0.5")), "the width of the model")


def test_matrices_in_float32_are_left_alone(tmp_path: Path) -> None:
    """Made double they would be copies, and what is put into them would not reach the function."""
    code = READ.replace("torch.randn(21, 21)", "torch.randn(21, 21, dtype=torch.float32)")
    code = code.replace("w[name])", "w[name].double())").replace('w["o"])', 'w["o"].double())')
    assert check(tmp_path, "multi_head", code).verdict == "cannot tell"


HEADS = """
def attend(q, k, v):
    B, H, T, d = q.shape
    scores = q @ k.mT / d ** 0.5
    scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
    return scores.softmax(-1) @ v
"""
ALIBI = HEADS.replace(
    "d ** 0.5\n",
    "d ** 0.5\n    far = torch.arange(T)[:, None] - torch.arange(T)\n"
    "    scores = scores - (2 ** (-8 * torch.arange(1, H + 1) / H))[:, None, None] * far\n",
)
LAST = HEADS.replace(
    "B, H, T, d = q.shape", "q, k, v = (x.transpose(1, 2) for x in (q, k, v))\n    B, H, T, d = q.shape"
)
LAST = LAST.replace("softmax(-1) @ v", "softmax(-1).matmul(v).transpose(1, 2)")
SHARED = HEADS.replace("scores = q", "k, v = (x.repeat_interleave(H // x.shape[1], 1) for x in (k, v))\n    scores = q")


@pytest.mark.parametrize(
    ("announced", "code"),
    [
        ("multi_head", HEADS),
        ("multi_head,alibi", ALIBI),
        ("attend,alibi", ALIBI),
        ("multi_head", LAST),
        ("grouped_query", SHARED),
    ],
)
def test_heads_may_be_given(announced: str, code: str, tmp_path: Path) -> None:
    passes(check(tmp_path, announced, code))
    is_wrong(check(tmp_path, announced, code.replace("/ d ** 0.5", "* d ** 0.5")), "you multiply the scores by sqrt(d)")


def test_the_axis_of_the_heads_is_found_by_what_stays_apart(tmp_path: Path) -> None:
    """Read in the other layout, the same numbers would be another bug."""
    is_wrong(check(tmp_path, "multi_head", LAST.replace("softmax(-1)", "softmax(1)")), "over the heads")
    tiled = SHARED.replace(
        "repeat_interleave(H // x.shape[1], 1)", "repeat_interleave(H // x.shape[1], 2).view(q.shape)"
    )
    is_wrong(check(tmp_path, "grouped_query", tiled), "along the positions")


def test_a_module_without_parameters_may_be_given_heads(tmp_path: Path) -> None:
    body = textwrap.indent(ALIBI.strip().replace("def attend(q", "def forward(self, q"), "    ")
    code = "class Alibi(nn.Module):\n    def __init__(self, n_heads):\n        super().__init__()\n\n" + body
    passes(check(tmp_path, "multi_head,alibi", code))
    is_wrong(check(tmp_path, "multi_head,alibi", code.replace("scores - (", "scores + (")), "sign of the bias")


TURN = """
def turn(x):
    T, d = x.shape[-2:]
    angle = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()), -1).flatten(-2)
"""
BOTH = TURN + "def rotary(q, k):\n    return turn(q), turn(k)\n"


ROTATIONS = [
    pytest.param(TURN, "rotary", id="of one tensor"),
    pytest.param(BOTH, "rotary", id="of both"),
    pytest.param(BOTH, "multi_head,rotary", id="of both, inside heads"),
    pytest.param(TURN, "multi_head,rotary", id="of one tensor, inside heads", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("code", "announced"), ROTATIONS)
def test_rotary_may_be_the_rotation_alone(code: str, announced: str, tmp_path: Path) -> None:
    passes(check(tmp_path, announced, code))
    minus = code.replace("a * angle.sin() + b * angle.cos()", "b * angle.cos() - a * angle.sin()")
    is_wrong(check(tmp_path, announced, minus), "a minus in both features")


def test_only_the_queries_are_turned(tmp_path: Path) -> None:
    is_wrong(check(tmp_path, "rotary", BOTH.replace("turn(k)", "k")), "only the queries are rotated")


WEIGHTS = """
class Weights(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.query, self.key = heads, nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        B, T, D = x.shape
        q, k = (layer(x).view(B, T, self.heads, -1).transpose(1, 2) for layer in (self.query, self.key))
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
        return scores.softmax(-1)
"""
ONE = WEIGHTS.replace(", heads)", ")").replace("self.heads, self.query", "self.query").replace("= heads, ", "= ")
ONE = ONE.replace(".view(B, T, self.heads, -1).transpose(1, 2)", "")


@pytest.mark.parametrize("code", [WEIGHTS, ONE], ids=["several heads", "one head"])
def test_the_weights_of_a_module_are_those_of_x(code: str, tmp_path: Path) -> None:
    passes(check(tmp_path, "attention_weights", code))
    is_wrong(check(tmp_path, "attention_weights", code.replace("softmax(-1)", "softmax(-2)")), "over the queries")
    is_wrong(check(tmp_path, "attention_weights", code.replace("/ q.shape[-1] ** 0.5", "")), "not scaled")


LOSS = """
def loss(logits, targets):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))
"""
IDS = (
    LOSS.replace("targets", "ids")
    .replace("logits.reshape", "logits[:, :-1].reshape")
    .replace("ids.re", "ids[:, 1:].re")
)


def test_the_name_of_an_argument_says_whether_a_loss_shifts(tmp_path: Path) -> None:
    passes(check(tmp_path, "loss", LOSS))
    passes(check(tmp_path, "loss", IDS))
    is_wrong(check(tmp_path, "loss", LOSS.replace("targets", "ids")), "the loss is not shifted")
    is_wrong(check(tmp_path, "loss", IDS.replace("ids", "targets")), "shifted once more")
    passes(check(tmp_path, "loss", LOSS.replace("targets", "labels")))  # these may be either
    passes(check(tmp_path, "loss", IDS.replace("ids", "labels")), "shifts them by one")


def test_a_loss_may_be_given_the_targets_first_or_rows(tmp_path: Path) -> None:
    passes(check(tmp_path, "loss", LOSS.replace("logits, targets", "targets, logits")))
    passes(check(tmp_path, "loss", "def loss(logits, targets):\n    return F.cross_entropy(logits, targets)\n"))
    is_wrong(check(tmp_path, "loss", LOSS.replace("))\n", "), reduction='sum')\n")), "the sum over all tokens")


def test_a_loss_may_call_the_model(tmp_path: Path) -> None:
    code = IDS.replace("(logits, ids):\n", "(model, ids):\n    logits = model(ids)\n")
    passes(check(tmp_path, "loss", code))
    is_wrong(
        check(tmp_path, "loss", code.replace(":, :-1]", ":, 1:]").replace("ids[:, 1:]", "ids[:, :-1]")), "wrong way"
    )


PADDED = """
def loss(logits, targets, pad=0):
    each = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    return (each * (targets != pad)).sum() / (targets != pad).sum()
"""


def test_padding_is_left_out_of_a_loss_that_has_an_argument_for_it(tmp_path: Path) -> None:
    passes(check(tmp_path, "loss", PADDED), "stands for padding")
    is_wrong(
        check(tmp_path, "loss", PADDED.replace("(targets != pad).sum()", "targets.numel()")), "still counts its tokens"
    )
    is_wrong(check(tmp_path, "loss", PADDED.replace("!=", "==")), "mask of the padding is inverted")
    none = PADDED.replace(", pad=0", "").replace("!= pad", "!= 0")
    is_wrong(check(tmp_path, "loss", none), "as if it were padding")


NORM = """
class Norm(nn.Module):
    def __init__(self, anything, eps=1e-5):
        super().__init__()
        self.one, self.two, self.eps = nn.Parameter(torch.ones(anything)), nn.Parameter(torch.zeros(anything)), eps

    def forward(self, x):
        far = x - x.mean(-1, keepdim=True)
        return far / (far.square().mean(-1, keepdim=True) + self.eps).sqrt() * self.one + self.two
"""
GEMMA = (
    "def rms_norm(x, gain, eps=1e-6):\n    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * (1 + gain)\n"
)


def test_a_norm_alone(tmp_path: Path) -> None:
    passes(check(tmp_path, "norm", NORM))
    passes(check(tmp_path, "norm", GEMMA), "kept around zero")
    is_wrong(check(tmp_path, "norm", NORM.replace(".mean(-1, keepdim=True) +", ".mean(1, keepdim=True) +").replace(
        "x.mean(-1", "x.mean(1")), "over the positions")  # fmt: skip
    is_wrong(check(tmp_path, "norm", NORM.replace("self.eps).sqrt()", "self.eps)")), "not by its root")
    is_wrong(check(tmp_path, "norm", NORM.replace(" * self.one + self.two", "")), "never used")
    is_wrong(check(tmp_path, "norm", GEMMA.replace("mean(-1, keepdim=True)", "mean()")), "without dim")


ATTENTION = """
class Attn(nn.Module):
    def __init__(self, some_width, some_heads):
        super().__init__()
        self.h = some_heads
        self.qkv, self.out = nn.Linear(some_width, 3 * some_width), nn.Linear(some_width, some_width)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(B, T, D))
"""


@pytest.mark.slow
def test_sizes_may_be_guessed_but_then_wrong_needs_a_name(tmp_path: Path) -> None:
    passes(check(tmp_path, "multi_head", ATTENTION))
    is_wrong(check(tmp_path, "multi_head", ATTENTION.replace("k, v, is", "k, k, is")), "applied to the keys")
    odd = check(tmp_path, "multi_head", ATTENTION.replace("self.out(y", "self.out(y.flip(2)"))
    assert odd.verdict == "cannot tell" and "had to be guessed" in odd.names[0], odd


def test_the_numbers_of_the_file_are_taken_where_others_cannot_be(tmp_path: Path) -> None:
    code = ATTENTION.replace("some_width, some_heads", "n_embd, n_head").replace("some_heads", "n_head")
    code = "n_embd, n_head = 28, 4\n" + code.replace("some_width", "28")
    report = check(tmp_path, "multi_head", code)
    passes(report)
    assert "Attn(n_embd=28, n_head=4)" in report.how[0], report


def test_a_function_may_make_the_module(tmp_path: Path) -> None:
    made = "class Rows(nn.Sequential):\n    pass\n\ndef my_mlp(d=7):\n    return Rows(nn.Linear(d, 28), nn.GELU(), "
    made += "nn.Linear(28, d))\n"
    report = check(tmp_path, "mlp", made)
    passes(report)
    assert report.how[0] == "built: my_mlp()", report


def test_parameters_may_be_made_at_the_first_call(tmp_path: Path) -> None:
    lazy = ATTENTION.replace("nn.Linear(some_width, 3 * some_width)", "nn.LazyLinear(3 * some_width)")
    passes(check(tmp_path, "multi_head", lazy.replace("some_width", "dim").replace("some_heads", "heads")))


def test_dropout_without_a_switch_is_seen(tmp_path: Path) -> None:
    code = ATTENTION.replace("some_heads):", "some_heads, dropout=0.0):").replace(
        "self.h = ", "self.p, self.h = dropout, "
    )
    passes(check(tmp_path, "multi_head", code.replace("return self.out(", "return F.dropout(self.out(").replace(
        "(B, T, D))", "(B, T, D)), self.p, self.training)")))  # fmt: skip
    drops = code.replace("return self.out(", "return F.dropout(self.out(").replace("(B, T, D))", "(B, T, D)), self.p)")
    is_wrong(check(tmp_path, "multi_head", drops), "dropout is active")


ROTATED = TURN + ATTENTION.replace("y = F.", "q, k = turn(q), turn(k)\n        y = F.")


def test_positions_that_were_not_announced_are_told(tmp_path: Path) -> None:
    passes(check(tmp_path, "multi_head", ROTATED), "it is right as multi_head,rotary")
    is_wrong(check(tmp_path, "multi_head", ATTENTION.replace(", is_causal=True", "")), "no causal mask")


CACHED = (
    ROTATED.replace("forward(self, x)", "forward(self, x, past=None)")
    .replace("is_causal=True", "attn_mask=mask")
    .replace(
        "        y = F.",
        "        if past is not None:\n            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)\n"
        "        mask = torch.ones(T, k.shape[2]).tril(k.shape[2] - T).bool()\n        y = F.",
    )
    .replace("(B, T, D))", "(B, T, D)), (k, v)")
)


@pytest.mark.slow
def test_a_bug_of_the_cache_is_named_under_positions_that_were_not_announced(tmp_path: Path) -> None:
    is_wrong(check(tmp_path, "multi_head,cache", CACHED), "positions start at 0 in every call")


STEP = (
    ATTENTION
    + """
    def reset(self, batch_size):
        self.keys = []

    def step(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.h, D // self.h).permute(2, 0, 3, 1, 4)
        self.keys.append((k, v))
        k, v = (torch.cat(each, 2) for each in zip(*self.keys))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, D))
"""
)


def test_a_cache_may_have_a_method_for_one_token(tmp_path: Path) -> None:
    passes(check(tmp_path, "multi_head,cache", STEP))


@pytest.mark.slow
def test_a_method_for_one_token_that_sees_two_tokens_only_is_wrong(tmp_path: Path) -> None:
    last = check(tmp_path, "multi_head,cache", STEP.replace("zip(*self.keys)", "zip(*self.keys[-2:])"))
    assert last.verdict == "wrong", last


def test_the_first_axis_may_be_the_sequence_where_the_file_says_so(tmp_path: Path) -> None:
    code = "def mean(x):{}\n    return x.cumsum(0) / torch.arange(1, len(x) + 1)[:, None, None]\n"
    passes(check(tmp_path, "running_mean", code.format("\n    '''x: (T, B, D)'''")), "first axis")
    is_wrong(check(tmp_path, "running_mean", code.format("")), "along the batch")


def test_a_column_may_be_a_token(tmp_path: Path) -> None:
    code = """
    def head(X, W_q, W_k, W_v):
        S = (W_k @ X).mT @ (W_q @ X) / len(W_k) ** 0.5
        S = S.masked_fill(torch.ones_like(S).tril(-1).bool(), -torch.inf)
        return (W_v @ X) @ S.softmax(0)
    """
    passes(check(tmp_path, "single_head", code), "each column of x is a token")


def test_a_function_of_one_length_is_not_asked_for_fewer_queries(tmp_path: Path) -> None:
    loop = """
    def attend(q, k, v):
        rows = []
        for t in range({}):
            rows.append((k[:, : t + 1] @ q[:, t, :, None] / q.shape[-1] ** 0.5).softmax(1).mT @ v[:, : t + 1])
        return torch.cat(rows, 1)
    """
    passes(check(tmp_path, "attend", loop.format("q.shape[1]")), "as many queries as keys")
    is_wrong(check(tmp_path, "attend", loop.format("min(q.shape[1], k.shape[1])")), "upper left corner")


def test_a_rotation_may_be_given_tables_that_its_file_makes(tmp_path: Path) -> None:
    tables = """
    def precompute(dim, end):
        angle = torch.arange(end)[:, None] * 10000.0 ** (-torch.arange(0, dim, 2) / dim)
        return angle.cos(), angle.sin()

    def rotate(xq, xk, cos, sin):
        turned = []
        for x in (xq, xk):
            a, b = x[..., 0::2], x[..., 1::2]
            turned.append(torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2))
        return turned
    """
    passes(check(tmp_path, "multi_head,rotary", tables))
    is_wrong(check(tmp_path, "multi_head,rotary", tables.replace("(0, dim, 2) / dim", "(0, dim, 2) / dim * 2")), "4i/d")
    lost = check(tmp_path, "multi_head,rotary", tables.replace("def precompute(dim, end)", "def precompute(dim, what)"))
    assert lost.verdict == "cannot tell" and "no function of the file makes cos, sin" in lost.names[0], lost


def is_measured(report: Report, words: str) -> None:
    assert report.verdict == "wrong" and report.measured and words in " ".join(report.names), report


ROWS = "mlp = nn.Sequential(nn.Linear(7, 28), nn.GELU(), Odd(), nn.Linear(28, 7))\n"
ODD = "class Odd(nn.Module):\n    def forward(self, x):\n        return {}\n\n" + ROWS


@pytest.mark.parametrize(("odd", "words"), [
    ("x / (x.std(1, keepdim=True) + 1)", "the output of token 1 changes with token 0"),
    ("x / (x.norm(dim=0, keepdim=True) + 1)", "the outputs of sequence 1 of the batch change with sequence 0"),
])  # fmt: skip
def test_what_must_not_matter_is_measured(odd: str, words: str, tmp_path: Path) -> None:
    is_measured(check(tmp_path, "mlp", ODD.format(odd)), words)


@pytest.mark.slow
def test_what_comes_later_is_measured_where_weights_cannot_be(tmp_path: Path) -> None:
    later = ATTENTION.replace(
        "return self.out(y", "y = y + 0.1 * v.square().mean(2, keepdim=True)\n        return self.out(y"
    )
    later = (
        later.replace("some_width, some_heads", "dim, heads")
        .replace("some_width", "dim")
        .replace("some_heads", "heads")
    )
    is_measured(check(tmp_path, "multi_head", later), "which comes later")


def test_the_weights_of_a_cache_are_measured(tmp_path: Path) -> None:
    """A step that reads the cache before it writes: the newest token is left out."""
    late = STEP.replace(
        "self.keys.append((k, v))\n        k, v =",
        "self.keys.append((k, v))\n        old = self.keys[:-1] or self.keys\n        k, v =",
    )
    is_measured(
        check(tmp_path, "multi_head,cache", late.replace("zip(*self.keys)", "zip(*old)")), "no weight to itself"
    )
