"""A run that was trained: its folder is opened again, to write text with its model or to look into it.

run = minigpt.load("runs/tiny")
run.generate("Mia was a shy fox.")      # text
run.attention("Mia was a shy fox.")     # one (H, T, T) a layer
run.explore("Mia was a shy fox.")       # a page with all attention weights and their computation

run = minigpt.load("runs/tiny", overrides=["model.attention=average_softmax"])     # another attention in that model
run = minigpt.load("runs/tiny@best")    # its best checkpoint; @240: that of step 240, @last: the newest
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape
from itertools import chain, takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.config.options import Tell, overridden, read_tree, to_python
from minigpt.config.upgrade import SEALED, changes_tensors
from minigpt.fast.decoding import DecodingConfig, prepare
from minigpt.fast.packed import Weights
from minigpt.fast.threads import use_threads
from minigpt.model import GPT, count_parameters
from minigpt.model.sampling import OVERFLOW, generate, until
from minigpt.seeing.document import check_place, place_of
from minigpt.seeing.explorer import Page, explore
from minigpt.seeing.maps import Map, Picture, maps_svg, read_maps
from minigpt.seeing.trace import attention_maps
from minigpt.seeing.whole import Side
from minigpt.seeing.whole import whole as whole_page
from minigpt.system.errors import ConfigError, Mistake, UserError, meant
from minigpt.system.folder import read_start, refuse_links, sha256_of
from minigpt.system.places import command
from minigpt.system.plugin import module_name
from minigpt.system.strict_json import has_form
from minigpt.system.terminal import complain, one_line
from minigpt.system.waiting import heartbeat
from minigpt.text.chat import Talking
from minigpt.text.corpus import PRETRAINED
from minigpt.text.dataset import Dataset
from minigpt.text.talks import Turn
from minigpt.text.tokenizer import Tokenizer
from minigpt.training import checkpoint
from minigpt.training.assemble import RunConfig, build_model, writer
from minigpt.training.checkpoint import Checkpoint, CheckpointError
from minigpt.training.loop import choose_device, evaluate
from minigpt.training.memory import check_device, map_parts, outline, sampling_parts
from minigpt.training.precision import use_float32_products
from minigpt.training.report import loss_curves, read_metrics
from minigpt.training.swap import move, swapped
from minigpt.training.verdict import Evaluation, best_of, better_before

RUNS = Path("runs")
SHORTEST_OF = 50  # texts of a language, of which the shortest is shown where none is given
CONFIG, TOKENIZER, METRICS, CHANGES = "config.yaml", "tokenizer.json", "metrics.jsonl", "changes.jsonl"
ENVIRONMENT = "environment.json"
CHECKPOINTS, PLUGINS = "checkpoints", "plugins"
BEST, LAST = "best", "last"  # names of checkpoints: RUN@best
SKIPPED = "skipped"  # what the record of a run says of its checks, after --skip-checks
MAX_CHANGES = 1 << 22  # bytes of changes.jsonl and environment.json that are read
MAX_SEALED = 1 << 25  # bytes of a config, a tokenizer or a plugin


@dataclass(repr=False)
class Run:
    """A trained model with its folder, config and tokenizer."""

    folder: Path
    config: RunConfig
    tokenizer: Tokenizer
    model: GPT
    step: int
    notes: list[str]
    overrides: tuple[str, ...] = ()  # what was swapped in the model
    marked: bool = False  # whether names of special tokens in a prompt are read as tokens
    at: str = ""  # `@240`, where a checkpoint was asked for that may not be the newest

    @property
    def name(self) -> str:
        """The name of the folder, the step where one was asked for, and what was swapped."""
        return " ".join([self.folder.name + self.at, *self.overrides])

    def __repr__(self) -> str:
        swapped = f" with {' '.join(self.overrides)}" if self.overrides else ""
        return f"<Run {self.folder}{swapped}: {', '.join(f'{name} {value}' for name, value in self.facts().items())}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: a few facts, and the curve of the losses. The config is `run.config`."""
        facts = {"run": " ".join([str(self.folder), *self.overrides])} | self.facts()
        rows = "".join(f"<tr><th>{name}</th><td>{escape(value)}</td></tr>" for name, value in facts.items())
        curves = loss_curves(self.folder / METRICS, f"{self.folder.name}: loss in nats a token")
        return f"<table>{rows}</table>\n{curves}"

    def facts(self) -> dict[str, str]:
        """The most important facts: {name: value}."""
        model, evaluations = self.config.model, self._evaluations()
        line = evaluations[-1] if evaluations else {}
        best = min(evaluations, key=lambda evaluation: evaluation["val/loss"], default=line)
        kinds = ", ".join(dict.fromkeys(attention.kind for attention in self.model.attentions()))
        size = f"{sum(count_parameters(self.model).values()):,}"
        shape = f"{model.n_layer} layers of {model.n_embd}, context {model.block_size}"
        skipped = f" ({line['skipped']:,} skipped)" if line.get("skipped") else ""
        rows = {"step": f"{self.step:,}{skipped}", "attention": kinds, "shape": shape, "parameters": size}
        above = f" ({line['val/above_floor']:.4f} above the best possible)" if "val/above_floor" in line else ""
        rows |= {"validation loss": f"{line['val/loss']:.4f}{above}"} if line else {}
        rows |= {"bits a byte": f"{line['val/bits_per_byte']:.4f}"} if "val/bits_per_byte" in line else {}
        rows |= {"perplexity": f"{line['val/perplexity']:.4g} a token"} if "val/perplexity" in line else {}
        return rows | ({"best": f"{best['val/loss']:.4f}, at step {best['step']:,}"} if best is not line else {})

    def _evaluations(self) -> list[dict[str, Any]]:
        """The lines of the metrics with a validation loss, up to the step of the model; empty for a swapped model."""
        lines = [] if self.overrides else read_metrics(self.folder / METRICS)
        return [line for line in lines if "val/loss" in line and line["step"] <= self.step]

    def usual_loss(self) -> float | None:
        """What validation text costs, in nats a token; None where it is not known, as of a task, which asks answers."""
        language = self.config.data.language
        asks = self.talks or (language is not None and language.question(0) is not None)
        return None if asks else next((line["val/loss"] for line in reversed(self._evaluations())), None)

    def prompt_ids(self, prompt: str) -> Tensor:
        """The ids of a prompt, (1, n); "" is read as a line end. Raises UserError."""
        encode = self.tokenizer.encode_marked if self.marked else self.tokenizer.encode
        try:
            ids = encode(prompt or "\n").tolist()
        except UserError as error:
            if prompt:
                raise UserError(f"the prompt: {error}") from None
            ids = [0]
        return torch.tensor([ids], device=self.model.device)  # (1, n)

    def context_ids(self, prompt: str) -> Tensor:
        """The ids to continue, (1, n): after a line end (built-in language) or the begin-of-text token, if any.

        A run that talks reads a prompt as the first turn of a talk, and is about to answer.
        """
        if self.talks and prompt and not self.marked:
            return self._talk_ids([Turn("user", prompt)])
        ids, begin = self.prompt_ids(prompt), self.tokenizer.begin_of_text  # (1, n)
        if self.tells() and prompt and not prompt.startswith("\n"):
            ids = torch.cat((self.prompt_ids(""), ids), dim=1)  # (1, n + 1)
        elif begin is not None and int(ids[0, 0]) != begin:
            front = torch.tensor([[begin]], device=ids.device)  # (1, 1)
            ids = torch.cat((front, ids), dim=1) if prompt else front  # (1, n + 1), or (1, 1)
        return ids

    def tells(self) -> bool:
        """Whether the model learned a built-in language, one text on each line; `windows` says so for an import."""
        data = self.config.data
        tells = data.language is not None and not self.talks
        return tells or (data.source == PRETRAINED and data.windows == "documents")

    @property
    def talks(self) -> bool:
        """Whether the model was trained on talks."""
        return self.config.data.format == "chat"

    @property
    def ends(self) -> Sequence[int]:
        """The ids at which writing stops."""
        return self.talking.ends if self.talks else self.tokenizer.ends

    @cached_property
    def talking(self) -> Talking:
        """What makes ids of a talk. Raises UserError for a run that never learned to talk."""
        if not (self.talks or getattr(self.tokenizer, "chat_template", None)):
            raise UserError(f"{self.folder}: this run was not trained to talk: train one with data.format=chat")
        return Talking(self.tokenizer)

    def _talk_ids(self, turns: Sequence[Turn]) -> Tensor:
        ids, _ = self.talking.ids(turns, answering=True)  # (n,)
        return torch.from_numpy(ids)[None].to(self.model.device)  # (1, n)

    def answer(self, turns: list[Turn], use_cache: bool = True, **options: Any) -> Iterator[str]:
        """Yield the answer to the last turn of a talk, in pieces of whole characters; `options` as for `stream`.

        The oldest turns, but that of the system, are removed from the list where the talk and half a context for the
        answer, or `max_tokens`, would not fit; an answer ends where the context is full. Raises UserError, also for a
        last turn that is too long by itself.
        """
        config, size = replace(self.config.sampling, **options), self.config.model.block_size
        room, first = min(config.max_tokens, size // 2), int(turns[0].role == "system")
        while (ids := self._talk_ids(turns)).shape[1] + room > size and len(turns) > first + 1:
            del turns[first : first + 2]
        if (free := size - ids.shape[1]) < 0:
            raise UserError(f"this turn has {ids.shape[1]} tokens; the context holds {size}")
        config = replace(config, max_tokens=min(config.max_tokens, free + 1))
        return self._written(ids, config, use_cache, self.talking.ends)

    def _written(self, ids: Tensor, config: DecodingConfig, use_cache: bool, ends: Sequence[int]) -> Iterator[str]:
        """What the model writes after ids (1, n), in pieces of whole characters, up to one of the ids that end it."""
        generator = torch.Generator(self.model.device).manual_seed(config.seed)
        with heartbeat("preparing the weights"):
            model = writer(self.model, config.weights, bool(self.config.training.fast))
        tokens = generate(model, ids, config, generator, use_cache)
        written = takewhile(lambda id: id not in ends, map(int, tokens))
        return until(self.tokenizer.stream(written), config.stop or ("\n" if self.tells() else ""))

    def stream(self, prompt: str = "", use_cache: bool = True, **options: Any) -> Iterator[str]:
        """Yield the continuation of a prompt in pieces of whole characters. Without a prompt, a task makes a question.

        It ends at the end-of-text token, if the vocabulary has one. `options` are those of SamplingConfig
        (temperature, top_k, max_tokens, stop, seed, ...); the run's own are the defaults. Raises UserError.
        """
        config = replace(self.config.sampling, **options)
        language, opening = self.config.data.language, ""
        if language is not None and not prompt and (question := language.question(config.seed)):
            prompt = opening = question[0]
            config = replace(config, max_tokens=min(config.max_tokens, question[1]))
        if self.talks and not prompt:
            raise UserError(f"{self.folder}: this run talks: give it a question, or talk to it with --chat")
        opening = f"{opening}\n" if self.talks and opening else opening.lstrip("\n")
        return chain([opening], self._written(self.context_ids(prompt), config, use_cache, self.ends))

    def generate(self, prompt: str = "", **options: Any) -> str:
        """A prompt and its continuation as one text; `options` as for `stream`."""
        return prompt + "".join(self.stream(prompt, **options))

    def loss_with(self, weights: Weights) -> tuple[float, float]:
        """The validation loss in nats a token, with float32 weights and with `weights`: same tokens, about 20,000.

        Raises UserError if the text has been removed.
        """
        data, T = self.config.data, self.config.model.block_size
        dataset = Dataset(data, data.open(), self.tokenizer, T)
        settings = replace(self.config.training, precision="float32", batch_size=max(1, 20_000 // T))
        with heartbeat(f"measuring the loss with {weights} weights"):
            models = self.model, prepare(self.model, weights)
            plain, other = (evaluate(model, dataset, "val", settings, batches=1) for model in models)
        return plain, other

    def attention(self, text: str) -> list[Tensor]:
        """The attention weights of a text that fits into the context, on the CPU: one (H, T, T) a layer.

        The text is read as `stream` reads a prompt: for a built-in language, a line end is put in front. `labels`
        returns the T tokens. Raises UserError.
        """
        ids = self._to_look_at(text)  # (1, T)
        with heartbeat("computing the attention"):
            maps = [weights[0].cpu() for weights in attention_maps(self.model, ids)]
        if not all(weights.isfinite().all() for weights in maps):
            raise UserError(OVERFLOW)
        return maps

    def _to_look_at(self, text: str) -> Tensor:
        """The ids of a text, (1, T). Raises UserError for one that does not fit into the context or the memory."""
        ids, config, size = self.context_ids(text), self.config.model, self.tokenizer.vocab_size  # ids (1, T)
        if ids.shape[1] > config.block_size:
            front = " with the line end in front" if self.tells() and not text.startswith("\n") else ""
            raise UserError(f"the text has {ids.shape[1]} tokens{front}; the context holds {config.block_size}")
        check_device(map_parts(config, size, ids.shape[1]), "looking at this text", config, size, self.model.device)
        return ids

    def explore(
        self,
        text: str = "",
        out: str | Path | None = None,
        made_by: str = "",
        whole: bool = False,
        live: bool = False,
        beside: Run | None = None,
    ) -> Page:
        """A page that shows how the model reads a text: all attention weights and their computation. Notebooks show it.

        With `whole`, the page shows the whole model as a flow from the text to its next token (default: whole.html),
        without a text on a short one of the run's language; with `live` it holds the weights, and reads any text; with
        a run `beside`, it shows both. It is saved as `out` (default: explorer.html in the run's folder, see
        `place_of`). `made_by`: the command that is shown below the page. Raises UserError, also if `out` is a file of
        another kind.
        """
        if (live or beside) and not whole:
            raise UserError("a live page, or two runs beside each other, are of the whole model: give whole=True too")
        text = text or (self.short_text() if whole else "")
        if not text:
            raise UserError("the text is empty: give a text to look at")
        path = (
            place_of(self.folder, "whole.html" if whole else "explorer.html", self.overrides)
            if out is None
            else Path(out)
        )
        check_place(path)
        ids = self._to_look_at(text)
        facts = {"run": self.name, "step": f"{self.step:,}"}
        swapped = f", overrides={list(self.overrides)}" if self.overrides else ""
        more = "".join(f", {name}=True" for name, is_set in (("whole", whole), ("live", live)) if is_set)
        made_by = made_by or f"minigpt.load({str(self.folder) + self.at!r}{swapped}).explore({text!r}{more})"
        language, usual = self.config.data.language, self.usual_loss()
        if whole:
            sides = [run.side(text) for run in (self, beside) if run is not None]
            return whole_page(sides, live, made_by).save(path)
        return explore(self.model, self.tokenizer, ids, facts, language, made_by, usual).save(path)

    def side(self, text: str) -> Side:
        """This run and a text, for a page of the whole model."""
        facts = {"run": self.name, "step": f"{self.step:,}"}
        ids = self._to_look_at(text)  # (1, T)
        return Side(self.model, self.tokenizer, ids, facts, self.config.data.language, self.usual_loss())

    def short_text(self) -> str:
        """The shortest of a few new texts of the run's language that fit into the context; "" without a language."""
        language = self.config.data.language
        texts = sorted(language.tell(-1 - self.config.sampling.seed, SHORTEST_OF), key=len) if language else []
        fits = (text.strip("\n") for text in texts if self.context_ids(text).shape[1] <= self.config.model.block_size)
        return next(fits, "")

    def labels(self, text: str) -> list[str]:
        """The tokens of a text as text, as `attention` reads them."""
        ids = self.context_ids(text)[0].tolist()
        return [self.tokenizer.label(id) for id in ids]

    def show_attention(self, text: str, layer: int | None = None, head: int | None = None) -> Picture:
        """The maps of `attention` as a picture, which a notebook shows; `layer` and `head`, from 0, select maps.

        The picture counts from 1: `show_attention(text, 2, 3)` is layer 3, head 4. Raises UserError.
        """
        return Picture(maps_svg(self.maps(text, layer, head), self.labels(text)))

    def maps(self, text: str, layer: int | None = None, head: int | None = None) -> list[Map]:
        """The maps of `attention` by head, after those of which they are made; `layer` and `head`: `show_attention`."""
        with heartbeat("computing the attention"):
            maps = read_maps(self.model, self._to_look_at(text))
        if not all(m.weights.isfinite().all() for m in maps):
            raise UserError(OVERFLOW)
        selected = [m for m in maps if layer in (None, m.layer) and (head is None or m.head in (None, head))]
        if all(m.head is None for m in selected):
            last = f"the last ones are {maps[-1].layer} and {maps[-1].head}"
            raise UserError(f"layer={layer}, head={head}: there is no such head; they count from 0, {last}")
        return selected


@dataclass(frozen=True)
class Opened:
    """The contents of a run's folder, before a model is made."""

    folder: Path
    config: RunConfig
    tokenizer: Tokenizer
    saved: Checkpoint
    notes: list[str]

    def outline(self) -> GPT:
        """The model on the meta device: its tensors have shapes and no values."""
        return outline(self.config.model, self.tokenizer.vocab_size)

    def origin(self) -> dict[str, Any]:
        """The run, step and SHA-256 of the weights, for the record of a run that starts with them."""
        sha256 = checkpoint.weights_sum(self.saved.path)
        return {"run": str(self.folder.resolve()), "step": self.saved.state["step"], "sha256": sha256}


def open_run(place: Path) -> Opened:
    """Read a run: config, tokenizer, newest good checkpoint, and notes, which are printed on stderr too.

    `place` is its folder, or one of its checkpoints, as in `parted`. Raises UserError if it is not a run or the
    checkpoint is not kept, CheckpointError if no checkpoint can be used.
    """
    folder, at = parted(place)
    check_run(folder)
    saved, notes = open_checkpoint(folder, at=at)
    if not at and (best := better_before(evaluations_in(saved))):
        notes.append(_better(folder, saved, best))
    if was_skipped(folder):
        notes.append(f"note: {folder} was trained with --skip-checks: that its attention is right was not checked")
    for note in notes:
        complain(one_line(note))

    def tell(sentence: str) -> None:
        if sentence.startswith("model."):  # the others are for a training that goes on
            notes.append(f"note: {folder}: {sentence}")
            complain(one_line(notes[-1]))

    config = read_config(folder, tell=tell)
    saved = checkpoint.without_adapters(saved, config.training.lora)
    opened = Opened(folder, config, Tokenizer.load(folder / TOKENIZER), saved, notes)
    checkpoint.check_fit(opened.outline(), saved.model, saved.path)
    return opened


def load(folder: str | Path, device: str = "auto", fast: bool = True, overrides: Sequence[str] = ()) -> Run:
    """Load the run in a folder, with the weights of its newest good checkpoint, ready to write text.

    runs/tiny@best is its best checkpoint, runs/tiny@240 that of step 240, and runs/tiny@last the newest. With `fast`
    or the config's `training.fast` false, it computes by the textbook's forms only. `overrides` swap parts of the
    model, as in ["model.attention=average_softmax"] (swap.py). Prints on stderr, and keeps in `notes`, which newer
    checkpoints were skipped, whether an earlier one has a lower validation loss, which weights a swap kept, and whether
    the model was trained unchecked. If the run needs a plugin, load it first (`load_plugin`, or define its class in the
    notebook). Raises UserError if the folder is not a run, or has no such checkpoint, and CheckpointError if no
    checkpoint can be used.
    """
    use_threads()  # no more than this process has CPUs; in a notebook torch does not know of a cgroup's quota
    opened, at = open_run(Path(folder)), parted(folder)[1]
    swaps = list[str]()
    config = swapped(opened.config, overrides, swaps.append)
    config = config if fast else replace(config, training=replace(config.training, fast=False))
    where, size = choose_device(device), opened.tokenizer.vocab_size
    check_device(sampling_parts(config.model, size), "writing", config.model, size, where)
    model = build_model(config, opened.tokenizer)
    moved = move(model, opened.saved.model, opened.outline())
    lines = [*swaps, *moved.lines()] if overrides else []
    for line in lines:
        complain(line)
    notes = [*opened.notes, *lines]
    model.to(where).eval()
    use_float32_products(config.training.precision, where)
    step = opened.saved.state["step"]
    at = f"@{step}" if at not in ("", LAST) else ""
    return Run(opened.folder, config, opened.tokenizer, model, step, notes, tuple(overrides), at=at)


def check_run(folder: Path) -> None:
    """Raises UserError for a folder that is not a run, or contains a link."""
    refuse_links(folder)
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder}: not a run (there is no {CONFIG} in it)")


def open_checkpoint(folder: Path, values: bool = True, at: str = "") -> tuple[Checkpoint, list[str]]:
    """The newest good checkpoint that belongs to the run's present files, in today's form, and lines on newer ones that
    were skipped; or the one that `at` names, as in `parted`.

    `values` is as for `checkpoint.load`. Raises CheckpointError if no checkpoint can be used, and UserError if the one
    that was asked for is not kept.
    """
    sums, changes, place = seal(folder), list(read_changes(folder)), folder / CHECKPOINTS
    listed = checkpoint.checkpoints(place)

    def fits(saved: Checkpoint) -> None:
        for name in sorted({CONFIG, TOKENIZER} | saved.seal.keys()) if saved.format >= SEALED else ():
            later = [files.get(name) for step, files in changes if step >= saved.state["step"]]
            if name not in sums or sums[name] not in [saved.seal.get(name), *later]:
                fault = "not what it was" if name in sums else "missing"
                hint = "put the former file back; a config is changed by overrides to --resume"
                raise CheckpointError(f"{folder / name}: {fault} when {saved.path.name} was saved: {hint}")

    try:
        step, notes = (None if at in ("", LAST, BEST) else int(at)), list[str]()
        if at == BEST:
            last, notes = checkpoint.newest(place, fits, values=False)
            step = best_step(folder, last)
        _check_kept(folder, at, step)
        saved, skipped = checkpoint.newest(place, fits, values, step)
    except (UserError, CheckpointError):
        if checkpoint.checkpoints(place) == listed:
            raise
        return open_checkpoint(folder, values, at)  # a training has replaced the best one meanwhile
    if changes_tensors(saved.format):
        saved = checkpoint.upgraded(saved, to_python(read_config(folder)))
    return saved, notes + skipped


def _check_kept(folder: Path, at: str, step: int | None) -> None:
    """Raises UserError if a run has no checkpoint of a step, which was asked for as `at`."""
    steps = sorted(map(checkpoint.step_of, checkpoint.checkpoints(folder / CHECKPOINTS)))
    if step is not None and step not in steps:
        hint = " (training.keep.best=1 keeps the best one)" if at == BEST else ""
        there = f"; there are {' and '.join(map(str, steps))}" if steps else ""
        raise UserError(f"{folder}@{at}: no checkpoint of step {step} is kept{hint}{there}")


def evaluations_in(saved: Checkpoint) -> list[Evaluation]:
    """The evaluations that a checkpoint holds; none in that of a comparison, or of an import."""
    held = has_form(saved.state, {"evaluations": [(int, float, float)]})
    return [(step, train_loss, val_loss) for step, train_loss, val_loss in saved.state["evaluations"]] if held else []


def best_step(folder: Path, newest: Checkpoint) -> int:
    """The step with the lowest validation loss up to the newest checkpoint. Raises UserError if there was none.

    An evaluation that a signal stopped is not in its checkpoint; when a resume makes it up, the metrics have it.
    """
    evaluations, step = evaluations_in(newest), newest.state["step"]
    if newest.state.get("losses"):
        lines = [line for line in read_metrics(folder / METRICS) if line["step"] == step and "val/loss" in line]
        evaluations += [(step, line["val/loss"], line["val/loss"]) for line in lines]
    best = best_of(evaluations)
    if best is None:
        raise UserError(f"{folder}@{BEST}: {newest.path} holds no validation loss, so none is known to be the best")
    return best[0]


def _better(folder: Path, saved: Checkpoint, best: Evaluation) -> str:
    """The line for a run whose newest checkpoint is not its best."""
    step, _, loss = evaluations_in(saved)[-1]
    is_there = best[0] in map(checkpoint.step_of, checkpoint.checkpoints(folder / CHECKPOINTS))
    missing = "its weights are not kept (training.keep.best=1 keeps them)"
    where = f"{folder}@{BEST} has its weights" if is_there else missing
    return f"note: {folder}: the validation loss was {best[2]:.4f} at step {best[0]} and {loss:.4f} at {step}: {where}"


def seal(folder: Path) -> dict[str, str]:
    """The SHA-256 sums of the files that decide what a run's weights mean: its config, tokenizer, and plugins.

    Raises UserError for one that is too large to be such a file, before it is read, and OSError.
    """
    plugins = sorted((folder / PLUGINS).glob("*.py"))
    files = [path for path in (folder / CONFIG, folder / TOKENIZER, *plugins) if path.is_file()]
    for path in files:
        if (size := path.stat().st_size) > MAX_SEALED:
            raise UserError(f"{path}: {size:,} bytes; such a file of a run has at most {MAX_SEALED:,}")
    return {path.relative_to(folder).as_posix(): sha256_of(path) for path in files}


def records_in(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects of a file: one, or, in JSON Lines, one a line. Damaged ones are left out."""
    text = read_start(path, MAX_CHANGES) if path.is_file() else b""
    for line in text.split(b"\n") if path.suffix == ".jsonl" else [text]:
        with suppress(ValueError, RecursionError):
            if isinstance(record := json.loads(line), dict):
                yield record


def read_changes(folder: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each change of a run's files: its step and {file: SHA-256}."""
    for record in records_in(folder / CHANGES):
        if type(record.get("step")) is int and isinstance(record.get("files"), dict):
            yield record["step"], record["files"]


def was_skipped(folder: Path) -> bool:
    """Whether a run, or a part of it, was trained with --skip-checks. A damaged record counts as no."""
    changes = [record.get("changes") for record in records_in(folder / CHANGES)]
    skipped = any(isinstance(rows, list) and ["checks", "passed", SKIPPED] in rows for rows in changes)
    return skipped or any(record.get("checks") == SKIPPED for record in records_in(folder / ENVIRONMENT))


def read_config(folder: Path, overrides: Sequence[str] = (), tell: Tell | None = None) -> RunConfig:
    """The config that a run was trained with, in today's form, with overrides; `tell` is as for `options.load`.

    Raises UserError; says which plugin is missing.
    """
    mistakes: list[Mistake] = []
    try:
        tree = read_tree(folder / CONFIG, mistakes, tell, checkpoint.written_in(folder / CHECKPOINTS))
        return overridden(RunConfig, tree, overrides, mistakes, tell)
    except ConfigError as error:
        copies = sorted(path.name for path in (folder / PLUGINS).glob("*.py"))
        missing = [name for name in copies if module_name(Path(name)) not in sys.modules]
        if not missing or "unknown kind" not in str(error):
            raise
        hint = f"--plugin {missing[0]} (a copy for the record is {folder / PLUGINS / missing[0]})"
        problem = f"{folder} was trained with a plugin that is missing here: give {hint}"
        raise UserError(f"{problem}. {'; '.join(str(error).splitlines())}") from None


def newest_run(name: str = "") -> Path:
    """The folder of a run: a path, a name in runs/, or, for "", the newest with a checkpoint. Raises UserError.

    A checkpoint that is named behind it stays there, as in `parted`: tiny@best is runs/tiny@best.
    """
    if name:
        candidates = [path for path in (Path(name), RUNS / name) if path.is_dir()]
        plain, at = parted(name)
        if not candidates and at:
            return Path(f"{newest_run(str(plain) if plain != Path() else '')}@{at}")
        if not candidates:
            names = [path.parent.name for path in RUNS.glob(f"*/{CONFIG}")]
            where = f"neither {Path(name)} nor {RUNS / name} is a folder"
            raise UserError(f"there is no run {name}: {where}{meant(name, names)}")
        return next((path for path in candidates if (path / CONFIG).is_file()), candidates[0])
    entries = [path for path in RUNS.iterdir() if not path.name.startswith(".")] if RUNS.is_dir() else []
    folders = [path for path in entries if not path.is_symlink()]
    runs = [path for path in folders if (path / CONFIG).is_file()]
    if not runs:
        raise UserError(f"there is no run in {RUNS.absolute()} yet: {command('train')} --config tiny.yaml")
    return max([path for path in runs if _has_checkpoints(path)] or runs, key=_used)


def parted(place: str | Path) -> tuple[Path, str]:
    """A run's folder, and which of its checkpoints is meant: "best", "last", a step, or "", which is the newest too.

    runs/tiny@best is runs/tiny and "best"; a folder that is really called so is itself.
    """
    match = re.fullmatch(rf"(.*?)/?@({BEST}|{LAST}|[0-9]{{1,12}})", str(place))
    return (Path(place), "") if match is None or Path(place).is_dir() else (Path(match[1]), match[2])


def newest_of(name: str) -> Path | None:
    """The newest run with a checkpoint among runs/NAME and those that were numbered, runs/NAME-2 and so on."""
    named = [path for path in RUNS.glob("*") if re.fullmatch(rf"{re.escape(name)}(-\d+)?", path.name)]
    runs = [path for path in named if (path / CONFIG).is_file() and _has_checkpoints(path)]
    return max(runs, key=_used, default=None)


def _used(run: Path) -> int:
    """When a run was used last."""
    return (run / METRICS if (run / METRICS).exists() else run / CONFIG).stat().st_mtime_ns


def _has_checkpoints(run: Path) -> bool:
    try:
        return bool(checkpoint.checkpoints(run / CHECKPOINTS))
    except (CheckpointError, OSError):  # not the folder of a run
        return False


__all__ = ["CheckpointError", "Run", "load", "newest_run"]
