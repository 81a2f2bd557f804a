"""The laws of training: what is trained computes what is evaluated, also under torch.compile, and all of it learns.

As in `laws.py`, a law takes a model in float64 and evaluation mode, and raises LawError. Its dropout is zero, but for
the law of dropout.

B batch, H heads, T positions, D model width, e width of a value, V vocabulary.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from minigpt.attention import Attention
from minigpt.checks.laws_of_attention import EXACT, Law, View, gradients, hold, longest, off, tokens, views
from minigpt.checks.laws_of_writing import ids_of, kinds
from minigpt.model.documents import within_documents
from minigpt.model.gpt import GPT
from minigpt.model.replaced import replaced
from minigpt.system.counting import layer_names

STEPS, LAST = 4, 2  # of a trial training; a parameter learns if it has a gradient in one of the last ones
ROWS, LENGTH = 2, 32  # of its batches, at most
STRIDE = 0.01  # how far each number moves in a step, against its gradient
ENDS = (5, 6, 13, 16, 17), (4, 5, 8, 15, 20)  # where documents end, in two windows; the last one ends with its window
LONGEST = 24  # positions of such a window


@torch.no_grad()
def random_numbers_go_on(model: GPT) -> None:
    """A pass in training does not seed torch's random generator anew: its random numbers go on."""
    with torch.random.fork_rng(devices=[]):
        for view in views(copy.deepcopy(model).train()):
            before = torch.seed()  # sets a new seed
            view.out(tokens(model, 2, 2))
            if torch.initial_seed() != before:
                raise view.broken("a pass seeds torch's random numbers anew", "torch.manual_seed in forward")


def training_computes_the_same(model: GPT, allowed: float = EXACT) -> None:
    """Without dropout a layer computes the same in training, with gradients, as in evaluation, without; and so does the
    model. Not asked of what varies from one pass of training to the next, nor of a kind that declares
    `same_in_training = False`.
    """
    trained = copy.deepcopy(model).train()
    pairs = [(ours, View(trained, ours.index)) for ours in views(model)]
    asked = [(ours, other) for ours, other in pairs if ours.layer.same_in_training and not varies(other)]
    violation = "without dropout it computes something else in training than in evaluation"
    cause = "a branch on self.training or on torch.is_grad_enabled(); if it is meant, declare same_in_training = False"
    for ours, other in asked:
        if (far := apart(ours, other, torch.no_grad, nullcontext)) > allowed:
            raise ours.broken(f"{violation}: off by {far:.2g}", cause)
    if len(asked) == len(pairs) and not varies_as_a_whole(trained):
        with torch.no_grad():
            hold_together(model, trained, nullcontext, allowed, violation, cause)


def compiled_branches_compute_the_same(model: GPT, allowed: float = EXACT) -> None:
    """What a layer does only where `torch.compiler.is_compiling()` computes what it computes otherwise."""
    violation, cause = "under torch.compile it computes something else", "a branch on torch.compiler.is_compiling()"
    for view in views(model):
        if (far := apart(view, view, nullcontext, compiling)) > allowed:
            raise view.broken(f"{violation}: off by {far:.2g}", cause)
    with torch.no_grad():
        hold_together(model, model, compiling, allowed, violation, cause)


@contextmanager
def compiling() -> Iterator[None]:
    """Inside the `with`, torch says that it is compiling, and compiles nothing."""
    with ExitStack() as stack:
        stack.enter_context(replaced(torch.compiler, "_is_compiling_flag", True))
        stack.enter_context(replaced(torch.compiler, "is_dynamo_compiling", lambda: True))
        yield


@torch.no_grad()
def varies(view: View) -> bool:
    """Whether two equal passes of an attention in training mode differ: by random numbers, or by a state of its own."""
    with torch.random.fork_rng(devices=[]):
        first, second = (view.out(tokens(view.model, 2, longest(view.model))) for _ in range(2))  # (B, T, D) each
    return not torch.equal(first.nan_to_num(), second.nan_to_num())


@torch.no_grad()
def varies_as_a_whole(model: GPT) -> bool:
    """Whether two equal passes of a model in training mode differ."""
    with torch.random.fork_rng(devices=[]):
        first, second = (model(ids_of(model, 2, longest(model))) for _ in range(2))  # (B, T, V) each
    return not torch.equal(first.nan_to_num(), second.nan_to_num())


Context = Callable[[], AbstractContextManager[None]]


def hold_together(model: GPT, other: GPT, others: Context, allowed: float, violation: str, cause: str) -> None:
    """Raises LawError unless the logits of a model are those of the other one in its context."""
    ids = ids_of(model, 2, longest(model))  # (B, T)
    expected = model(ids)  # (B, T, V)
    with others():
        logits = other(ids)  # (B, T, V)
    hold(f"the model of {kinds(model)}", logits, expected, allowed, f"{violation}: off by {{far}}", cause)


def apart(ours: View, other: View, context: Context, others: Context) -> float:
    """How far the outputs of two attentions for equal inputs are apart, and their gradients."""
    T, slopes = longest(ours.model), list[list[Tensor]]()
    direction = tokens(ours.model, 2, T, seed=1)  # (B, T, D)
    with context():
        outputs = [ours.out(tokens(ours.model, 2, T)).detach()]  # (B, T, D)
    for view, within in ((ours, nullcontext), (other, others)):
        x = tokens(view.model, 2, T).requires_grad_()  # (B, T, D)
        with within():
            output = view.out(x)  # (B, T, D)
            slopes.append(gradients(view.layer, x, output, direction))
        outputs.append(output.detach())
    return max(*(off(output, outputs[0]) for output in outputs[1:]), *map(off, *slopes))


@torch.no_grad()
def dropout_acts_in_training_only(model: GPT, draws: int = 1000) -> None:
    """In evaluation nothing is dropped; in training weights are, and the mean of `mix` stays. For a model with dropout.

    The mean is taken after `mix`, because `output` may contain a norm, which changes the mean.
    """
    plain = GPT(replace(model.config, dropout=0.0), model.vocab_size).double().eval()
    plain.load_state_dict(model.state_dict())
    dropping = copy.deepcopy(model).train()
    for evaluated, trained, exact in zip(views(model), views(dropping), views(plain)):
        x = tokens(model, 1, min(5, longest(model)))
        if (far := off(evaluated.out(x), exact.out(x))) > EXACT:
            raise evaluated.broken(f"in evaluation mode something is dropped: off by {far:.2g}", DROPS)
        expected = Attention.mix(exact.layer, *exact.parts(x, x.shape[1]))  # (1, H, T, e)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            drawn = trained.layer.mix(*trained.parts(x.expand(draws, -1, -1), x.shape[1]))  # (draws, H, T, e)
        spread, mean = drawn.std(dim=0), drawn.mean(dim=0)  # (H, T, e) each
        if not (spread[:, 1:].amax(dim=(0, 2)) > 0).all():
            violation = f"in training nothing is dropped, and model.dropout is {model.config.dropout}"
            raise evaluated.broken(violation, DROPS)
        if ((mean - expected[0]).abs() > 6 * spread / draws**0.5 + 1e-12).any():
            raise evaluated.broken("in training dropout changes the mean of what it computes", DROPS)


@torch.no_grad()
def documents_do_not_mix(model: GPT, allowed: float = EXACT) -> None:
    """The logits of a window are those of each of its documents alone, with its first token at position 0.

    Asked where the documents of a window do not see one another.
    """
    T = min(LONGEST, model.config.block_size)
    ids = ids_of(model, 2, T)  # (B, T)
    edges = [[0, *(end for end in ends if end < T), T] for ends in ENDS]
    begins = torch.zeros(2, T, dtype=torch.bool)  # (B, T)
    for row, cuts in enumerate(edges):
        begins[row, cuts[:-1]] = True
    with within_documents(model, begins):
        together = model(ids)  # (B, T, V)
    violation = "a document becomes something else in a window with others than alone: off by {far}"
    cause = "a block, or a part of one, that reads other tokens without an attention"
    for row, cuts in enumerate(edges):
        for start, stop in pairwise(cuts):
            alone = model(ids[row : row + 1, start:stop])  # (1, document, V)
            hold(kinds(model), together[row : row + 1, start:stop], alone, allowed, violation,
                 f"{cause}; data.attend=window needs no such law")  # fmt: skip


DROPS = "dropout that is not F.dropout(weights, self.dropout, self.training), inside mix"


# ---- what learns ----


def what_does_not_learn(model: GPT) -> list[str]:
    """The names of parameters that get no gradient in the last steps of a trial training: of a gate that never opens,
    or of a layer that is not used. Of an `extra_loss` that is always None, `blocks.0.attention.extra_loss`.

    The model, in float32 and as it starts, is trained for a few steps on random tokens; it does not stay as it is.
    """
    learns, ids = set[str](), ids_of(model, STEPS * ROWS, min(model.config.block_size, LENGTH) + 1)  # ids (B, T + 1)
    trained = {name: parameter for name, parameter in model.train().named_parameters() if parameter.requires_grad}
    own = [layer for layer, a in enumerate(model.attentions()) if type(a).extra_loss is not Attention.extra_loss]
    for step, batch in enumerate(ids.split(ROWS)):
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())  # ()
        extras = {f"blocks.{layer}.attention.extra_loss": model.attentions()[layer].extra_loss() for layer in own}
        every = sum((extra for extra in extras.values() if extra is not None), loss)
        slopes = torch.autograd.grad(every, [*trained.values()], allow_unused=True)
        moved = {name: gradient for name, gradient in zip(trained, slopes) if gradient is not None and gradient.any()}
        learns |= moved.keys() if step >= STEPS - LAST else set()
        learns |= {name for name, extra in extras.items() if extra is not None}
        with torch.no_grad():
            for name, gradient in moved.items():
                trained[name].sub_(STRIDE * gradient.sign())
    return [name for name in (*trained, *extras) if name not in learns]


def by_layer(names: list[str]) -> list[str]:
    """A line for the names that the same layers have: `attention.gate.weight, attention.gate.bias of layers 1, 2`."""
    layers: dict[str, list[int]] = {}
    for name in names:
        block = re.match(r"blocks\.(\d+)\.", name)
        layers.setdefault(name[block.end() :] if block else name, []).extend([int(block[1])] if block else [])
    alike: dict[str, list[str]] = {}
    for name, where in layers.items():
        alike.setdefault(f" of {layer_names(where)}" if where else "", []).append(name)
    return [f"{', '.join(some)}{where}" for where, some in alike.items()]


LAWS_OF_TRAINING: tuple[Law, ...] = (
    random_numbers_go_on,
    dropout_acts_in_training_only,
    training_computes_the_same,
    compiled_branches_compute_the_same,
)
