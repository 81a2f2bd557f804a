"""What a reading of one pass does not show, measured: other texts, other batches, other types, training, gradients.

    measured = measure(Program(thing, way.run, {"x": x}, path))
    measured.broken, measured.remarks

Every measure calls the program a few times and compares its outputs with one another, or with a copy in another type:
no second implementation is needed. The first measure that finds something wrong ends the measuring.

B batch, T positions.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from minigpt.checks.learners.cached import fresh
from minigpt.checks.learners.calls import MIXED
from minigpt.checks.learners.program import (
    LONG,
    Inputs,
    Program,
    Steps,
    axis_of,
    cut,
    first_line,
    line_in,
    line_of,
    moved,
    same,
    scaled,
    tokens,
    with_tokens,
)
from minigpt.checks.learners.source import text_of
from minigpt.checks.learners.verdict import what_it_raised
from minigpt.checks.reading.structure import Broken
from minigpt.model.eval_mode import untouched_random

FIRST = (1, 2, 3, 5, 8, 13, 16, 17, 20, 32, 40)  # tokens
FLAT = 0.01  # how much smaller inputs become, so that weights are nearly equal
SMALLER = 0.3  # the same, so that no weight is nearly 1, where its gradient would be 0
IN_FLOAT32, IN_BFLOAT16 = 1e-3, 0.1  # the largest difference, as a part of the largest number
FAINT = 1e-13  # a smaller change than this part of the largest number is rounding
STEPS = (1e-3, 1e-4, 1e-5)  # of finite differences
BESIDE = 1e-9  # how far numbers are from whole ones
FEW_STEPS = 3  # of training
FEW = 11  # tokens: a number that is no width
SOFTMAXES = ("softmax", "log_softmax", "exp", "exp_")
PRODUCTS = ("matmul", "__matmul__", "bmm", "einsum", "linear", "scaled_dot_product_attention")
DROPS = (F.dropout, F.dropout1d, F.dropout2d, F.alpha_dropout, F.feature_alpha_dropout, torch.dropout)
TAKES_DROPOUT = (F.scaled_dot_product_attention, F.multi_head_attention_forward)
WIDE_TO_HALF = [[torch.float64, torch.float16], [torch.float64, torch.bfloat16]]
NO_GRADIENTS = re.compile(r"@(torch\.)?(no_grad|inference_mode)\(.*\n\s*def forward\b")
CASTS = ("float", "to", "type", "half", "bfloat16")
OURS = "minigpt.checks.learners"  # modules that hold the matrices of a function
Slip = tuple[str, str, int]
"""What was found, what was expected, and the line; 0: not known."""


@dataclass
class Measured:
    """What was measured."""

    broken: list[Broken] = field(default_factory=list)
    remarks: list[Broken] = field(default_factory=list)
    """What is not wrong, and good to know: also which laws could not be measured, and why."""


def measure(program: Program) -> Measured:
    """Measure a program in evaluation mode, up to the first law that is broken."""
    measured = Measured()
    with torch.no_grad(), untouched_random():
        for law, check, mend, certain in MEASURES:
            try:
                slips = list(islice(check(program), 1))
            except Exception as error:  # the learner's code: anything
                raised = what_it_raised(error, Path(program.path))
                slips, certain = [(f"not measured is this: {law}. It raises {raised}", "", 0)], False
            broken = [Broken(law, actual, expected, mend, line) for actual, expected, line in slips]
            if certain and broken:
                measured.broken = broken
                break
            measured.remarks += broken
    return measured


Call = Callable[[], Tensor]


def differ(program: Program, one: Call, other: Call, actual: str, expected: str = "the same") -> Iterator[Slip]:
    """What is told where two calls give different numbers: `actual`, with the first token {t} that differs.

    The line is that of the first step in which the two differ.
    """
    x, y = one(), other()
    if not same(x, y):
        with Steps(program.path) as steps:
            one()
        with Steps(program.path) as others:
            other()
        t = int(moved(x, y).nonzero()[0, 1]) if x.shape == y.shape and x.dim() > 1 else 0
        yield actual.format(t=t), expected, first_line(steps, others)


def answer(program: Program, inputs: Inputs, inputs_in_words: str) -> Iterator[Slip]:
    """What is told where a program raises an error for inputs that it must take."""
    try:
        program(inputs)
    except Exception as error:  # the learner's code: anything
        raised = what_it_raised(error, Path(program.path))
        yield f"for {inputs_in_words} it raises {raised}", "an output", line_of(error, program.path)


# evaluation: the same text again


def overwritten(program: Program) -> Iterator[Slip]:
    """The inputs and the parameters are what they were after a call."""
    for place, tensors in ("its input", program.inputs.values()), ("a parameter", program.module.parameters()):
        watched = list(tensors)
        before = [x.detach().clone() for x in watched]
        program(program.inputs)
        if not all(map(torch.equal, before, watched)):
            with Steps(program.path, watched) as steps:
                program(program.inputs)
            for x, old in zip(watched, before):
                x.data.copy_(old)
            yield f"it writes into {place}", "left as it is", steps.written


def draws(program: Program) -> Iterator[Slip]:
    """Two calls in evaluation mode are equal."""

    def seeded(seed: int) -> Tensor:
        for start in (torch.manual_seed, random.seed, np.random.seed):
            start(seed)
        return program(program.inputs)

    actual = "two calls in evaluation mode differ: it draws random numbers, dropout is active"
    if not same(seeded(0), seeded(1)) and same(seeded(0), seeded(0)):
        yield from differ(program, partial(seeded, 0), partial(seeded, 1), actual, "the same output each time")


def alone(program: Program) -> Iterator[Slip]:
    """A token that sees only itself moves no other."""
    if program.reach != 1 or "x" not in program.inputs:
        return
    x = program.inputs["x"].clone()
    x[0, 2] = x[0, 2].flip(0) * 1.5 + 0.3
    different = moved(program({"x": x}), program(program.inputs))  # (B, T)
    different[0, 2] = False
    if bool(different.any()):
        others, own = bool(different[1:].any()), bool(different[0].any())
        over = ("over all positions and the whole batch at once, without dim" if others and own else
                "over the batch (dim=0): texts are mixed" if others else
                "over the positions (dim=1, the time axis), so that later tokens are seen")  # fmt: skip
        yield f"a token's output changes with other tokens: the statistics go {over}", "over its own features", 0


def left_behind(program: Program) -> Iterator[Slip]:
    """A text gives what it gave before, also after another text of another length."""
    with Steps(program.path) as steps:
        first = program(program.inputs)
    for when in ("the second time", "after another text"):
        if not same(program(program.inputs), first):
            with Steps(program.path) as again:
                program(program.inputs)
            yield f"{when}, the same text gives other numbers", "the same output each time", first_line(steps, again)
        with suppress(Exception):  # it may refuse this length
            program(program.text(10, 2, seed=2))
    y = program(program.inputs)
    before = y.clone()
    program(program.text(next(x.shape[axis_of(x)] for x in program.inputs.values()), 2, seed=2))
    if not same(y, before):
        yield "the next call writes over what the last one returned", "an output of its own", 0


# other batches and other lengths


def rows_of_a_batch(program: Program) -> Iterator[Slip]:
    """A text gives in a batch what it gives alone."""
    for b in range(len(next(iter(program.inputs.values()))) if program(program.inputs).dim() else 0):
        row = {name: x[b : b + 1] for name, x in program.inputs.items()}
        yield from answer(program, row, "a batch of one text")
        actual = f"text {b} gives other numbers in a batch than alone"
        among = lambda b=b: program(program.inputs)[b : b + 1]  # noqa: E731
        yield from differ(program, partial(program, row), among, actual, "each text by itself")


def first_tokens(program: Program) -> Iterator[Slip]:
    """The first tokens of a text give what they give alone: none sees a later one, nor how many there are."""
    (T, _), y = program.longest, program.longest_output
    text = program.text(T)
    for few in [few for few in FIRST if few < T and y.dim() > 1]:
        first = tokens(text, 0, few)
        if few <= 2:
            yield from answer(program, first, f"a text of {few} tokens")
        alone = program(first)
        if alone.dim() != y.dim() or alone.shape[axis_of(y)] != few:
            yield f"for a text of {few} tokens the output is {tuple(alone.shape)}", f"{few} tokens", 0
        if not program.causal or same(alone, cut(y, alone)):
            continue
        one, other = program(with_tokens(program.text(few + 1), program.text(few + 1, seed=2), [(few, few + 1)]))
        if bool((early := moved(other[None], one[None])[:, :few]).any()):
            t = int(early.nonzero()[0, 1])
            yield f"the output of token {t} changes with token {few}, which comes later", "no change", 0
        actual = f"token {{t}} of {T} tokens is another than of {few}"
        yield from differ(program, lambda: program(first), lambda: cut(program(text), alone), actual)  # noqa: B023


def whole_numbers(program: Program) -> Iterator[Slip]:
    """Whole numbers give nearly what numbers a little beside them give: a product that is exactly 0 is no special one.

    Matrices are whole numbers, too.
    """
    if not {"x", "query"} & set(program.inputs):
        return
    draw, thing = torch.Generator().manual_seed(3), copy.deepcopy(program.thing)
    for matrix in thing.parameters() if isinstance(thing, nn.Module) else ():
        matrix.data.random_(-1, 2, generator=draw) if matrix.dim() > 1 else matrix.data.round_()
    drawn = {name: x.clone().random_(-1, 2, generator=draw) for name, x in program.text(FEW, 2).items()}
    single = {name: torch.eye(FEW, x.shape[-1], dtype=x.dtype).expand_as(x) for name, x in drawn.items()}
    for whole in (drawn, single):
        beside = {name: x + BESIDE * torch.randn(x.shape, dtype=x.dtype, generator=draw) for name, x in whole.items()}
        one, other = (partial(program, inputs, thing=thing) for inputs in (whole, beside))
        actual = "whole numbers, whose products may be 0, give something else than numbers a little beside: token {t}"
        yield from differ(program, one, other, actual, "nearly the same: a score of 0 is a score as any other")


def long_texts(program: Program) -> Iterator[Slip]:
    """Nothing ends somewhere: no table, window, ring or chunk that was not announced.

    Of three equal texts one has another first token, and one another middle token: who sees the change?
    """
    T, error = program.longest
    if error is not None and not program.announces(T):
        actual = f"from T = {T + 1} on it raises {what_it_raised(error, Path(program.path))}: a table ends there"
        yield actual, "any length, or a limit that the constructor is given", line_of(error, program.path)
    places, text, other = (0, T // 2), scaled(program.text(T), FLAT), scaled(program.text(T, seed=2), FLAT)
    y = program(with_tokens(text, other, [(place, place + 1) for place in places]))
    for place, sees in zip(places, moved(y[1:], y[:1].expand_as(y[1:]), FAINT) if y.dim() > 1 else ()):
        last = T if program.reach is None else min(T, place + program.reach)
        first = next((t for t in range(place, last) if not bool(sees[t:last].any())), last)
        if program.reach != 0 and place < first < last:
            yield f"of {T} tokens, those from token {first} on do not see token {place}", f"all up to {last - 1}", 0
        if program.reach and bool(sees[last:].any()):
            yield f"of {T} tokens, token {last + int(sees[last:].nonzero()[0])} sees token {place}", "none", 0


def limited(program: Program) -> Iterator[Slip]:
    """Texts may be of any length: a remark, since a limit that the program holds is its own choice."""
    T, error = program.longest
    if error is not None:
        actual = f"texts have at most {T} tokens; with more it raises {what_it_raised(error, Path(program.path))}"
        yield actual, "", line_of(error, program.path)


# training


class Undropped(TorchFunctionMode):
    """Lets every dropout pass its input on; notes the line of one whose input goes into a softmax: scores."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path, self.line = path, 0
        self.dropped = dict[torch.Size, int]()
        """The lines at which numbers of a shape were dropped since the last product, some below zero: no weights."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func in TAKES_DROPOUT:
            named |= {"dropout_p": 0.0} if "dropout_p" in named else {}
            named |= {"training": False} if "training" in named else {}
        x: Any = args[0] if args else named.get("input")
        if func in DROPS:
            if bool((x < 0).any()):
                self.dropped[x.shape] = line_in(self.path) or 1
            return x
        if (name := getattr(func, "__name__", "")) in PRODUCTS:
            self.dropped.clear()
        if name in SOFTMAXES and isinstance(x, Tensor) and x.shape[-1] == FEW:
            self.line = self.line or self.dropped.get(x.shape, 0)
        return func(*args, **named)


def undropped(program: Program, inputs: Inputs, trains: bool) -> tuple[Tensor, Undropped]:
    """The output in training mode, or in evaluation mode, with nothing dropped."""
    program.module.train(trains)
    try:
        with Undropped(program.path) as watch:
            return program(inputs), watch
    finally:
        program.module.eval()


def random_state() -> list[Any]:
    """Where the random numbers of torch, Python and numpy are."""
    return [torch.get_rng_state().numpy().tobytes(), random.getstate(), str(np.random.get_state())]


def otherwise_in_training(program: Program) -> Iterator[Slip]:
    """With nothing dropped, training computes what evaluation does."""

    def call(trains: bool) -> Tensor:
        return undropped(program, program.inputs, trains)[0]

    before, actual = random_state(), "in training it computes something else, also with nothing dropped"
    call(True)
    if random_state() == before:  # it may drop whole paths, in a way of its own
        yield from differ(program, partial(call, False), partial(call, True), actual, "what evaluation computes")


def drops_scores(program: Program) -> Iterator[Slip]:
    """Dropout is for weights: a score that becomes 0 hides nothing."""
    if line := undropped(program, program.text(FEW), True)[1].line:
        yield "scores are dropped: set to 0, which hides nothing", "weights, after the softmax", line


def is_for_inference(program: Program) -> bool:
    """Whether a module with a cache says that it takes no gradients: it is fed, not trained."""
    text = text_of(program.thing)
    return bool(NO_GRADIENTS.search(text) and re.search("(?i)cache|past", text))


def inference_alone(program: Program) -> Iterator[Slip]:
    """It can be trained: a remark."""
    if is_for_inference(program):
        yield "it is for inference: its forward takes no gradients, so that it cannot be trained", "", 0


def gradients(program: Program) -> Iterator[Slip]:
    """The gradient of each parameter, and of the input, is that of finite differences along a random direction."""
    texts = {name: x for name, x in program.inputs.items() if x.is_floating_point()}
    learned = {name: (SMALLER * x).requires_grad_() for name, x in texts.items()}
    inputs = {**program.inputs, **learned}
    if not type(program.thing).__module__.startswith(OURS):
        named = program.module.named_parameters()
        learned = {name: one for name, one in named if one.requires_grad} | learned
    if not learned:
        return  # a function of ids whose matrices are its own

    def loss() -> Tensor:
        y = program(inputs)
        return (y * torch.linspace(-3, 3, y.numel(), dtype=y.dtype).view_as(y).sin()).sum()

    gradient = {name: torch.zeros_like(one) for name, one in learned.items()}
    with fresh(program.thing), torch.enable_grad():  # what it keeps would hold on to its gradient
        if (y := loss()).requires_grad:
            computed = torch.autograd.grad(y, list(learned.values()), allow_unused=True)
            gradient |= {name: one for name, one in zip(learned, computed) if one is not None}

    def agree(names: Iterable[str]) -> bool:
        """Whether these gradients are as near to finite differences as those are to each other."""
        draw, differences = torch.Generator().manual_seed(5), list[float]()
        ways = {name: torch.randn(learned[name].shape, dtype=y.dtype, generator=draw) for name in names}
        expected = sum(float((gradient[name] * way).sum()) for name, way in ways.items())
        for step in STEPS:
            losses = list[float]()
            for move in (step, -2 * step, step):
                for name, way in ways.items():
                    learned[name].data.add_(way, alpha=move)
                losses.append(float(loss()))
            differences.append((losses[0] - losses[1]) / (2 * step))
        size = sum(float(gradient[name].norm()) for name in ways) + abs(expected) + 1e-3
        near = min(abs(one - other) for one, other in pairwise(differences))  # far where there is float32 inside
        return min(abs(one - expected) for one in differences) <= 10 * near + 1e-6 * size

    if not y.requires_grad and is_for_inference(program):
        return
    if not agree(learned) and (name := next((name for name in learned if not agree([name])), "")):
        with torch.enable_grad(), Steps(program.path) as steps:
            program(inputs)
        some = "no gradient" if not bool(gradient[name].any()) else "only a part of its gradient"
        yield f"{name} gets {some}: the numbers are right, but it does not learn", "the whole gradient", steps.cut


def stuck(program: Program) -> Iterator[Slip]:
    """A matrix that begins with zeros moves in a few steps; of two that are factors of each other, none does."""
    if not any(one.requires_grad and one.dim() > 1 and not bool(one.any()) for one in program.module.parameters()):
        return
    thing = copy.deepcopy(program.thing)
    matrices = {name: one for name, one in thing.named_parameters() if one.requires_grad}
    zero = [name for name, one in matrices.items() if one.dim() > 1 and not bool(one.any())]
    for _ in range(FEW_STEPS):
        with torch.enable_grad():
            loss = (program(program.inputs, thing=thing) ** 2).sum()
            each = torch.autograd.grad(loss, list(matrices.values()), allow_unused=True) if loss.requires_grad else ()
        for one, gradient in zip(matrices.values(), each):
            one.data -= 1e-2 * gradient if gradient is not None else 0.0
    if still := [name for name in zero if not bool(matrices[name].any())]:
        yield f"{' and '.join(still[:2])} begin with zeros and get no gradient: they stay so", "random numbers", 0


# other types


def in_type(program: Program, dtype: torch.dtype, inputs: Inputs) -> tuple[Tensor, Tensor]:
    """(The output in another type, that of the same rounded parameters and inputs in float64)."""
    small, exact = program.thing, program.thing
    if isinstance(program.thing, nn.Module):
        small = copy.deepcopy(program.thing).to(dtype)
        exact = copy.deepcopy(small).double()
    rounded = {name: x.to(dtype) if x.is_floating_point() else x for name, x in inputs.items()}
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        y = program(rounded, thing=small)
    except (RuntimeError, ValueError) as error:
        if not MIXED.search(str(error)):
            raise
        with Narrowed(dtype):  # its matrices are no parameters of a module
            y = program(rounded, thing=small)
    finally:
        torch.set_default_dtype(default)
    again = {name: x.double() if x.is_floating_point() else x for name, x in rounded.items()}
    return y, program(again, thing=exact)


class Narrowed(TorchFunctionMode):
    """Every float64 tensor that is computed with is one of another type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.types = {torch.float64: dtype, torch.complex128: dtype.to_complex()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*map(self.narrow, args), **{name: self.narrow(value) for name, value in (kwargs or {}).items()})

    def narrow(self, value: Any) -> Any:
        """A tensor in the other type; also those in a list."""
        if type(value) in (list, tuple):
            return type(value)(map(self.narrow, value))
        return value.to(self.types.get(value.dtype, value.dtype)) if isinstance(value, Tensor) else value


class InFloat32(TorchFunctionMode):
    """New numbers are float32, whatever the inputs are; notes the last line that casts to it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path, self.line = path, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        torch.set_default_dtype(torch.float32)
        if getattr(func, "__name__", "") in CASTS and args[0].dtype == torch.float64:
            self.line = line_in(self.path)
        return func(*args, **(kwargs or {}))


class Halved(TorchFunctionMode):
    """Notes the first line that makes numbers of 16 bits of wider ones, a row of which has one for each token."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path, self.line, self.type = path, 0, ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        y, x = func(*args, **(kwargs or {})), args[0] if args else None
        types = [one.dtype for one in (x, y) if isinstance(one, Tensor)]
        if types in WIDE_TO_HALF and y.dim() > 1 and y.shape[-1] == FEW and not self.line:
            self.line, self.type = line_in(self.path), str(y.dtype).removeprefix("torch.")
        return y


def halves_weights(program: Program) -> Iterator[Slip]:
    """Scores and weights have the type of queries and keys: three digits are too few for a sum over many keys."""
    with Halved(program.path) as halved:
        program(program.text(FEW))
    if halved.line:
        yield f"scores or weights are rounded to {halved.type}", "the type of queries and keys, or float32", halved.line


def loses_type(program: Program) -> Iterator[Slip]:
    """What was cast has the type of the input again where it comes out; a model of ids may give any."""
    if not all(x.is_floating_point() for x in program.inputs.values()):
        return
    with InFloat32(program.path) as casts:
        try:
            y = program(program.inputs)
        except RuntimeError as error:
            if not MIXED.search(str(error)):
                raise
            return  # new numbers meet those of the input as they are: none was cast
    if casts.line and y.dim() and y.dtype in (torch.float32, torch.bfloat16, torch.float16):
        name = str(y.dtype).removeprefix("torch.")
        yield f"float64 goes in, and {name} comes out", "the type of the input", casts.line


def too_coarse(program: Program, dtype: torch.dtype, part: float, late: bool = False) -> Iterator[Slip]:
    """In another type the output is finite, and as near as the type allows; of a longer text, if `late`."""
    y, expected = in_type(program, dtype, program.text(min(LONG // 2, program.longest[0])) if late else program.inputs)
    name = str(dtype).removeprefix("torch.")
    if bool(expected.isfinite().all()) and not bool(y.isfinite().all()):
        yield f"in {name} the output is not finite", "numbers", 0
    elif bool(expected.isfinite().all()) and not same(y, expected, part):
        off = float((y.double() - expected).abs().max() / expected.abs().max())
        yield f"in {name} the output is off by {off:.0%} of its largest number", f"less than {part:.1%}", 0


class Measure(NamedTuple):
    """A law, how it is measured, how it is mended, and whether what breaks it is wrong, or a remark."""

    law: str
    check: Callable[[Program], Iterator[Slip]]
    mend: str
    certain: bool = True


CAUSES = (LEFT, EXACT) = ("nothing is left behind", "weights are as exact as scores")
"""Laws whose breach shows on other texts, too."""
WHOLE = "numbers that are exactly 0 are numbers"
ALONE = "look for a view, a mean or a softmax over another axis than it seems, and for numbers that depend on T or B"
MEASURES = (
    Measure("the inputs stay as they are", overwritten,
            "work on a copy: masked_fill, not masked_fill_, and x = x + y, not x += y"),
    Measure("evaluation draws nothing", draws, "nn.Dropout, or F.dropout(weights, p, training=self.training)"),
    Measure("each token is computed by itself", alone, "dim=-1, keepdim=True"),
    Measure(LEFT, left_behind, "keep nothing in self between calls but a cache that was asked for"),
    Measure("a text of a batch is what it is alone", rows_of_a_batch, ALONE),
    Measure("a text begins as its first tokens", first_tokens, f"hide the future with -inf, for every query; {ALONE}"),
    Measure("nothing ends somewhere", long_texts, "make masks and tables as long as the text, or take block_size"),
    Measure("texts may be of any length", limited, "make masks and tables as long as the text", False),
    Measure("training computes what evaluation does", otherwise_in_training,
            "the same in both modes: only dropout depends on self.training"),
    Measure("dropout is for weights", drops_scores, "dropout(softmax(scores))"),
    Measure(EXACT, halves_weights, "softmax(scores, dim=-1), or in float32"),
    Measure("each parameter learns", stuck, "begin with small random numbers: of two factors one at most is zero"),
    Measure("each parameter learns", gradients,
            "leave out detach(), .data, .item() and no_grad between the parameters and the output"),
    Measure("it can be trained", inference_alone, "leave out no_grad and inference_mode", False),
    Measure("the output has the type of the input", loses_type, "y.to(x.dtype) after x.float()"),
    Measure("float32 is enough", partial(too_coarse, dtype=torch.float32, part=IN_FLOAT32),
            "hide with -inf or torch.finfo(scores.dtype).min, and keep all factors near one"),
    Measure("bfloat16 is near", partial(too_coarse, dtype=torch.bfloat16, part=IN_BFLOAT16),
            "compute the softmax, norms and angles in float32"),
    Measure("late positions are near in bfloat16",
            partial(too_coarse, dtype=torch.bfloat16, part=IN_BFLOAT16, late=True),
            "compute angles and tables in float32", False),
    Measure(WHOLE, whole_numbers, "hide by the mask, masked_fill(mask == 0, -inf), not by the scores, scores == 0"),
)  # fmt: skip
