"""The cheats: for each law, a kind that breaks it. The law must refuse the kind, which proves that the law can fail.

T query positions, S key positions, d width of a head.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from laws import (
    CHECKS,
    Case,
    check_batch_elements_do_not_mix,
    check_bfloat16_stays_near,
    check_decoding_in_chunks,
    check_decoding_past_the_context,
    check_decoding_token_by_token,
    check_dropout_acts_in_training_only,
    check_fast_mix_is_the_explicit_one,
    check_huge_scores_leave_numbers,
    check_only_distances_matter,
    check_output_does_not_see_the_future,
    check_rows_sum_to_one,
    check_shapes,
    check_state_is_replaced,
    check_the_order_of_the_past,
    check_weights_are_not_negative,
    check_weights_do_not_see_the_future,
    check_what_is_trained_is_what_is_evaluated,
)
from plugin_kinds import Window
from torch import Tensor

from minigpt.attention import Attention
from minigpt.attention.averages.average_matrix import AverageMatrix
from minigpt.attention.cache import Past, State
from minigpt.attention.position import Alibi, NoPosition, Position, Rotary
from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.fast import running_sum, shortcut


class Peeking(MultiHead):
    def mask(self, T: int, S: int, device: torch.device) -> Tensor:
        return torch.ones(T, S, dtype=torch.bool, device=device)


class FiniteMask(MultiHead):
    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        forbidden = ~self.mask(query.shape[2], key.shape[2], query.device)
        return self.scores(query, key).masked_fill(forbidden, -1e4).softmax(dim=-1)


class MultipliedMask(MultiHead):
    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        grown = self.scores(query, key).exp() * self.mask(query.shape[2], key.shape[2], query.device)
        return grown / grown.sum(dim=-1, keepdim=True)


class FutureInOutput(MultiHead):
    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return super().output(mixed, x) + x.mean(dim=1, keepdim=True)


class OtherMix(MultiHead):
    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return 1.001 * super().mix(query, key, value)


class GradientLost(MultiHead):
    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.weights(query, key).detach() @ value


class TrainsOtherwise(MultiHead):
    """Its fast way to queries, keys and values forgets what the values are, in training alone."""

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().qkv(x, past)
        return query, key, key if self.training else value


class UpperLeft(MultiHead):
    """`is_causal=True` aligns the mask to the upper left: right for T = S, and for one token if it is left out."""

    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=query.shape[2] > 1)


class PastForgotten(MultiHead):
    def recall(self, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
        past.append(key, value)
        return self.mix(query, key, value)


class StuckAtZero(MultiHead):
    """Rotates every chunk as if it were the first."""

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        return super().qkv(x, Past())


class QueriesOnly(MultiHead):
    """Rotates the queries and leaves the keys."""

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().qkv(x, Past())
        return self.position.rotate(query, past.length), key, value


class SumSurvives(AverageMatrix):
    """A new cache of it begins with the sum of the one before."""

    mix, recall = running_sum.mix, running_sum.recall

    def make_cache(self, length: int) -> Past:
        new = State()
        new.tensors = getattr(self, "kept", new).tensors
        self.kept = new
        return new


class ChangedInPlace(AverageMatrix):
    @shortcut()
    def recall(self, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
        assert isinstance(past, State)
        total = value.cumsum(dim=2)
        if past.tensors:
            total = total + past.tensors[0]
            past.tensors[0].copy_(total[:, :, -1:])
            past.length += value.shape[2]
        else:
            past.replace((total[:, :, -1:].clone(),), value.shape[2])
        return total / torch.arange(past.length - value.shape[2] + 1, past.length + 1)[:, None]

    make_cache = running_sum.make_cache


class BatchMixed(MultiHead):
    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        return super().qkv(x - x.mean(dim=0), past)


class Unnormalised(MultiHead):
    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=-1) * 0.9


class Signed(MultiHead):
    def normalise(self, scores: Tensor) -> Tensor:
        raw = scores.masked_fill(scores == -torch.inf, 0.0)
        return raw / raw.sum(dim=-1, keepdim=True)


class ClaimsNoOrder(Window):
    permutation_invariant = True


class ClaimsOtherSums(MultiHead):
    """Its rows do sum to one."""

    rows_sum_to_one = False


class ClaimsNegativeWeights(MultiHead):
    """Its weights are a softmax, and so never negative."""

    weights_nonnegative = False


class ClaimsOrder(MultiHead):
    """Without positions, the order of the past does not change its last row."""

    permutation_invariant = False


class DropsAlways(MultiHead):
    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.dropout(self.weights(query, key), self.dropout) @ value


class DropsNever(MultiHead):
    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.weights(query, key) @ value


class HeadsLost(MultiHead):
    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        return super().weights(query, key).mean(dim=1)


class CoarseAngles(Rotary):
    """Its angles have the type of what it rotates: in bfloat16 they are off by a radian at position 300."""

    def rotate(self, x: Tensor, start: int) -> Tensor:
        T, half = x.shape[2], x.shape[3] // 2
        frequencies = self.config.base ** (-torch.arange(half, dtype=x.dtype) / half)  # (d/2,)
        angles = torch.arange(start, start + T, dtype=x.dtype)[:, None] * frequencies  # (T, d/2)
        first, second = x.chunk(2, dim=-1)
        turned = first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()
        return torch.cat(turned, dim=-1)


CHEATS: list[tuple[Callable[[Case], None], type[Attention], type[Position]]] = [
    (check_shapes, HeadsLost, NoPosition),
    (check_rows_sum_to_one, Unnormalised, NoPosition),
    (check_rows_sum_to_one, ClaimsOtherSums, NoPosition),
    (check_weights_are_not_negative, Signed, NoPosition),
    (check_weights_are_not_negative, ClaimsNegativeWeights, NoPosition),
    (check_weights_do_not_see_the_future, Peeking, NoPosition),
    (check_weights_do_not_see_the_future, FiniteMask, Alibi),
    (check_output_does_not_see_the_future, Peeking, NoPosition),
    (check_output_does_not_see_the_future, FiniteMask, NoPosition),
    (check_output_does_not_see_the_future, FutureInOutput, NoPosition),
    (check_fast_mix_is_the_explicit_one, OtherMix, NoPosition),
    (check_fast_mix_is_the_explicit_one, GradientLost, NoPosition),
    (check_fast_mix_is_the_explicit_one, UpperLeft, NoPosition),
    (check_what_is_trained_is_what_is_evaluated, TrainsOtherwise, NoPosition),
    (check_decoding_token_by_token, PastForgotten, NoPosition),
    (check_decoding_token_by_token, StuckAtZero, Rotary),
    (check_decoding_in_chunks, PastForgotten, NoPosition),
    (check_decoding_in_chunks, UpperLeft, NoPosition),
    (check_decoding_past_the_context, SumSurvives, NoPosition),
    (check_batch_elements_do_not_mix, BatchMixed, NoPosition),
    (check_huge_scores_leave_numbers, MultipliedMask, NoPosition),
    (check_the_order_of_the_past, ClaimsNoOrder, NoPosition),
    (check_the_order_of_the_past, ClaimsOrder, NoPosition),
    (check_only_distances_matter, QueriesOnly, Rotary),
    (check_dropout_acts_in_training_only, DropsAlways, NoPosition),
    (check_dropout_acts_in_training_only, DropsNever, NoPosition),
    (check_state_is_replaced, ChangedInPlace, NoPosition),
    (check_bfloat16_stays_near, MultiHead, CoarseAngles),
]


@pytest.mark.parametrize(
    ("check", "cheat", "position"), CHEATS, ids=[f"{cheat.__name__}-{check.__name__}" for check, cheat, _ in CHEATS]
)
def test_a_cheat_is_caught(check: Callable[[Case], None], cheat: type[Attention], position: type[Position]) -> None:
    with pytest.raises(AssertionError):
        check(Case(cheat.Config(), position.Config()))


def test_every_law_has_a_cheat_that_it_catches() -> None:
    assert {check for check, _, _ in CHEATS} == set(CHECKS)


def test_a_mask_of_the_wrong_corner_passes_token_by_token() -> None:
    """Which is why the suite decodes in chunks of random lengths, too."""
    check_decoding_token_by_token(Case(UpperLeft.Config(), NoPosition.Config()))
