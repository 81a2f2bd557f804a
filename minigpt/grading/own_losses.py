"""Checks the additional losses of a model: a method `loss(ids)`, a `training_step(batch)`, a function of its file that
takes the model, and a flag of forward that asks for a loss.

Each is called and compared with the cross entropy of the model's own logits, right and with every known bug. So it does
not matter here whether the logits are right.

B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.grading.call import MODELS
from minigpt.grading.example import beside
from minigpt.grading.lines import locate, record, source_line
from minigpt.grading.measure import AT_ONCE
from minigpt.grading.naming import Reading, merge
from minigpt.grading.readings import Attempt
from minigpt.grading.report import Report
from minigpt.grading.target import Bug, Knobs, Options, Probe, Target, fill
from minigpt.grading.targets.gpt import draw
from minigpt.grading.targets.loss import PADS, SMOOTHS, loss, loss_target
from minigpt.grading.whole import GIVEN, is_model, tensors, the_loss

ASKS = re.compile(r"(?i)loss|nll|entrop|xent|objective|perpl|^ppl|perte|verlust|p[eé]rdida|perdita|"
                  r"(train|val|test|eval|shared)\w*_(step|batch)$|^(step|evaluate|criterion)$")  # fmt: skip
SURELY = re.compile(r"(?i)loss|nll|entrop|xent|perte|verlust|p[eé]rdida|perdita")
OTHERS = re.compile(
    r"(?i)aux|balanc|regulari|distil|\bkl|kl_|^z_|_z_|contrast|reward|policy|value|mse|l1|l2|router|mask"
)
TEXTS = re.compile(r"(?i)^(generate\w*|sample\w*|complete|continue_text|beam\w*|greedy\w*|decode|predict\w*)$")
SAID = {"sum": "sum|total", "none": "per_|each|losses|token_loss|unreduced", "perplexity": "perpl|ppl",
        "bits": "bit|bp[bc]", "minus": "likelihood|log_?prob"}  # fmt: skip
LENGTHS = (11, 5)
FORWARD = "forward is right"
SO_FAR = (AT_ONCE, FORWARD)  # a sentence with one of these: no other target is tried
CLOSE = 2e-6  # relative tolerance: a loss may be computed in float32
BATCHES: Mapping[str, Callable[[Tensor, Tensor], Any]] = {
    "pair": lambda ids, targets: (ids, targets),
    "ids": lambda ids, targets: ids,
    "dict": lambda ids, targets: {**dict.fromkeys(("input_ids", "ids", "idx", "x", "tokens", "inputs"), ids),
                                  **dict.fromkeys(("labels", "targets", "target", "y"), targets)},
    "one": lambda ids, targets: (ids,),
}  # fmt: skip


Case = tuple[Tensor, Tensor, Tensor, Tensor]  # logits (B, T, V), ids (B, T), targets (B, T), the learner's loss
RIGHT = Bug({}, "", "")


@dataclass(frozen=True)
class Asked:
    """One way to ask a model for a loss."""

    name: str
    find: Callable[[nn.Module], Callable[..., Any]]
    """Returns the function to call, given the model or a copy of it."""
    given: Mapping[str, str]
    """What each argument gets: "ids", "targets", "logits", "model", "zero", or a key of BATCHES."""
    sure: bool
    """Whether the name says that it is the model's own loss."""
    more: Mapping[str, Any]
    """All arguments of the function by name, with their default values."""

    @property
    def text(self) -> str:
        """The call as the report shows it."""
        if self.more.get(self.name) is True:  # a flag of forward
            return f"forward({next(iter(self.given))}, {self.name}=True)"
        return f"{self.name}({', '.join(self.given)})"

    @property
    def shifts(self) -> bool:
        """Whether no targets are passed: then the targets are the ids, shifted by one."""
        return not {"targets", "pair", "dict"} & set(self.given.values())

    @property
    def batch(self) -> bool:
        """Whether an argument is a batch: its name does not say which part of the batch is the target."""
        return bool(set(BATCHES) & set(self.given.values()) - {"ids"}) or "batch" in " ".join(self.given).lower()

    def target(self) -> Target:
        """The target `loss` for these arguments."""
        name = next((name for name, what in self.given.items() if what == "targets"), "labels").lower()
        share = next((value for key, value in self.more.items() if SMOOTHS.search(key)), 0.0)
        pad = any(PADS.search(key) and (value is inspect.Parameter.empty or value == 0)
                  for key, value in self.more.items())  # fmt: skip
        names = ["logits", "ids" if self.shifts else name]
        return loss_target(Options(), names, pad, share if isinstance(share, float) else 0.0)

    def value(self, model: nn.Module, logits: Tensor, ids: Tensor, targets: Tensor) -> Tensor:
        """The learner's loss for logits (B, T, V), ids and targets (B, T): a scalar, or (N,). `model` is copied."""
        model = copy.deepcopy(model)
        known: dict[str, Any] = {"targets": targets, "logits": logits.clone(), "model": model, "zero": 0}
        given = {name: known[what] if what in known else BATCHES[what](ids, targets)
                 for name, what in self.given.items()}  # fmt: skip
        with torch.enable_grad():
            found = self.find(model)(**given)
        if isinstance(found, float):
            return torch.tensor(found, dtype=torch.float64)
        found = found["loss"] if isinstance(found, Mapping) and "loss" in found else found
        B, T, V = logits.shape
        return the_loss(tensors(found), B, T, V).detach().double()


def right_so_far(report: Report) -> bool:
    """Whether a part of an answer is certainly right, so that no other target needs to be tried."""
    return any(words in " ".join(report.names) for words in SO_FAR)


def judge_losses(attempt: Attempt, reading: Reading) -> None:
    """Checks the additional losses of a model, and writes the result into the report."""
    model, done, failed = attempt.thing, set[str](), dict[str, None]()
    if not is_model(attempt.target) or not isinstance(model, nn.Module):
        return
    for asked in all_asked(attempt):
        if asked.name in done:
            continue
        if not (cases := cases_of(asked, model, reading)):
            failed |= {asked.name: None} if asked.sure else {}
            continue
        failed.pop(asked.name, None)
        found = judged(asked, cases)
        if found is None:
            unexplained(attempt, asked, cases)
        elif found is not RIGHT:
            wrong_loss(attempt, asked, found, cases)
        if asked.batch or found is not RIGHT:
            done.add(asked.name)
    texts = [name for name in methods(model) if TEXTS.search(name)]
    attempt.report.unchecked += [f"its method {name}" for name in [*(n for n in failed if n not in done), *texts]]


def all_asked(attempt: Attempt) -> Iterator[Asked]:
    """Yields the ways to ask a model for a loss, for each name the likeliest first."""
    model = attempt.thing
    forward = inspect.signature(model.forward).parameters
    for flag in [name for name, entry in forward.items() if entry.default is False and "loss" in name.lower()]:
        yield Asked(flag, partial(flagged, flag), {next(iter(forward)): "ids"}, True, {flag: True})
    found: dict[str, Any] = {name: (getattr(model, name), True) for name in methods(model) if ASKS.search(name)}
    file = sys.modules.get(type(model).__module__)
    if attempt.answer.path and getattr(file, "__file__", "") == str(attempt.answer.path):
        functions = [(name, value) for name, value in vars(file).items() if inspect.isfunction(value)]
        found |= {name: (value, False) for name, value in functions if ASKS.search(name) and name not in found
                  and value.__module__ == type(model).__module__}  # fmt: skip
    for name, (function, own) in found.items():
        find = partial(method, name) if own else partial(always, function)
        sure = own and bool(SURELY.search(name)) and not OTHERS.search(name)
        more = {entry.name: entry.default for entry in inspect.signature(function).parameters.values()}
        yield from (Asked(name, find, given, sure, more) for given in ways(function))


def flagged(flag: str, model: nn.Module) -> Callable[..., Any]:
    """The model's forward with a flag set."""
    return partial(model, **{flag: True})


def method(name: str, model: nn.Module) -> Any:
    """A method of the model."""
    return getattr(model, name)


def always(function: Callable[..., Any], model: nn.Module) -> Callable[..., Any]:
    """The function itself; the model is not used."""
    return function


def methods(model: nn.Module) -> list[str]:
    """The names of the methods that the classes of a model define, without those of PyTorch."""
    kinds = [kind for kind in type(model).__mro__ if kind is not object and kind.__module__.split(".")[0] != "torch"]
    names = dict.fromkeys(name for kind in kinds for name in vars(kind))
    return [name for name in names if name != "forward" and not name.startswith("__")
            and isinstance(inspect.getattr_static(model, name), (staticmethod, classmethod, FunctionType))]  # fmt: skip


def ways(function: Callable[..., Any]) -> list[dict[str, str]]:
    """The values to pass to a function, as in `Asked.given`; [] if the meaning of an argument is not known."""
    listed = [entry for entry in inspect.signature(function).parameters.values()
              if entry.kind not in (entry.VAR_KEYWORD, entry.VAR_POSITIONAL)]  # fmt: skip
    given = dict[str, str]()
    for entry in [entry for entry in listed if entry.default is entry.empty]:
        what = meaning(entry.name.lower(), list(given.values()))
        if not what:
            return []
        given[entry.name] = what
    if not given:
        return []
    if "batch" in given.values():
        return [{name: kind if what == "batch" else what for name, what in given.items()} for kind in BATCHES]
    more = [entry.name for entry in listed if entry.default is None and GIVEN.search(entry.name)]
    both = [{**given, more[0]: "targets"}] if more and "targets" not in given.values() else []
    return [given, *both]


def meaning(name: str, taken: list[str]) -> str:
    """The value to pass for an argument, by its name and the values before it (`taken`); "" if not known."""
    if name in MODELS or "model" in name:
        return "model"
    if re.search("logit|pred|score|output|^out$", name):
        return "logits"
    if PADS.search(name):
        return "zero"
    if GIVEN.search(name):
        return "targets"
    if re.search("batch|data", name) and not taken:
        return "batch"
    if {"batch", "ids"} & set(taken) and re.search("^(batch_)?(i|idx|index|nb|step)$|_idx$", name):
        return "zero"
    if not {"ids", "batch", "logits"} & set(taken):
        return "ids"
    return "targets" if "targets" not in taken and "batch" not in taken else ""


def cases_of(asked: Asked, model: nn.Module, reading: Reading) -> list[Case]:
    """The learner's loss for two lengths, with the model's own logits; [] if it returns no loss."""
    return [case for T in LENGTHS for case in case_of(asked, model, reading, 2, min(T, reading.sizes["C"]))]


def case_of(asked: Asked, model: nn.Module, reading: Reading, B: int, T: int) -> list[Case]:
    """The learner's loss for B sequences of T ids; [] if it returns no loss."""
    V = reading.sizes["V"]
    ids, targets = draw(V, B, T, T + 1), draw(V, B, T, T + 2)  # (B, T) each
    with suppress(Exception):  # the learner's code may raise anything
        logits = reading.outputs.run(Probe(f"T = {T}", {"ids": ids}))  # (B, T, V)
        value = asked.value(model, logits, ids.clone(), targets.clone())
        return [(logits, ids, targets, value)] if logits.shape == (B, T, V) else []
    return []


def judged(asked: Asked, cases: list[Case]) -> Bug | None:
    """The bug of a loss; RIGHT if it has none, None if no known bug gives its values."""
    target, open_ = asked.target(), asked.batch and not asked.shifts
    own = replace(asked, given={"ids": "ids"}).target()
    rights = [{}, *(one.knobs for one in target.conventions)]
    if any(equals(cases, knobs, asked.shifts) for knobs in rights) or (open_ and equals(cases, {}, True)):
        return RIGHT
    tried = [(target.bugs, asked.shifts), *([(own.bugs, True)] if open_ else [])]
    for (bugs, shifts), base in product(tried, rights):
        for bug in bugs:
            if any(both is not None and equals(cases, both, shifts)
                   for both in (merge(base, setting) for setting in bug.settings())):  # fmt: skip
                said = any(re.search(SAID.get(str(value), "(?!)"), asked.name.lower()) for value in bug.knobs.values())
                return RIGHT if said else bug
    return None


def equals(cases: list[Case], knobs: Knobs, shifts: bool) -> bool:
    """Whether the learner's loss equals the reference loss with these knobs, for all lengths."""
    for logits, ids, targets, value in cases:
        expected = loss(logits, ids, None if shifts else targets, knobs)  # a number, or (N)
        if expected.shape != value.shape or not torch.allclose(value, expected, rtol=CLOSE, atol=1e-9):
            return False
    return True


def unexplained(attempt: Attempt, asked: Asked, cases: list[Case]) -> None:
    """Reports a loss that no known bug explains: if it is the model's own, "right" becomes "cannot tell"."""
    logits, ids, targets, value = cases[-1]
    right = loss(logits, ids, None if asked.shifts else targets, {})
    if not asked.sure or value.dim() or not attempt.report.verdict.startswith("right"):
        attempt.report.unchecked.append(f"`{asked.text}`")
        return
    attempt.report.verdict = "cannot tell"
    attempt.report.names = [f"{FORWARD}, but no known mistake explains `{asked.text}`: it gives {value:.4f}, "
                            f"where the mean cross entropy of the next tokens is {right:.4f}"]  # fmt: skip


def wrong_loss(attempt: Attempt, asked: Asked, bug: Bug, cases: list[Case]) -> None:
    """Reports a named bug of a loss: alone, or after the bugs of forward."""
    report, sizes = attempt.report, {"V": cases[0][0].shape[-1]}
    sentence, fix = f"in `{asked.text}`: {fill(bug.sentence, sizes)}", fill(bug.fix, sizes)
    if report.verdict == "wrong":
        report.names, report.fixes = [*report.names, sentence], [*report.fixes, fix]
        return
    report.notes += [name for name in report.names if report.verdict.startswith("right")]
    report.verdict, report.names, report.fixes = "wrong", [sentence], [fix]
    logits, ids, targets, value = cases[-1]
    right = loss(logits, ids, None if asked.shifts else targets, {})
    shown = f"for {ids.shape[0]} sequences of {ids.shape[1]} ids, `{asked.text}` gives"
    report.example = beside(shown, value.reshape(1, -1), right.reshape(1, 1))
    if attempt.answer.path is not None:
        with suppress(Exception):  # the line is optional: the verdict stands without it
            results = record(attempt.answer.path, lambda: asked.value(attempt.thing, logits, ids, targets))
            place = locate(results, {"loss": right}, {"loss": value})
            report.line, report.code = place.line, source_line(attempt.answer.path, place.line)
