"""One run of a comparison, from its config to its numbers: training, exact losses, speeds, attention maps.

B batch, T positions, H heads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from minigpt.checks.causality import idle_positions
from minigpt.comparison.data import expected_of, text_and_tokenizer
from minigpt.config.options import to_yaml
from minigpt.model.eval_mode import eval_mode
from minigpt.model.gpt import GPT
from minigpt.model.sampling import SamplingConfig, generate
from minigpt.seeing.cost import cost
from minigpt.seeing.maps import Map, read_maps, sums
from minigpt.seeing.pictures import small_png
from minigpt.system.errors import UserError
from minigpt.system.folder import write_whole
from minigpt.system.moving import remove
from minigpt.system.terminal import complain
from minigpt.text.dataset import Dataset
from minigpt.text.languages.tasks import Task
from minigpt.text.tokenizer import Tokenizer
from minigpt.training import checkpoint
from minigpt.training.assemble import RunConfig, assemble
from minigpt.training.before_training import check_before_training
from minigpt.training.floor import Score, bits_per_byte, character_probabilities, example, predict, score
from minigpt.training.loggers import Loggers
from minigpt.training.loop import History, fit, train
from minigpt.training.optimizer import Optimizer
from minigpt.training.records import Diverged
from minigpt.training.report import Log, loss_curves, metrics_of
from minigpt.training.run import CHECKPOINTS, CONFIG, METRICS, TOKENIZER, seal
from minigpt.training.run_folder import environment
from minigpt.training.schedule import Constant

CURVE_WINDOWS = 256  # of the validation split, for each point of a curve
TRIAL_STEPS = 7  # to measure a variant's speed
SAMPLED = 100  # tokens, to measure the speed of sampling
ANSWERED = 50  # texts of a task whose answers are kept

Send = Callable[[dict[str, Any]], None]  # sends an answer to the process that asked for the run


def prepare(config: RunConfig, share: int | None = None) -> tuple[Dataset, Dataset, Tokenizer, GPT, Optimizer]:
    """The dataset; the same text in windows that start where documents start; tokenizer, model and optimizer.

    Raises UserError if they need more memory than `share` bytes, and for callbacks.
    """
    if config.training.callbacks:
        raise UserError("training.callbacks: a comparison calls none, so that all runs are as long: leave them out")
    corpus, tokenizer = text_and_tokenizer(config.data)
    dataset, model, optimizer = assemble(config, corpus, tokenizer, "each run", share)
    aligned = Dataset(replace(config.data, windows="documents"), corpus, tokenizer, config.model.block_size)
    return dataset, aligned, tokenizer, model, optimizer


def try_out(config: RunConfig, allow_leak: bool, share: int | None = None, skip_checks: bool = False) -> dict[str, Any]:
    """Check the model and train it for a few steps. Returns `notes`, and the seconds of a training `step`, of an
    evaluation for the `curve`, and of one over the `whole` validation split.

    Raises UserError as `prepare` does; LeakError for a model that sees the future, unless `allow_leak`; LawError for a
    kind that breaks a law. With `skip_checks`, the model is not checked, and the last two are not raised.
    """
    dataset, aligned, _, model, optimizer = prepare(config, share)
    notes = idle_positions(model)
    notes += [] if skip_checks else check_before_training(model, dataset, config.training, allow_leak)
    few = replace(config.training, max_steps=TRIAL_STEPS, schedule=Constant.Config())
    try:
        seconds = [record.seconds for record in train(model, dataset, optimizer, few)]
    except Diverged:  # the run itself will report it
        seconds = [1.0]
    every = math.ceil(aligned.window_count("val") / config.training.batch_size)
    batches = min(every, math.ceil(CURVE_WINDOWS / config.training.batch_size))
    start = perf_counter()
    predict(model, aligned, config.training, expected_of(config.data), batches)
    curve = perf_counter() - start
    whole = curve * every / batches
    return {"step": median(seconds[2:] or seconds), "curve": curve, "whole": whole, "notes": notes}


def perform(config: RunConfig, folder: Path, send: Send, share: int | None = None) -> dict[str, Any]:
    """Train one run, measure it, and return its result. `folder` becomes a run: sample.py --run FOLDER works."""
    start = perf_counter()
    dataset, aligned, tokenizer, model, optimizer = prepare(config, share)
    checksums = furnish(folder, config, tokenizer)
    expected, settings = expected_of(config.data), config.training
    batches = math.ceil(CURVE_WINDOWS / settings.batch_size)
    curve, bits, history, scores = list[list[float]](), list[float | None](), History(), list[Score]()
    result: dict[str, Any] = {"status": "done", "message": ""} | asdict(cost(model))

    def validate(batches: int | None = batches) -> float:
        predictions = predict(model, aligned, settings, expected, batches)
        scored = score(predictions, expected, _characters(aligned, tokenizer, len(predictions.losses)))
        scores.append(replace(scored, bits_per_byte=bits_per_byte(predictions, aligned)))
        return scores[-1].loss

    try:
        loggers = Loggers(settings.loggers, folder, 0, complain)
        with closing(loggers), closing(Log(folder / METRICS, complain)) as metrics:
            for record, evaluation in fit(model, dataset, optimizer, settings, history, validate):
                send({"event": "step", "step": history.step})
                line = metrics_of(record, history)
                if evaluation is not None:
                    above = scores[-1].above
                    curve.append([*evaluation] if above is None else [*evaluation, above])
                    line |= dict(zip(("val/loss", "val/above_floor"), curve[-1][2:]))
                    bits.append(scores[-1].bits_per_byte)
                    line |= {} if bits[-1] is None else {"val/bits_per_byte": bits[-1]}
                metrics.write(json.dumps(line) + "\n")
                loggers.write(line)
        if not math.isfinite(validate(None)):
            raise Diverged(f"step {history.step}: the validation loss is {scores[-1].loss}; lower the learning rate")
    except Diverged as error:
        return result | {"status": "diverged", "message": str(error), "steps": history.step, "curve": curve}
    finally:
        draw_curves(folder, batches * settings.batch_size)
    done = {"seconds": history.seconds, "tokens": history.tokens}
    checkpoint.save(folder / CHECKPOINTS, history.step, checkpoint.tensors_of(model), {}, done, checksums)
    speed = history.tokens / history.seconds
    return (
        result
        | asdict(scores[-1])
        | {"steps": history.step, "curve": curve, "curve_bits": bits}
        | {"seconds": history.seconds, "training_tokens_per_second": speed}
        | {"sampling_tokens_per_second": sampling_speed(model), "example": read_example(model, config, tokenizer)}
        | {"answered": read_answers(model, config, tokenizer)}
        | {"whole_seconds": perf_counter() - start, "environment": environment()}
    )


def furnish(folder: Path, config: RunConfig, tokenizer: Tokenizer) -> dict[str, str]:
    """Write config and tokenizer, and remove the metrics of an unfinished run. Returns the sums for its checkpoint."""
    write_whole(folder / CONFIG, to_yaml(config))
    tokenizer.save(folder / TOKENIZER)
    remove(folder / METRICS)
    return seal(folder)


def draw_curves(folder: Path, windows: int) -> None:
    """Draw the losses of a run; the validation losses are those of the first `windows` windows."""
    title = f"{folder.name}: loss in nats (validation: the first {windows} windows)"
    write_whole(folder / "loss.svg", loss_curves(folder / METRICS, title))


def _characters(dataset: Dataset, tokenizer: Tokenizer, targets: int) -> int:
    """How many characters the first `targets` ids of the validation split stand for.

    A loss per character can be compared between tokenizers. The tokens that begin and end
    a text are targets too, but stand for no characters.
    """
    ids = dataset.first_targets("val", targets).tolist()
    marks = (tokenizer.begin_of_text, tokenizer.end_of_text)
    return len(tokenizer.decode([id for id in ids if id not in marks]))


def sampling_speed(model: GPT) -> float:
    """Tokens a second of `generate` with its cache."""
    prompt = torch.zeros(1, 1, dtype=torch.long, device=model.device)  # (1, 1)
    start = perf_counter()
    count = sum(1 for _ in generate(model, prompt, SamplingConfig(max_tokens=SAMPLED)))
    return count / (perf_counter() - start)


def read_example(model: GPT, config: RunConfig, tokenizer: Tokenizer) -> dict[str, Any] | None:
    """How the model reads the example story: the probability of each character, and its attention maps as PNGs."""
    corpus = text_and_tokenizer(config.data)[0]
    story = example(corpus)
    if story is None or expected_of(config.data) is None or len(story[0]) > config.model.block_size:
        return None
    text = story[0]
    ids = torch.from_numpy(tokenizer.encode(text)).long()[None].to(model.device)  # (1, T)
    try:
        maps = [head for head in read_maps(model, ids) if not head.part]
    except UserError:  # this kind has no attention weights
        maps = []
    layers = [[head for head in maps if head.layer == layer] for layer in dict.fromkeys(head.layer for head in maps)]
    targets = range(len(text))[(corpus.language and corpus.language.answers(text)) or slice(None)]
    probabilities = enumerate(character_probabilities(model, tokenizer, text), 1)  # of the characters after the first
    return {
        "probabilities": [round(p, 5) if index in targets else None for index, p in probabilities],
        "attention": [[small_png(head.weights.float().cpu()) for head in layer] for layer in layers],
        "notes": [[_caption(head) for head in layer] for layer in layers],
        "tokens": [tokenizer.label(id) for id in ids[0].tolist()],
    }


def _caption(head: Map) -> str:
    """The caption of a map: what it is made of, the sums of its rows, and the weight of full colour, if not 1."""
    most = float(head.weights.abs().max())
    colour = f"full colour: {most:.2g}" if most > 1.001 else ""
    return "; ".join(filter(None, (head.note, sums(head.weights), colour)))


@torch.no_grad()
def read_answers(model: GPT, config: RunConfig, tokenizer: Tokenizer) -> list[list[str]]:
    """What the model answers in the first validation texts of a task: [text, the letters of its answers] each."""
    corpus = text_and_tokenizer(config.data)[0]
    if not isinstance(task := corpus.language, Task) or task.talks:
        return []
    texts = list(corpus.documents())[-task.config.validation :][:ANSWERED]
    ids = pad_sequence([torch.from_numpy(tokenizer.encode(text)).long() for text in texts], batch_first=True)  # (N, T)
    if ids.shape[1] > config.model.block_size:
        return []
    with eval_mode(model):
        likeliest = model(ids[:, :-1].to(model.device)).argmax(-1).tolist()  # (N, T - 1)
    targets = [range(len(text))[task.answers(text)] for text in texts]
    answers = ("".join(tokenizer.decode([row[i - 1]]) for i in indices) for row, indices in zip(likeliest, targets))
    return [[text, answer] for text, answer in zip(texts, answers)]
