"""The checker on what is larger than attention, and on linear attention: right answers in several styles are right, and
every sentence is given to an answer with this bug, never another one."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from model_answers import (
    EARLY,
    GPT,
    GPT2_MLP,
    LABELS,
    LECTURE,
    LLAMA,
    MASKED,
    MATRIX,
    MODULE,
    NANO,
    ONE_HEAD,
    OWN_LOSS,
    OWN_NORM,
    PLAIN,
    PLAIN_LOSS,
    POST,
    RECURRENT,
    RELU_MLP,
    ROTARY,
    SEQUENTIAL,
    SWIGLU,
    TORCH_LAYER,
    ZEROS,
    changed,
)

from minigpt.grading.clock import Clock
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
    answer = find_answer(run_file(path), announced, path)
    answer.clock = Clock(100.0)  # time enough on any machine
    return grade_answer(answer, announced)


RIGHT = {
    "matrix": ("linear_attention", MATRIX, "right"),
    "recurrent": ("linear_attention", RECURRENT, "right"),
    "module": ("linear_attention", MODULE, "right"),
    "one head, epsilon": ("linear_attention", ONE_HEAD, "1e-06 is added"),
    "relu, epsilon": (
        "linear_attention",
        changed(
            ONE_HEAD, ("F.elu(self.query(x)) + 1, F.elu(self.key(x)) + 1", "F.relu(self.query(x)), F.relu(self.key(x))")
        ),
        "EfficientViT",
    ),
    "epsilon of keras": ("block", changed(OWN_NORM, ("1e-5", "1e-3")), "Keras"),
    "sequential": ("mlp", SEQUENTIAL, "right"),
    "gpt-2's": ("mlp", GPT2_MLP, "tanh form"),
    "relu": ("mlp", RELU_MLP, "ReLU"),
    "a gate": ("mlp", SWIGLU, "SwiGLU"),
    "post-norm": ("block", POST, "first Transformer"),
    "rotary positions": ("gpt", ROTARY, "rotary"),
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
        "feature map is relu, not": (MATRIX, ("F.elu(query) + 1, F.elu(key) + 1", "F.relu(query), F.relu(key)")),
    },
    "mlp": {
        "no activation": (SEQUENTIAL, ("nn.GELU(), ", "")),
        "after the second linear layer": (SEQUENTIAL, ("nn.GELU(), nn.Linear(40, 10)", "nn.Linear(40, 10), nn.GELU()")),
        "is SiLU": (SEQUENTIAL, ("GELU", "SiLU")),
        "without its root": (GPT2_MLP, ("math.sqrt(2 / math.pi)", "(2 / math.pi)")),
        "gate has no activation": (SWIGLU, ("F.silu(self.w1(x))", "self.w1(x)")),
        "x is added inside": (RELU_MLP, ("return self.net(x)", "return x + self.net(x)")),
    },
    "block": {
        "first residual is missing": (NANO, ("x = x + self.attn(", "x = self.attn(")),
        "second residual is missing": (NANO, ("x = x + self.mlp(", "x = self.mlp(")),
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
        "no transpose": (GPT, ("        for block in", "        x = x.view(T, B, -1)\n        for block in"),
                         ("x = self.transformer.ln_f(x)", "x = self.transformer.ln_f(x.view(B, T, -1))")),
        "again before every block": (GPT, ("x = block(x)", "x = block(x + self.transformer.wpe(pos))")),
        "compared with its own token": (LABELS.replace("ids", "input_ids"), ("logits[:, :-1]", "logits"),
                                        ("labels[:, 1:]", "labels")),
        "in every block: the first residual": (GPT, ("x = x + self.attn(", "x = self.attn(")),
    },
}  # fmt: skip
CASES = [(target, part) for target, cases in WRONG.items() for part in cases]
EACH = {"gpt": 16, "block": 3}  # a whole model takes a second or two, a block half of one: one bug of so many is quick
SAMPLED = [
    pytest.param(*case, marks=pytest.mark.slow) if number % EACH.get(case[0], 1) else case
    for number, case in enumerate(CASES)
]


@pytest.mark.parametrize(("target", "part"), SAMPLED)
def test_a_bug_is_named(target: str, part: str, tmp_path: Path, whole: bool) -> None:
    if not whole and target == "gpt" and CASES.index((target, part)) % 2:
        pytest.skip("one of those that --whole adds")
    code, *changes = WRONG[target][part]
    report = grade(tmp_path, target, changed(code, *changes))
    assert report.verdict == "wrong" and not report.measured, report
    assert part in report.names[0], report
    assert len(report.names) == 1 and report.fixes, report


def test_the_constants_of_an_activation_are_measured(tmp_path: Path) -> None:
    report = grade(tmp_path, "mlp", changed(GPT2_MLP, ("0.044715", "0.44715")))
    assert report.verdict == "wrong" and report.measured
    assert "x + 0.44715 x^3" in report.names[0], report


WIDE = """
def attend(query, key, value):
    out = torch.zeros_like(query)
    scores = query @ key.mT / query.shape[-1] ** 0.5
    hidden = torch.ones(scores.shape[-2:]).triu(1 + scores.shape[-1] - scores.shape[-2]) == 1
    out += scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value
    return out
"""


def test_values_may_have_to_be_as_wide_as_keys(tmp_path: Path) -> None:
    report = grade(tmp_path, "attend", WIDE)
    assert report.verdict == "right" and "as wide as its keys" in report.notes[-1], report
    report = grade(tmp_path, "attend", changed(WIDE, (" / query.shape[-1] ** 0.5", "")))
    assert report.verdict == "wrong" and "not scaled" in report.names[0], report


UNEQUAL = """
class MultiHead(nn.Module):
    def __init__(self, n, heads, d_k, d_v):
        super().__init__()
        self.heads = heads
        self.query, self.key = nn.Linear(n, heads * d_k), nn.Linear(n, heads * d_k)
        self.value, self.out = nn.Linear(n, heads * d_v), nn.Linear(heads * d_v, n)

    def forward(self, x):
        T = x.shape[1]
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

attention = MultiHead(15, 3, 4, 7)
"""


def test_values_may_be_wider_than_keys(tmp_path: Path) -> None:
    assert grade(tmp_path, "multi_head", UNEQUAL).verdict == "right"
    report = grade(tmp_path, "multi_head", changed(UNEQUAL, ("triu(1)", "triu(2)")))
    assert report.verdict == "wrong" and "next token" in report.names[0], report


def test_a_sentence_holds_the_sizes() -> None:
    target = find_target("mlp")
    assert "from 7 to 7" in fill(target.bugs[0].sentence, target.sizes)


OWN_LOSSES = {
    "    def loss(self, ids):\n        return F.cross_entropy(self(ids)[:, 1:].flatten(0, 1), ids[:, :-1].flatten())":
    "in `loss(ids)`: the loss is shifted the wrong way",
    "    def training_step(self, batch, batch_idx):\n        x, y = batch\n"
    "        return F.cross_entropy(self(x).softmax(-1).flatten(0, 1), y.flatten())":
    "in `training_step(batch, batch_idx)`: a softmax is applied before cross entropy",
    "def lm_loss(model, ids):\n    return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())":
    "in `lm_loss(model, ids)`: the loss is not shifted",
    "    def loss(self, ids, y):\n        return F.cross_entropy(self(ids).mT, y) + 1": "no known mistake explains",
    "    @staticmethod\n    def loss(logits, y):\n        return F.cross_entropy(logits.transpose(1, 2), y)": "",
    "    def step(self, batch):\n        return F.cross_entropy(self(batch[:, :-1]).mT, batch[:, 1:])": "",
}  # fmt: skip


@pytest.mark.parametrize("own", OWN_LOSSES)
def test_a_loss_beside_forward_is_checked_too(own: str, tmp_path: Path) -> None:
    report = grade(tmp_path, "gpt", PLAIN.replace("model = Model(", f"{own}\n\nmodel = Model("))
    if OWN_LOSSES[own]:
        assert not report.verdict.startswith("right"), report
        assert OWN_LOSSES[own] in " ".join(report.names), report
    else:
        assert report.verdict == "right", report


PROBABILITIES = {
    "the loss is right": (
        GPT,
        "        return logits, loss",
        "        return logits.softmax(-1), loss",
        "you return probabilities",
    ),
    "logarithms": (PLAIN, "return logits\n", "return logits.log_softmax(-1)\n", "logarithms of"),
}


@pytest.mark.parametrize("name", PROBABILITIES)
def test_a_model_may_return_probabilities(name: str, tmp_path: Path) -> None:
    code, old, new, words = PROBABILITIES[name]
    report = grade(tmp_path, "gpt", changed(code, (old, new)))
    assert report.verdict == ("right, in another convention" if name == "logarithms" else "wrong"), report
    assert words in " ".join(report.names), report
