"""Answers the questions of the page: JSON values in, JSON values out. Only `server.py` deals with HTTP.

A question is one request of the page. It holds all that its answer depends on (the run, the ids, the settings, the
edits), so two browsers share no state. All models compute in one thread, which does the jobs in turn, one token or one
batch at a time, so text is also generated during a long measurement.
"""

from __future__ import annotations

import queue
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from minigpt.learning.playground.line import line
from minigpt.learning.playground.measure import Measure
from minigpt.learning.playground.player import Player, in_context
from minigpt.model import count_parameters
from minigpt.model.sampling import SamplingConfig, window_start
from minigpt.seeing.edits import Edits, edited
from minigpt.seeing.explorer import Page, explore
from minigpt.seeing.numbers import token_text
from minigpt.seeing.weights import unable
from minigpt.seeing.whole import Side, whole
from minigpt.system.errors import UserError
from minigpt.system.strict_json import has_form
from minigpt.system.waiting import QUIET_SECONDS
from minigpt.training.memory import check_device, map_parts
from minigpt.training.run import Run

LONGEST, AT_ONCE = 8192, 2000  # tokens of a text, and of one answer to `write`
SMALL = 3_000_000  # parameters: such a model is measured after every edit, within a second or two
PAGES = 4  # explorer pages that are kept

EDITS = {
    "heads_off": [(int, int)],
    "running_mean": [int],
    "scale": [(int | None, float)],
    "cut": [(int, int, int)],
    "attentions_off": [int],
    "mlps_off": [int],
}
SETTINGS = {"temperature": float, "top_k": int | None, "top_p": float, "seed": int}
TEXT = {"run": int, "ids": [int]}
FORMS: dict[str, dict[str, Any]] = {
    "hello": {},
    "encode": {"run": int, "text": str, "begins": bool},
    "reply": {**TEXT, "text": str},
    "read": {**TEXT, "edits": EDITS, "kept": int},
    "look": {**TEXT, "edits": EDITS, "at": int, "begun": int, "settings": SETTINGS},
    "write": {**TEXT, "edits": EDITS, "begun": int, "settings": SETTINGS, "tokens": int},
    "measure": {"run": int, "edits": EDITS, "whole": bool},
    "explore": TEXT,
    "whole": {**TEXT, "edits": EDITS},
}

Lines = Iterator[dict[str, Any]]


class Malformed(Exception):
    """A question that the page never sends."""


class Worker:
    """One thread that runs jobs in the order in which they came."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self.ending = threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def __call__(self, job: Callable[[], Any]) -> Any:
        """Run a job, and return or raise what it does."""
        done: Future[Any] = Future()
        self.jobs.put((job, done))
        return done.result()

    def close(self, seconds: float) -> bool:
        """Run no job after the current one; returns whether that ended within `seconds`."""
        self.ending.set()
        self.jobs.put((bool, Future()))
        self.thread.join(seconds)
        return not self.thread.is_alive()

    def _work(self) -> None:
        while not self.ending.is_set():
            job, done = self.jobs.get()
            try:
                done.set_result(job())
            except BaseException as error:
                done.set_exception(error)


@dataclass(frozen=True)
class OpenRun:
    """A run, and the objects that answer questions about it."""

    run: Run
    player: Player
    measure: Measure


class Playground:
    """Answers questions about the opened runs. A run that is given twice is shown twice, and loaded once."""

    def __init__(self, runs: list[Run]):
        self.turn = Worker()
        by_id = {id(run): OpenRun(run, Player(run), Measure(run)) for run in runs}
        self.open_runs = [by_id[id(run)] for run in runs]
        self.pages: OrderedDict[str, str] = OrderedDict()

    def close(self) -> bool:
        """Stop computing; false if a model is still within one call after two seconds."""
        return self.turn.close(QUIET_SECONDS)

    def page(self, name: str) -> str | None:
        """The HTML of an explorer page by its name, which nobody can guess; None for an unknown name."""
        return self.pages.get(name)

    def answer(self, name: str, question: Any) -> dict[str, Any] | Lines:
        """The answer to a question: a value, or an iterator that yields values as they are computed.

        Raises Malformed for a question that the page never sends, and UserError for a mistake in what a person typed.
        """
        if name not in FORMS or not isinstance(question, dict) or not has_form(question, FORMS[name]):
            raise Malformed
        if set(question) != set(FORMS[name]) or not 0 <= question.get("run", 0) < len(self.open_runs):
            raise Malformed
        open_run = self.open_runs[question.get("run", 0)]
        ids, vocab_size = question.get("ids"), open_run.run.tokenizer.vocab_size
        if ids is not None and not (0 < len(ids) <= LONGEST and all(0 <= id < vocab_size for id in ids)):
            raise Malformed
        method: Callable[..., dict[str, Any] | Lines] = getattr(self, f"_{name}")
        return method(open_run, **{key: value for key, value in question.items() if key != "run"})

    def _hello(self, open_run: OpenRun) -> dict[str, Any]:
        return {
            "runs": [introduced(open_run) for open_run in self.open_runs],
            "same": len(set(map(id, self.open_runs))) < len(self.open_runs),
        }

    def _encode(self, open_run: OpenRun, text: str, begins: bool) -> dict[str, Any]:
        """The ids of a text, at the beginning (`begins`) or within another. Raises UserError if it is too long."""
        to_ids = open_run.run.context_ids if begins else open_run.run.prompt_ids
        ids = to_ids(text)[0].tolist() if text or begins else []
        if len(ids) > LONGEST:
            raise UserError(f"the text has {len(ids):,} tokens; at most {LONGEST:,} are read here")
        return {"ids": ids}

    def _reply(self, open_run: OpenRun, ids: list[int], text: str) -> dict[str, Any]:
        """The ids of what a person says next in a talk. Raises UserError if they do not fit into the context."""
        talking, size = open_run.run.talking, longest(open_run.run)
        reply = talking.reply(ids[-1], text).tolist()
        if (n := len(ids) + len(reply)) > size:
            raise UserError(f"the talk would have {n:,} tokens; the context holds {size:,}: begin a new one")
        return {"ids": reply}

    def _read(self, open_run: OpenRun, ids: list[int], edits: dict[str, Any], kept: int) -> dict[str, Any]:
        """Every token as text, where turns begin, the surprises, the mean loss with the edits and without them, and a
        sentence if the first `kept` tokens are far outside what the run was trained on.
        """
        if not 0 <= kept <= len(ids):
            raise Malformed
        changed, tokenizer = edits_of(edits, open_run), open_run.run.tokenizer
        surprises = self.turn(lambda: open_run.player.surprises(ids, changed))
        before = surprises if changed == Edits() else self.turn(lambda: open_run.player.surprises(ids, Edits()))
        loss, loss_before = (sum(each) / len(each) if each else None for each in (surprises, before))
        return {
            "tokens": [token_text(tokenizer, id) for id in ids],
            "turns": open_run.run.talking.openings(ids) if open_run.run.talks else [],
            "surprise": [None, *surprises],
            "loss": loss,
            "before": loss_before,
            "outside": self.turn(lambda: open_run.player.outside(ids[:kept])),
        }

    def _look(
        self, open_run: OpenRun, ids: list[int], edits: dict[str, Any], at: int, begun: int, settings: dict[str, Any]
    ) -> dict[str, Any]:
        """The line of probabilities for the token at position `at` of the text, or for the next token."""
        if not 0 < at <= len(ids):
            raise Malformed
        changed, config = edits_of(edits, open_run), settings_of(settings)
        current = ids[at] if at < len(ids) else None
        turn = at - begun if 0 < begun <= at else None

        def look() -> dict[str, Any]:
            logits = open_run.player.logits(ids, at, changed)
            return line(logits, config, turn, open_run.run.tokenizer, current) | {"stands": current}

        return self.turn(look)

    def _write(
        self,
        open_run: OpenRun,
        ids: list[int],
        edits: dict[str, Any],
        begun: int,
        settings: dict[str, Any],
        tokens: int,
    ) -> Lines:
        """Continue the text; yields one value for each token."""
        if not (0 < begun <= len(ids) and 0 < tokens <= AT_ONCE):
            raise Malformed
        changed, config = edits_of(edits, open_run), settings_of(settings)
        return self._written(open_run, ids, changed, begun, config, min(tokens, longest(open_run.run) - len(ids)))

    def _written(
        self, open_run: OpenRun, ids: list[int], edits: Edits, begun: int, config: SamplingConfig, tokens: int
    ) -> Lines:
        first, written, tokenizer = len(ids) - begun, list(ids[begun:]), open_run.run.tokenizer
        tokens_and_logits = open_run.player.write(ids, first, config, edits)

        def next_line(turn: int) -> dict[str, Any]:
            id, logits = next(tokens_and_logits)
            written.append(id)
            surprise = -float(logits.float().log_softmax(-1)[id])
            return {
                "id": id,
                "token": token_text(tokenizer, id),
                "surprise": surprise,
                "line": line(logits, config, turn, tokenizer) | {"stands": id},
            }

        for turn in range(first, first + tokens):
            yield self.turn(partial(next_line, turn))
            if open_run.player.ended(written):
                yield {"ended": "the text is over"}
                return
        yield {"ended": "" if tokens else f"at most {longest(open_run.run):,} tokens are kept here: begin again"}

    def _explore(self, open_run: OpenRun, ids: list[int]) -> dict[str, Any]:
        """Make an explorer page of the unedited model and the end of the text that fits; returns the page's name."""
        side = shown_side(open_run, ids)
        about = side.facts, side.language
        page = self.turn(lambda: explore(side.model, side.tokenizer, side.ids, *about, usual=side.usual))
        return self._kept(page)

    def _whole(self, open_run: OpenRun, ids: list[int], edits: dict[str, Any]) -> dict[str, Any]:
        """Make a page of the whole model, as it is with the edits, and the end of the text; returns its name."""
        side = shown_side(open_run, ids)
        changed = in_context(edits_of(edits, open_run), len(ids) - side.ids.shape[1])

        def looked_at() -> Page:
            with edited(side.model, changed):
                small = sum(count_parameters(side.model).values()) <= SMALL
                return whole([side], live=small and changed == Edits() and not unable(side.model))

        return self._kept(self.turn(looked_at))

    def _kept(self, page: Page) -> dict[str, Any]:
        """Keep a page for the browser to fetch; returns its name."""
        name = secrets.token_urlsafe(32)
        self.pages[name] = page.html
        if len(self.pages) > PAGES:
            self.pages.popitem(last=False)
        return {"page": name}

    def _measure(self, open_run: OpenRun, edits: dict[str, Any], whole: bool) -> Lines:
        return open_run.measure.measured(edits_of(edits, open_run), whole, self.turn)


def longest(run: Run) -> int:
    """How many tokens a text may have; a talk has to fit into the context, as in training."""
    return min(LONGEST, run.config.model.block_size) if run.talks else LONGEST


def shown_side(open_run: OpenRun, ids: list[int]) -> Side:
    """A run and the end of a text that fits into its context. Raises UserError where looking takes too much memory."""
    run = open_run.run
    config, size, device = run.config.model, run.tokenizer.vocab_size, run.model.device
    context = torch.tensor([ids[window_start(len(ids), config.block_size) :]], device=device)  # (1, n)
    check_device(map_parts(config, size, context.shape[1]), "looking at this text", config, size, device)
    facts = {"run": run.name, "step": f"{run.step:,}"}
    return Side(run.model, run.tokenizer, context, facts, run.config.data.language, open_run.player.usual)


def introduced(open_run: OpenRun) -> dict[str, Any]:
    """The data of a run for the page, as JSON values."""
    run, config, data = open_run.run, open_run.run.config.model, open_run.run.config.data
    kinds = dict.fromkeys(config.layer_attention(layer).component.kind for layer in range(config.n_layer))
    parameters, sampling = sum(count_parameters(run.model).values()), run.config.sampling
    return {
        "name": run.name,
        "kinds": list(kinds),
        "parameters": parameters,
        "step": run.step,
        "context": config.block_size,
        "tokenizer": run.tokenizer.kind,
        "vocabulary": run.tokenizer.vocab_size,
        "layers": [vars(layer) for layer in open_run.player.possible],
        "source": data.source if isinstance(data.source, str) else data.source.component.kind,
        "tells": run.tells(),
        "talks": run.talks,
        "small": parameters <= SMALL,
        "beginning": beginning(run),
        "notes": run.notes,
        "most": max(1, min(sampling.max_tokens, AT_ONCE)),
        "settings": {name: getattr(sampling, name) for name in SETTINGS},
    }


def beginning(run: Run) -> str:
    """A text to begin with: a story's first sentences, a task's question, else the empty text."""
    language = run.config.data.language
    text = language.beginning(run.config.sampling.seed) if language else ""
    try:
        run.prompt_ids(text)
    except UserError:
        return ""
    return text


def settings_of(values: dict[str, Any]) -> SamplingConfig:
    """The sampling settings of a question. Raises UserError for a value that no slider has."""
    if set(values) != set(SETTINGS):
        raise Malformed
    return replace(SamplingConfig(), **values)


def edits_of(values: dict[str, Any], open_run: OpenRun) -> Edits:
    """The edits of a question; a scale without a layer is for all layers whose scores can be scaled.

    Raises UserError for an edit that is not possible.
    """
    if set(values) != set(EDITS):
        raise Malformed
    can, running_mean = open_run.player.possible, frozenset(values["running_mean"])
    scale: dict[Any, float] = {}
    for _, factor in (pair for pair in values["scale"] if pair[0] is None):
        scale |= {layer: factor for layer, possible in enumerate(can) if possible.scale}
    scale |= {layer: factor for layer, factor in values["scale"] if layer is not None}
    scores: dict[Any, float] = {layer: factor for layer, factor in scale.items() if layer not in running_mean}
    edits = Edits(
        frozenset((layer, head) for layer, head in values["heads_off"]),
        running_mean,
        scores,
        frozenset((layer, query, key) for layer, query, key in values["cut"]),
        frozenset(values["attentions_off"]),
        frozenset(values["mlps_off"]),
    )
    edits.check(len(can))
    for layer in edits.running_mean:
        if not can[layer].running_mean:
            raise UserError(f"layer {layer + 1} is a running mean already")
    for scaled in scores:
        if not can[scaled].scale:
            raise UserError(f"layer {scaled + 1} has no scores to scale")
    for layer, head in edits.heads_off:
        if not 0 <= head < can[layer].heads:
            raise UserError(f"layer {layer + 1} has the heads 1 to {can[layer].heads}")
    return edits
