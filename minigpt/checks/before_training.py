"""All checks before the first step of a run; they take about half a second.

- Every model: each attention is causal (`inspection/causality.py`), and the whole model is causal as it will be trained
  (`whole_model.py`).
- Layers of several kinds: the model computes the same with a cache as without. A kind may read what the layer below
  keeps, and the contract suite cannot try every combination.
- Training windows that are divided into documents (`data.attend`): each document is computed as if it were alone.
- An attention, position, norm, MLP or block from a plugin or a notebook: the model obeys the laws below. The contract
  suite checks them for the built-in kinds.

The shapes of the contract are checked earlier, when a model is built (`inspection/shapes.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

from minigpt.checks import laws, laws_of_documents, laws_of_parts, laws_of_writing
from minigpt.checks.laws import Law, LawError
from minigpt.checks.whole_model import NOISE, check_whole_model, untouched_random
from minigpt.config.options import Component
from minigpt.fast import make_fast
from minigpt.inspection.causality import check_causal
from minigpt.model.gpt import GPT
from minigpt.text.dataset import Dataset
from minigpt.training.loop import TrainingConfig

ROUNDING = 1e-5  # allowed error of a kind that always computes in float32, relative to the largest number
MIXED_TYPES = re.compile("dtype|scalar type")  # in torch's errors
CONTEXT, VOCABULARY, LAYERS = 256, 64, 2  # the largest sizes of the model on which laws are checked

FIRST: tuple[Law, ...] = (  # without these, the other checks would give a wrong reason
    laws_of_writing.caches_begin_empty,
    laws.equal_passes_are_equal,
    partial(laws_of_parts.positions_do_not_mix, allowed=ROUNDING),
    partial(laws.batch_elements_do_not_mix, allowed=ROUNDING),
)
WEIGHTS: tuple[Law, ...] = (
    laws.weights_do_not_see_the_future,
    partial(laws.rows_sum_to_one, allowed=ROUNDING),
    partial(laws.weights_are_not_negative, allowed=ROUNDING),
    partial(laws.mix_is_weights_times_values, allowed=ROUNDING),
    partial(laws.queries_may_come_alone, allowed=ROUNDING),
    laws.random_numbers_go_on,
)
TOGETHER: tuple[Law, ...] = (
    partial(laws_of_writing.written_token_by_token, allowed=ROUNDING),
    partial(laws_of_writing.written_in_chunks, allowed=ROUNDING),
)
DOCUMENTS: tuple[Law, ...] = (partial(laws_of_documents.documents_do_not_mix, allowed=ROUNDING),)
WRITING: tuple[Law, ...] = (
    partial(laws_of_writing.the_length_does_not_matter, allowed=ROUNDING),
    *TOGETHER,
    partial(laws_of_writing.written_past_the_context, allowed=ROUNDING),
    partial(laws_of_writing.two_texts_in_turns, allowed=ROUNDING),
)


def check_before_training(model: GPT, dataset: Dataset, config: TrainingConfig, allow_leak: bool = False) -> list[str]:
    """Runs all checks before the first step; returns notes for the user, a line each.

    Raises LeakError for a model that sees the future, and LawError for a user's kind that breaks a law. With
    `allow_leak` only the laws in FIRST are checked: the others assume a causal kind. If there are several processes,
    each checks its own rows, without communication. The model and the states of all random generators are unchanged.
    """
    notes: list[str] = []
    with untouched_random(model.device), says_how_to_go_on():
        plugin = small_copy(model, config.fast) if has_plugin(model) else None
        obey(plugin, FIRST)
        if not allow_leak:
            notes += check_causal(model)
            notes += check_whole_model(model, dataset, config)
            obey(plugin, (*WEIGHTS, *WRITING))
            obey(small_copy(model, config.fast) if is_mixed(model) and not plugin else None, TOGETHER)
            obey(small_copy(model, config.fast) if dataset.config.divides else None, DOCUMENTS)
    if config.compile:
        notes.append(
            "torch.compile compiles at the beginning, for a minute or more; the model was checked as it is before"
        )
    return notes


def has_plugin(model: GPT) -> bool:
    """Whether a part that the config chooses, such as an attention, a norm or an MLP, is from outside this package."""
    parts = [part for part in model.modules() if isinstance(part, Component)]
    return not all(type(part).__module__.startswith("minigpt.") for part in parts)


def is_mixed(model: GPT) -> bool:
    """Whether the layers differ in their kind of attention or its options."""
    return len({attention.config for attention in model.attentions()}) > 1


def small_copy(model: GPT, fast: bool) -> GPT:
    """A model of the same kinds, options and width for the laws, in float64 and evaluation mode, with noise.

    It has few layers, a small vocabulary and a short context, unless an option needs a longer one.
    """
    config = model.config
    period = len(config.attention) if isinstance(config.attention, tuple) else 1
    config = replace(config, n_layer=min(config.n_layer, max(LAYERS, period)), dropout=0.0)
    short = replace(config, block_size=min(config.block_size, CONTEXT))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = GPT(config if [*short.mistakes()] else short, VOCABULARY)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(NOISE * torch.randn_like(parameter))
    return make_fast(made, fast).double().eval()


def obey(model: GPT | None, some: tuple[Law, ...]) -> None:
    """Raises LawError for a model that breaks one of these laws; does nothing for None."""
    if model is not None:
        for law in some:
            try:
                law(model)
            except RuntimeError as error:
                if MIXED_TYPES.search(str(error)):
                    error.args = (f"{error} (the checks compute in float64: make tensors of the type that arrives)",)
                raise


@contextmanager
def says_how_to_go_on() -> Iterator[None]:
    """Adds to the message of a LawError how to train anyway."""
    try:
        yield
    except LawError as error:
        raise LawError(f"{error}. --skip-checks trains it anyway") from None
