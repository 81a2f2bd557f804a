"""The cases on which the laws of attention (`minigpt/checks`) are tested: every kind with every position.

The kinds and positions are read from the registries, so a new file is tested without a change here. `plugin_kinds.py`
adds some that do not ship. Equalities are tested in float64.

`test_contract.py` tests every law on every case, `test_cheats.py` shows that each law can fail, and `test_kinds.py`
compares each kind with the one before it on the ladder. A case costs about a tenth of a second: what would ask the same
question twice is left out (`asked_of`).

T query positions, S key positions, D model width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from plugin_kinds import PLUGIN_KINDS, PLUGIN_POSITIONS
from torch import Tensor, nn

from minigpt.attention import Attention, DotProduct, GroupedQuery, MultiHead, Past, SingleHead
from minigpt.attention.linear.gated_delta_net import GatedDeltaNet
from minigpt.attention.linear.gated_linear import GatedLinear
from minigpt.attention.linear.kimi_delta import KimiDelta
from minigpt.attention.linear.mamba2 import Mamba2
from minigpt.attention.linear.mlstm import MLSTM
from minigpt.attention.position import Alibi, NoPosition, Position, Rotary
from minigpt.attention.sparse.soft_cap_window import SoftCapWindow
from minigpt.attention.stretch import Yarn
from minigpt.checks import laws_of_attention as laws
from minigpt.checks import laws_of_training, laws_of_writing
from minigpt.checks.laws_of_attention import LAWS, LONG, Law, LawError
from minigpt.checks.laws_of_training import LAWS_OF_TRAINING
from minigpt.checks.laws_of_writing import LAWS_OF_WRITING
from minigpt.fast import make_fast
from minigpt.model import GPT, ModelConfig

D, V, BLOCK = 16, 11, 8
SHAPES = [(6, 6), (1, 6), (3, 7), (1, 1)]  # (T, S): a training pass, a token, a chunk, the very first token
PRECISION = {"rtol": 1e-10, "atol": 1e-12}


@dataclass(frozen=True)
class Case:
    """A kind of attention with its options, and a position."""

    attention: Attention.Config | tuple[Attention.Config, ...]
    position: Position.Config
    dropout: float = 0.0

    def __str__(self) -> str:
        assert not isinstance(self.attention, tuple)
        kind = self.attention.component
        plain = kind.Config()
        options = [f"{name}={value}" for name, value in vars(self.attention).items() if value != getattr(plain, name)]
        return " ".join([kind.kind or kind.__name__, *options, self.position.component.kind])


KINDS: dict[str, type[Attention]] = Attention.kinds | PLUGIN_KINDS
POSITIONS: dict[str, type[Position]] = Position.kinds | PLUGIN_POSITIONS
PUBLISHED: dict[str, Any] = {"convolution": 4, "value_silu": True, "norm_weights": True, "norm_epsilon": 1e-5}
OPTIONS = [
    SingleHead.Config(scaled=False),
    SingleHead.Config(head_dim=5),
    DotProduct.Config(include_self=False, scaled=True),
    MultiHead.Config(qk_norm=True),
    MultiHead.Config(head_dim=3),
    GroupedQuery.Config(n_kv_head=2),
    GroupedQuery.Config(n_kv_head=1, qk_norm=True),
    GroupedQuery.Config(n_kv_head=2, qk_norm="whole", qkv_bias=False, score_scale=0.3),
    SoftCapWindow.Config(window=3, cap=1.0, n_kv_head=2),
    MultiHead.Config(position=Rotary.Config(base=100.0)),
    # the layers of papers, in odd sizes
    GatedDeltaNet.Config(n_head=2, head_dim=3, value_dim=5, n_key_head=1, gate=True, write_bias=False, **PUBLISHED),
    KimiDelta.Config(value_dim=3, gate=True, bounded=False, random_decays=True, **PUBLISHED),
    Mamba2.Config(head_dim=3, value_dim=5, n_key_head=2, gate=True, skip=True, scaled=False, **PUBLISHED),
    GatedLinear.Config(value_dim=6, gate=True, norm_weights=True),
    MLSTM.Config(head_dim=3, value_dim=5, convolution=4, gate=True, norm_weights=True, cap=2.0),
    MLSTM.Config(inner=16, convolution=4, gate=True, norm_weights=True),
]
PLACES = [  # positions with options
    Rotary.Config(share=0.7),
    Rotary.Config(stretch=Yarn.Config(original=64, beta_fast=4.0)),
    Alibi.Config(slopes="bloom"),
]
ATTENTIONS = [*(kind.Config() for kind in KINDS.values()), *OPTIONS]


def outside(attention: Attention.Config, position: type[Position]) -> bool:
    """Whether attentions of a kind are with a position what they are with none: it acts elsewhere, or is left out."""
    acts = {method for method in ("rotate", "bias") if getattr(position, method) is not getattr(Position, method)}
    return position is not NoPosition and (not acts or bool(acts & set(attention.component.unsuited)))


def left_out(attention: Attention.Config, position: type[Position]) -> bool:
    """Whether a whole model is with a position what it is with none."""
    return outside(attention, position) and position.embed is Position.embed


CASES = [
    Case(attention, position.Config())
    for attention in ATTENTIONS
    for position in POSITIONS.values()
    if not left_out(attention, position)
]
CASES += [Case(MultiHead.Config(n_head=3, head_dim=6), position) for position in PLACES]
INSIDE = [  # the cases whose attentions differ, and multi-head attention with everything
    case
    for case in CASES
    if case.attention == MultiHead.Config() or not outside(case.attention, case.position.component)  # type: ignore[arg-type]
]

ALIKE = (("learned", "sinusoidal", "convolution"), ("rotary", "alibi", "plugin_learned_bias"))  # to an attention


def is_quick(attention: Attention.Config, position: type[Position]) -> bool:
    """Whether the quick tests ask this pair: of positions that are alike, each kind is asked with one, in turn.

    Multi-head attention is asked with all of them, options with none and with rotary.
    """
    if attention in OPTIONS:
        return position in (NoPosition, Rotary)
    turn = [*KINDS].index(attention.component.kind)
    mine = {alike[turn % len(alike)] for alike in ALIKE}
    others = {kind for alike in ALIKE for kind in alike} - mine
    return position.kind not in others or attention.component is MultiHead


def divided(cases: list[Case]) -> tuple[list[Case], list[Case]]:
    """The cases of the quick tests, and the rest, of which a slow test takes a third unless `--whole` is given."""
    quick = [case for case in cases if is_quick(case.attention, case.position.component)]  # type: ignore[arg-type]
    return quick, [case for case in cases if case not in quick]


EVERY: tuple[Law, ...] = (*LAWS, *LAWS_OF_TRAINING, *LAWS_OF_WRITING)
SHORT = {  # a long text shows nothing new to these, or they have one of their own
    laws.shapes, laws.scores_have_the_declared_scale, laws.only_distances_matter, laws.huge_scores_leave_numbers,
    laws_of_training.random_numbers_go_on, laws_of_training.compiled_branches_compute_the_same,
    laws_of_training.dropout_acts_in_training_only, laws_of_writing.caches_begin_empty,
    laws_of_writing.two_texts_in_turns, laws_of_writing.texts_do_not_mix_in_the_cache,
    laws_of_writing.a_state_is_replaced, laws_of_writing.bfloat16_stays_near,
}  # fmt: skip
DEEP = {  # in a short text, these are asked of three layers
    laws_of_writing.written_token_by_token,
    laws_of_writing.written_in_chunks,
    laws_of_writing.written_past_the_context,
}
OF_A_MODEL = DEEP | {laws_of_writing.the_length_does_not_matter}  # where a position outside the attention takes part
BOTH = {  # in a model with a long context, these are asked of long texts and of short ones
    laws.rows_sum_to_one,
    laws.weights_are_not_negative,
    laws.weights_do_not_see_the_future,
    laws.queries_may_come_alone,
    laws.mix_is_weights_times_values,
}
FAR = (NoPosition, Rotary, Alibi)  # the positions with which every kind is asked of a long text, and of three layers
OF_FAR = {
    laws_of_training.dropout_acts_in_training_only,
    laws_of_writing.bfloat16_stays_near,
}  # long laws: with these positions


def model_config(case: Case, n_layer: int = 1, block: int = BLOCK) -> ModelConfig:
    shape = {"n_layer": n_layer, "n_embd": D, "block_size": block}
    return ModelConfig(**shape, attention=case.attention, position=case.position, dropout=case.dropout)


@torch.no_grad()
def stir(module: nn.Module, far: float = 0.2) -> None:
    """Move every parameter away from where it starts: a zero would hide what it multiplies, a bias what it adds."""
    for parameter in module.parameters():
        parameter.add_(far * torch.randn_like(parameter))


def make_layer(case: Case) -> Attention:
    torch.manual_seed(0)
    config = model_config(case)
    layer: Attention = config.layer_attention(0).component(config.layer_attention(0), config, 0)
    stir(layer)
    return make_fast(layer).double().eval()


@lru_cache(maxsize=16)
def make_model(case: Case, n_layer: int = 1, block: int = BLOCK) -> GPT:
    """A model of a case in float64 and evaluation mode. The laws leave it as it is."""
    torch.manual_seed(0)
    model = make_fast(GPT(model_config(case, n_layer, block), V))
    stir(model)
    return model.double().eval()


def tokens(B: int, T: int) -> Tensor:
    """Random vectors (B, T, D)."""
    return torch.randn(B, T, D, dtype=torch.float64)  # (B, T, D)


def parts(layer: Attention, x: Tensor, T: int) -> tuple[Tensor, Tensor, Tensor]:
    """The last T queries, and all keys and values, of x (B, S, D)."""
    query, key, value = layer.qkv(x, Past())
    return query[:, :, x.shape[1] - T :], key, value


def obey(law: Law, case: Case, far: bool = True) -> None:
    """Raises LawError where a case breaks a law: in a short text and, if `far`, in a long one that can show more."""
    if law is laws_of_training.dropout_acts_in_training_only:
        case = replace(case, dropout=0.3)
    deep = law in DEEP and (far or isinstance(case.attention, tuple))
    if not (far and law in BOTH) or case.position == NoPosition.Config() or case.attention == MultiHead.Config():
        law(make_model(case, 3 if deep else 1))
    if far and law not in SHORT:
        law(make_model(case, 1, LONG + 8))


def asked_of(case: Case) -> Iterator[tuple[Law, bool]]:
    """The laws for a case, each with whether it is asked of a long text too.

    Where the position acts outside the attention, the laws of one attention are asked without it already: such a case
    is asked what a position takes part in, in one layer. Multi-head attention is asked everything.
    """
    assert not isinstance(case.attention, tuple)
    position, everything = case.position.component, case.attention == MultiHead.Config()
    idle = outside(case.attention, position)
    for law in EVERY:
        if law is laws.the_order_of_the_past and position is not NoPosition:
            continue  # it takes the position out
        if law is laws_of_training.dropout_acts_in_training_only and position is Rotary and not everything:
            continue  # weights are dropped after they are made, whatever the angles of queries and keys
        far = everything or position in FAR
        if (law in OF_A_MODEL or everything or not idle) and (law not in OF_FAR or far):
            yield law, far


def broken_laws(case: Case, long: bool = True) -> list[str]:
    """The laws that a case breaks, of those that it is asked, a line each; unless `long`, in short texts only."""
    broken = []
    for law, far in asked_of(case):
        try:
            obey(law, case, far and long)
        except LawError as error:
            broken.append(f"{law.__name__}: {error}")
    return broken
