"""One run of a comparison, from its config to its numbers; and the process that does such runs, one after the other.

Its process is started by crew.py: a task a line on stdin, answers on stdout.

B batch, T positions, H heads.
"""

from __future__ import annotations

import base64
import json
import math
import os
import platform
import queue
import shutil
import struct
import sys
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from minigpt.comparison.data import expected_of, text_and_tokenizer
from minigpt.comparison.results import RESULT, code_digest, load_result, save_result
from minigpt.config.options import build, to_python, to_yaml
from minigpt.config.strict_yaml import parse_yaml
from minigpt.inspection.causality import check_causal, idle_positions
from minigpt.inspection.cost import cost
from minigpt.inspection.trace import attention_maps
from minigpt.model.gpt import GPT
from minigpt.model.sampling import SamplingConfig, generate
from minigpt.runs import checkpoint
from minigpt.runs.assemble import RunConfig, assemble
from minigpt.runs.run import CHECKPOINTS, CONFIG, TOKENIZER, load_plugin, seal
from minigpt.system.errors import Mistake, UserError
from minigpt.system.folder import InUse, Lock, refuse_links, write_whole
from minigpt.text.dataset import Dataset
from minigpt.text.tokenizer import Tokenizer
from minigpt.training.floor import Score, example, pay, read_aloud, score
from minigpt.training.loop import Diverged, History, fit, train
from minigpt.training.optimizer import Optimizer

CURVE_WINDOWS = 256  # of the validation split, read at each point of a curve
TRIAL_STEPS = 7  # to measure a variant's speed
SAMPLED = 100  # tokens, to measure the speed of sampling

Tell = Callable[[dict[str, Any]], None]  # passes a message on to whoever waits for this run


def prepare(config: RunConfig, share: int | None = None) -> tuple[Dataset, Dataset, Tokenizer, GPT, Optimizer]:
    """The data to train on, the same in windows aligned to story starts, tokenizer, model and optimizer.

    Raises UserError where this process's share of the memory does not hold them.
    """
    corpus, tokenizer = text_and_tokenizer(config.data)
    dataset, model, optimizer = assemble(config, corpus, tokenizer, "each run", share)
    aligned = Dataset(replace(config.data, windows="documents"), corpus, tokenizer, config.model.block_size)
    return dataset, aligned, tokenizer, model, optimizer


def try_out(config: RunConfig, allow_leak: bool, share: int | None = None) -> dict[str, Any]:
    """Take a few steps of a model that is thrown away: how long a run takes, and what is to be said of it.

    Raises UserError for a model that sees the future, unless that is allowed.
    """
    dataset, aligned, _, model, optimizer = prepare(config, share)
    if not allow_leak:
        check_causal(model)
    few = replace(config.training, max_steps=TRIAL_STEPS, schedule="constant")
    try:
        seconds = [record.seconds for record in train(model, dataset, optimizer, few)]
    except Diverged:  # that is for the run itself to say
        seconds = [1.0]
    batches = math.ceil(CURVE_WINDOWS / config.training.batch_size)
    expected = expected_of(config.data)
    began = perf_counter()
    windows = len(pay(model, aligned, config.training, expected, batches).nats)
    curve = perf_counter() - began
    whole = curve * len(aligned.splits["val"]) / windows
    return {"step": median(seconds[2:] or seconds), "curve": curve, "whole": whole, "notes": idle_positions(model)}


def perform(config: RunConfig, folder: Path, tell: Tell, share: int | None = None) -> dict[str, Any]:
    """Train one run and measure it. Its folder is like one of train.py: sample.py --run FOLDER writes with it."""
    began = perf_counter()
    dataset, aligned, tokenizer, model, optimizer = prepare(config, share)
    write_whole(folder / CONFIG, to_yaml(config))
    tokenizer.save(folder / TOKENIZER)
    sealed = seal(folder)
    expected, settings = expected_of(config.data), config.training
    batches = math.ceil(CURVE_WINDOWS / settings.batch_size)
    curve: list[list[float]] = []
    history, scores = History(), list[Score]()
    result: dict[str, Any] = {"status": "done", "message": ""} | asdict(cost(model))

    def validate(batches: int | None = batches) -> float:
        paid = pay(model, aligned, settings, expected, batches)
        scores.append(score(paid, expected, _characters(aligned, tokenizer, len(paid.nats))))
        return scores[-1].loss

    try:
        for _, evaluation in fit(model, dataset, optimizer, settings, history, validate):
            tell({"event": "step", "step": history.step})
            if evaluation is not None:
                above = scores[-1].above
                curve.append([*evaluation] if above is None else [*evaluation, above])
        if not math.isfinite(validate(None)):
            raise Diverged(f"step {history.step}: the validation loss is {scores[-1].loss}; lower the learning rate")
    except Diverged as error:
        return result | {"status": "diverged", "message": str(error), "steps": history.step, "curve": curve}
    done = {"seconds": history.seconds, "tokens": history.tokens}
    checkpoint.save(folder / CHECKPOINTS, history.step, model, {}, done, sealed)
    speed = history.tokens / history.seconds
    return (
        result
        | asdict(scores[-1])
        | {"steps": history.step, "curve": curve, "seconds": history.seconds, "training_tokens_per_second": speed}
        | {"sampling_tokens_per_second": sampling_speed(model), "example": look(model, config, tokenizer)}
        | {"whole_seconds": perf_counter() - began, "environment": environment()}
    )


def _characters(dataset: Dataset, tokenizer: Tokenizer, targets: int) -> int:
    """How many characters the first targets of the validation split are: losses of any tokenizer are comparable.

    What ends a text is predicted too, and is no character.
    """
    first = dataset.splits["val"].start + 1
    ids = dataset.ids[first : first + targets].tolist()
    return len(tokenizer.decode([id for id in ids if id != tokenizer.end_of_text]))


def sampling_speed(model: GPT) -> float:
    """Tokens a second, written one by one with the cache."""
    prompt = torch.zeros(1, 1, dtype=torch.long, device=model.device)  # (1, 1)
    began = perf_counter()
    count = sum(1 for _ in generate(model, prompt, SamplingConfig(max_tokens=SAMPLED)))
    return count / (perf_counter() - began)


def look(model: GPT, config: RunConfig, tokenizer: Tokenizer) -> dict[str, Any] | None:
    """How the model reads the example story: the probability of each character, and its attention maps as pictures."""
    found = example(text_and_tokenizer(config.data)[0])
    if found is None or expected_of(config.data) is None or len(found[0]) > config.model.block_size:
        return None
    ids = torch.from_numpy(tokenizer.encode(found[0])).long()[None].to(model.device)  # (1, T)
    try:
        maps = [[png(head) for head in layer[0].float().cpu()] for layer in attention_maps(model, ids)]
    except UserError:  # a kind that has no weights to show
        maps = []
    return {"probabilities": [round(p, 5) for p in read_aloud(model, tokenizer, found[0])], "attention": maps}


def png(weights: Tensor) -> str:
    """Weights (T, T) as a picture, in base64: one colour, the more opaque the larger the weight."""
    shade = (weights.abs().clamp(0, 1).sqrt() * 255).byte()  # (T, T): the root shows small weights too
    colour = torch.tensor([37, 99, 235], dtype=torch.uint8).expand(*shade.shape, 3)  # (T, T, 3)
    pixels = torch.cat((colour, shade[..., None]), dim=-1).numpy()  # (T, T, 4)
    height, width = shade.shape
    raw = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">2I5B", width, height, 8, 6, 0, 0, 0)  # 8 bits, RGBA
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    body = b"".join(struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


def environment() -> dict[str, Any]:
    """Where the run was made."""
    there = {"python": platform.python_version(), "torch": torch.__version__, "platform": platform.platform()}
    return there | {"threads": torch.get_num_threads()}


# ---------------------------------------------------------------------------------------------- a process of the crew


def do(task: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """Do one task: `try` a variant, or `run` it. The answer's event is done, busy, or refused."""
    mistakes: list[Mistake] = []
    config = build(RunConfig, parse_yaml(task["config"], task["variant"], mistakes))
    if task["do"] == "try":
        try:
            return {"event": "done", **try_out(config, task["allow_leak"], task.get("share"))}
        except UserError as error:
            return {"event": "refused", "message": str(error)}
    folder = Path(task["folder"])
    refuse_links(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = Lock(folder)
    except InUse:
        return {"event": "busy"}
    with lock:
        result, _ = load_result(folder, task["key"])
        if result is None:
            (folder / RESULT).unlink(missing_ok=True)
            shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)  # of a run that was stopped, or is out of date
            who = {"variant": task["variant"], "seed": task["seed"], "key": task["key"], "code": code_digest()}
            result = who | {"config": to_python(config)} | perform(config, folder, tell, task.get("share"))
            save_result(folder, result)
    return {"event": "done"}


def main(arguments: Sequence[str]) -> None:
    """Answer tasks until stdin ends; then leave at once, since whoever asked is gone."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a plugin prints is no answer
    torch.set_num_threads(1)
    for plugin in arguments:
        load_plugin(Path(plugin))

    def tell(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    tasks: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            tasks.put(line)
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        task = json.loads(tasks.get())
        try:
            tell(do(task, tell))
        except Exception as error:
            tell({"event": "failed", "message": f"{type(error).__name__}: {error}"})
