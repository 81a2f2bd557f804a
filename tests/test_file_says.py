"""What a learner's file says of itself is used: how it builds its classes, that it is not causal, what it smooths."""

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


@pytest.mark.parametrize(
    "built",
    [
        "config = dict(wide=24, voices=4)\n    Attention(config)",
        pytest.param("Attention({'wide': 24, 'voices': 4})", marks=pytest.mark.slow),
    ],
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
