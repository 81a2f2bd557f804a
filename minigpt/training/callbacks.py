"""Callbacks: code of one's own that watches a training, logs numbers of it, and asks for what the training can do.

    class Patience(Callback, kind="patience"):                  # --plugin patience.py training.callbacks=[patience]
        best = math.inf

        def after_evaluation(self, evaluation):
            worse, self.best = evaluation[2] > self.best, min(self.best, evaluation[2])
            return "stop" if worse else None

        def state(self):
            return self.best

        def restore(self, state):
            self.best = state

A resumed run repeats what an uninterrupted one does, so a callback changes nothing of the training by itself: weights,
what the optimizer keeps and random numbers are watched, and what it keeps itself is in `state`, in every checkpoint.
With callbacks the loss is read after each step, so that all they see is of that step.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minigpt.config.options import Component
from minigpt.model.gpt import GPT
from minigpt.system.errors import UserError
from minigpt.system.signals import Stopped
from minigpt.system.strict_json import has_form, parse_json
from minigpt.training import distributed
from minigpt.training.optimizer import Optimizer
from minigpt.training.records import Record
from minigpt.training.sharding import local

REQUESTS = ("stop", "evaluate", "save", "sample")
ANSWERING = ("after_step", "after_evaluation")  # the hooks that may answer, and change the state
LARGEST = 1 << 20  # bytes of a state


class Callback(Component):
    """The base of all callbacks. In training of several processes they run in the first; all follow its requests.

    `after_step` and `after_evaluation` may answer with a request: `stop` (evaluate, save, end), `evaluate`, `save` or
    `sample`. A run that was stopped so goes on when it is resumed. An instance may be made without being used: what has
    an effect, such as opening a file, belongs to `started`.
    """

    model: GPT  # before `started`
    folder: Path  # the run's, before `started`

    def __init__(self, config: Any):
        self.config, self.logged = config, dict[str, float]()

    def log(self, **numbers: float) -> None:
        """Add numbers to the line of the present step in metrics.jsonl, each as KIND/NAME."""
        self.logged |= {f"{type(self).kind}/{name}": float(number) for name, number in numbers.items()}

    def started(self) -> None:
        """Training begins, or goes on: `restore` was called before."""

    def after_step(self, record: Record) -> str | None:
        """A step was taken."""
        return None

    def after_evaluation(self, evaluation: tuple[int, float, float]) -> str | None:
        """The validation loss is known: (step, training loss since the last evaluation, validation loss)."""
        return None

    def after_save(self, step: int) -> None:
        """A checkpoint is written, or will be while training goes on."""

    def ended(self, reason: str) -> None:
        """Training has ended: `done`, `stopped` by a callback or a signal, or `failed`."""

    def state(self) -> Any:
        """What a resumed run needs to know, as JSON values; None: nothing."""
        return None

    def restore(self, state: Any) -> None:
        """The inverse of `state`."""


class Callbacks:
    """The callbacks of a training, in the order of its config."""

    def __init__(self, configs: Sequence[Callback.Config] | None, model: GPT, optimizer: Optimizer):
        self.read = bool(configs)  # whether each step's loss is read
        active = (configs or ()) if distributed.rank() == 0 else ()
        self.all: list[Callback] = [config.component(config) for config in active]
        self.model, self.optimizer, self.tried = model, optimizer, False
        self.asked: set[str] = set()  # in the present step, by the callbacks of all processes
        self.awaited = False  # whether the evaluation after the present step is still to be made

    @contextmanager
    def running(self, folder: Path) -> Iterator[None]:
        """Call `started`, and at the end `ended`."""
        for callback in self.all:
            callback.model, callback.folder = self.model, folder
        self.call("started", thorough=True)
        reason = "failed"
        try:
            yield
            reason = "stopped" if "stop" in self.asked else "done"
        except Stopped:
            reason = "stopped"
            raise
        finally:
            self.call("ended", reason)

    def after_step(self, record: Record, evaluates: bool) -> bool:
        """Call them after a step, which an evaluation follows or not; returns whether one does now."""
        self.asked = self.of_all(self.call("after_step", record, thorough=evaluates or not self.tried))
        self.tried, self.awaited = True, evaluates or bool(self.asked & {"stop", "evaluate"})
        return self.awaited

    def after_evaluation(self, evaluation: tuple[int, float, float]) -> None:
        """Call them after an evaluation."""
        self.awaited = False
        self.asked = self.asked | self.of_all(self.call("after_evaluation", evaluation, thorough=True))

    def of_all(self, requests: set[str]) -> set[str]:
        """The requests of all processes."""
        bits = sum(1 << REQUESTS.index(request) for request in requests)
        bits = distributed.largest(bits) if self.read else bits
        return {request for bit, request in enumerate(REQUESTS) if bits >> bit & 1}

    def call(self, hook: str, *arguments: Any, thorough: bool = False) -> set[str]:
        """Call a hook of each; returns the requests.

        `thorough`: every weight is looked at, and whether the states can be restored. Raises UserError for a callback
        that changes what a resumed run would not repeat.
        """
        requests = set[str]()
        for callback in self.all:
            before = self.watched(thorough) | {"its state": state_of(callback)}
            answer = getattr(callback, hook)(*arguments)
            name = f"training.callbacks: {callback.kind}: {hook}"
            if answer is not None and (hook not in ANSWERING or answer not in REQUESTS):
                expected = f"None or one of {', '.join(REQUESTS)}" if hook in ANSWERING else "None"
                raise UserError(f"{name} answered {answer!r}: expected {expected}")
            after = self.watched(thorough) | {"its state": state_of(callback)}
            for aspect, value in before.items():
                if value != after[aspect] and not (aspect == "its state" and hook in ANSWERING):
                    raise UserError(f"{name} changes {aspect}, which a resumed run would not repeat")
            if thorough:
                check_restored(callback)
            requests |= set() if answer is None else {answer}
        return requests

    def watched(self, thorough: bool) -> dict[str, Any]:
        """What a callback leaves as it is, by name."""
        weights = {**dict(self.model.named_parameters()), **dict(self.model.named_buffers())}
        learns = [(name, tensor.requires_grad, tensor.grad is None) for name, tensor in weights.items()]
        device, dice = self.model.device, [torch.get_rng_state()]
        dice += [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
        return {
            "the weights": [seen(tensor, thorough) for tensor in weights.values()],
            "gradients, or which weights learn": learns,
            "the optimizer's state": [seen(tensor, False) for tensor in self.optimizer.state().values()],
            "torch's random numbers (draw from a torch.Generator of your own)": [die.numpy().tobytes() for die in dice],
            "Python's random numbers (draw from a random.Random of your own)": random.getstate(),
            "numpy's random numbers (draw from a Generator of your own)": repr(np.random.get_state()),
        }

    def take_logged(self) -> dict[str, float]:
        """The numbers that were logged since the last call; those that are not finite are left out."""
        numbers = {name: x for callback in self.all for name, x in callback.logged.items() if math.isfinite(x)}
        for callback in self.all:
            callback.logged = {}
        return numbers

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps: nothing without callbacks. What an evaluation that was stopped was asked for stays.

        Raises UserError for a state that cannot be kept.
        """
        for callback in self.all:
            check_restored(callback)
        states = [{"kind": callback.kind, "state": state_of(callback)} for callback in self.all]
        return {"callbacks": {"states": states, "asked": sorted(self.asked) * self.awaited}} if states else {}

    def restore(self, saved: Any) -> None:
        """The inverse of `state`. Each takes the first state of its kind that is left; without one it starts anew."""
        states = list(saved["states"])
        for callback in self.all:
            own = next((state for state in states if state["kind"] == callback.kind), None)
            if own is not None:
                states.remove(own)
                if own.get("state") is not None:
                    callback.restore(own["state"])
        self.asked, self.awaited = {*saved["asked"]}, bool(saved["asked"])


def state_of(callback: Callback) -> Any:
    """A copy of the state of a callback, as it comes back from JSON. Raises UserError if that is another."""
    state, name = callback.state(), f"training.callbacks: {callback.kind}: state()"
    try:
        text = json.dumps(state, allow_nan=False)
        parsed = parse_json(text)
    except (TypeError, ValueError) as error:
        raise UserError(f"{name} does not survive JSON: {error}") from None
    if parsed != state:
        expected = "expected null, numbers, texts, lists, and dicts with texts as keys"
        raise UserError(f"{name} does not survive JSON: {state!r} would come back as {parsed!r}; {expected}")
    if len(text) > LARGEST:
        raise UserError(f"{name} has {len(text):,} bytes as JSON: expected at most {LARGEST:,}")
    return parsed


def check_restored(callback: Callback) -> None:
    """Raises UserError unless a new callback has the same state after `restore`."""
    state, other = state_of(callback), type(callback)(callback.config)
    if state is None:
        return
    other.restore(state_of(callback))
    if (restored := other.state()) != state:
        problem = f"state() is {state!r}, and {restored!r} in a new callback after restore"
        raise UserError(f"training.callbacks: {callback.kind}: {problem}: a resumed run would not go on with it")


def seen(tensor: Tensor, thorough: bool) -> tuple[int, int, int]:
    """Where a tensor is, how often it was written to, and, if `thorough`, the sum of its bits."""
    own = local(tensor)
    bits = own.detach().contiguous().view(torch.int32) if thorough and own.element_size() == 4 else None
    return own.data_ptr(), tensor._version, 0 if bits is None else int(bits.sum())


def is_state(saved: Any) -> bool:
    """Whether a value has the form of what a checkpoint keeps of callbacks."""
    return has_form(saved, {"states": [{"kind": str}], "asked": [str]})
