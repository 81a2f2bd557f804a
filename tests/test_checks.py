"""Before the first step: the wrong kinds are refused with the reason, the right ones pass, and nothing else changes.

`wrong_kinds.py` has the wrong ones. The laws themselves are tested in `test_contract.py` and `test_cheats.py`.

B batch, T positions, D model width.
"""

from __future__ import annotations

import copy
import random
import re
from dataclasses import replace
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from laws import INSIDE, Case, divided
from plugin_kinds import PLUGIN_KINDS, PLUGIN_POSITIONS
from running import small_text
from small_corpora import corpus_of, own_data
from test_cheats import FromTheEnd, KeptByTheLayer, SharedCache
from torch import Tensor, nn
from wrong_kinds import KINDS, NOTED, POSITIONS, RIGHT, WRONG

from minigpt.attention import Attention, MultiHead, Past, State
from minigpt.attention.position import Learned, NoPosition, Position, Rotary, Shape
from minigpt.attention.softmax.differential import Differential
from minigpt.checks.causality import LeakError, check_causal
from minigpt.checks.laws_of_attention import LawError, views
from minigpt.checks.shapes import check_shapes
from minigpt.fast import make_fast
from minigpt.model import GPT, ModelConfig
from minigpt.system.errors import UserError
from minigpt.text.dataset import DataConfig, Dataset
from minigpt.text.tokenizer import Char
from minigpt.training.before_training import MOST, check_before_training, has_plugin, layers_to_ask
from minigpt.training.loop import TrainingConfig, train
from minigpt.training.optimizer import AdamW
from minigpt.training.whole_model import Probe, check_whole_model

data = pytest.fixture(scope="module", autouse=True)(own_data)
LEARNED = Learned.Config()
STEPS = TrainingConfig(batch_size=8, precision="float32", max_steps=3)


@cache
def make_dataset(block: int) -> Dataset:
    corpus = corpus_of(small_text(200))
    return Dataset(DataConfig(), corpus, Char.fit(Char.Config(), corpus.documents()), block)


def make_model(
    attention: Attention.Config | tuple[Attention.Config, ...],
    position: Position.Config = LEARNED,
    block: int = 128,
    dropout: float = 0.0,
    n_layer: int = 2,
) -> GPT:
    torch.manual_seed(0)
    shape = {"n_layer": n_layer, "n_embd": 16, "block_size": block, "dropout": dropout}
    return make_fast(GPT(ModelConfig(attention=attention, position=position, **shape), vocab_size=20))  # type: ignore[arg-type]


def wrong_model(kind: str) -> GPT:
    attention = (KINDS | RIGHT)[kind].Config() if kind not in POSITIONS else MultiHead.Config()
    layers = 3 if "third" in kind or "list" in kind else 2
    return make_model(attention, POSITIONS.get(kind, Rotary).Config(), n_layer=layers)


# ---- what is refused ----


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_kind_is_refused_with_the_reason(kind: str) -> None:
    precision = "bfloat16" if "bfloat16" in kind else "float32"
    steps = replace(STEPS, precision=precision, compile="compiled" in kind)  # type: ignore[arg-type]
    with pytest.raises(UserError) as refused:
        check_before_training(wrong_model(kind), make_dataset(128), steps)
    message = str(refused.value)
    assert [words for words in WRONG[kind] if words not in message] == [], message
    assert "\n" not in message
    assert "trains it anyway" in message or "NaN" in message


@pytest.mark.parametrize("kind", RIGHT)
def test_the_right_sibling_of_a_wrong_kind_passes(kind: str) -> None:
    steps = replace(STEPS, compile="compiled" in kind)
    notes = check_before_training(wrong_model(kind), make_dataset(128), steps)
    told = {  # a law that cannot be asked of it
        "right_drops_keys": "layers 1, 2 (right_drops_keys): the same in training as in evaluation, since two passes",
        "right_dense_in_training": "the same in training as in evaluation, which it declares to be false",
        "right_compiled_only": "not what the compiler makes of it",
    }
    assert len(notes) == (kind in told) and all(told[kind] in note for note in notes), notes


@pytest.mark.parametrize("kind", NOTED)
def test_what_is_trained_though_it_cannot_be_meant_is_noted(kind: str) -> None:
    [note] = check_before_training(wrong_model(kind), make_dataset(128), STEPS)
    assert all(words in note for words in NOTED[kind]) and "\n" not in note, note


def test_every_wrong_kind_says_what_is_wrong_with_it() -> None:
    assert set(KINDS) | set(POSITIONS) == set(WRONG) | set(NOTED)
    assert not (set(KINDS) | set(POSITIONS) | set(RIGHT)) & (set(Attention.kinds) | set(Position.kinds))


@pytest.mark.parametrize("kind", ["wrong_bfloat16_only", "wrong_float32_only"])
def test_a_leak_in_one_type_is_no_leak_of_a_run_in_the_other(kind: str) -> None:
    steps = replace(STEPS, precision="float32" if "bfloat16" in kind else "bfloat16")
    assert check_whole_model(wrong_model(kind), make_dataset(128), steps) == []


@pytest.mark.quick(3)
@pytest.mark.parametrize("size", (1, 2, 3))
@pytest.mark.parametrize("kind", ["wrong_training_only", "wrong_every_16th", "wrong_beyond_64", "wrong_match_anywhere"])
def test_small_batches_are_probed_as_well(kind: str, size: int) -> None:
    with pytest.raises(LeakError, match="sees the future"):
        check_whole_model(wrong_model(kind), make_dataset(128), replace(STEPS, batch_size=size))


def test_of_several_micro_batches_the_first_is_probed() -> None:
    """Which is what goes through the model at one time, and so what may mix."""
    few = replace(STEPS, batch_size=8, micro_batch_size=1)
    assert check_whole_model(wrong_model("wrong_batch_in_training"), make_dataset(128), few) == []
    with pytest.raises(LeakError, match="mixes the texts of a batch"):
        check_whole_model(wrong_model("wrong_batch_in_training"), make_dataset(128), STEPS)


def test_the_layer_is_named_where_the_context_is_as_long_as_the_model_is_wide() -> None:
    """(B, D, T) inside a layer looks like (B, T, D) there."""
    with pytest.raises(LeakError, match=r"^layer 1 \(wrong_batch_statistics\) sees the future in training mode only"):
        check_whole_model(make_model(KINDS["wrong_batch_statistics"].Config(), block=16), make_dataset(16), STEPS)


class FarAway(MultiHead):
    """A leak that is rounding beside the layer's own numbers, and is not once a norm has taken their mean away."""

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return super().output(mixed, x) + 1000 + 0.002 * x.flip(1).cumsum(1).flip(1)


def test_the_layer_is_named_even_where_the_leak_is_small_beside_its_numbers() -> None:
    """Later parts move far more, and would be named by what float32 shows."""
    model = make_model(MultiHead.Config())
    for attention in model.attentions():
        attention.__class__ = FarAway
    with pytest.raises(LeakError, match=r"^layer 1 \(\) sees the future: "):
        check_whole_model(model, make_dataset(128), STEPS)


def test_dropout_is_no_leak_and_hides_none() -> None:
    assert check_whole_model(make_model(MultiHead.Config(), dropout=0.3), make_dataset(128), STEPS) == []
    with pytest.raises(LeakError, match="in training mode only"):
        check_whole_model(make_model(KINDS["wrong_training_only"].Config(), dropout=0.3), make_dataset(128), STEPS)


class FromRight(MultiHead):
    """A sum from the right, outside the weights: no mask is wrong."""

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return super().output(mixed, x) + x.flip(1).cumsum(1).flip(1)


class RollsLargeBatches(MultiHead):
    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return super().output(mixed, x) + (x.roll(1, dims=0) if x.shape[0] > 4 else 0)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (FromRight, "not the mask, which hides the future, but a mean, norm, softmax, sort, shift or convolution over"),
        (RollsLargeBatches, "mixes the texts of a batch: a change in other rows moved a row"),
        (SharedCache, "make_cache returned the same cache twice"),
        (FromTheEnd, "something counts from the end of the text"),
        (KeptByTheLayer, "two texts that are written in turns, each with its own cache, mix"),
    ],
)
def test_the_reason_of_a_refusal_is_true(kind: type[Attention], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        check_before_training(make_model(kind.Config()), make_dataset(128), STEPS)


class KeptOtherwise(MultiHead):
    """With a cache its values are negative, and what is mixed of them is turned back: right as long as it is alone."""

    __module__ = "minigpt.attention.softmax.kept_otherwise"  # no plugin

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().qkv(x, past)
        return query, key, -value if past.keeps else value

    def recall(self, query: Tensor, key: Tensor, value: Tensor, past: Past) -> Tensor:
        return -super().recall(query, key, value, past)


class ReadsBelow(MultiHead):
    """Adds the values of the layer below to its own."""

    __module__ = "minigpt.attention.softmax.reads_below"

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().qkv(x, past)
        return query, key, value + past.below.seen[1] if past.below and past.below.seen else value


@pytest.mark.parametrize("block", [8, 128])
def test_kinds_that_are_right_alone_and_wrong_together_are_refused(block: int) -> None:
    kinds = KeptOtherwise.Config(), ReadsBelow.Config()
    for attention in (kinds[0], kinds[1], (kinds[1], kinds[0]), (kinds[1], MultiHead.Config())):
        assert check_before_training(make_model(attention, block=block), make_dataset(block), STEPS) == []
    model = make_model(kinds, block=block)
    assert not has_plugin(model)
    with pytest.raises(LawError, match=r"with its cache it computes something else .* from the layer below what the"):
        check_before_training(model, make_dataset(block), STEPS)


# ---- what passes ----


ROUNDED = ("forgetting", "gated_linear", "kimi_delta")  # their sums are taken from the middle or the end of a text


QUICK, _ = divided(INSIDE)
IN_BFLOAT16 = [case for case in INSIDE if case.position == NoPosition.Config() or case.attention == MultiHead.Config()]
WITH_A_POSITION = {case.attention for case in QUICK if case not in IN_BFLOAT16}
IN_FLOAT32 = [case for case in QUICK if case not in IN_BFLOAT16 or case.attention not in WITH_A_POSITION]


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("precision", "case"),
    [*(("float32", case) for case in IN_FLOAT32), *(("bfloat16", case) for case in IN_BFLOAT16)],
    ids=str,
)
def test_every_kind_passes_with_every_position_to_the_bit(precision: str, case: Case) -> None:
    assert not isinstance(case.attention, tuple)
    model, dataset = make_model(case.attention, case.position, block=20, dropout=0.1), make_dataset(20)
    steps = replace(STEPS, batch_size=20, precision=precision)  # type: ignore[arg-type]
    for form in (copy.deepcopy(model), make_fast(model, fast=False)):
        check_shapes(form)
    check_causal(make_fast(model))
    notes = check_whole_model(model, dataset, steps)
    assert notes == [] or (case.attention.component.kind in ROUNDED and all("is rounding" in n for n in notes))


@pytest.mark.slow
def test_and_so_it_does_in_bfloat16_and_with_positions_that_are_alike(whole: bool) -> None:
    rest = [("float32", case) for case in INSIDE if case not in IN_FLOAT32]
    rest += [("bfloat16", case) for case in INSIDE if case not in IN_BFLOAT16]
    for precision, case in rest if whole else rest[::3]:
        test_every_kind_passes_with_every_position_to_the_bit(precision, case)


@pytest.mark.parametrize(
    ("kind", "position"),
    [
        *((MultiHead, position) for position in (NoPosition, Rotary, *PLUGIN_POSITIONS.values())),
        *((kind, Rotary) for kind in PLUGIN_KINDS.values()),
        *zip(PLUGIN_KINDS.values(), cycle((NoPosition, *PLUGIN_POSITIONS.values()))),
    ],
)
def test_a_right_kind_of_a_user_passes(kind: type[Attention], position: type[Position]) -> None:
    model = make_model(kind.Config(), position.Config())
    assert has_plugin(model) == (kind is not MultiHead or position in PLUGIN_POSITIONS.values())
    notes = check_before_training(model, make_dataset(128), STEPS)
    assert all("attention.key.weight" in note and "layer 2 got no gradient" in note for note in notes)
    assert len(notes) == (kind.kind == "plugin_sharing")  # whose upper layers have keys and values that they do not use


def test_what_is_declared_for_other_weights_than_those_of_the_moment_is_no_mistake() -> None:
    """Differential attention has negative weights where lambda is large; at the start it may have none."""

    class Mine(Differential):
        pass

    assert check_before_training(make_model(Mine.Config()), make_dataset(128), STEPS) == []


class OwnForward(Attention):
    """A token and the one before it: no queries, no weights."""

    def __init__(self, config: Attention.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.project = nn.Linear(2 * model.n_embd, model.n_embd)

    def forward(self, x: Tensor, past: Past | None = None) -> Tensor:
        past = Past() if past is None else past
        before = torch.cat((past.before(x, 1), x), dim=1)[:, :-1]  # (B, T, D)
        if isinstance(past, State):
            past.replace((), x.shape[1])
        return self.project(torch.cat((before, x), dim=-1))  # (B, T, D)

    def make_cache(self, length: int) -> Past:
        return State()


def test_a_kind_without_weights_is_asked_the_other_laws_and_a_note_says_which_not() -> None:
    [note] = check_before_training(make_model(OwnForward.Config()), make_dataset(128), STEPS)
    assert note.startswith("not asked of layers 1, 2 (), which has no weights(query, key): signs and sums of weights")


class NoGradient(torch.autograd.Function):
    """The identity, as an operation whose gradient exists in one type only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if gradient.dtype == torch.float64:
            raise NotImplementedError("backward is not implemented\nfor 'Double'")
        return gradient


class OwnKernel(MultiHead):
    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        return super().output(NoGradient.apply(mixed), x)


def test_a_law_that_needs_an_operation_that_is_not_there_is_named_in_a_note() -> None:
    notes = check_before_training(make_model(OwnKernel.Config()), make_dataset(128), STEPS)
    assert notes == [f"not asked: {law}: backward is not implemented for 'Double'"
                     for law in ("mix is weights times values", "training computes the same")]  # fmt: skip


def test_of_many_layers_the_first_are_asked_and_a_note_says_which_not() -> None:
    model = make_model(PLUGIN_KINDS["plugin_window"].Config(), block=32, n_layer=MOST + 2)
    [note] = check_before_training(model, make_dataset(32), STEPS)
    assert note == (
        "not asked of layers 13 to 14: all laws but those on the future, on which the whole model was checked"
    )
    model = make_model(PLUGIN_KINDS["plugin_window"].Config(), block=32, n_layer=3)
    assert layers_to_ask(model) == 3


def test_a_method_that_is_set_on_one_layer_of_a_model_is_checked() -> None:
    """It is not in the class, and a new model of this config does not have it."""
    model, dataset = make_model(MultiHead.Config(), n_layer=3), make_dataset(128)
    assert not has_plugin(model) and check_before_training(model, dataset, STEPS) == []
    layer: Any = model.attentions()[2]
    layer.scores = lambda query, key: (0.5 * query @ key.mT).tanh()
    with pytest.raises(LawError, match=r"^layer 3 \(multi_head\): mix is not weights @ value"):
        check_before_training(model, dataset, STEPS)  # the kernel that it was given before does not know of it
    assert check_before_training(make_fast(model), dataset, STEPS) == []
    layer.scores = lambda query, key: query @ key.mT
    with pytest.raises(LawError, match=r"times 1, and its scale is 0\.5"):
        check_before_training(model, dataset, STEPS)
    layer.normalise = torch.sigmoid
    with pytest.raises(LawError, match=r"^layer 3 \(multi_head\): a row of its weights sums to"):
        check_before_training(model, dataset, STEPS)


def test_layers_that_are_alike_are_asked_once_and_those_that_differ_each() -> None:
    """Whatever they differ in: an attribute, a buffer, a layer of another width."""

    class Wider(MultiHead):
        def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
            super().__init__(config, model, layer)
            self.inner = nn.Linear(model.n_embd, 4 + (layer == 2))

    class Buffered(MultiHead):
        def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
            super().__init__(config, model, layer)
            self.register_buffer("decay", torch.tensor([0.5, 0.5, 0.25, 0.5][layer]))

    def asked(kind: type[Attention]) -> list[int]:
        return [view.index for view in views(make_model(kind.Config(), n_layer=4))]

    assert asked(MultiHead) == asked(PLUGIN_KINDS["plugin_window"]) == [0]
    assert asked(Wider) == asked(Buffered) == [0, 2]
    assert asked(KINDS["wrong_third_layer"]) == [0, 1, 2, 3]


@pytest.mark.parametrize("block", [1, 2, 3])
def test_the_shortest_contexts_pass(block: int) -> None:
    window = PLUGIN_KINDS["plugin_window"]
    assert check_before_training(make_model(window.Config(), block=block), make_dataset(block), STEPS) == []


class Convolution(Attention):
    """A causal convolution by FFT: right, but for rounding, which knows no order."""

    def __init__(self, config: Attention.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.filter = nn.Parameter(torch.randn(model.block_size, model.n_embd) * 0.1)

    def forward(self, x: Tensor, past: Past | None = None) -> Tensor:
        T, x32 = x.shape[1], x.to(torch.promote_types(x.dtype, torch.float32))
        spectrum = torch.fft.rfft(x32, 2 * T, dim=1) * torch.fft.rfft(self.filter[:T].to(x32), 2 * T, dim=0)
        return torch.fft.irfft(spectrum, 2 * T, dim=1)[:, :T].to(x.dtype)  # (B, T, D)


class Slipped(Convolution):
    """The same, one place too late."""

    def forward(self, x: Tensor, past: Past | None = None) -> Tensor:
        return super().forward(x, past).roll(-1, dims=1)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_rounding_is_allowed_and_told(precision: str) -> None:
    steps = replace(STEPS, precision=precision)  # type: ignore[arg-type]
    [note] = check_whole_model(make_model(Convolution.Config()), make_dataset(128), steps)
    told = rf"other tokens moved earlier logits by [\de.-]+ of the largest in {precision}, and not in float64: that is"
    assert re.match(told, note)
    with pytest.raises(LeakError, match="sees the future"):
        check_whole_model(make_model(Slipped.Config()), make_dataset(128), steps)


class Codebook(MultiHead):
    """Keeps a running mean in a buffer, as a learned codebook does: each step sees those before it."""

    def __init__(self, config: MultiHead.Config, model: Shape, layer: int = 0):
        super().__init__(config, model, layer)
        self.register_buffer("mean", torch.zeros(model.n_embd))

    def output(self, mixed: Tensor, x: Tensor) -> Tensor:
        out = super().output(mixed, x) - self.mean  # (B, T, D)
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean(dim=(0, 1)))
        return out


def test_what_a_buffer_learned_from_earlier_steps_is_no_leak() -> None:
    assert check_whole_model(make_model(Codebook.Config()), make_dataset(128), STEPS) == []


def test_what_a_run_compiles_is_checked_before_it_is_compiled() -> None:
    model = make_model(MultiHead.Config(), block=8)
    notes = check_before_training(model, make_dataset(8), replace(STEPS, compile=True))
    assert notes == [
        "torch.compile compiles at the beginning, for a minute or more; the model was checked as it is before, not "
        "what the compiler makes of it"
    ]


def test_allow_leak_leaves_the_laws_of_any_kind_causal_or_not() -> None:
    dataset = make_dataset(128)
    for kind in ("wrong_no_mask", "wrong_training_only", "wrong_embed"):
        [note] = check_before_training(wrong_model(kind), dataset, STEPS, allow_leak=True)
        assert note.startswith("not asked, with --allow-leak: all laws but those on empty caches, equal passes, ")
    for kind in ("wrong_noisy", "wrong_batch_mean"):
        with pytest.raises(LawError, match=r"--skip-checks trains it anyway$"):
            check_before_training(wrong_model(kind), dataset, STEPS, allow_leak=True)


# ---- the cuts ----


def test_the_cuts_of_a_training_cover_borders_and_every_place_of_a_period() -> None:
    """Two passes with gradients of 32 rows: a leak at every 16th position is cut right behind it."""
    x = torch.randint(20, (32, 128))
    probe = Probe(make_model(MultiHead.Config()), x)
    cuts = set(torch.cat([probe.next_cuts(32), probe.next_cuts(31)]).tolist())
    assert len(cuts) == 63 and min(cuts) == 1 and max(cuts) == 127
    assert {64, 65, 100, 101} < cuts
    assert {cut % 16 for cut in cuts} == set(range(16))


def test_other_tokens_come_from_the_cut_on_and_some_of_them_repeat_earlier_ones() -> None:
    x = torch.randint(20, (3, 10))
    cuts = torch.tensor([4, 4, 10])
    ids = Probe(make_model(MultiHead.Config()), x).changed(cuts, 0)
    assert torch.equal(ids[:, :4], x[:, :4]) and torch.equal(ids[2], x[2])
    assert (ids[0, 4:] != x[0, 4:]).all()
    assert ids[1, 4:].tolist() == [*x[1, :4].tolist()[::-1], *x[1, 2:4].tolist()[::-1]]


# ---- nothing moves ----


def everything(model: GPT) -> list[Tensor]:
    return [*(t.detach().clone() for t in model.state_dict().values()), torch.get_rng_state()]


@pytest.mark.parametrize(
    ("kind", "training"),
    [
        ("plugin_window", True),
        ("plugin_window", False),
        ("wrong_training_only", True),
        ("wrong_noisy", False),
        ("wrong_batch_statistics", False),
    ],
)
def test_the_model_and_all_random_numbers_stay_as_they_are(kind: str, training: bool) -> None:
    attention = (PLUGIN_KINDS | KINDS)[kind].Config()
    model = make_model(attention, Rotary.Config(), dropout=0.2).train(training)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before, attributes = everything(model), [set(vars(module)) for module in model.modules()]
    python, numbers = random.getstate(), np.random.get_state()[1]
    try:
        check_before_training(model, make_dataset(128), STEPS)
        assert kind == "plugin_window"
    except UserError:
        assert kind != "plugin_window"
    assert all(map(torch.equal, everything(model), before))
    assert all((parameter.grad == 1).all() for parameter in model.parameters())
    assert all(module.training is training for module in model.modules())
    assert [set(vars(module)) for module in model.modules()] == attributes
    assert random.getstate() == python and (np.random.get_state()[1] == numbers).all()


def test_a_checked_run_is_the_same_bit_for_bit() -> None:
    dataset, weights = make_dataset(32), []
    for check in (True, False):
        model = make_model(PLUGIN_KINDS["plugin_gated"].Config(), block=32, dropout=0.1)
        if check:
            check_before_training(model, dataset, STEPS)
        for _ in train(model, dataset, AdamW(AdamW.Config(), model), STEPS):
            pass
        weights.append(copy.deepcopy(model.state_dict()))
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
