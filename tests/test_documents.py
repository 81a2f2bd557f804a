"""Packed windows and attention within a document: which ids a model sees, and what each document becomes.

A window whose documents do not see one another has the logits of each document alone, values and gradients, for every
kind with every position.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import ATTENTIONS, CASES, Case, V, make_model
from small_corpora import corpus_of, numbered, own_data
from torch import Tensor, nn

from minigpt.attention import Attention, MultiHead, Past
from minigpt.attention.position import Alibi, Convolution, Learned, NoPosition, Rotary
from minigpt.attention.sparse.indexer import Indexer
from minigpt.checks.laws_of_attention import LawError
from minigpt.checks.laws_of_training import documents_do_not_mix
from minigpt.fast import make_fast
from minigpt.model import GPT, Block, ModelConfig
from minigpt.model.documents import as_rows, within_documents
from minigpt.system.errors import ConfigError, UserError
from minigpt.text.dataset import DataConfig, Dataset
from minigpt.text.tokenizer import Byte
from minigpt.training.assemble import RunConfig
from minigpt.training.before_training import check_before_training
from minigpt.training.loop import TrainingConfig, accumulate

data = pytest.fixture(scope="module", autouse=True)(own_data)

PACKED = DataConfig(windows="packed")
APART = DataConfig(windows="packed", attend="document")
T = 20
EDGES = [[0, 5, 6, 13, 20], [0, 20], [0, 1, 2, 11, 18, 20]]  # of the documents of three windows


def places(edges: list[list[int]]) -> Tensor:
    """Where documents begin: (B, T)."""
    begins = torch.zeros(len(edges), edges[0][-1], dtype=torch.bool)  # (B, T)
    for row, cuts in enumerate(edges):
        begins[row, cuts[:-1]] = True
    return begins


BEGINS = places(EDGES)  # (3, T)
IDS = torch.randint(V, BEGINS.shape, generator=torch.Generator().manual_seed(1))  # (3, T)


# ---- what each document becomes ----


def gradients(model: GPT, logits: Tensor) -> list[Tensor | None]:
    """Those of a sum with fixed random factors."""
    factors = torch.randn(logits.shape, generator=torch.Generator().manual_seed(2), dtype=logits.dtype)
    return list(torch.autograd.grad((logits * factors).sum(), [*model.parameters()], allow_unused=True))


def alone(model: GPT) -> Tensor:
    """The logits of all windows (3, T, V), each document read by itself."""
    rows = [
        torch.cat([model(IDS[row : row + 1, start:stop]) for start, stop in pairwise(cuts)], dim=1)
        for row, cuts in enumerate(EDGES)
    ]
    return torch.cat(rows)


def equal_to_alone(case: Case) -> None:
    model = make_model(case, n_layer=2, block=T)
    with within_documents(model, BEGINS):
        packed = model(IDS)  # (3, T, V)
    apart = alone(model)
    torch.testing.assert_close(packed, apart, rtol=1e-10, atol=1e-10)
    for ours, expected in zip(gradients(model, packed), gradients(model, apart), strict=True):
        assert (ours is None) == (expected is None)
        if ours is not None:
            torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("attention", ATTENTIONS, ids=lambda attention: str(Case(attention, NoPosition.Config())))
def test_a_document_in_a_window_is_what_it_is_alone(attention: Attention.Config) -> None:
    equal_to_alone(Case(attention, NoPosition.Config()))


@pytest.mark.parametrize("position", [Learned, Convolution, Rotary, Alibi])
def test_positions_begin_with_each_document(position: type) -> None:
    equal_to_alone(Case(MultiHead.Config(), position.Config()))


@pytest.mark.slow
@pytest.mark.sample(5)
@pytest.mark.parametrize("case", [case for case in CASES if not isinstance(case.position, NoPosition.Config)], ids=str)
def test_so_it_is_with_every_position(case: Case) -> None:
    equal_to_alone(case)


@pytest.mark.parametrize("kind", [MultiHead, Indexer])
def test_without_the_context_documents_do_mix(kind: type[Attention]) -> None:
    model = make_model(Case(kind.Config(), NoPosition.Config()), 2, T)
    assert not torch.allclose(model(IDS), alone(model))
    with within_documents(model, None):
        assert torch.equal(model(IDS), model(IDS))
        assert not torch.allclose(model(IDS), alone(model))


@pytest.mark.parametrize("kinds", [("multi_head", "value_residual", "cross_layer"), ("gated_delta_net", "multi_head")])
def test_layers_that_share_keys_share_those_of_a_document(kinds: tuple[str, ...]) -> None:
    case = Case(tuple(Attention.kinds[kind].Config() for kind in kinds), Rotary.Config())
    model = make_model(case, n_layer=3, block=T)
    with within_documents(model, BEGINS):
        packed = model(IDS)  # (3, T, V)
    torch.testing.assert_close(packed, alone(model), rtol=1e-10, atol=1e-10)


def test_a_loss_of_a_kinds_own_is_the_mean_over_all_tokens_of_all_documents() -> None:
    model = make_model(Case(Indexer.Config(), NoPosition.Config()), 2, T).train()
    try:
        for _ in range(2):  # nothing is left of the pass before
            with within_documents(model, BEGINS):
                model(IDS)
                ours = [attention.extra_loss() for attention in model.attentions()]
                assert [attention.extra_loss() for attention in model.attentions()] == [None, None]
        expected = torch.zeros(2, dtype=torch.float64)
        for row, cuts in enumerate(EDGES):
            for start, stop in pairwise(cuts):
                model(IDS[row : row + 1, start:stop])
                losses = [attention.extra_loss() for attention in model.attentions()]
                expected += (stop - start) / IDS.numel() * torch.stack([loss for loss in losses if loss is not None])
    finally:
        model.eval()
    torch.testing.assert_close(torch.stack([loss for loss in ours if loss is not None]), expected)


@given(st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=1, max_size=4), st.booleans())
def test_every_token_has_one_place_in_the_rows_and_padding_is_bounded(flags: list[list[bool]], exact: bool) -> None:
    begins = torch.tensor(flags)
    rows, back = as_rows(begins, exact)
    placed = torch.cat([row.flatten() for row in rows])
    assert torch.equal(placed[back], torch.arange(begins.numel()).view_as(begins))
    assert begins.numel() <= len(placed) < 2.5 * begins.numel() and (len(placed) == begins.numel() or not exact)
    begins[:, 0] = True
    for row in rows:
        assert begins.flatten()[row[:, 0]].all() and not begins.flatten()[row[:, 1:]][row[:, 1:] > row[:, :-1]].any()


def test_another_batch_and_a_cache_are_refused() -> None:
    model = make_model(Case(MultiHead.Config(), Rotary.Config()), 2, T)
    with within_documents(model, BEGINS):
        for ids in (IDS[:2], IDS[:, :-1], IDS.mT.reshape(4, -1)):
            with pytest.raises(ValueError, match=r"documents of \(3, 20\) tokens, now \("):
                model(ids)
        with pytest.raises(ValueError, match="no cache"):
            model(IDS, model.make_cache())


def test_afterwards_the_model_is_as_it_was() -> None:
    model = make_model(Case(Indexer.Config(), Learned.Config()), 2, T)
    before = [{**vars(module)} for module in model.modules()]
    with pytest.raises(ZeroDivisionError), within_documents(model, BEGINS):
        raise ZeroDivisionError
    assert [{**vars(module)} for module in model.modules()] == before


# ---- the check before training ----


class Shifting(Block, kind=""):
    """A block that reads the token before, without an attention: causal, and equal with a cache."""

    def forward(self, x: Tensor, past: Past) -> Tensor:
        before = torch.cat((past.before(x, 1, of="block"), x), dim=1)[:, :-1]  # (B, T, D)
        return super().forward(x + before, past)  # (B, T, D)


def test_a_block_that_reads_other_tokens_is_refused_where_documents_stay_apart() -> None:
    """A document would see the end of the one before it."""
    corpus = corpus_of(*(f"\n{n}: some text" for n in range(100)))
    config = ModelConfig(n_layer=1, n_embd=16, block_size=32)
    training = TrainingConfig(batch_size=4, max_steps=2, device="cpu")
    for block in (Block, Shifting):
        model = make_fast(GPT(replace(config, block=block.Config()), 256))
        assert check_before_training(model, Dataset(PACKED, corpus, Byte(), 32), training) == []
        apart = Dataset(APART, corpus, Byte(), 32)
        if block is Block:
            assert check_before_training(model, apart, training) == []
            documents_do_not_mix(copy.deepcopy(model).double())
        else:
            with pytest.raises(LawError, match=r"a document becomes something else in a window with others"):
                check_before_training(model, apart, training)


# ---- packed windows ----


def corpus_and(lengths: list[int]) -> tuple[Dataset, list[range]]:
    """A dataset of packed documents whose n-th id is n, and its documents."""
    edges = [0, *np.cumsum([*lengths, 40]).tolist()]
    tokenizer = numbered(edges[-1])[1]
    texts = [tokenizer.alphabet[low:high] for low, high in pairwise(edges)]
    dataset = Dataset(replace(APART, validation=40), corpus_of(*texts), tokenizer, 8)
    return dataset, [range(*pair) for pair in pairwise(edges)][:-1]


@given(st.lists(st.integers(1, 30), min_size=9, max_size=20), st.integers(0, 10**9), st.integers(1, 7))
@settings(max_examples=40)
def test_packed_windows_are_full_and_give_every_id_once_an_epoch(
    lengths: list[int], seed: int, batch_size: int
) -> None:
    dataset, documents = corpus_and(lengths)
    ids = sum(lengths)
    windows = (ids - 1) // 8
    batches = [
        (*dataset.batch("train", n, batch_size, seed), dataset.begins("train", n, batch_size, seed))
        for n in range(-(-2 * windows // batch_size))
    ]
    x, y, begins = (torch.cat(parts)[: 2 * windows] for parts in zip(*batches, strict=True))  # type: ignore[arg-type]
    assert torch.equal(x[:, 1:], y[:, :-1])
    firsts, lasts = {document.start for document in documents}, {document.stop - 1 for document in documents}
    for epoch in (slice(windows), slice(windows, None)):
        seen = x[epoch].flatten().tolist()
        assert len({*seen}) == len(seen) > ids - 9 and {*seen} <= {*range(ids)}  # but the last few of the order
    for row, marks in zip(torch.cat((x, y[:, -1:]), dim=1).tolist(), begins.tolist(), strict=True):
        for t, (id, following) in enumerate(pairwise(row)):
            assert following == id + 1 or (id in lasts and following in firsts)
            assert marks[t] == (t == 0 or id in firsts)


def test_packed_documents_are_in_another_order_in_each_epoch_and_for_each_seed() -> None:
    dataset, _ = corpus_and([4] * 50)
    orders = {tuple(dataset.batch("train", n, 24, seed)[0].flatten().tolist()) for n in range(5) for seed in range(5)}
    assert len(orders) == 25
    (one,), (other,) = (dataset.batch("train", 0, 24, 1)[:1] for _ in range(2))
    assert torch.equal(one, other)


@pytest.mark.parametrize("windows", ["random", "shuffled"])
def test_other_windows_may_be_divided_too(windows: str) -> None:
    edges = [3, 14, 1, 5, 9, 2, 6, 5, 3, 5, 40]
    tokenizer = numbered(sum(edges))[1]
    cuts = [0, *np.cumsum(edges).tolist()]
    texts = [tokenizer.alphabet[low:high] for low, high in pairwise(cuts)]
    config = replace(APART, windows=windows, validation=40)
    dataset = Dataset(config, corpus_of(*texts), tokenizer, 8)
    x, _ = dataset.batch("train", 0, 64, 1)
    begins = dataset.begins("train", 0, 64, 1)
    assert begins is not None
    expected = [[t == 0 or id in cuts for t, id in enumerate(row)] for row in x.tolist()]
    assert begins.tolist() == expected
    aligned = Dataset(replace(config, windows="documents"), corpus_of(*texts), tokenizer, 8)
    assert aligned.begins("train", 0, 64, 1) is None  # each window has one document
    for ours, theirs in zip(dataset.windows("val", 9), aligned.windows("val", 9), strict=True):
        assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


# ---- a step ----


def test_a_step_is_that_of_the_documents_alone_whatever_the_micro_batch() -> None:
    model = make_model(Case(MultiHead.Config(), Rotary.Config()), 2, T).train()
    y = torch.randint(V, IDS.shape)
    found = []
    for size in (None, 1, 2):
        model.zero_grad()
        config = TrainingConfig(batch_size=3, micro_batch_size=size, device="cpu")
        found.append((accumulate(model, IDS, y, config, begins=BEGINS).item(), model.head.weight.grad.clone()))  # type: ignore[union-attr]
    model.zero_grad()
    loss = nn.functional.cross_entropy(alone(model).flatten(0, 1), y.flatten())
    loss.backward()
    for value, gradient in found:
        assert value == pytest.approx(loss.item(), abs=1e-6)  # the loss is taken in float32
        torch.testing.assert_close(gradient, model.head.weight.grad, rtol=1e-6, atol=1e-7)
    model.zero_grad()
    model.eval()


# ---- mistakes ----


@pytest.mark.parametrize(
    ("options", "what"),
    [({"windows": "packed"}, "data.windows: .* document to train on, nothing to pack: use data.windows=shuffled"),
     ({"attend": "document"}, "data.attend: .* every window is within: leave it out")],
)  # fmt: skip
def test_a_single_document_is_not_packed_or_divided(options: dict[str, str], what: str) -> None:
    with pytest.raises(UserError, match=what):
        Dataset(DataConfig(**options), corpus_of("x" * 1000), Byte(), 8)  # type: ignore[arg-type]
    Dataset(DataConfig(windows="documents", attend="document"), corpus_of("x" * 1000), Byte(), 8)


def test_what_does_not_go_together_is_refused() -> None:
    for wrong in ({"source": "recall", "windows": "packed"}, {"attend": "documents"}, {"windows": "pack"}):
        with pytest.raises(ConfigError, match=r"windows: .* documents|one of window, document|random, shuffled"):
            DataConfig(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"training.compile: .*data.attend: document"):
        RunConfig(data=APART, training=TrainingConfig(compile=True))
    RunConfig(data=replace(APART, windows="documents"), training=TrainingConfig(compile=True))
