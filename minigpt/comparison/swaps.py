"""Another attention in a trained model: how much loss does each swap cost, without training and after some steps?

    python scripts/swap.py --run tiny

runs/swap/tiny/
    results.json        every measurement, by a hash of its settings: none is made twice
    page.html

A row of the table is a run's model with a part swapped (`training/swap.py`). The validation text is read in pieces,
each from an empty context. All rows read the same pieces, so the difference of two rows is computed over pairs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Annotated, Any

import torch

from minigpt.comparison.statistics import Estimate, between, estimate, holm, judged, paired
from minigpt.comparison.variants import under
from minigpt.config.options import Options, Range, to_python
from minigpt.config.upgrade import Later, stamped, take_format
from minigpt.model import GPT
from minigpt.model.eval_mode import eval_mode
from minigpt.system.errors import Mistake, UserError
from minigpt.system.folder import check_name, read_start, refuse_links, write_whole
from minigpt.system.locks import Lock
from minigpt.system.strict_json import has_form, parse_json
from minigpt.system.waiting import progress
from minigpt.text.corpus import PRETRAINED
from minigpt.text.dataset import IGNORED, DataConfig, Dataset
from minigpt.training.assemble import RunConfig, build_model
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
from minigpt.training.precision import check_precision
from minigpt.training.records import Diverged
from minigpt.training.report import Say
from minigpt.training.run import RUNS, Opened
from minigpt.training.swap import Moved, move, swapped

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
        saves = "sample_every", "checkpoint_every", "checkpoint_minutes", "keep", "loggers"
        for name in ("eval_every", "stop", *saves, "fast"):
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
    """A row of the table."""

    name: str
    swap: Sequence[str]
    config: RunConfig | None = None  # None: not possible for this run, or no change
    trouble: str = ""  # why `config` is None
    moved: Moved | None = None  # which weights stayed


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
        if self.text:  # a validation text of its own belongs to the run's text
            validation = DataConfig.validation if isinstance(data.validation, str) else data.validation
            data = replace(data, source=self.text, validation=validation)
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

    def measurement(self, row: Row, steps: int = 0) -> Measured | None:
        """The measurement of a row in results.json; None: there is none, or it is malformed."""
        known = None if row.config is None else self.known.get(self.key(row.config, steps))
        if known is None or not 2 <= len(known["losses"]) == len(known["tokens"]) or min(known["tokens"]) < 1:
            return None
        return Measured(known["losses"], known["tokens"])

    def difference(self, row: Row, steps: int = 0) -> Estimate | None:
        """How much more the loss is than that of the model as it is, on the same pieces, weighted by their tokens.

        None: it is that model, or one of them is not measured.
        """
        base, measured = self.measurement(self.rows[0]), self.measurement(row, steps)
        if base is None or measured is None or (row is self.rows[0] and steps == 0):
            return None
        return paired(measured.losses, base.losses, measured.tokens)

    def judged(self) -> tuple[dict[str, bool], str]:
        """Whether the difference of each row that has one is shown among all, and what that means, as sentences."""
        differences = {row.name: d for row in self.rows if (d := self.difference(row))}
        significant = dict(zip(differences, (significant for _, significant in holm(list(differences.values())))))
        words = judged(len(significant), min((d.pairs for d in differences.values()), default=0), "pieces")
        unclear = [name for name in significant if not significant[name]]
        return significant, words + f" No difference shown: {', '.join(unclear)}." * bool(words and unclear)

    # ---- measuring ----

    def check_memory(self) -> None:
        """Raises UserError for a row that does not fit into memory, and for a precision that the device lacks."""
        device, size = choose_device(self.training.device), self.source.tokenizer.vocab_size
        check_precision(self.training.precision, device, self.training.compile)
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
            self.known = self.measured_before()
            for number, row in enumerate(self.rows, start=1):
                who = f"{number} of {len(self.rows)}: {row.name}"
                if only and row.name not in (AS_IT_IS, *only):
                    continue
                if row.config is None:
                    self.say(f"{who}: {row.trouble}")
                else:
                    trained = self.steps > 0 and (not only or row.name in only)
                    self.measure(row, row.config, who, (0, self.steps) if trained else (0,))

    def measured_before(self) -> dict[str, Any]:
        """The measurements in results.json; {} where it is damaged. Raises UserError for those of a later version.

        Those of an earlier version are kept, and made again: its hashes are others.
        """
        try:
            results = parse_json(read_start(self.folder / RESULTS, MAX_RESULTS))
        except (OSError, ValueError):
            return {}
        if isinstance(results, dict):
            try:
                take_format(results)
            except Later as error:
                raise UserError(f"{self.folder / RESULTS}: {error}") from None
            except UserError:
                return {}
        return results["measured"] if has_form(results, {"measured": FORM}) else {}

    def measure(self, row: Row, config: RunConfig, who: str, all_steps: Sequence[int]) -> None:
        """Measure a row after each of these numbers of steps, if it is not measured yet, and print the results."""
        model: GPT | None = None
        for steps in all_steps:
            if self.measurement(row, steps) is None:
                if model is None:
                    model = build_model(config, self.source.tokenizer)
                    move(model, self.source.saved.model, self.source.outline())
                    model = model.to(choose_device(self.training.device))
                if steps:
                    optimizer = self.training.optimizer.component(self.training.optimizer, model)
                    records = train(model, self.train_data, optimizer, self.training)
                    try:
                        for _ in progress(records, f"{who}: training on {model.device}", steps, "steps"):
                            pass
                    except Diverged as error:
                        return self.say(f"{who}: diverged: {error}")
                self.known[self.key(config, steps)] = asdict(self.read(model, who))
                results = json.dumps(stamped({"measured": self.known}), indent=1, allow_nan=False)
                write_whole(self.folder / RESULTS, results)
            self.say(f"{who}{f', after {steps} steps' * bool(steps)}: {self.in_words(row, steps)}")

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

    # ---- as text ----

    def in_words(self, row: Row, steps: int) -> str:
        """A measurement as text, with the difference to the model as it is."""
        measured, d = self.measurement(row, steps), self.difference(row, steps)
        assert measured is not None
        words = f"{measured.loss:.4f} nats a token over {sum(measured.tokens):,} tokens"
        return words if d is None else f"{words}, {between((d.mean, d.low, d.high), '+.4f')}"

    def table(self) -> list[list[str]]:
        """The rows as text, their titles first."""
        after = [f"after {self.steps} steps"] if self.steps else []
        rows = [["model", "loss", "95 % interval", f"more than {AS_IT_IS}", *after, "tokens"]]
        for row in self.rows if self.measurement(self.rows[0]) else ():
            if (measured := self.measurement(row)) is not None:
                own, d, trained = estimate(measured.losses, measured.tokens), self.difference(row), list[str]()
                if self.steps:
                    tuned = self.measurement(row, self.steps)
                    trained = [f"{tuned.loss:.3f}" if tuned else ""]
                more = "" if d is None else between((d.mean, d.low, d.high), "+.3f")
                interval, tokens = f"{own.low:.3f} to {own.high:.3f}", f"{sum(measured.tokens):,}"
                rows.append([row.name, f"{own.mean:.3f}", interval, more, *trained, tokens])
        return rows
