"""Any kind as a target: the kind itself, programs as learners write them, and each with one line changed.

Linear attention is judged by its measured weights, own kinds by a reading of their forward.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from kind_programs import FUNCTIONS, HEAD, PROGRAMS, UNNAMED
from test_checks import STEPS, make_dataset, wrong_model
from torch import Tensor, nn

from minigpt.attention import Attention
from minigpt.attention.position import NoPosition
from minigpt.checks.learners import kinds
from minigpt.checks.learners.edits import edits, those_that_run
from minigpt.checks.learners.kinds import compared
from minigpt.checks.learners.mixing import compared_function, linear_function, linear_module
from minigpt.model import ModelConfig
from minigpt.system.errors import UserError
from minigpt.training.before_training import check_before_training

D, HEADS = 24, 3


def kind_of(name: str) -> Attention:
    """A kind with three heads, in float64."""
    kind = Attention.kinds[name]
    config = kind.Config(n_head=HEADS) if "n_head" in kind.Config.__dataclass_fields__ else kind.Config()
    torch.manual_seed(0)
    made: Attention = kind(config, ModelConfig(n_embd=D, block_size=16, position=NoPosition.Config(), attention=config))
    return made.double().eval()


class Renamed(nn.Module):
    """A kind under other names, its layers and parameters in another order."""

    def __init__(self, kind: Attention) -> None:
        super().__init__()
        self.__dict__["kind"] = kind
        self.n_heads = HEADS
        layers = [one for one in kind.modules() if isinstance(one, nn.Linear)]
        own = {id(one) for layer in layers for one in layer.parameters()}
        others = [one for one in kind.parameters() if id(one) not in own]
        for letter, layer in zip("abcdefghijklmno", random.Random(1).sample(layers, len(layers))):
            self.add_module(f"layer_{letter}x", layer)
        for letter, one in zip("stuvwxyz", random.Random(1).sample(others, len(others))):
            self.register_parameter(f"{letter}x", one)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.kind(x)
        return y


def attention_of(code: str) -> Any:
    """What a program calls `attention`."""
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(HEAD + code, names)
    return names["attention"]


@pytest.mark.parametrize("name", Attention.kinds)
def test_a_kind_is_right_as_itself_under_other_names(name: str) -> None:
    kind = kind_of(name)
    assert compared(name, kind, kind, D, numbers={"n_head": HEADS, "block_size": 16}).verdict == "right"
    other = Renamed(kind)
    assert compared(name, other, other, D, numbers={"block_size": 16}).verdict == "right"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_learners_program_is_right_and_keeps_its_numbers(name: str) -> None:
    kind, code, _ = PROGRAMS[name]
    module = attention_of(code).double().eval()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    assert compared(kind, module, module, D).verdict == "right"
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


BUGS = [(name, place) for name, (_, _, bugs) in PROGRAMS.items() for place in range(len(bugs))]


@pytest.mark.quick(18)
@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "place"), BUGS)
def test_one_wrong_line_is_never_right_and_mostly_named(name: str, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, code, bugs = PROGRAMS[name]
    old, new = bugs[place]
    assert old in code
    module = attention_of(code.replace(old, new)).double().eval()
    result = compared(kind, module, module, D)
    assert result.verdict != "right"
    if (name, place) not in UNNAMED:
        monkeypatch.setattr(kinds, "SECONDS", 3.0)
        result = result if result.broken else compared(kind, module, module, D)  # on a slower machine
        assert result.verdict == "wrong" and result.broken, result


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sliding_window", "delta_net", "gated_linear", "differential", "sigmoid", "latent"])
def test_a_changed_step_of_a_kind_is_named(name: str) -> None:
    kind, x = kind_of(name), torch.randn(2, 11, D, dtype=torch.float64)
    own = tuple(one for one in those_that_run(lambda: kind(x)) if one.__module__ == type(kind).__module__
                and one.__name__ != "__init__")  # fmt: skip
    named = 0
    with torch.no_grad():
        for edit in random.Random(2).sample(edits(own), min(6, len(edits(own)))):

            def run(x: Tensor, edit: Any = edit) -> Tensor:
                with edit.applied():
                    y: Tensor = kind(x)
                    return y

            try:
                changed = run(x)
            except Exception:
                continue
            if changed.shape != x.shape or torch.allclose(changed, kind(x)) or not changed.isfinite().all():
                continue
            result = compared(name, run, kind, D, numbers={"n_head": HEADS, "block_size": 16})
            named += bool(result.broken)
            assert result.verdict != "right" or result.notes or "exchanged" in str(edit), edit
    assert named


@pytest.mark.quick(8)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_queries_keys_values_and_gates(name: str) -> None:
    kind, code, bugs = FUNCTIONS[name]
    assert compared_function(kind, attention_of(code)).verdict == "right"
    for old, new in bugs:
        assert old in code
        result = compared_function(kind, attention_of(code.replace(old, new)))
        assert result.verdict == "wrong" and result.broken, (new, result)


# ---- linear attention ----


def linear(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    products = ((F.elu(query) + 1) @ (F.elu(key) + 1).mT).tril()
    return products @ value / products.sum(-1, keepdim=True)


def chunks_counted_twice(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A chunk is added to the state before the chunk is read; only its past is seen inside it."""
    query, key, T = query.exp(), key.exp(), query.shape[2]
    chunk = torch.arange(T) // 4
    twice = (chunk[:, None] == chunk).tril() + torch.ones(T, T).tril()
    products = query @ key.mT * twice
    return products @ value / products.sum(-1, keepdim=True)


LINEAR: dict[str, tuple[Callable[..., Tensor], str]] = {
    "queries as they are": (lambda q, k, v: linear_with(q, F.elu(k) + 1, v), "the queries have no feature map"),
    "elu alone": (lambda q, k, v: linear_with(F.elu(q), F.elu(k), v), "elu without + 1"),
    "not causal": (lambda q, k, v: full(F.elu(q) + 1, F.elu(k) + 1, v), "not causal"),
    "one ahead": (lambda q, k, v: linear_with(F.elu(q) + 1, F.elu(k) + 1, v, 1), "comes later"),
    "not itself": (lambda q, k, v: linear_with(F.elu(q) + 1, F.elu(k) + 1, v, -1), "does not see itself"),
    "not divided": (lambda q, k, v: ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).tril() @ v, "normaliser is missing"),
    "all keys": (lambda q, k, v: ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).tril() @ v
                 / ((F.elu(q) + 1) @ (F.elu(k) + 1).mT).sum(-1, keepdim=True), "sums over all keys"),
    "twice": (chunks_counted_twice, "twice"),
}  # fmt: skip


def linear_with(query: Tensor, key: Tensor, value: Tensor, diagonal: int = 0) -> Tensor:
    products = (query @ key.mT).tril(diagonal)
    return products @ value / (products.sum(-1, keepdim=True) + (1e-9 if diagonal < 0 else 0))


def full(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return query @ key.mT @ value / (query @ key.mT).sum(-1, keepdim=True)


def test_linear_attention_is_right_with_any_positive_features() -> None:
    assert linear_function(linear).verdict == "right"
    softplus = linear_function(lambda q, k, v: linear_with(F.softplus(q), F.softplus(k), v))
    assert softplus.verdict == "right" and "softplus" in softplus.notes[0]


@pytest.mark.parametrize("name", LINEAR)
def test_a_law_of_linear_attention_that_is_broken_is_named(name: str) -> None:
    function, words = LINEAR[name]
    result = linear_function(function)
    assert result.verdict == "wrong" and words in str(result.broken)


def test_a_module_of_linear_attention_and_its_kind_are_right() -> None:
    kind = kind_of("linear")
    assert linear_module(kind, kind, D, {"n_head": HEADS}).verdict == "right"


# ---- own kinds ----


@pytest.mark.parametrize(("kind", "words"), [
    ("wrong_no_mask", "token 0 sees token 1, which comes later"),
    ("wrong_one_ahead", "token 0 sees token 1, which comes later"),
    ("wrong_mask_after_softmax", "there is a mask after the softmax"),
    ("wrong_softmax_over_queries", "it runs over the queries"),
])  # fmt: skip
def test_a_law_that_an_own_kind_breaks_is_told_with_its_line(kind: str, words: str) -> None:
    with pytest.raises(UserError) as refused:
        check_before_training(wrong_model(kind), make_dataset(128), STEPS)
    place, _, rest = str(refused.value).partition("wrong_kinds.py:")
    assert place and rest.split(":")[0].isdigit() and words in rest
