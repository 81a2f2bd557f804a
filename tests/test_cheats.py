"""The cheats: for each law, a kind that breaks it. The law must refuse the kind, which proves that the law can fail.

Some are among the wrong kinds that training refuses (`wrong_kinds.py`).

T query positions, S key positions, d width of a head.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from laws import EVERY, SHORT, Case, asked_of, broken_laws, make_model, obey
from plugin_kinds import Window
from torch import Tensor
from wrong_kinds import KINDS

from minigpt.attention import Attention
from minigpt.attention.averages.average_matrix import AverageMatrix
from minigpt.attention.cache import KVCache, Past, State
from minigpt.attention.position import Alibi, NoPosition, Position, Rotary, distance
from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.checks import laws_of_attention as laws
from minigpt.checks import laws_of_training as training
from minigpt.checks import laws_of_writing as writing
from minigpt.checks.laws_of_attention import Law, LawError
from minigpt.fast import running_sum, shortcut


class FutureInOutput(MultiHead):
    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return super().output(mixed, x) + x.mean(dim=1, keepdim=True)


class GradientLost(MultiHead):
    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.weights(query, key).detach() @ value


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


class Unnormalised(MultiHead):
    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=-1) * 0.9


class ClaimsNoOrder(Window):
    order_blind = True


class ClaimsOtherSums(MultiHead):
    """Its rows do sum to one."""

    rows_sum_to_one = False


class ClaimsNegativeWeights(MultiHead):
    """Its weights are a softmax, and so never negative."""

    weights_nonnegative = False


class ClaimsOrder(MultiHead):
    """Without positions, the order of the past does not change its last row."""

    order_blind = False


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


class SeedsAnew(MultiHead):
    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        torch.manual_seed(7)
        return super().output(mixed, x)


class CacheMixed(MultiHead):
    """In the cache, the texts of a batch share the mean of their values."""

    def recall(self, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
        return super().recall(query, key, value.mean(dim=0, keepdim=True).expand_as(value), past)


# Right up to position 64, and then not.

FAR = 64


class PeekingFar(MultiHead):
    def mask(self, T: int, S: int, device: torch.device) -> Tensor:
        return super().mask(T, S, device) | (torch.arange(S, device=device) > FAR)


class UnnormalisedFar(MultiHead):
    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=-1) * torch.where(torch.arange(scores.shape[-1]) > FAR, 0.9, 1.0)


class SignedFar(MultiHead):
    def normalise(self, scores: Tensor) -> Tensor:
        weights = scores.softmax(dim=-1)
        return weights - 2 * weights * (torch.arange(scores.shape[-1]) > FAR)


class OtherMixFar(MultiHead):
    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (1.001 if key.shape[2] > FAR else 1.0) * super().mix(query, key, value)


class GradientLostFar(MultiHead):
    def mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        weights = self.weights(query, key)
        return (weights.detach() if key.shape[2] > FAR else weights) @ value


class TrainsOtherwiseFar(MultiHead):
    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().qkv(x, past)
        return query, key, key if self.training and x.shape[1] > FAR else value


class WrongCornerFar(MultiHead):
    def mask(self, T: int, S: int, device: torch.device) -> Tensor:
        return torch.ones(T, S, dtype=torch.bool, device=device).tril() if S > FAR else super().mask(T, S, device)


class StuckFar(MultiHead):
    """Positions beyond a table's end are all the last one."""

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        stuck = Past()
        stuck.length = min(past.length, FAR)
        return super().qkv(x, stuck)


class BatchMixedFar(MultiHead):
    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        return super().qkv(x - x.mean(dim=0) if x.shape[1] > FAR else x, past)


class NoisyFar(MultiHead):
    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return super().output(mixed + (1e-3 if x.shape[1] > FAR else 0.0) * torch.randn_like(mixed), x)


class SharedCache(MultiHead):
    """One cache for all texts and layers."""

    shared = KVCache(1000)

    def make_cache(self, length: int) -> Past:
        return self.shared


class FromTheEnd(MultiHead):
    """Counts positions from the end of the text."""

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        return super().qkv(x * torch.arange(x.shape[1], 0, -1)[:, None], past)


class FromTheEndFar(MultiHead):
    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        end = torch.arange(x.shape[1], 0, -1)[:, None]  # (T, 1)
        return super().qkv(x * end if x.shape[1] > FAR else x, past)


class KeptByTheLayer(MultiHead):
    """Keeps keys and values itself, and forgets them where a text begins: right for one text at a time."""

    def recall(self, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
        if past.length:
            key, value = torch.cat((self.kept[0], key), dim=2), torch.cat((self.kept[1], value), dim=2)
        self.kept = key, value
        past.length += query.shape[2]
        return self.mix(query, key, value)


class NearFar(MultiHead):
    """A window of 64 positions, undeclared."""

    def mask(self, T: int, S: int, device: torch.device) -> Tensor:
        return super().mask(T, S, device) & (distance(T, S, device) <= FAR)


CHEATS: list[tuple[Law, type[Attention], type[Position]]] = [
    (laws.shapes, HeadsLost, NoPosition),
    (laws.rows_sum_to_one, Unnormalised, NoPosition),
    (laws.rows_sum_to_one, ClaimsOtherSums, NoPosition),
    (laws.weights_are_not_negative, KINDS["wrong_negative"], NoPosition),
    (laws.weights_are_not_negative, ClaimsNegativeWeights, NoPosition),
    (laws.weights_do_not_see_the_future, KINDS["wrong_no_mask"], NoPosition),
    (laws.weights_do_not_see_the_future, KINDS["wrong_finite_mask"], Alibi),
    (laws.output_does_not_see_the_future, KINDS["wrong_no_mask"], NoPosition),
    (laws.output_does_not_see_the_future, KINDS["wrong_finite_mask"], NoPosition),
    (laws.output_does_not_see_the_future, FutureInOutput, NoPosition),
    (laws.mix_is_weights_times_values, KINDS["wrong_other_mix"], NoPosition),
    (laws.mix_is_weights_times_values, GradientLost, NoPosition),
    (laws.mix_is_weights_times_values, KINDS["wrong_is_causal"], NoPosition),
    (training.training_computes_the_same, KINDS["wrong_unscaled_in_training"], NoPosition),
    (training.compiled_branches_compute_the_same, KINDS["wrong_compiled_only"], NoPosition),
    (laws.scores_have_the_declared_scale, KINDS["wrong_twice_scaled"], NoPosition),
    (writing.written_token_by_token, KINDS["wrong_past_forgotten"], NoPosition),
    (writing.written_token_by_token, KINDS["wrong_stuck_at_zero"], Rotary),
    (writing.written_in_chunks, KINDS["wrong_past_forgotten"], NoPosition),
    (writing.written_in_chunks, KINDS["wrong_is_causal"], NoPosition),
    (writing.written_past_the_context, SumSurvives, NoPosition),
    (laws.batch_elements_do_not_mix, KINDS["wrong_batch_mean"], NoPosition),
    (laws.huge_scores_leave_numbers, KINDS["wrong_product_mask"], NoPosition),
    (laws.the_order_of_the_past, ClaimsNoOrder, NoPosition),
    (laws.the_order_of_the_past, ClaimsOrder, NoPosition),
    (laws.only_distances_matter, QueriesOnly, Rotary),
    (training.dropout_acts_in_training_only, DropsAlways, NoPosition),
    (training.dropout_acts_in_training_only, DropsNever, NoPosition),
    (writing.a_state_is_replaced, ChangedInPlace, NoPosition),
    (writing.bfloat16_stays_near, MultiHead, CoarseAngles),
    (laws.queries_may_come_alone, KINDS["wrong_upper_left"], NoPosition),
    (laws.equal_passes_are_equal, KINDS["wrong_noisy"], NoPosition),
    (training.random_numbers_go_on, SeedsAnew, NoPosition),
    (writing.texts_do_not_mix_in_the_cache, CacheMixed, NoPosition),
    (writing.caches_begin_empty, SharedCache, NoPosition),
    (writing.the_length_does_not_matter, FromTheEnd, NoPosition),
    (writing.two_texts_in_turns, KeptByTheLayer, NoPosition),
]
BEYOND: list[tuple[Law, type[Attention], type[Position]]] = [
    (laws.rows_sum_to_one, UnnormalisedFar, NoPosition),
    (laws.weights_are_not_negative, SignedFar, NoPosition),
    (laws.weights_do_not_see_the_future, PeekingFar, NoPosition),
    (laws.output_does_not_see_the_future, PeekingFar, NoPosition),
    (laws.mix_is_weights_times_values, OtherMixFar, NoPosition),
    (laws.mix_is_weights_times_values, GradientLostFar, NoPosition),
    (training.training_computes_the_same, TrainsOtherwiseFar, NoPosition),
    (laws.queries_may_come_alone, WrongCornerFar, NoPosition),
    (laws.batch_elements_do_not_mix, BatchMixedFar, NoPosition),
    (laws.equal_passes_are_equal, NoisyFar, NoPosition),
    (laws.the_order_of_the_past, NearFar, NoPosition),
    (writing.the_length_does_not_matter, FromTheEndFar, NoPosition),
    (writing.written_token_by_token, StuckFar, Rotary),
    (writing.written_in_chunks, WrongCornerFar, NoPosition),
]


def name(cheat: object) -> str:
    return getattr(cheat, "__name__", str(cheat))


@pytest.mark.parametrize(("law", "cheat", "position"), [*CHEATS, *BEYOND], ids=name)
def test_a_cheat_is_caught_and_told_in_one_line(law: Law, cheat: type[Attention], position: type[Position]) -> None:
    case = Case(cheat.Config(), position.Config())
    far = dict(asked_of(case))[law]  # the contract suite asks this law of such a case
    with pytest.raises(LawError) as refused:
        obey(law, case, far)
    message = str(refused.value)
    assert (cheat.kind or cheat.__name__) in message or cheat is MultiHead
    assert ". Likely cause: " in message and "\n" not in message


@pytest.mark.parametrize(("law", "cheat", "position"), BEYOND, ids=name)
def test_what_is_wrong_beyond_position_64_is_right_in_a_short_text(
    law: Law, cheat: type[Attention], position: type[Position]
) -> None:
    law(make_model(Case(cheat.Config(), position.Config())))


def test_the_suite_lists_the_laws_that_a_kind_breaks() -> None:
    found = broken_laws(Case(Unnormalised.Config(), Rotary.Config()))
    assert [line.split(":")[0] for line in found] == ["rows_sum_to_one"]
    assert "a row of its weights sums to 0.9" in found[0]


def test_every_law_has_a_cheat_that_it_catches() -> None:
    assert {law for law, _, _ in CHEATS} == set(EVERY)


def test_every_law_that_is_asked_of_a_long_text_has_a_cheat_there() -> None:
    """But for the one that is about two caches, of which the second begins empty, however long they are."""
    assert {law for law, _, _ in BEYOND} | {writing.written_past_the_context} == set(EVERY) - SHORT


def test_a_mask_of_the_wrong_corner_passes_token_by_token() -> None:
    """Which is why the suite decodes in chunks of random lengths, too."""
    writing.written_token_by_token(make_model(Case(KINDS["wrong_is_causal"].Config(), NoPosition.Config())))
