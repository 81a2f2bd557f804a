"""Losses and gradients: exact over any batches, in any precision, with a loss of the kind's own.

B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import copy
import math
import shutil
from typing import Literal

import pytest
import torch
from small_corpora import corpus_of
from small_trainings import BLOCK, make_model, settings, small_dataset
from torch import Tensor

from minigpt.attention import MultiHead, Past
from minigpt.model import GPT, ModelConfig
from minigpt.system.errors import UserError
from minigpt.text.dataset import IGNORED, DataConfig, Dataset
from minigpt.text.tokenizer import BPE, GPT2, Byte, Char, Tokenizer
from minigpt.training.floor import bits_per_byte, predict
from minigpt.training.loop import BatchLoss, Loss, accumulate, compiled, evaluate, measure, mixed_precision

dataset = pytest.fixture(scope="module")(small_dataset)


@pytest.mark.parametrize("micro_batch_size", [1, 2, 3, 5, 8])
def test_micro_batches_add_up_to_the_whole_batch(micro_batch_size: int) -> None:
    """Also where they hold unequal numbers of targets: a mean of means would be another number."""
    x, y = torch.randint(30, (2, 5, BLOCK))
    y[0, 3:], y[1, 1:], y[4, :] = IGNORED, IGNORED, IGNORED

    def gradients(size: int | None) -> tuple[float, list[Tensor]]:
        model = make_model().double()
        loss = accumulate(model, x, y, settings(micro_batch_size=size)).item()
        return loss, [parameter.grad for parameter in model.parameters() if parameter.grad is not None]

    (whole, expected), (loss, found) = gradients(None), gradients(micro_batch_size)
    assert loss == pytest.approx(whole, rel=1e-6)
    scale = max(gradient.abs().max().item() for gradient in expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-7 * scale)  # the loss is made in float32


class OwnLoss(MultiHead):
    """Wants its keys to be small, and says so in a loss of its own, alike for each row."""

    own: Tensor | None = None

    def qkv(self, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = super().qkv(x, past)
        self.own = key.square().mean() if self.training else None
        return query, key, value

    def extra_loss(self) -> Tensor | None:
        own, self.own = self.own, None
        return own


@pytest.mark.parametrize("size", [None, 1, 2, 3])
def test_a_loss_of_the_kinds_own_is_added_to_the_gradients_and_not_to_what_is_shown(size: int | None) -> None:
    """The mean over all rows, however many there are at a time."""
    x, y = torch.randint(30, (2, 5, BLOCK))
    y[0, 3:], y[4, :] = IGNORED, IGNORED
    torch.manual_seed(0)
    shape = ModelConfig(n_layer=2, n_embd=16, block_size=BLOCK, attention=OwnLoss.Config())
    with_own, without = GPT(shape, 30).double(), make_model().double()
    without.load_state_dict(with_own.state_dict())
    shown = [accumulate(model, x, y, settings(micro_batch_size=size)) for model in (with_own, without)]
    assert shown[0] == shown[1]
    added = [a.grad - b.grad for a, b in zip(with_own.parameters(), without.parameters())]  # type: ignore[operator]
    with_own(x)
    extras = [extra for attention in with_own.attentions() if (extra := attention.extra_loss()) is not None]
    assert len(extras) == 2
    expected = torch.autograd.grad(sum(extras), [*with_own.parameters()], allow_unused=True)
    for found, wanted in zip(added, expected):
        torch.testing.assert_close(found, torch.zeros_like(found) if wanted is None else wanted, rtol=0, atol=1e-8)


def test_a_loss_of_the_kinds_own_is_not_in_the_validation_loss(dataset: Dataset) -> None:
    shape = ModelConfig(n_layer=2, n_embd=16, block_size=BLOCK, attention=OwnLoss.Config())
    model, plain = GPT(shape, 30), make_model()
    plain.load_state_dict(model.state_dict())
    assert evaluate(model, dataset, "val", settings()) == evaluate(plain, dataset, "val", settings())


def test_the_whole_batch_is_the_mean_over_its_targets() -> None:
    model, (x, y) = make_model().double(), torch.randint(30, (2, 5, BLOCK))
    y[0, 3:] = IGNORED
    loss = accumulate(model, x, y, settings()).item()
    log_p = model(x).log_softmax(-1)  # (B, T, V)
    picked = [-log_p[b, t, y[b, t]].item() for b in range(5) for t in range(BLOCK) if y[b, t] != IGNORED]
    assert loss == pytest.approx(sum(picked) / (3 + 4 * BLOCK), rel=1e-6)


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("batch_size", [1, 7, 1000])
def test_the_exact_loss_is_a_loop_over_every_target_once(
    dataset: Dataset, split: Literal["train", "val"], batch_size: int
) -> None:
    model = make_model(dropout=0.5)
    found = evaluate(model, dataset, split, settings(batch_size=batch_size))
    assert model.training  # and no dropout all the same:
    model.eval()
    ids = torch.from_numpy(dataset.ids[dataset.splits[split].start : dataset.splits[split].stop].astype("int64"))
    losses = []
    for start in range(0, len(ids) - 1, BLOCK):
        end = min(start + BLOCK, len(ids) - 1)
        log_p = model(ids[None, start:end])[0].log_softmax(-1)  # (T, V)
        losses += [-log_p[t, ids[start + t + 1]].item() for t in range(end - start)]
    assert len(losses) == len(ids) - 1
    assert found == pytest.approx(sum(losses) / len(losses), rel=1e-5)


def test_in_bfloat16_only_the_matrix_products_are_coarse() -> None:
    model, ids = make_model(), torch.randint(30, (2, BLOCK))
    with mixed_precision(settings(precision="bfloat16"), model):
        coarse = model(ids)
    with mixed_precision(settings(), model):  # as narrow as this, `auto` stays with float32 on a CPU
        fine = model(ids)
    assert (coarse.dtype, fine.dtype) == (torch.bfloat16, torch.float32)
    assert 0 < (coarse - fine).abs().max() < 0.02
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_auto_is_bfloat16_where_the_hardware_has_it_and_the_model_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    wide = GPT(ModelConfig(n_layer=1, n_embd=64, block_size=BLOCK), 30)
    ids = torch.randint(30, (2, BLOCK))
    for there, expected in ({"avx512_bf16": True}, torch.bfloat16), ({"avx512_f": True}, torch.float32):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda there=there: there)
        with mixed_precision(settings(), wide):
            assert wide(ids).dtype == expected
    with mixed_precision(settings(precision="bfloat16"), wide):  # asked for, it is taken anyway
        assert wide(ids).dtype == torch.bfloat16


def test_an_evaluation_in_bfloat16_is_hardly_off(dataset: Dataset) -> None:
    model = make_model()
    coarse, fine = (evaluate(model, dataset, "val", settings(precision=p)) for p in ("bfloat16", "float32"))
    assert 0 < abs(coarse - fine) < 1e-3


@pytest.mark.slow
@pytest.mark.usefixtures("captured")
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler about torch
def test_a_loss_of_the_kinds_own_comes_out_of_a_compiled_model_too() -> None:
    torch.manual_seed(0)
    shape = ModelConfig(n_layer=2, n_embd=16, block_size=BLOCK, attention=OwnLoss.Config())
    plain, x, y = GPT(shape, 30), *torch.randint(30, (2, 4, BLOCK))
    model = copy.deepcopy(plain)
    config = settings(compile=True, micro_batch_size=2)
    losses = [
        accumulate(plain, x, y, config).item(),
        accumulate(model, x, y, config, BatchLoss(model, compiled(model, config))).item(),
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    for ours, theirs in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


# ---- bits a byte ----

MIXED = "Crème brûlée 🦉 owls, naïve cafés and 多读书. "


def data_of(text: list[str], tokenizer: Tokenizer) -> Dataset:
    return Dataset(DataConfig(validation=0.3, windows="documents"), corpus_of(*text), tokenizer, BLOCK)


def test_the_bits_of_bytes_are_their_loss_to_the_last_bit() -> None:
    dataset = data_of([MIXED * 4] * 5, Byte())
    loss = measure(make_model(V=256), dataset, "val", settings())
    assert loss.bits_per_byte == loss.loss / math.log(2)
    assert loss.metrics()["val/perplexity"] == math.exp(loss.loss)
    assert loss.loss == evaluate(make_model(V=256), dataset, "val", settings())


@pytest.mark.parametrize("vocab_size", [258, 300])  # with few pieces, most tokens are parts of characters
@pytest.mark.parametrize("kind", ["char", "byte", "bpe"])
def test_bits_a_byte_by_hand(kind: str, vocab_size: int) -> None:
    """The sum over targets that stand for text, by their own bytes; the end of a text counts neither way."""
    texts = [MIXED * 3, "plain " * 20, MIXED * 2, MIXED]
    plain = {"char": lambda: Char.fit(None, texts), "byte": Byte}.get(
        kind, lambda: BPE.fit(BPE.Config(vocab_size=vocab_size), texts)
    )()
    tokenizer = plain.with_marks("end_of_text")
    dataset, model = data_of(texts, tokenizer), make_model(V=tokenizer.vocab_size)
    nats, size, everything = 0.0, 0, []
    with torch.no_grad():
        for x, y in dataset.windows("val", 1):
            for target, row in zip(y[0].tolist(), model.eval()(x)[0].double().log_softmax(-1)):
                if target != IGNORED:
                    everything.append(-float(row[target]))
                    if target != tokenizer.end_of_text:
                        nats, size = nats + everything[-1], size + len(tokenizer.token_bytes(target))
    loss = measure(model, dataset, "val", settings(batch_size=3))
    assert loss.loss == pytest.approx(sum(everything) / len(everything), rel=1e-6)
    assert loss.bits_per_byte == pytest.approx(nats / size / math.log(2), rel=1e-6)
    assert loss.bits_per_byte != pytest.approx(sum(everything) / size / math.log(2), rel=1e-4)  # the ends counted
    predictions = predict(model, dataset, settings(), None)
    assert bits_per_byte(predictions, dataset) == pytest.approx(loss.bits_per_byte, rel=1e-6)


def test_what_stands_for_no_text_has_no_bytes_and_a_loss_of_it_alone_no_bits(bpe: BPE) -> None:
    marked = bpe.with_marks("end_of_text", "user")
    counts = marked.byte_counts()
    assert counts[-2:].tolist() == [0, 0] and (counts[:-2] > 0).all() and len(counts) == marked.vocab_size
    assert (
        counts[marked.encode(MIXED)].sum()
        == len(MIXED.encode())
        < len("".join(marked.decode([id]) for id in marked.encode(MIXED)).encode())
    )
    assert Loss(2.0, None).metrics() == {"val/loss": 2.0, "val/perplexity": math.exp(2)}
    assert "val/perplexity" not in Loss(1e4, 1.0).metrics()


@pytest.fixture(scope="module")
def bpe() -> BPE:
    """Pieces that are mostly parts of characters."""
    pytest.importorskip("tokenizers")
    return BPE.fit(BPE.Config(vocab_size=260), [MIXED])


def test_special_tokens_of_published_vocabularies_have_no_bytes() -> None:
    pytest.importorskip("tiktoken")
    try:
        gpt2 = GPT2()
    except UserError:
        pytest.skip("tiktoken's gpt2 files are not here")
    assert gpt2.token_bytes(50256) == b"<|endoftext|>" and gpt2.byte_counts()[50256] == 0
    assert gpt2.byte_counts()[gpt2.encode(MIXED)].sum() == len(MIXED.encode())
