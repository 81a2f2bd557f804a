"""The ends of the model: the scale of the embeddings, the head's constants, and the cap of its logits, wherever the
head is used.

B batch, T positions, D model width, V vocabulary.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from laws import stir
from test_decoding import needs
from torch import Tensor

import minigpt
from minigpt.attention.position import Learned, Rotary
from minigpt.fast import make_fast
from minigpt.fast.decoding import prepare
from minigpt.fast.packed import Weights
from minigpt.learning.playground.player import Player
from minigpt.model import GPT, ModelConfig, SamplingConfig, count_parameters, generate
from minigpt.model.sampling import reading
from minigpt.seeing.cost import cost
from minigpt.seeing.edits import Edits
from minigpt.seeing.numbers import look
from minigpt.text.corpus import open_corpus
from minigpt.text.dataset import DataConfig, Dataset
from minigpt.text.tokenizer import Char
from minigpt.training.floor import character_probabilities, predict
from minigpt.training.loop import TrainingConfig, evaluate, next_token_loss
from minigpt.training.memory import LOGITS, Job, parameter_count, training_parts
from minigpt.training.optimizer import AdamW

V, T, CAP = 11, 8, 1.5
SMALL = ModelConfig(n_layer=2, n_embd=16, block_size=T)
CAPPED = replace(SMALL, head_cap=CAP, head_bias=True, embedding_scale=4.0)


def made(shape: ModelConfig, vocabulary: int = V) -> GPT:
    torch.manual_seed(0)
    model = GPT(shape, vocabulary)
    stir(model, 0.5)
    return model.eval()


def by_hand(model: GPT, ids: Tensor) -> Tensor:
    """The capped logits (B, T, V) from what the head reads."""
    raw = F.linear(model.hidden(ids), model.head.weight, model.head.bias)  # (B, T, V)
    return CAP * (1 - 2 / ((2 * raw / CAP).exp() + 1))  # (B, T, V): tanh, from exponentials


@pytest.mark.parametrize("tied_head", [True, False])
def test_the_cap_and_the_constants_are_their_formula_forward_and_backward(tied_head: bool) -> None:
    model, ids = made(replace(CAPPED, tied_head=tied_head)).double(), torch.randint(V, (2, T))
    found, expected = model(ids), by_hand(model, ids)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert 0.5 * CAP < found.abs().max() < CAP
    direction, parameters = torch.randn_like(found), [*model.parameters()]
    for ours, theirs in zip(*(torch.autograd.grad(y, parameters, direction) for y in (found, expected))):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("position", [Learned, Rotary])
def test_the_scale_is_that_of_the_tokens_alone(position: type[Learned | Rotary]) -> None:
    """A model whose table is larger by the scale is the same, with a head of its own; positions are not scaled."""
    shape = replace(SMALL, tied_head=False, position=position.Config())
    scaled, ids = made(replace(shape, embedding_scale=math.sqrt(16))).double(), torch.randint(V, (2, T))
    larger = GPT(shape, V).double().eval()
    larger.load_state_dict(scaled.state_dict())
    assert not torch.allclose(larger(ids), scaled(ids), rtol=0.01)
    larger.tokens.weight.mul_(4)
    torch.testing.assert_close(larger(ids), scaled(ids), rtol=1e-12, atol=1e-12)
    tied = GPT(replace(shape, tied_head=True, embedding_scale=4.0), V).double().eval()
    tied.load_state_dict(scaled.state_dict() | {"head.weight": scaled.tokens.weight})
    torch.testing.assert_close(tied(ids), scaled.hidden(ids) @ scaled.tokens.weight.T, rtol=1e-12, atol=1e-12)


def test_what_is_not_asked_for_changes_no_bit() -> None:
    ids, seen = torch.randint(V, (2, T)), list[Tensor]()
    model = made(SMALL)
    model.blocks[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    logits = model(ids)
    assert torch.equal(seen[0], model.tokens(ids) + model.position.table.weight)
    assert torch.equal(logits, model.head(model.hidden(ids))) and model.head.bias is None


@torch.no_grad()
@pytest.mark.parametrize("weights", [pytest.param(weights, marks=needs(weights)) for weights in get_args(Weights)])
def test_prepared_models_and_caches_respect_them(weights: Weights) -> None:
    model, ids = make_fast(made(CAPPED)), torch.randint(V, (1, T))
    expected, prepared = model(ids), prepare(model, weights)
    near = {"rtol": 1e-5, "atol": 1e-5} if weights == "float32" else {"rtol": 0, "atol": 0.15 * CAP}
    torch.testing.assert_close(prepared(ids).float(), expected, **near)
    assert prepared(ids).abs().max() <= CAP
    for other in (model, prepared):
        cache, last = other.make_cache(), Tensor()
        for token in ids.split(1, dim=1):
            last = other.logits(other.last(token, cache))  # (1, V)
        torch.testing.assert_close(last.float(), expected[:, -1], **near)


# ---- every user of the head ----


@pytest.mark.slow
def test_nobody_but_the_model_calls_the_head_so_nobody_forgets_the_cap() -> None:
    """But files with a `head` of their own, as the playground's server, which sends the head of an answer."""
    root, callers = Path(minigpt.__file__).parents[1], set[Path]()
    for path in (*(root / "minigpt").rglob("*.py"), *(root / "scripts").glob("*.py")):
        nodes = [*ast.walk(ast.parse(path.read_text("utf-8")))]
        own = any(isinstance(node, ast.FunctionDef) and node.name == "head" for node in nodes)
        used = [f"{ast.unparse(node.func)}()" for node in nodes if isinstance(node, ast.Call)]
        used += [ast.unparse(node) for node in nodes if isinstance(node, ast.Attribute)]
        if not own and any(re.search(r"\.head\(\)$|\bhead\.(weight\.m?T|forward)$", name) for name in used):
            callers.add(path)
    assert callers == {Path(inspect.getfile(GPT))}


@torch.no_grad()
def test_writing_and_looking_see_capped_logits() -> None:
    tokenizer = Char("".join(sorted({*"Mia was not shy."})))
    model = make_fast(made(CAPPED, tokenizer.vocab_size))
    ids = torch.from_numpy(tokenizer.encode("Mia was")).long()[None]  # (1, 7)
    expected = by_hand(model, ids)[0]  # (T, V)
    near = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(next(reading(model, ids)), expected[-1:], **near)  # what sampling draws from
    written = next(generate(model, ids, SamplingConfig(temperature=0)))
    assert written == expected[-1].argmax()

    numbers = look(model, tokenizer, ids)  # the explorer
    chance, top = expected.softmax(-1).topk(8)  # (T, 8) each
    torch.testing.assert_close(numbers.chance, chance, **near)
    torch.testing.assert_close(numbers.lens_chance[-1], chance[:, 0], **near)
    assert torch.equal(numbers.lens_top[-1], top[:, 0])
    losses = -expected[:-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]  # (T - 1,)
    torch.testing.assert_close(numbers.surprise, losses, **near)

    config = SimpleNamespace(
        sampling=SimpleNamespace(weights="float32", stop="\n"), training=SimpleNamespace(fast=True)
    )
    run: Any = SimpleNamespace(model=model, config=config, tokenizer=tokenizer, usual_loss=lambda: None)
    player = Player(run)  # the playground
    torch.testing.assert_close(player.logits(ids[0].tolist(), 7, Edits()), expected[-1], **near)
    torch.testing.assert_close(torch.tensor(player.surprises(ids[0].tolist(), Edits())), losses, **near)
    _, logits = next(player.write(ids[0].tolist(), 0, SamplingConfig(), Edits()))
    torch.testing.assert_close(logits, expected[-1], **near)


@torch.no_grad()
def test_losses_and_the_floor_see_capped_logits() -> None:
    data = DataConfig()
    corpus = open_corpus(data.source, data.stories)
    tokenizer = data.tokenizer.component.fit(data.tokenizer, corpus.documents())
    model, dataset = make_fast(made(CAPPED, tokenizer.vocab_size)), Dataset(data, corpus, tokenizer, T)
    x, y = next(iter(dataset.windows("val", 4)))  # (B, T) each
    losses = F.cross_entropy(by_hand(model, x).flatten(0, 1), y.flatten(), reduction="none")  # (B T,)
    config = TrainingConfig(batch_size=4)
    assert next_token_loss(model(x), y).item() == pytest.approx(losses.mean().item(), rel=1e-5)
    told = torch.from_numpy(predict(model, dataset, config, None, batches=1).losses).float()
    torch.testing.assert_close(told, losses, rtol=1e-4, atol=1e-5)
    rows = 4096 // T  # windows at a time in evaluation
    x, y = next(iter(dataset.windows("val", rows)))
    expected = F.cross_entropy(by_hand(model, x).flatten(0, 1), y.flatten()).item()
    assert evaluate(model, dataset, "val", config, batches=1) == pytest.approx(expected, rel=1e-5)
    ids = torch.from_numpy(tokenizer.encode("Mia was")).long()[None]  # (1, 7)
    chances = by_hand(model, ids)[0, :-1].softmax(-1).gather(1, ids[0, 1:, None])[:, 0]  # (6,)
    assert character_probabilities(model, tokenizer, "Mia was") == pytest.approx(chances.tolist(), rel=1e-4)


def test_what_they_cost() -> None:
    plain, capped = count_parameters(made(SMALL)), count_parameters(made(CAPPED))
    assert capped == plain | {"head": V}
    assert parameter_count(CAPPED, V) == sum(capped.values()) == cost(made(CAPPED)).parameters
    shapes = (replace(SMALL, block_size=1024, head_cap=cap) for cap in (None, CAP))
    before, after = (training_parts(Job(shape, V, TrainingConfig(batch_size=8)))[LOGITS] for shape in shapes)
    assert after * 2 == before * 3


def test_the_constants_of_the_head_start_at_zero_and_do_not_shrink() -> None:
    model = GPT(CAPPED, V)
    assert not model.head.bias.any()
    shrinking, others = AdamW(AdamW.Config(), model).parts[0].param_groups
    assert any(p is model.head.bias for p in others["params"]) and not any(p.ndim < 2 for p in shrinking["params"])
