"""Another attention in a trained model: how much loss does each swap cost, without training and after some steps?

    python scripts/swap.py --run tiny

runs/swap/tiny/
    results.json        every measurement, by a hash of its settings: none is made twice
    page.html

A row of the table is a run's model with a part swapped (`runs/swap.py`). The validation text is read in pieces, each
from an empty context. All rows read the same pieces, so the difference of two rows is computed over pairs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Annotated, Any

import torch

from minigpt.comparison.statistics import Estimate, between, estimate, paired
from minigpt.comparison.variants import under
from minigpt.config.options import Options, Range, to_python
from minigpt.model import GPT
from minigpt.model.eval_mode import eval_mode
from minigpt.runs.assemble import RunConfig, build_model
from minigpt.runs.report import Say
from minigpt.runs.run import RUNS, Opened
from minigpt.runs.swap import Moved, move, swapped
from minigpt.system.errors import Mistake, UserError
from minigpt.system.folder import check_name, read_start, refuse_links, write_whole
from minigpt.system.locks import Lock
from minigpt.system.strict_json import has_form, parse_json
from minigpt.system.waiting import progress
from minigpt.text.corpus import PRETRAINED
from minigpt.text.dataset import IGNORED, Dataset
from minigpt.training.loop import TrainingConfig, choose_device, next_token_loss, train
from minigpt.training.memory import (
    LOGITS,
    MAPS,
    MODEL,
    NUMBER,
    Job,
    check_device,
    outline,
    parameter_count,
    scores_bytes,
    training_parts,
)
from minigpt.training.records import Diverged

AS_IT_IS = "as it is"
RESULTS, MAX_RESULTS = "results.json", 1 << 24
FORM = {str: {"losses": [float], "tokens": [int]}}


@dataclass(frozen=True, kw_only=True)
class RowConfig(Options):
    """A row of the table."""

    name: str = ""
    """The name of the row."""
    swap: tuple[str, ...] = ()
    """What is swapped in the model, such as [model.attention=average_softmax]."""

    def mistakes(self) -> Iterator[Mistake]:
        if not self.name.strip():
            yield "name", "a row needs a name"


@dataclass(frozen=True, kw_only=True)
class SwapsConfig(Options):
    """What is measured, and how."""

    rows: tuple[RowConfig, ...] = ()
    """The swaps."""
    pieces: Annotated[int, Range(2, 10_000)] = 8
    """How many pieces of the validation text are read; the spread of their losses gives the interval."""
    length: Annotated[int, Range(2, 2**20)] = 512
    """Tokens of a piece, at most the context; a text of a built-in language is a piece of its own."""
    training_length: Annotated[int, Range(2, 2**20)] = 256
    """Tokens of a window in training, at most the context."""
    training: TrainingConfig = TrainingConfig()
    """How a model is trained for --steps."""

    def mistakes(self) -> Iterator[Mistake]:
        names = [AS_IT_IS, *(row.name for row in self.rows)]
        if twice := next((name for name in names if names.count(name) > 1), None):
            yield "rows", f"two rows are called {twice!r}"
        if self.training.lora is not None:
            yield "training.lora", "all weights are trained for --steps: leave it out"
        plain = TrainingConfig()
        for name in ("eval_every", "sample_every", "checkpoint_every", "checkpoint_minutes", "loggers", "fast"):
            if getattr(self.training, name) != getattr(plain, name):
                yield f"training.{name}", "it has no effect on --steps: leave it out"


@dataclass(frozen=True)
class Measured:
    """The loss of each piece, in nats a token, and its tokens."""

    losses: Sequence[float]
    tokens: Sequence[int]

    @property
    def loss(self) -> float:
        """The mean over all tokens."""
        return math.fsum(a * n for a, n in zip(self.losses, self.tokens)) / sum(self.tokens)


@dataclass
class Row:
    """A row of the table, and what is known of it."""

    name: str
    swap: Sequence[str]
    config: RunConfig | None = None  # None: not possible for this run, or no change
    trouble: str = ""  # why `config` is None
    moved: Moved | None = None  # which weights stayed
    measured: Measured | None = None
    tuned: Measured | None = None


@dataclass
class Swaps:
    """A run, a text, and the rows that are measured on it."""

    source: Opened
    settings: SwapsConfig
    text: str  # the path of a text; "" is the run's own
    steps: int
    say: Say
    name: str = ""
    known: dict[str, Any] = field(default_factory=dict)  # the measurements in results.json

    def __post_init__(self) -> None:
        """Open the text. Raises UserError and OSError."""
        self.name = self.name or self.source.folder.resolve().name
        check_name(self.name, "an experiment")
        self.folder = RUNS / "swap" / self.name
        refuse_links(self.folder)
        data, T = self.source.config.data, self.source.config.model.block_size
        if data.source == PRETRAINED and not self.text:
            raise UserError(f"{self.source.folder} was imported, and has no text: give one, as in --text my.txt")
        data = replace(data, source=self.text) if self.text else data
        self.corpus = data.open()
        lengths = [self.settings.length, self.settings.training_length]
        lengths = [T if self.corpus.language else min(T, n) for n in lengths]
        self.data, self.train_data = (Dataset(data, self.corpus, self.source.tokenizer, n) for n in lengths)
        self.training = replace(self.settings.training, max_steps=max(1, self.steps))
        self.weights = self.source.origin()
        self.rows = [Row(AS_IT_IS, (), self.source.config), *map(self.row, self.settings.rows)]

    def row(self, settings: RowConfig) -> Row:
        """A row of the config for this run."""
        row = Row(settings.name, settings.swap)
        try:
            row.config = swapped(self.source.config, row.swap, under(row.name, self.say))
        except UserError as error:
            row.trouble = f"not for this run: {'; '.join(str(error).splitlines())}"
            return row
        if row.config == self.source.config:
            row.config, row.trouble = None, "the run has it already"
            return row
        empty = outline(row.config.model, self.source.tokenizer.vocab_size)
        row.moved = move(empty, self.source.saved.model, self.source.outline())
        return row

    # ---- what is known ----

    def key(self, config: RunConfig, steps: int) -> str:
        """A hash of everything that a measurement depends on."""
        parts = [self.weights["sha256"], self.source.tokenizer.fingerprint, self.corpus.digest, to_python(config.model)]
        parts += [to_python(self.data.config), self.data.block_size, self.settings.pieces]
        parts += [[to_python(self.training), self.train_data.block_size] if steps else []]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]

    def read_known(self) -> None:
        """Read the measurements that are made already, and put them into the rows."""
        with suppress(OSError, ValueError):
            read = parse_json(read_start(self.folder / RESULTS, MAX_RESULTS))
            self.known = read["measured"] if has_form(read, {"measured": FORM}) else {}
        for row in self.rows:
            if row.config is not None:
                row.measured = self.measurement(row.config, 0)
                row.tuned = self.measurement(row.config, self.steps) if self.steps else None

    def measurement(self, config: RunConfig, steps: int) -> Measured | None:
        """The measurement of a config in results.json; None: there is none, or it is malformed."""
        known = self.known.get(self.key(config, steps))
        if known is None or not 2 <= len(known["losses"]) == len(known["tokens"]) or min(known["tokens"]) < 1:
            return None
        return Measured(known["losses"], known["tokens"])

    # ---- measuring ----

    def check_memory(self) -> None:
        """Raises UserError if a row does not fit into memory, before anything is computed."""
        device, size = choose_device(self.training.device), self.source.tokenizer.vocab_size
        for row in self.rows:
            if row.config is not None:
                model, T = row.config.model, self.data.block_size
                parts = {MODEL: 2 * NUMBER * parameter_count(model, size), LOGITS: 2 * NUMBER * size * T}
                parts |= {MAPS: max(scores_bytes(model, T))}
                check_device(parts, f"reading the text ({row.name})", model, size, device)
                if self.steps:
                    model = replace(model, block_size=self.train_data.block_size)
                    parts = training_parts(Job(model, size, self.training))
                    check_device(parts, f"training it ({row.name})", model, size, device)

    def run(self, only: Sequence[str] = ()) -> None:
        """Measure the rows `only` (empty: all rows) that are not measured yet, and write each result at once.

        The unchanged model is always measured. Raises UserError, also if another process measures in this folder.
        """
        names = [row.name for row in self.rows]
        for name in only:
            if name not in names:
                raise UserError(f"--only {name}: there is no such row; there are: {', '.join(names)}")
        self.check_memory()
        self.folder.mkdir(parents=True, exist_ok=True)
        with Lock(self.folder):
            self.read_known()
            for number, row in enumerate(self.rows, start=1):
                who = f"{number} of {len(self.rows)}: {row.name}"
                if only and row.name not in (AS_IT_IS, *only):
                    continue
                if row.config is None:
                    self.say(f"{who}: {row.trouble}")
                else:
                    self.measure(row, row.config, who, tune=not only or row.name in only)

    def measure(self, row: Row, config: RunConfig, who: str, tune: bool) -> None:
        """Measure a row, if it is not measured yet, and print the result."""
        model: GPT | None = None
        if row.measured is None:
            model = self.model(config)
            row.measured = self.write(config, 0, self.read(model, who))
        self.say(f"{who}: {self.in_words(row.measured)}")
        if not self.steps or not tune:
            return
        if row.tuned is None:
            model = self.model(config) if model is None else model
            optimizer = self.training.optimizer.component(self.training.optimizer, model)
            records = train(model, self.train_data, optimizer, self.training)
            try:
                for _ in progress(records, f"{who}: training on {model.device}", self.steps, "steps"):
                    pass
            except Diverged as error:
                return self.say(f"{who}: diverged: {error}")
            row.tuned = self.write(config, self.steps, self.read(model, who))
        self.say(f"{who}, after {self.steps} steps: {self.in_words(row.tuned)}")

    def model(self, config: RunConfig) -> GPT:
        """The model of a row, with those weights of the run that fit."""
        model = build_model(config, self.source.tokenizer)
        move(model, self.source.saved.model, self.source.outline())
        return model.to(choose_device(self.training.device))

    @torch.no_grad()
    def read(self, model: GPT, who: str) -> Measured:
        """The loss of each piece. Raises UserError where it is not a number."""
        every = max(1, self.data.window_count("val") // self.settings.pieces)
        windows = islice(self.data.windows("val", 1, slice(0, None, every)), self.settings.pieces)
        losses, tokens = list[float](), list[int]()
        with eval_mode(model):
            for x, y in progress(windows, f"{who}: reading", self.settings.pieces, "pieces"):
                loss = next_token_loss(model(x.to(model.device)), y.to(model.device)).item()
                if not math.isfinite(loss):
                    raise UserError(f"{who}: the loss is {loss}: the model's numbers are beyond float32")
                losses.append(loss)
                tokens.append(int((y != IGNORED).sum()))
        if len(losses) < 2:
            raise UserError("the validation text has less than two pieces: give a longer text, or a smaller length")
        return Measured(losses, tokens)

    def write(self, config: RunConfig, steps: int, measured: Measured) -> Measured:
        """Write a measurement down; when this returns, it is on disk."""
        self.known[self.key(config, steps)] = {"losses": list(measured.losses), "tokens": list(measured.tokens)}
        write_whole(self.folder / RESULTS, json.dumps({"measured": self.known}, indent=1, allow_nan=False))
        return measured

    def in_words(self, measured: Measured) -> str:
        """A measurement as text, with the difference to the model as it is."""
        base, text = self.rows[0].measured, f"{measured.loss:.4f} nats a token over {sum(measured.tokens):,} tokens"
        if base is None or measured is base:
            return text
        d = difference(measured, base)
        return f"{text}, {between((d.mean, d.low, d.high), '+.4f')}"


def difference(ours: Measured, theirs: Measured) -> Estimate:
    """The mean of ours - theirs over the same pieces, weighted by their tokens."""
    return paired(ours.losses, theirs.losses, ours.tokens)


def table(swaps: Swaps) -> list[list[str]]:
    """The rows as text, their titles first."""
    tuned = [f"after {swaps.steps} steps"] if swaps.steps else []
    rows = [["model", "loss", "95 % interval", f"more than {AS_IT_IS}", *tuned, "tokens"]]
    base = swaps.rows[0].measured
    for row in swaps.rows:
        if row.measured is None or base is None:
            continue
        own, apart = estimate(row.measured.losses, row.measured.tokens), difference(row.measured, base)
        against = "" if row.measured is base else between((apart.mean, apart.low, apart.high), "+.3f")
        later = [f"{row.tuned.loss:.3f}" if row.tuned else ""] if swaps.steps else []
        tokens = f"{sum(row.measured.tokens):,}"
        rows.append([row.name, f"{own.mean:.3f}", f"{own.low:.3f} to {own.high:.3f}", against, *later, tokens])
    return rows
