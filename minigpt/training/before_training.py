"""All checks before the first step of a run; they take about half a second.

- Every model: each attention is causal (`checks/causality.py`), and the whole model is causal as it will be trained
  (`whole_model.py`).
- Layers of several kinds: the model computes the same with a cache as without. A kind may read what the layer below
  keeps, and the contract suite cannot try every combination.
- Training windows that are divided into documents (`data.attend`): each document is computed as if it were alone.
- An objective, a schedule, callbacks: what the loop and a resumed run count on (`objective.py`, `schedule.py`,
  `callbacks.py`).
- An attention, position, norm, MLP or block from a plugin or a notebook: the model obeys the laws below. The contract
  suite checks them for the built-in kinds. Then a trial of a few steps: does everything in these parts learn?

What cannot be asked of a model is said in a note. The shapes of the contract are checked earlier, when a model is built
(`checks/shapes.py`).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import MethodType

import torch
from torch import nn

from minigpt.checks import laws_of_attention as laws
from minigpt.checks import laws_of_training, laws_of_writing
from minigpt.checks.causality import check_causal
from minigpt.checks.laws_of_attention import Law, LawError, View, has_weights
from minigpt.checks.laws_of_training import by_layer, varies, varies_as_a_whole, what_does_not_learn
from minigpt.checks.layers import alike
from minigpt.checks.lines import with_the_line
from minigpt.config.options import Component
from minigpt.fast.guard import set_on
from minigpt.model.eval_mode import untouched_random
from minigpt.model.gpt import GPT
from minigpt.system.counting import layer_names
from minigpt.text.dataset import Dataset
from minigpt.training.callbacks import check_restored
from minigpt.training.loop import TrainingConfig
from minigpt.training.objective import check_objective
from minigpt.training.schedule import check_schedule
from minigpt.training.whole_model import NOISE, check_whole_model

ROUNDING = 1e-5  # allowed error of a kind that always computes in float32, relative to the largest number
MIXED_TYPES = re.compile("dtype|scalar type")  # in torch's errors
CONTEXT, VOCABULARY, LAYERS = 256, 64, 2  # the largest sizes of the model on which laws are checked
MOST, NUMBERS = 12, 2.5e7  # layers of a user's own, and parameters in them: a law of them takes a second at most

FIRST: tuple[Law, ...] = (  # without these, the other checks would give a wrong reason
    laws_of_writing.caches_begin_empty,
    laws.equal_passes_are_equal,
    partial(laws.positions_do_not_mix, allowed=ROUNDING),
    partial(laws.batch_elements_do_not_mix, allowed=ROUNDING),
)
WEIGHTS: tuple[Law, ...] = (
    laws.weights_do_not_see_the_future,
    partial(laws.rows_sum_to_one, allowed=ROUNDING, needed=False),
    partial(laws.weights_are_not_negative, allowed=ROUNDING, needed=False),
    partial(laws.mix_is_weights_times_values, allowed=ROUNDING),
    partial(laws.queries_may_come_alone, allowed=ROUNDING),
    laws.scores_have_the_declared_scale,
)
TRAINING: tuple[Law, ...] = (
    laws_of_training.random_numbers_go_on,
    partial(laws_of_training.training_computes_the_same, allowed=ROUNDING),
)
COMPILED: tuple[Law, ...] = (partial(laws_of_training.compiled_branches_compute_the_same, allowed=ROUNDING),)
TOGETHER: tuple[Law, ...] = (
    partial(laws_of_writing.written_token_by_token, allowed=ROUNDING),
    partial(laws_of_writing.written_in_chunks, allowed=ROUNDING),
)
DOCUMENTS: tuple[Law, ...] = (partial(laws_of_training.documents_do_not_mix, allowed=ROUNDING),)
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
    with untouched_random(str(model.device)), says_how_to_go_on(), ExitStack() as stack:
        check_own(config, model.vocab_size)
        plugin = small_copy(model, layers_to_ask(model)) if has_plugin(model) else None
        stack.enter_context(with_the_line(plugin))
        notes += obey(plugin, FIRST)
        if not allow_leak:
            notes += check_causal(model)
            notes += check_whole_model(model, dataset, config)
            notes += obey(plugin, (*WEIGHTS, *TRAINING, *(COMPILED if config.compile else ()), *WRITING))
            notes += obey(small_copy(model) if is_mixed(model) and not plugin else None, TOGETHER)
            notes += obey(small_copy(model) if dataset.config.divides else None, DOCUMENTS)
        if plugin is not None:
            notes += not_asked(model, plugin, allow_leak) + not_learned(model)
    if config.compile:
        first = "torch.compile compiles at the beginning, for a minute or more"
        notes.append(f"{first}; the model was checked as it is before, not what the compiler makes of it")
    return notes


def check_own(config: TrainingConfig, vocab_size: int) -> None:
    """Raises UserError for an objective, a schedule or a callback that breaks what the loop counts on."""
    check_objective(config.objective, vocab_size)
    check_schedule(config.schedule, config.warmup_steps, config.final_rate, config.max_steps)
    for callback in config.callbacks or ():
        check_restored(callback.component(callback))


def not_asked(model: GPT, plugin: GPT, allow_leak: bool) -> list[str]:
    """Notes on the laws that were not asked of a user's parts, and why."""
    if allow_leak:
        laws = "empty caches, equal passes, norms and MLPs, and the texts of a batch"
        return [f"not asked, with --allow-leak: all laws but those on {laws}"]
    notes, same, trained = list[str](), "the same in training as in evaluation", copy.deepcopy(plugin).train()
    if len(plugin.blocks) < model.config.n_layer:
        rest = f"layers {len(plugin.blocks) + 1} to {model.config.n_layer}"
        notes.append(f"not asked of {rest}: all laws but those on the future, on which the whole model was checked")
    for group in alike(trained.attentions()):
        view, whose = View(trained, group[0]), f"{layer_names(group)} ({trained.attentions()[group[0]].kind})"
        if not has_weights(view.layer):
            weights = "signs and sums of weights, their scale, mix = weights @ value, and queries that come alone"
            notes.append(f"not asked of {whose}, which has no weights(query, key): {weights}")
        if not view.layer.same_in_training:
            notes.append(f"not asked of {whose}: {same}, which it declares to be false")
        elif varies(view):
            notes.append(f"not asked of {whose}: {same}, since two passes differ, by random numbers or by a state")
    if not notes and varies_as_a_whole(trained):
        notes.append(f"not asked of the model: {same}, since two passes differ, by random numbers or by a state")
    return notes


def not_learned(model: GPT) -> list[str]:
    """Notes on the parameters of a user's parts that do not learn in a trial of a few steps, and on lost losses.

    A context of one token says nothing: its weight is 1 whatever the scores, so no query or key learns.
    """
    if model.config.block_size == 1:
        return []
    trial = small_copy(model, layers_to_ask(model), noise=0.0).float()
    prefixes = tuple(f"{name}." if name else "" for name, part in trial.named_modules() if is_users(part))
    silent = [name for name in what_does_not_learn(trial) if name.startswith(prefixes)]
    losses = [name for name in silent if name.endswith(".extra_loss")]
    parameters = [name for name in silent if name not in losses]
    when = "in a trial of a few steps"
    why = "a gate that never opens, a detach, an unused layer? If it is meant, freeze: requires_grad_(False)"
    notes = [f"{line} got no gradient {when}: {why}" for line in by_layer(parameters)]
    return notes + [f"{line} returned None {when}: is what makes the loss called?" for line in by_layer(losses)]


def is_users(part: nn.Module) -> bool:
    """Whether a part that a config chooses is from outside this package, or has a method that was set on it alone."""
    if not isinstance(part, Component):
        return False
    own = (name for name in set_on(part) if callable(getattr(type(part), name, None)))
    return not type(part).__module__.startswith("minigpt.") or any(own)


def has_plugin(model: GPT) -> bool:
    """Whether a part that the config chooses, such as an attention, a norm or an MLP, is a user's."""
    return any(map(is_users, model.modules()))


def is_mixed(model: GPT) -> bool:
    """Whether the layers differ in their kind of attention or its options."""
    return len({attention.config for attention in model.attentions()}) > 1


def fewest_layers(model: GPT) -> int:
    """How many layers have each kind of a list, and two of one kind."""
    attention = model.config.attention
    return min(model.config.n_layer, max(LAYERS, len(attention) if isinstance(attention, tuple) else 1))


def layers_to_ask(model: GPT) -> int:
    """Of how many layers, from the first on, a user's kind is asked the laws: of all, as far as time allows."""
    largest = max(sum(parameter.numel() for parameter in block.parameters()) for block in model.blocks)
    return min(model.config.n_layer, max(fewest_layers(model), min(MOST, int(NUMBERS / max(1, largest)))))


def small_copy(model: GPT, n_layer: int | None = None, noise: float = NOISE) -> GPT:
    """A model of the same kinds, options, width and methods for the laws, in float64 and evaluation mode, with noise.

    It has few layers, a small vocabulary and a short context, unless an option needs a longer one.
    """
    config = replace(model.config, n_layer=n_layer or fewest_layers(model), dropout=0.0)
    short = replace(config, block_size=min(config.block_size, CONTEXT))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        small = GPT(config if [*short.mistakes()] else short, VOCABULARY)
        with torch.no_grad():
            for parameter in small.parameters():
                parameter.add_(noise * torch.randn_like(parameter))
    originals = dict(model.named_modules())
    for name, part in small.named_modules():
        copy_methods(originals.get(name, part), part)
    return small.double().eval()


def copy_methods(original: nn.Module, part: nn.Module) -> None:
    """Give a part the methods of another that were set on it alone: by `make_fast`, or by a user."""
    for name, value in vars(original).items():
        if name == "faster" or callable(getattr(type(original), name, None)):
            bound = getattr(value, "__self__", None) is original
            vars(part)[name] = MethodType(value.__func__, part) if bound else value


def obey(model: GPT | None, some: tuple[Law, ...]) -> list[str]:
    """Raises LawError for a model that breaks one of these laws; does nothing for None.

    Returns notes on the laws that cannot be asked of it, since an operation exists neither on a CPU nor in float64.
    """
    notes = list[str]()
    if model is None:
        return notes
    for law in some:
        try:
            law(model)
        except NotImplementedError as error:
            name = getattr(law, "func", law).__name__.replace("_", " ")
            notes.append(f"not asked: {name}: {' '.join(str(error).split())}")
        except RuntimeError as error:
            if MIXED_TYPES.search(str(error)):
                error.args = (f"{error} (the checks compute in float64: make tensors of the type that arrives)",)
            raise
    return notes


@contextmanager
def says_how_to_go_on() -> Iterator[None]:
    """Adds to the message of a LawError how to train anyway."""
    try:
        yield
    except LawError as error:
        raise LawError(f"{error}. --skip-checks trains it anyway") from None
