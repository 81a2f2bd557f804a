"""A config becomes text, tokenizer, dataset, model and optimizer: every command that trains puts them together here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from minigpt.checks.shapes import check_shapes
from minigpt.config.options import Options
from minigpt.fast import make_fast
from minigpt.fast.decoding import DecodingConfig, prepare
from minigpt.fast.packed import Weights
from minigpt.model import GPT, ModelConfig
from minigpt.system.errors import Mistake, UserError
from minigpt.system.waiting import interruptible
from minigpt.text.chat import MARKS
from minigpt.text.corpus import Corpus
from minigpt.text.cuts import Cut, naming, pieces_of
from minigpt.text.dataset import DataConfig, Dataset
from minigpt.text.seams import last_part
from minigpt.text.talks import turns_of
from minigpt.text.tokenizer import BPE, Char, Tokenizer
from minigpt.training import distributed
from minigpt.training.fits import check_training
from minigpt.training.loop import TrainingConfig, choose_device
from minigpt.training.lora import add_adapters
from minigpt.training.memory import Job
from minigpt.training.objective import check_answers
from minigpt.training.optimizer import Optimizer
from minigpt.training.parallel import InStep
from minigpt.training.precision import check_precision
from minigpt.training.sharding import is_sharded

LAYERS = 2  # the fewest layers of the whole model that is checked in place of a sharded one

# What these learn does not depend on where a text is cut; of BPE, no word is cut.
_learn_from_pieces: list[tuple[Any, Cut]] = [(Tokenizer, len), (Char, len), (BPE, last_part)]


@dataclass(frozen=True, kw_only=True)
class RunConfig(Options):
    """Everything a run is made from."""

    data: DataConfig = DataConfig()
    """The text, and how it becomes ids."""
    model: ModelConfig = ModelConfig()
    """The shape of the model."""
    training: TrainingConfig = TrainingConfig()
    """How it is trained."""
    sampling: DecodingConfig = DecodingConfig()
    """How text is drawn from it."""

    def mistakes(self) -> Iterator[Mistake]:
        yield from super().mistakes()
        if self.data.divides and self.training.compile:
            yield (
                "training.compile",
                "every batch has documents of other lengths: leave it out with data.attend: document",
            )


def open_text(config: DataConfig) -> tuple[Corpus, Tokenizer]:
    """The text that a config names, and its tokenizer, fitted to that text. Raises UserError and OSError."""
    corpus = config.open()
    kind = config.tokenizer.component
    marks = ["end_of_text"] * config.tokenizer.end_of_text + [*MARKS] * (config.format == "chat")
    tokenizer: Tokenizer = kind.fit(config.tokenizer, _texts_to_fit(kind, corpus, config.format == "chat"))
    return corpus, tokenizer.with_marks(*marks) if marks else tokenizer


def _texts_to_fit(kind: Any, corpus: Corpus, talks: bool) -> Iterator[str]:
    """The texts that a tokenizer learns from: documents, or pieces of them if it learns the same from pieces; turns."""
    if talks:
        yield from (turn.text for document in corpus.documents() for turn in turns_of(document))
        return
    cut = next((cut for other, cut in _learn_from_pieces if other.fit.__func__ is kind.fit.__func__), None)
    if cut is None:
        yield from corpus.documents()
        return
    with naming(corpus.place):
        for n, document in enumerate(corpus.pieces()):
            yield from (piece.text for piece in pieces_of(n, document, cut))


def vocabulary_of(config: DataConfig) -> int:
    """The vocabulary size of a config's tokenizer; the text is read only if the size depends on it. Raises UserError.

    A tokenizer that learns its pieces may end with fewer than the config asks for.
    """
    size = getattr(config.tokenizer, "vocab_size", None) or getattr(config.tokenizer.component, "vocab_size", None)
    marks = config.tokenizer.end_of_text + len(MARKS) * (config.format == "chat")
    return size + marks if isinstance(size, int) else open_text(config)[1].vocab_size


def build_model(config: RunConfig, tokenizer: Tokenizer, kind: type[GPT] | None = None) -> GPT:
    """A fresh model on the CPU, a `GPT` or of a class below it; equal seeds make equal weights."""
    torch.manual_seed(config.training.seed)
    model = interruptible(lambda: (kind or GPT)(config.model, tokenizer.vocab_size), "making the model")
    return make_fast(model, config.training.fast)


def assemble(
    config: RunConfig,
    corpus: Corpus,
    tokenizer: Tokenizer,
    purpose: str = "training",
    free: int | None = None,
    weights: Callable[[GPT], None] | None = None,
) -> tuple[Dataset, GPT, Optimizer]:
    """Make dataset, model and optimizer on the config's device; `weights` copies a run's weights into the new model.

    `purpose` and `free` are passed to `check_training`. Raises UserError if there is `training.lora` without `weights`,
    if the device is missing, lacks the precision or has too little memory, if the objective needs answers and there are
    none, and if a method of an attention returns a wrong shape.
    """
    settings, device = config.training, choose_device(config.training.device)
    check_precision(settings.precision, device, settings.compile)
    if settings.lora is not None and weights is None:
        raise UserError("training.lora: adapters learn beside the weights of a run: give --from-run RUN")
    job = Job(config.model, tokenizer.vocab_size, settings, device.type == "cuda", distributed.world())
    check_training(job, device, purpose, free)
    dataset = Dataset(config.data, corpus, tokenizer, config.model.block_size)
    check_answers(settings.objective, dataset)

    def make(kind: type[GPT] | None = None) -> GPT:
        model = build_model(config, tokenizer, kind)
        if weights is not None:
            weights(model)
        if settings.lora is not None:
            add_adapters(model, settings.lora, settings.seed)
        return model

    model = settings.parallel.component().place(make, device, fresh=weights is None)
    check_shapes(whole_model(model, config))
    return dataset, model, settings.optimizer.component(settings.optimizer, model)


def writer(model: GPT, weights: Weights, fast: bool) -> GPT:
    """The model for writing text: a fast copy, or the model itself. If it is sharded, all processes must call it."""
    if is_sharded(model):
        return cast(GPT, InStep(model))
    return prepare(model, weights) if fast else model


def whole_model(model: GPT, config: RunConfig) -> GPT:
    """The model; if it is sharded, a new whole model of its first layers, which has every kind of layer."""
    if not is_sharded(model):
        return model
    period = len(config.model.attention) if isinstance(config.model.attention, tuple) else 1
    few = replace(config.model, n_layer=min(config.model.n_layer, max(LAYERS, period)))
    with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
        return make_fast(GPT(few, model.vocab_size), config.training.fast).to(model.device)
