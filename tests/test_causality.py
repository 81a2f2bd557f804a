"""The causality check: it finds every way to see the future, with the layer, the positions and the cause, and no other.

T query positions, S key positions.
"""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn
from wrong_kinds import KINDS as WRONG_KINDS

from minigpt.attention import (
    Attention,
    DotProduct,
    MultiHead,
    Past,
    Position,
    Shape,
    SingleHead,
    SoftmaxAttention,
    distance,
)
from minigpt.checks.causality import LeakError, check_causal, idle_positions
from minigpt.model import GPT, ModelConfig
from minigpt.system.errors import UserError


class LargeFiniteMask(MultiHead, kind="large_finite_mask"):
    """A number that the probe's scores do not reach: in float32 nothing of it is left either."""

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        mask = self.mask(query.shape[2], key.shape[2], query.device)  # (T, S)
        return self.scores(query, key).masked_fill(~mask, -1e9).softmax(-1)


class FarAhead(MultiHead, kind="far_ahead"):
    """Sees the past, and one place in the future."""

    def mask(self, T: int, S: int, device: torch.device) -> Tensor:
        return super().mask(T, S, device) | (distance(T, S, device) == -10)


class UpperRight(MultiHead, kind="upper_right"):
    """A window that is as long as it should be, and begins where it should end."""

    def mask(self, T: int, S: int, device: torch.device) -> Tensor:
        behind = distance(T, S, device)
        return (behind <= 0) & (behind > -3)


class Window(MultiHead, kind="window_of_three"):
    """Sees the last three positions only."""

    def mask(self, T: int, S: int, device: torch.device) -> Tensor:
        return super().mask(T, S, device) & (distance(T, S, device) < 3)


class ZeroGateCausal(SoftmaxAttention, kind="zero_gate_causal"):
    """A gate that is shut at first, before an attention that is as it should be."""

    def __init__(self, config: SoftmaxAttention.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.gate = nn.Parameter(torch.zeros(model.n_embd))

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return super().output(mixed, x) * self.gate


class OnlyFloat32(MultiHead, kind="only_float32"):
    """Makes a tensor of a type of its own."""

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return super().scores(query, key) @ torch.eye(key.shape[2])


class WrongShapes(MultiHead, kind="wrong_shapes"):
    """Fails in every type."""

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key


class EluPlusOne(MultiHead, kind="elu_plus_one"):
    """Linear attention as published: where every feature vanishes, a row is 0 / 0 (arXiv 2006.16236)."""

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().qkv(x, past)
        return -query.abs(), key, value  # so that they do vanish

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        products = (nn.functional.elu(query) + 1) @ (nn.functional.elu(key) + 1).mT  # (B, H, T, S)
        mask = self.mask(query.shape[2], key.shape[2], query.device)  # (T, S)
        products = products.masked_fill(~mask, 0.0)
        return products / products.sum(-1, keepdim=True)


class PlainExp(MultiHead, kind="plain_exp"):
    """A softmax that does not subtract the largest score."""

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        return super().scores(query, key).abs()

    def normalise(self, scores: Tensor) -> Tensor:
        return scores.exp() / scores.exp().sum(-1, keepdim=True)


class EluPlusOneAhead(EluPlusOne, kind="elu_plus_one_ahead"):
    """The same, and a leak that only large scores show."""

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        return super().weights(query, key) + (query.abs().mean() > 3) * super().weights(query, key).flip(-1)


class SquareRoot(MultiHead, kind="square_root"):
    """A parameter near zero that must not become negative, as noise would make it."""

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.width = nn.Parameter(torch.full((50,), 1e-3))

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return super().output(mixed, x) + self.width.sqrt().sum()


class NoScores(Attention, kind="no_scores"):
    """Weights that know of no scores, and so of no bias: each position looks at itself."""

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        return (distance(query.shape[2], key.shape[2]) == 0).to(query.dtype).expand(query.shape[0], 1, -1, -1)


MINE = {name: kind for name, kind in Attention.kinds.items() if kind.__module__ == __name__}
for name in MINE:
    del Attention.kinds[name]  # the other chapters see only what ships


def make_model(*kinds: str, position: str = "learned", block_size: int = 70, dropout: float = 0.0) -> GPT:
    """One layer of each kind."""
    every = Attention.kinds | MINE | WRONG_KINDS
    attention = tuple(
        every[kind].Config(**({"n_head": 2} if hasattr(every[kind].Config, "n_head") else {})) for kind in kinds
    )
    place = Position.kinds[position].Config()
    config = ModelConfig(
        n_layer=len(kinds), n_embd=16, block_size=block_size, dropout=dropout, attention=attention, position=place
    )
    return GPT(config, vocab_size=11)


# ---- what passes ----


@pytest.mark.parametrize(
    "kind", ["window_of_three", "zero_gate_causal", "no_scores", "large_finite_mask", "square_root"]
)
def test_what_sees_only_the_past_passes(kind: str) -> None:
    assert check_causal(make_model(kind)) == []


@pytest.mark.parametrize(
    ("kind", "found", "advice"),
    [
        ("elu_plus_one", "0 / 0", "a row sums to zero; add a small number, such as 1e-6, to what divides"),
        ("plain_exp", "infinity / infinity", "subtract the largest score of a row before exp, as softmax does"),
    ],
)
def test_nan_of_very_large_scores_alone_is_a_note_with_its_operation_and_line(
    kind: str, found: str, advice: str
) -> None:
    [note] = check_causal(make_model(kind))
    line = (
        re.escape(f"layer 1 ({kind}) makes NaN ({found} in test_causality.py:")
        + r"\d+"
        + re.escape(f") of very large scores: {advice}; training goes on")
    )
    assert re.fullmatch(line, note)


def test_where_very_large_scores_leave_no_numbers_less_large_ones_are_judged() -> None:
    with pytest.raises(LeakError, match="with very large scores"):
        check_causal(make_model("elu_plus_one_ahead"))


def test_what_fails_in_every_type_is_not_blamed_on_float64() -> None:
    with pytest.raises(RuntimeError, match=r"must match|cannot be multiplied|Expected size"):
        check_causal(make_model("wrong_shapes"))


@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_the_shortest_contexts_are_probed_too(block_size: int) -> None:
    check_causal(make_model("multi_head", block_size=block_size))
    if block_size > 1:
        with pytest.raises(LeakError):
            check_causal(make_model("wrong_one_ahead", block_size=block_size))


# ---- what is refused ----

FIRST = "a change of token 1 moved the output at position 0, with ordinary scores"
MISSING = "its mask is missing, transposed, aligned to the wrong corner, or fills with a small number such as -5"


@pytest.mark.parametrize(
    ("kind", "span", "cause"),
    [
        (
            "wrong_finite_mask",
            r"a change of token \d+ moved the output at positions? [\d to]+, with very large scores",
            "-1e4",
        ),
        ("wrong_transposed", FIRST, MISSING),
        ("wrong_one_ahead", FIRST, MISSING),
        ("far_ahead", "a change of token 12 moved the output at position 2, with ordinary scores", MISSING),
        ("upper_right", FIRST, MISSING),
        ("wrong_centred", FIRST, "not the mask"),
        ("wrong_zero_gate", FIRST, "not the mask"),
    ],
)
def test_what_sees_the_future_is_refused_by_layer_positions_and_cause(kind: str, span: str, cause: str) -> None:
    with pytest.raises(LeakError) as refused:
        check_causal(make_model("multi_head", kind))
    message = str(refused.value)
    assert message.startswith(f"layer 2 ({kind}) sees the future: ")
    assert re.search(span, message)
    assert cause in message
    assert message.endswith("--allow-leak trains it anyway")
    assert "\n" not in message


@pytest.mark.parametrize("kind", ["average_softmax", "dot_product", "single_head", "multi_head", "grouped_query"])
def test_the_option_that_switches_causality_off_is_refused_by_its_name(kind: str) -> None:
    config = ModelConfig(n_layer=1, n_embd=16, block_size=8, attention=Attention.kinds[kind].Config(causal=False))  # type: ignore[call-arg]
    with pytest.raises(LeakError, match="Likely cause: its option causal is false"):
        check_causal(GPT(config, 11))


def test_a_kind_that_insists_on_a_type_is_told_so() -> None:
    with pytest.raises(UserError, match=r"^layer 1 \(only_float32\) fails in float64 \(make tensors of the type that"):
        check_causal(make_model("only_float32"))


# ---- positions that do nothing ----


@pytest.mark.parametrize(
    ("position", "kinds", "lines"),
    [
        ("rotary", ["multi_head", "single_head", "dot_product", "grouped_query"], []),
        ("alibi", ["average_loop", "average_matrix", "average_softmax", "multi_head"], []),
        ("none", ["average_loop"], []),
        ("learned", ["average_loop"], []),
        ("sinusoidal", ["average_loop"], []),
        (
            "rotary",
            ["multi_head", "average_softmax", "average_loop", "average_softmax"],
            ["position rotary does nothing in average_loop, average_softmax: there are no queries and keys to rotate"],
        ),
        ("alibi", ["no_scores"], ["position alibi does nothing in no_scores: there are no scores to bias"]),
    ],
)
def test_a_position_with_nothing_to_act_on_is_told_in_one_line(
    position: str, kinds: list[str], lines: list[str]
) -> None:
    assert idle_positions(make_model(*kinds, position=position)) == lines


def test_the_kinds_of_this_chapter_are_gone_from_the_registry() -> None:
    assert not set(MINE) & set(Attention.kinds)
    assert {DotProduct, SingleHead, MultiHead} <= set(Attention.kinds.values())
