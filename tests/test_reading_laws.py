"""Programs are read: right ones in any layout obey every law, and each law is broken where a program breaks it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from minigpt.checks.laws.law import judged
from minigpt.checks.laws.softmax import INSIDE
from minigpt.checks.laws.target import find_target
from minigpt.checks.learners.check import best_of, in_double, read_all
from minigpt.checks.learners.handed_in import candidates
from minigpt.checks.learners.judging import Read
from minigpt.checks.reading.listing import listing
from minigpt.checks.reading.meanings import Feature, Mixture
from minigpt.checks.reading.parts import Parts
from minigpt.checks.reading.reading import Reading

RIGHT = """\
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H, self.d = H, D // H
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(x).split(D, -1)
        q, k, v = (y.view(B, T, self.H, self.d).transpose(1, 2) for y in (q, k, v))
        scores = q @ k.mT
        scores = scores / self.d**0.5
        hidden = torch.ones(T, T).triu(1).bool()
        scores = scores.masked_fill(hidden, -torch.inf)
        weights = scores.softmax(-1)
        mixed = weights @ v
        mixed = mixed.transpose(1, 2).reshape(B, T, D)
        return self.out(mixed)

attention = Attention(12, 2)
"""
SCORES, WEIGHTS = "scores = q @ k.mT", "weights = scores.softmax(-1)"
STYLES = {
    "plain": (),
    "einsum": ((SCORES, "scores = torch.einsum('bhtd,bhsd->bhts', q, k)"),),
    "a softmax by hand": (
        (WEIGHTS, "e = (scores - scores.amax(-1, keepdim=True)).exp(); weights = e / e.sum(-1, keepdim=True)"),
    ),
    "the logarithm of a sum": ((WEIGHTS, "weights = (scores - scores.logsumexp(-1, keepdim=True)).exp()"),),
    "renormalised": ((WEIGHTS, "weights = scores.exp(); weights = weights / weights.sum(-1, keepdim=True)"),),
    "keys first": (
        (SCORES, "scores = (k @ q.mT).mT"),
        ("mixed = weights @ v", "mixed = (v.mT @ weights.mT).mT"),
    ),
    "token by token": (
        (SCORES, "scores = torch.stack([(q[:, :, t, None] * k).sum(-1) for t in range(T)], 2)"),
        ("mixed = weights @ v", "mixed = sum(weights[..., s, None] * v[:, :, s, None] for s in range(T))"),
    ),
    "fused": ((WEIGHTS, "weights = scores"), ("scores / self.d**0.5", "scores"), ("mixed = weights @ v",
              "mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)")),
}  # fmt: skip
WRONG = [  # (old, new, what is found, the code of the line)
    ("scores / self.d**0.5", "scores / D**0.5", "divided by sqrt(D) = sqrt(12), the width of the model", "D**0.5"),
    ("scores / self.d**0.5", "scores", "not scaled", "q @ k.mT"),
    ("triu(1)", "triu(2)", "token 0 sees 0, 1", "softmax"),
    ("triu(1)", "triu(0)", "a token cannot see itself", "softmax"),
    ("-torch.inf", "0.0", "hidden scores of token 0 are 0", "softmax"),
    ("-torch.inf", "-100.0", "hidden scores of token 0 are -100", "softmax"),
    ("softmax(-1)", "softmax(-2)", "several softmaxes", "softmax(-2)"),
    ("softmax(-1)", "softmax(1)", "over the scores of 2 queries", "softmax(1)"),
    ("weights @ v", "weights @ k", "the values are the keys", "weights @ k"),
    ("weights @ v", "weights.mT @ v", "the weights are transposed", "weights.mT @ v"),
    ("mixed.transpose(1, 2)", "mixed", "joined without transpose", "reshape"),
    ("view(B, T, self.H, self.d).transpose(1, 2)", "reshape(B, self.H, T, self.d)", "meet the keys of", "q @ k.mT"),
    ("q @ k.mT", "q @ k.flip(0).mT", "another row of the batch", "k.flip(0)"),
    ("self.out(mixed)", "mixed", "the heads come out as they are", "weights @ v"),
    ("self.out(mixed)", "self.out(mixed) + x", "the input x stands here", ""),
    ("scores = q @ k.mT", "scores = q.relu() @ k.mT", "made by relu", "q.relu()"),
    ("B, T, D = x.shape", "B, T, D = x.shape; x *= 2", "x is written over", "x *= 2"),
    ("weights @ v", "weights.detach() @ v", "only a part of its gradient", "detach"),
    ("scores.softmax", "nn.functional.dropout(scores, 0.1, self.training).softmax", "scores are dropped", "dropout"),
    ("= scores.softmax(-1)", "= nn.functional.dropout(scores.softmax(-1), 0.1)", "", "dropout"),
    ("nn.Linear(D, D)", "nn.Linear(D, D); self.more = nn.Linear(D, D)", "of more.weight nothing is used", ""),
]


def read(source: str, folder: Path, announced: str = "multi_head") -> Read:
    """What the reading of a source says."""
    path = folder / "answer.py"
    path.write_text(source, encoding="utf-8")
    wanted = find_target(announced)
    return in_double(lambda: best_of(list(read_all(candidates(path, announced), wanted))))


def changed(*changes: tuple[str, str]) -> str:
    """The right program with some of its code replaced."""
    source = RIGHT
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    return source


@pytest.mark.parametrize("style", STYLES)
def test_a_right_program_obeys_every_law(style: str, tmp_path: Path) -> None:
    said = read(changed(*STYLES[style]), tmp_path)
    assert said.verdict.startswith("right"), (said.ends, said.laws)


@pytest.mark.parametrize(("old", "new", "words", "code"), WRONG)
def test_a_law_is_broken_at_its_line(old: str, new: str, words: str, code: str, tmp_path: Path) -> None:
    source = changed((old, new))
    said = read(source, tmp_path)
    assert said.verdict == "wrong" and words in said.laws[0].actual, (said.ends, said.laws)
    assert said.laws[0].law and said.laws[0].expected and said.laws[0].mend
    assert code in (source.splitlines()[said.laws[0].line - 1] if said.laws[0].line else "")


TURN = """\
        theta = torch.arange(T)[:, None] * 10000.0 ** (-torch.arange(0, self.d, 2) / self.d)
        def turn(y):
            a, b = y[..., ::2], y[..., 1::2]
            return torch.stack((a * theta.cos() - b * theta.sin(), a * theta.sin() + b * theta.cos()), -1).flatten(-2)
        q, k = turn(q), turn(k)
        scores = q @ k.mT
"""


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("", "", ""),
        ("torch.arange(T)", "torch.arange(5, T + 5)", ""),  # only differences count
        ("torch.stack((a * theta.cos() - b * theta.sin(), a * theta.sin() + b * theta.cos()), -1).flatten(-2)",
         "torch.view_as_real(torch.view_as_complex(torch.stack((a, b), -1))"
            " * torch.polar(theta * 0 + 1, theta)).flatten(-2)",
         ""),
        ("a, b = y[..., ::2], y[..., 1::2]", "a, b = y.chunk(2, -1)", ""),  # other pairs, as in Hugging Face's models
        ("10000.0", "1000.0", "apart"),
        ("a * theta.sin() + b", "a * theta.sin() - b", "the pair (0, 1) is multiplied by"),
        ("q, k = turn(q), turn(k)", "q = turn(q)", "the keys are not rotated"),
        ("q, k = turn(q), turn(k)", "q, k, v = turn(q), turn(k), turn(v)", "values are rotated"),
    ],
)  # fmt: skip
def test_angles_are_read_off_the_features(old: str, new: str, words: str, tmp_path: Path) -> None:
    said = read(changed(("        scores = q @ k.mT\n", TURN.replace(old, new) if old else TURN)), tmp_path,
                "multi_head,rotary")  # fmt: skip
    assert said.verdict == ("wrong" if words else "right"), (said.ends, said.laws)
    assert not words or words in said.laws[0].actual


def test_what_attention_does_not_have_ends_the_reading_with_its_line(tmp_path: Path) -> None:
    source = changed(("softmax(-1)", "sigmoid()"))
    said = read(source, tmp_path)
    assert said.verdict == "cannot tell" and "sigmoid" in said.ends
    assert f"line {source.splitlines().index('        weights = scores.sigmoid()') + 1}:" in said.ends


def test_the_listing_says_what_each_line_makes(tmp_path: Path) -> None:
    said = read(RIGHT, tmp_path)
    assert said.reading is not None
    text = listing(tmp_path / "answer.py", said.reading, said.attention, said.laws)
    for code, words in (("self.qkv(x).split", "queries"), ("q @ k.mT", "(B 2, H 2, T 5, S 5) scores, not scaled yet"),
                        ("masked_fill", "scores, scaled, hidden"),
                        ("softmax", "(B 2, H 2, T 5, S 5) weights over the keys"),
                        ("transpose(1, 2).reshape", "(B 2, T 5, D 12) mixtures of values")):  # fmt: skip
        line = next(number for number, line in enumerate(text.splitlines()) if code in line)
        assert words in "".join(text.splitlines()[line : line + 3])


def test_the_listing_shows_the_broken_law_below_its_line(tmp_path: Path) -> None:
    said = read(changed(("triu(1)", "triu(2)")), tmp_path)
    assert said.reading is not None
    lines = listing(tmp_path / "answer.py", said.reading, said.attention, said.laws).splitlines()
    (place,) = [number for number, line in enumerate(lines) if "token 0 sees 0, 1" in line]
    assert "softmax" in "".join(lines[place - 2 : place]) and "xx..." in lines[place + 1]


def test_a_number_is_what_it_is_made_of() -> None:
    """Two tokens of two features, by hand: a sum of tokens is a mixture, a sum of a token's features is a feature."""
    x = torch.randn(1, 2, 2, dtype=torch.float64)  # (B, T, D)
    with Reading(__file__) as reading, torch.no_grad():
        reading.text(x)
        over_tokens, over_features = x.sum(1), x.sum(2)
    (first, *_), (second, *_) = reading.shadows.ids(over_tokens).ravel(), reading.shadows.ids(over_features).ravel()
    assert reading.of.is_kind(int(first), Mixture) and reading.of.tokens(int(first)) == ((0, 0), (0, 1))
    assert reading.of.is_kind(int(second), Feature) and len(reading.of[int(second)].terms) == 2


def test_the_attentions_inside_a_program_are_found() -> None:
    """A residual stream is taken apart; what was a projection of mixtures obeys the laws on its own input."""
    scope: dict[str, type[nn.Module]] = {}
    exec(RIGHT.replace("attention = Attention(12, 2)", ""), scope)
    attention, norm, positions = scope["Attention"](12, 2).double(), nn.LayerNorm(12).double(), torch.randn(5, 12)
    x = torch.randn(2, 5, 12, dtype=torch.float64)  # (B, T, D)
    with Reading(__file__) as reading, torch.no_grad():
        reading.text(x)
        reading.parameters(nn.ModuleList([attention, norm]))
        x = x + positions
        for _ in range(2):
            x = x + attention(norm(x))
    ids = reading.shadows.ids(x)
    attentions = [node.attention for node in Parts(reading, ids).stream(tuple(ids[0, 0].tolist())) if node.attention]
    assert [(found.width, len(found.heads)) for found in attentions] == [(12, 2)] * 2
    assert all(judged(found, find_target("multi_head").wanted(5), INSIDE).broken == [] for found in attentions)


SPLIT = "q, k, v = (y.view(B, T, self.H, self.d).transpose(1, 2) for y in (q, k, v))"
QKV, OUT = "q, k, v = self.qkv(x).split(D, -1)", "self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)"
ONLINE = """\
m, total, mixed = torch.full((B, self.H, T, 1), -torch.inf), torch.zeros(B, self.H, T, 1), torch.zeros_like(q)
        for s in range(0, T, 2):
            part = scores[..., s : s + 2]
            new = torch.maximum(m, part.amax(-1, keepdim=True))
            e, r = (part - new).exp(), (m - new).exp()
            total, mixed, m = total * r + e.sum(-1, keepdim=True), mixed * r + e @ v[:, :, s : s + 2], new
        mixed = mixed / total
"""
CONVENTIONS = {
    "x is normed first": ((OUT, OUT + "; self.norm = nn.LayerNorm(D)"), ("self.qkv(x)", "self.qkv(self.norm(x))")),
    "the queries are normed": (("scores = q @ k.mT", "q, k = (y * (y.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() for "
                                                     "y in (q, k))\n        scores = q @ k.mT"),),
    "positions are added to x first": ((OUT, OUT + "; self.p = nn.Parameter(torch.randn(64, D))"),
                        ("self.qkv(x)", "self.qkv(x + self.p[:T])")),
    "rotated": (("        scores = q @ k.mT\n", TURN),),
    "share their keys": ((SPLIT, SPLIT + "; k, v = (y[:, ::2].repeat_interleave(2, 1) for y in (k, v))"),),
    "": ((WEIGHTS, ""), ("mixed = weights @ v", ONLINE)),
}  # fmt: skip


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_another_convention_is_a_note_with_its_name(convention: str, tmp_path: Path) -> None:
    said = read(changed(*CONVENTIONS[convention]), tmp_path)
    unused = convention == "share their keys"  # the other heads' keys, here
    assert said.verdict.split(",")[0] == ("wrong" if unused else "right"), (said.ends, said.laws)
    assert len(said.conventions) == bool(convention) and convention in "".join(said.conventions)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ((("scores / self.d**0.5", "30 * (scores / self.d**0.5 / 30).tanh()"),), "capped with tanh"),
        (((WEIGHTS, "e = (scores - scores.amax(-1, True)).exp(); weights = e / (1 + e.sum(-1, True))"),),
         "softmax off by one"),
        (((WEIGHTS, ""), ("mixed = weights @ v", ONLINE.replace("mixed * r +", "mixed +"))), "running maxima"),
        (((WEIGHTS, "weights = scores.masked_fill(hidden, 0.0)"), ("-torch.inf", "0.0")), "no softmax"),
    ],
)  # fmt: skip
def test_a_deviation_that_is_not_allowed_breaks_a_law(
    changes: tuple[tuple[str, str], ...], words: str, tmp_path: Path
) -> None:
    said = read(changed(*changes), tmp_path)
    assert said.verdict == "wrong" and words in said.laws[0].actual, (said.ends, said.laws)


FUNCTIONS = [  # (target, source, words)
    ("attention_weights", "def f(q, k): return seen(q @ k.mT / 4).softmax(-1)", "multiplied by 0.25"),
    ("attention_weights", "def f(q, k): return seen(q @ k.mT / q.shape[-1]**0.5).softmax(-1)", ""),
    ("attention_weights", "def f(q, k): return seen(q @ k.mT / q.shape[-1]**0.5).softmax(-2)", "over the queries"),
    ("dot_product", "def f(x): return seen(x @ x.mT).softmax(-1) @ x", ""),
    ("dot_product", "def f(x): return seen(x @ x.mT / 3).softmax(-1) @ x", "multiplied by 0.3333"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "source", "words"), FUNCTIONS)
def test_functions_that_return_weights_are_read(target: str, source: str, words: str, tmp_path: Path) -> None:
    seen = "def seen(s):\n    T, S = s.shape[-2:]\n    return s + torch.full((T, S), -torch.inf).triu(S - T + 1)\n"
    said = read(f"import torch\n{seen}\n{source}\n\nattention = f\n", tmp_path, target)
    assert said.verdict == ("wrong" if words else "right"), (said.ends, said.laws)
    assert words in "".join(law.actual for law in said.laws)


@pytest.mark.slow
def test_a_reading_does_not_import_the_compiler(tmp_path: Path) -> None:
    path = tmp_path / "answer.py"
    path.write_text(RIGHT, encoding="utf-8")
    code = (
        f"import sys\nfrom pathlib import Path\nfrom minigpt.checks.learners.check import check_file\nassert "
        f"check_file(Path({str(path)!r}), 'multi_head').verdict == 'right'\nassert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
