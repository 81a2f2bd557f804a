"""What a learner's file says of itself is used: how it builds its classes, that it is not causal, what it smooths; and
what is said of a file of which nothing is announced."""

from __future__ import annotations

from pathlib import Path

import pytest

from minigpt.checks.learners.check import check_file
from minigpt.checks.learners.verdict import Report

HEAD = """
import torch
from torch import nn

class Attention(nn.Module):
    \"\"\"DOC\"\"\"
    def __init__(self, ARGUMENTS):
        super().__init__()
        self.n, self.q, self.k = HEADS, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.v, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (f(x).view(B, T, self.n, C // self.n).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.mT / (C // self.n) ** 0.5
        scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))
"""
CONFIG = HEAD.replace("ARGUMENTS", "cfg").replace("HEADS", "cfg['voices']").replace("WIDTH", "cfg['wide']")
ORDER = HEAD.replace("ARGUMENTS", "voices, wide").replace("HEADS", "voices").replace("WIDTH", "wide")
MASK = "scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)"
SCRIPT = """
import torch
from torch import nn
B, T, C = 4, 8, 32
x = torch.randn(B, T, C)
key, query, value = (nn.Linear(C, 16, bias=False) for _ in range(3))
scores = query(x) @ key(x).mT * 16**-0.5
scores = scores.masked_fill(torch.tril(torch.ones(T, T)) == 0, -torch.inf)
out = scores.softmax(-1) @ value(x)
"""


def check(source: str, announced: str, folder: Path) -> Report:
    """The report on a source, without a process of its own."""
    path = folder / "answer.py"
    path.write_text(source, encoding="utf-8")
    return check_file(path, announced)


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "built", ["config = dict(wide=24, voices=4)\n    Attention(config)", "Attention({'wide': 24, 'voices': 4})"]
)
def test_a_class_is_built_as_its_file_builds_it(built: str, tmp_path: Path) -> None:
    program = f"{CONFIG}\nif __name__ == '__main__':\n    {built}\n"
    assert check(program, "multi_head", tmp_path).verdict == "right"
    wrong = check(program.replace("** 0.5", "* 1.0"), "multi_head", tmp_path)
    assert wrong.verdict == "wrong" and "instead of sqrt(d)" in wrong.names[0]
    assert "as the file does" in wrong.how[0]


def test_the_order_of_its_arguments_is_that_of_the_file(tmp_path: Path) -> None:
    """Without the line, the first number would be taken for the width."""
    report = check(f"{ORDER}\nif __name__ == '__main__':\n    Attention(4, 24)\n", "multi_head", tmp_path)
    assert report.verdict == "right" and "Attention(4, 24)" in report.how[0]


def test_a_config_of_unknown_keys_is_no_mistake(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="end the file with a line like"):
        check(CONFIG, "multi_head", tmp_path)


def test_what_says_that_it_is_not_causal_needs_no_mask(tmp_path: Path) -> None:
    program = f"{ORDER.replace(MASK, 'pass')}\nattention = Attention(4, 24)\n".replace("DOC", "Not causal.")
    said = check(program, "multi_head", tmp_path)
    assert said.verdict.startswith("right")
    assert check(program.replace("Not causal.", ""), "multi_head", tmp_path).verdict == "wrong"


@pytest.mark.slow
def test_what_says_that_it_is_not_causal_has_one_mistake(tmp_path: Path) -> None:
    program = f"{ORDER.replace(MASK, 'pass')}\nattention = Attention(4, 24)\n".replace("DOC", "A bidirectional one.")
    wrong = check(program.replace("softmax(-1)", "softmax(-2)"), "multi_head", tmp_path)
    assert wrong.verdict == "wrong" and len(wrong.names) == 1 and "over the queries" in wrong.names[0]


def test_a_script_is_a_function_of_its_input(tmp_path: Path) -> None:
    assert check(SCRIPT, "single_head", tmp_path).verdict.startswith("right")
    wrong = check(SCRIPT.replace("* 16**-0.5", "* C**-0.5"), "single_head", tmp_path)
    assert wrong.verdict == "wrong" and "width of the model" in wrong.names[0]


def test_a_module_without_parameters_has_the_width_that_it_was_built_with(tmp_path: Path) -> None:
    program = """
import torch
from torch import nn

class Weights(nn.Module):
    def __init__(self, head_dim):
        super().__init__()
        self.scale = head_dim**-0.5

    def forward(self, q, k):
        scores = q @ k.mT * self.scale
        T, S = scores.shape[-2:]
        return scores.masked_fill(torch.ones(T, S).triu(S - T + 1) > 0, -1e9).softmax(-1)

weights = Weights(8)
"""
    assert check(program, "attention_weights", tmp_path).verdict == "right"


def test_weights_without_a_gradient_are_a_mistake(tmp_path: Path) -> None:
    program = f"{ORDER}\nattention = Attention(4, 24)\n"
    report = check(program.replace("(scores.softmax(-1)", "(scores.softmax(-1).detach()"), "multi_head", tmp_path)
    assert report.verdict == "wrong" and "gets no gradient" in report.names[0]


@pytest.mark.parametrize(
    ("argument", "verdict"), [("smoothing=0.1", "right, in another convention"), ("strength=0.1", "wrong")]
)
def test_labels_are_smoothed_where_an_argument_says_so(argument: str, verdict: str, tmp_path: Path) -> None:
    name = argument.partition("=")[0]
    program = f"""
import torch.nn.functional as F

def loss(logits, targets, {argument}):
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1), label_smoothing={name})
"""
    assert check(program, "loss", tmp_path).verdict == verdict


TOP = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n"
ROTATE = """
    def rotate(self, x, start=0):
        angles = torch.arange(start, start + x.shape[2])[:, None] * 1e4 ** (-torch.arange(0, self.d, 2) / self.d)
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1).flatten(-2)
"""
GROUPS = """
class Shared(nn.Module):
    def __init__(self, D, H, G):
        super().__init__()
        self.G, self.d = G, D // H
        self.q, self.kv, self.o = nn.Linear(D, D), nn.Linear(D, 2 * G * self.d), nn.Linear(D, D)

    def forward(self, x, window=WINDOW, weights=None):
        B, T, D = x.shape
        q, (k, v) = self.q(x).view(B, T, -1, self.d).transpose(1, 2), self.kv(x).view(B, T, 2, self.G, -1).unbind(2)
        k, v = (one.transpose(1, 2).REPEAT for one in (k, v))
        behind = torch.arange(T)[:, None] - torch.arange(T)
        hidden = (behind < 0) | (behind > window)
        if weights is None:
            weights = (q @ k.mT / self.d**0.5).masked_fill(hidden, -torch.inf).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).reshape(B, T, D))
"""
EACH = "repeat_interleave(q.shape[1] // self.G, 1)"
PLAIN = GROUPS.replace(", weights=None", "").replace("        if weights is None:\n            w", "        w")
SAID = {  # of a file of which nothing is announced
    "two functions, one of them a recurrence": (
        TOP + "def at_once(q, k, v):\n    a = ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).tril()\n"
        "    return a / a.sum(-1, keepdim=True) @ v\n\n"
        "def recurrent(q, k, v):\n    q, k = F.elu(q) + 1, F.elu(k) + 1\n"
        "    memory = (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(2)\n"
        "    return (q.unsqueeze(-2) @ memory).squeeze(-2) / (q * k.cumsum(2)).sum(-1, keepdim=True)\n",
        "right", "linear_attention"),
    "a rotation without forward": (
        TOP + "class Turner(nn.Module):\n    def __init__(self, head_dim):\n        super().__init__()\n"
        "        self.d = head_dim\n" + ROTATE, "right", "rotary"),
    "a rotation with twice the exponent": (
        TOP + "class Turner(nn.Module):\n    def __init__(self, head_dim):\n        super().__init__()\n"
        "        self.d = head_dim\n" + ROTATE.replace("2) / self.d", "2) / (self.d // 2)"), "wrong", "4i/d"),
    "a mask alone": (
        TOP + "def band_mask(T, window, device=None):\n    return torch.ones(T, T).tril().triu(1 - window) > 0\n",
        "cannot tell", "a mask alone"),
    "what was not tried": (GROUPS.replace("REPEAT", EACH).replace("WINDOW", "999"), "cannot tell",
                           "what was tried is right; not tried: what it does with `weights`"),
    "heads in order": (PLAIN.replace("REPEAT", EACH).replace("WINDOW", "999"), "right", "grouped_query"),
    "heads in turn": (PLAIN.replace("REPEAT", "repeat(1, q.shape[1] // self.G, 1, 1)").replace("WINDOW", "999"),
                      "right, in another convention", "h % G"),
    "a window that counts what is behind": (PLAIN.replace("REPEAT", EACH).replace("WINDOW", "3"),
                                            "right, in another convention", "a window of 3 a query sees 4"),
    "heads that meet inside a token": (
        ORDER.replace(".transpose(1, 2) for f", " for f").replace("torch.ones(T, T)", "torch.ones(self.n, self.n)")
        .replace("@ v).transpose(1, 2)", "@ v)") + "\nattention = Attention(4, 24)\n", "wrong", "of a head"),
    "a list of the class": (
        "class Memory:\n    kept = []\n    def append(self, k, v):\n        self.kept.append((k, v))\n"
        "        return (torch.cat(each, 2) for each in zip(*self.kept))\n"
        + ORDER.replace("self, x)", "self, x, memory)").replace(
            "        scores = q @", "        k, v = memory.append(k, v)\n        scores = q @"
        ).replace("torch.ones(T, T).triu(1)", "torch.ones(T, k.shape[2]).triu(1)")
        + "\n    def make_cache(self):\n        return Memory()\n\nattention = Attention(4, 24)\n",
        "wrong", "it ran once"),
}  # fmt: skip


@pytest.mark.quick(4)
@pytest.mark.parametrize("style", SAID)
def test_what_is_said_of_a_file_of_which_nothing_is_announced(style: str, tmp_path: Path) -> None:
    source, verdict, words = SAID[style]
    report = check(source if "import torch" in source else TOP + source, "", tmp_path)
    assert report.verdict == verdict and words in str(report), report
