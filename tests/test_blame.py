"""Whose mistake it is: an error of a plugin names its file, its line and what called it, and never us."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from comparing import SMALL
from running import CONFIG, Ended, furnish, script, well

HEAD = """\
import math, sys
import torch
from dataclasses import dataclass
from torch import nn
from minigpt.attention import Attention, MultiHead, Past, Position
from minigpt.text.tokenizer import Char
from minigpt.training.optimizer import AdamW, Rule
"""  # seven lines
KIND = 'class Mine(MultiHead, kind="mine"):\n'
USED = "model.attention=mine"
WRONG = KIND + (
    "    def output(self, mixed, x):\n        return super().output(mixed, x) + (wrong if self.training else 0)\n"
)
BACKWARD = """\
class Double(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return 2 * x
    @staticmethod
    def backward(context, gradient):
        return gradient + nothing
"""


def ended_with(folder: Path, body: str, *options: str, name: str = "train.py", config: str = CONFIG) -> Ended:
    """How a command ends with a plugin of this text after HEAD."""
    if not (folder / "small.yaml").exists():
        furnish(folder, config)
    (folder / "mine.py").write_text(HEAD + body, encoding="utf-8")
    first = ("--config", "small.yaml") if name in ("train.py", "compare.py") else ()
    return script(name, *first, *options, "--plugin", "mine.py", cwd=folder)


def check(ended: Ended, expected: str) -> None:
    """One line of error that begins as expected, but for the class of the caller, and exit code 2."""
    *progress, last = ended.err.splitlines()
    said = re.sub(r"called by \w+\.", "called by ", last)  # which Python 3.10 does not know
    assert said.startswith(f"error: {expected}"), ended.err
    assert all(re.fullmatch(r"[\w ]+: .* s", line) for line in progress)  # of a busy machine
    assert ended.code == 2


IN_TRAINING = {
    "a product that does not fit": (
        KIND + "    def scores(self, query, key):\n        return query @ key\n",
        "mine.py:10 in scores (called by weights, layer 1): RuntimeError: ",
    ),
    "a helper of its own": (
        KIND + "    def scores(self, query, key):\n        return self.help(query)\n"
        "    def help(self, x):\n        return x.n\n",
        "mine.py:12 in help (called by weights, layer 1): AttributeError: 'Tensor' object has no",
    ),
    "a missing argument": (
        KIND + "\n    def scores(self, query):\n        return query\n",
        "mine.py:10 in scores (called by weights, layer 1): TypeError: Mine.sco",
    ),
    "a layer of a width that a function of ours meets": (
        "from minigpt.attention.linear.retention import Retention\n"
        + KIND.replace("MultiHead", "Retention")
        + "    def __init__(self, config, model, layer=0):\n        super().__init__(config, model, layer)\n"
        "        self.query, self.key = nn.Linear(16, 4), nn.Linear(16, 4)\n",
        "mine.py:9 in Mine (called by split_heads, layer 1): RuntimeError: ",
    ),
    "a constructor without the layer": (
        KIND + "    def __init__(self, config, model):\n        super().__init__(config, model)\n",
        "mine.py:9 in __init__ (called by __init__, layer 1): TypeError: Mine.__init__() takes 3",
    ),
    "a layer made before the constructor of the base": (
        KIND + "    def __init__(self, config, model, layer=0):\n        self.gate = nn.Linear(2, 2)\n",
        "mine.py:10 in __init__ (called by __init__, layer 1): AttributeError: cannot assign",
    ),
    "the constructor of the base never called": (
        KIND + "    def __init__(self, config, model, layer=0):\n        nn.Module.__init__(self)\n",
        "mine.py:8 in Mine (called by qkv, layer 1): AttributeError: 'Mine' object has no attribute",
    ),
    "no weights": (
        'class Mine(Attention, kind="mine"):\n    pass\n',
        "mine.py:8 in Mine (called by weights, layer 1): TypeError: Mine does not say where",
    ),
    "a mask of numbers": (
        KIND + "    def mask(self, T, S, device):\n        return torch.ones(T, S).tril()\n",
        "mine.py:8 in Mine (called by weights, layer 1): TypeError: ",
    ),
    "qkv without a value": (
        KIND + "    def qkv(self, x, past):\n        return super().qkv(x, past)[:2]\n",
        "mine.py:9: qkv of layer 1 (mine) returned (2, 2, 5, 8) and (2, 2, 5, 8), expected "
        "(B, H, T, d) = (2, any, 5, any) and (B, G, T, d) = (2, any, 5, any) and ",
    ),
    "weights without heads": (
        KIND + "    def weights(self, query, key):\n        return super().weights(query, key).mean(1)\n",
        "mine.py:9: weights of layer 1 (mine) returned (2, 5, 5), expected (B, H, T, S) = (any, any, 5, 5)",
    ),
    "a mean that forgets to return": (
        KIND + "    def mix(self, query, key, value):\n        super().mix(query, key, value)\n",
        "mine.py:9: mix of layer 1 (mine) returned NoneType, expected (B, H, T, e) = (2, any, 5, any)",
    ),
    "an output with heads and positions exchanged": (
        KIND + "    def output(self, mixed, x):\n        return mixed.flatten(2)\n",
        "mine.py:9: output of layer 1 (mine) returned (2, 2, 40), expected (B, T, D) = (2, 5, 16)",
    ),
    "scores for the keys of one head only": (
        KIND + "    def scores(self, query, key):\n        return super().scores(query, key)[:, 0]\n",
        "mine.py:9: scores of layer 1 (mine) returned (2, 5, 5), expected (B, H, T, S) = (any, any, 5, 5)",
    ),
    "while decoding only": (
        KIND + "    def recall(self, query, key, value, past):\n        return past.append(key, value)[1].mT\n",
        "mine.py:9: recall of layer 1 (mine) returned (2, 2, 8, 5), expected (B, H, T, e) = (2, any, 5, any)",
    ),
    "in the second layer only": (
        KIND + "    def __init__(self, config, model, layer=0):\n        super().__init__(config, model, layer)\n"
        "        self.n = 1 / (1 - layer)\n",
        "mine.py:11 in __init__ (called by __init__, layer 2): ZeroDivisionError: ",
    ),
    "in training mode only": (
        WRONG,
        "mine.py:10 in output (called by forward, layer 1): NameError: name 'wrong' is not defined",
    ),
    "in the backward pass": (
        BACKWARD + KIND + "    def output(self, mixed, x):\n        return Double.apply(super().output(mixed, x))\n",
        "mine.py:14 in backward (called by start): NameError: name 'nothing' is not defined",
    ),
    "a value that the backward pass needed is overwritten": (
        KIND + "    def normalise(self, scores):\n        return scores.softmax(-1).add_(0)\n",
        "mine.py:8 in Mine (called by start): RuntimeError: one of the variables",
    ),
    "in the checks of its options": (
        KIND + "    @dataclass(frozen=True, kw_only=True)\n    class Config(MultiHead.Config):\n"
        "        def mistakes(self):\n            yield 'x', 1 / 0\n",
        "mine.py:12 in mistakes (called by __post_init__): ZeroDivisionError: ",
    ),
    "a layer that has no weights yet": (
        KIND + "    def __init__(self, config, model, layer=0):\n        super().__init__(config, model, layer)\n"
        "        self.gate = nn.LazyLinear(4)\n",
        "mine.py:8 in Mine (called by parameters_in): ValueError: ",
    ),
    "no memory": (
        KIND + "    def output(self, mixed, x):\n        return torch.empty(2**50)\n",
        "not enough memory (mine.py:10 in output (called by forward, layer 1): RuntimeError: ",
    ),
}


@pytest.mark.quick(2)
@pytest.mark.parametrize(("body", "expected"), IN_TRAINING.values(), ids=IN_TRAINING)
def test_an_attention(tmp_path: Path, body: str, expected: str) -> None:
    heads = "model.attention=mine" if "Attention, kind" in body else "model.attention={kind: mine, n_head: 2}"
    check(ended_with(tmp_path, body, heads, "model.n_layer=2"), expected)
    assert not (tmp_path / "runs" / "small" / "checkpoints").exists()


OTHERS = {
    "a position": (
        'class Mine(Position, kind="mine"):\n    def embed(self, x, past):\n        return x + torch.ones(7)\n',
        "model.position=mine",
        "mine.py:10 in embed (called by hidden): RuntimeError: The size of tensor a (16) must match",
    ),
    "a position without its argument": (
        'class Mine(Position, kind="mine"):\n    def rotate(self, x):\n        return x\n',
        "model.position=mine",
        "mine.py:9 in rotate (called by qkv, layer 1): TypeError: Mine.rotate() takes 2",
    ),
    "a position of another width": (
        'class Mine(Position, kind="mine"):\n    def embed(self, x, past):\n        return x[..., :3]\n',
        "model.position=mine",
        "mine.py:8 in Mine (called by forward, layer 1): RuntimeError: ",
    ),
    "a tokenizer": (
        'class Mine(Char, kind="mine"):\n    def encode(self, text):\n        return super().encode(text) / None\n',
        "data.tokenizer=mine",
        "mine.py:10 in encode (called by encode_block): TypeError: unsupported operand",
    ),
    "an optimizer": (
        'class Mine(AdamW, kind="mine"):\n    def make_parts(self, config, model):\n        return config.momentum\n',
        "training.optimizer=mine",
        "mine.py:10 in make_parts (called by __init__): AttributeError: ",
    ),
    "an optimizer that makes no rules": (
        'class Mine(AdamW, kind="mine"):\n    def make_parts(self, config, model):\n        return None\n',
        "training.optimizer=mine",
        "mine.py:8 in Mine (called by __init__): TypeError: 'NoneType' object is not iterable",
    ),
    "a rule without a step": (
        'class Mine(AdamW, kind="mine"):\n    def make_parts(self, config, model):\n'
        '        return [Own([{"params": [*model.parameters()], "lr": 1e-3}])]\n'
        "class Own(Rule):\n    def move(self, parameters):\n        pass\n",
        "training.optimizer=mine",
        "mine.py:12 in move (called by step): TypeError: Own.move() takes 2 positional arguments but 5",
    ),
}


@pytest.mark.parametrize(("body", "option", "expected"), OTHERS.values(), ids=OTHERS)
def test_other_plugins(tmp_path: Path, body: str, option: str, expected: str) -> None:
    furnish(tmp_path, CONFIG.replace("block_size: 16,", "block_size: 16, position: none,"))
    check(ended_with(tmp_path, body, option), expected)


RIGHT = KIND + "    pass\n"
EDITED = KIND + "    def recall(self, query, key, value, past):\n        return past.nothing\n"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of a plugin that was right then."""
    folder = tmp_path_factory.mktemp("trained")
    well(ended_with(folder, RIGHT, "model.attention={kind: mine, n_head: 2}"))
    return folder


def test_while_writing_with_a_cache(trained: Path) -> None:
    where = "mine.py:10 in recall (called by forward, layer 1): AttributeError: 'KVCache' object"
    check(ended_with(trained, EDITED, "--run", "runs/small", name="sample.py"), where)


def test_while_its_weights_are_shown(trained: Path) -> None:
    body = KIND + "    def weights(self, query, key):\n        return query[9, 9, 9]\n"
    ended = ended_with(trained, body, "--run", "runs/small", "--prompt", "the cat", name="show_attention.py")
    check(ended, "mine.py:10 in weights (called by mix, layer 1): IndexError: ")


@pytest.mark.slow
def test_in_the_process_of_a_comparison(tmp_path: Path) -> None:
    small = SMALL.replace("model.attention: average_softmax", "model.attention: mine").replace("[1, 2]", "[1]")
    ended = ended_with(tmp_path, WRONG, name="compare.py", config=small)
    check(ended, "mean: mine.py:10 in output (called by forward, layer 1): NameError: name 'wrong'")
    late = WRONG.replace("self.training", "self.training and self.late()") + (
        "    def late(self):\n        self.steps = getattr(self, 'steps', 0) + 1\n        return self.steps > 8\n"
    )
    ended = ended_with(tmp_path, late, "training.max_steps=12", name="compare.py", config=small)
    assert re.search(r"run \d of 2: mean, seed 1: failed: mine\.py:10 in output \(called by ", ended.out), ended.out
    check(ended, "mean, seed 1: mine.py:10 in output (called by forward, layer 1): NameError: name")


def test_a_type_of_its_own_in_the_checks_which_compute_in_float64(tmp_path: Path) -> None:
    body = KIND + "    def scores(self, query, key):\n        return query @ key.float().mT\n"
    ended = ended_with(tmp_path, body, USED)
    assert ended.code == 2 and "error: mine.py:10 in scores (called by " in ended.err, ended.err
    assert "the checks compute in float64: make tensors of the type that arrives" in ended.err


@pytest.mark.slow
def test_a_comparison_with_skip_checks_says_so_on_its_page(tmp_path: Path) -> None:
    small = SMALL.replace("model.attention: average_softmax", "model.attention: mine").replace("[1, 2]", "[1]")
    leak = KIND + "    def mask(self, T, S, device):\n        return torch.ones(T, S, dtype=torch.bool)\n"
    refused = ended_with(tmp_path, leak, name="compare.py", config=small)
    assert refused.code == 2 and "sees the future" in refused.err
    ended = ended_with(tmp_path, leak, "--skip-checks", name="compare.py", config=small)
    assert ended.code == 0 and "note: the models are not checked before their first step" in ended.out, ended.err
    said = "The models were not checked before training (--skip-checks)."
    assert said in ended.out and said in (tmp_path / "runs/compare/small/page.html").read_text("utf-8")


@pytest.mark.slow
def test_in_a_benchmark(tmp_path: Path) -> None:
    body = KIND + "    def scores(self, query, key):\n        return query @ key\n"
    ended = ended_with(tmp_path, body, "attention", "--contexts", "64", "--repeat", "1", name="benchmark.py")
    assert "error: mine.py:10 in scores (called by " in ended.err and ended.code == 2


def test_debug_shows_all_calls_first(tmp_path: Path) -> None:
    ended = ended_with(tmp_path, KIND + "    def scores(self, query, key):\n        return 1 / 0\n", USED, "--debug")
    assert ended.err.startswith("Traceback (most recent call last):\n")
    assert 'mine.py", line 10, in scores' in ended.err
    assert ended.err.splitlines()[-1].startswith("error: mine.py:10 in scores (called by ")
    assert ended.code == 2


def test_a_right_plugin_is_not_blamed_for_what_fails_elsewhere(tmp_path: Path) -> None:
    """An error of ours says so, and that it may be the plugin's."""
    broken = (
        "import minigpt.training.trainer as t\ndef broken(*given): raise KeyError('lost')\nt.loss_curves = broken\n"
    )
    ended = ended_with(tmp_path, broken + RIGHT, USED)
    assert ended.err.startswith("error: mine.py:9 in broken (called by ")  # this one is the plugin's
    spoilt = "import minigpt.training.trainer as t\nt.loss_curves = {}.__getitem__\n"
    ended = ended_with(tmp_path, spoilt + RIGHT, USED)
    assert ended.code == 1
    assert ended.err.startswith("this is a bug, or a mistake in mine.py (TypeError: ")
