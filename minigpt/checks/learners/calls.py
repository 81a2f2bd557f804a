"""How something that was handed in can be called: which argument gets what, in which layout.

    for way in ways(thing, ("query", "key", "value")):
        y = way.run(thing, {"query": q, "key": k, "value": v})        # (B, H, T, d) each -> (B, H, T, e)

Arguments are known by their names; a mask, tables of angles and unknown arguments get every value of their possible
types. What runs on a small input comes, the simplest first; of ways with the same output only one comes.

B batch, T query positions, S key positions, D model width, H heads, d width of a head, e of a value, V vocabulary.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import islice, product
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.checks.learners import cached
from minigpt.checks.learners.cached import Protocol, cache_argument, feed, find, fresh, parameters_of, protocols
from minigpt.checks.learners.file import Mild
from minigpt.checks.learners.program import axis_of
from minigpt.checks.learners.sizes import SIZES, TABLES, given_widths, meaning, place_of, sizes_of
from minigpt.checks.learners.tables import MEANT, Moment, Value, mask_of, tables
from minigpt.model.eval_mode import untouched_random

MOST_TRIES, MOST_CHOICES, MOST_WAYS = 240, 2000, 60
AGAIN = 6  # values of arguments that are tried before another layout
B, LENGTH, CHUNKS = 2, 5, (3, 1, 2)  # of the small input
FLAGS = re.compile(r"causal|^(use_|apply_)?mask(ed)?$|is_decoder")
MASKS = re.compile("mask|masque|mascar|maschera|^bias$|attn_bias")
PADS = re.compile("pad|valid|lengths?$|lens$")
CONTEXTS = re.compile(r"context|memory|encoder|source|other|key_?value|hidden_st|"
                      r"^(x_?(kv|k|v|2)|q|query|queries|k|keys?|v|values?|kv|y)$")  # fmt: skip
OFF = re.compile(r"^(need|return|output|train|use|is)")  # switches that a caller leaves off
ONE = re.compile(r"[(\[]\s*(T|S|L|N|n|seq\w*|time)\s*,\s*(D|C|E|d|d_\w+|dim|feat\w*)\s*[)\]]")
DOCUMENTS = re.compile(r"^(doc|document|seg|segment|seq|sequence|sample|pack)_?(ids?|idx|index)$|token_type")
GIVEN = re.compile(
    r"(?i)^(targ(et)?s?|labels?|y|ys|yb|y_true|tgts?|trg|gold|truth|ground_truth|expected|want(ed)?|nxt|"
    r"(next|target|label|gold|shifted)_?(ids|tokens?|token_ids|idx|seq)?|ziele?|cibles?|objetivos?)$"
)
MODELS = ("model", "net", "network", "gpt", "lm", "language_model")  # arguments that hold a model of ids
MIXED = re.compile("(?i)dtype|scalar type|cuda|same type|expected .* but (got|found)")  # in torch's errors
LAYOUTS: Mapping[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {  # into the program's, and back
    "(B, T, D)": (lambda x: x, lambda y: y),
    "(T, B, D)": (lambda x: x.transpose(0, 1), lambda y: y.transpose(0, 1)),
    "(B, D, T)": (lambda x: x.mT, lambda y: y.mT),
    "(T, D)": (lambda x: x[0], lambda y: y[None]),
    "(D, T)": (lambda x: x[0].mT, lambda y: y.mT[None]),
    "(B, T, d)": (lambda x: x[:, 0], lambda y: y[:, None]),
    "(B, H, T, d)": (lambda x: x, lambda y: y),
    "(B, T, H, d)": (lambda x: x.transpose(1, 2), lambda y: y.transpose(1, 2)),
    "(T, B, d)": (lambda x: x[:, 0].transpose(0, 1), lambda y: y.transpose(0, 1)[:, None]),
    "(T, d)": (lambda x: x[0, 0], lambda y: y[None, None]),
    "(H, T, d)": (lambda x: x[0], lambda y: y[None]),
    "(T, H, d)": (lambda x: x[0].transpose(0, 1), lambda y: y.transpose(0, 1)[None]),
    "(B, T)": (lambda x: x, lambda y: y),
    "(T,)": (lambda x: x[0], lambda y: y[None]),
    "(T, B)": (lambda x: x.T, lambda y: y.transpose(0, 1)),
    "(B, T, V)": (lambda x: x, lambda y: y),
    "(N, V)": (lambda x: x.flatten(0, 1), lambda y: y),
    "(B, D)": (lambda x: x[:, 0], lambda y: y[:, None]),  # of one token
    "(B, H, d)": (lambda x: x[:, :, 0], lambda y: y[:, :, None]),
}
OF_TEXTS, OF_HEADS = list(LAYOUTS)[:5], list(LAYOUTS)[5:12]
ONE_TEXT = ("(T, D)", "(D, T)", "(T, d)", "(H, T, d)", "(T, H, d)", "(T,)")
NOTES = {"(T, B, D)": "the sequence is the first axis: x is (T, B, D)",
         "(T, B)": "the sequence is the first axis: ids are (T, B)",
         "(D, T)": "each column of x is a token: x is (D, T)",
         "(B, D, T)": "each column of x is a token: x is (B, D, T)"}  # fmt: skip
Inputs = Mapping[str, Tensor]
Settings = Mapping[str, Value]


class CannotCall(Exception):
    """No way to call it was found; the text says why."""


@dataclass(frozen=True)
class Way:
    """One way to call it."""

    takes: tuple[str, ...]
    layout: str
    sizes: Mapping[str, int]
    """The sizes of the inputs that it takes: D, or H, G, d and e, or V."""
    inputs: Mapping[str, str]
    """Which argument gets which input."""
    settings: Mapping[str, Value]
    """What the other arguments get."""
    protocol: Protocol | None = None
    listed: Sequence[inspect.Parameter] = field(default=(), repr=False)

    @property
    def note(self) -> str:
        """Not empty: a convention, like the sequence as the first axis."""
        return NOTES.get(self.layout, "")

    @property
    def how(self) -> str:
        """The call in words."""
        names = ", ".join(name if name == take else f"{name}={take}" for name, take in self.inputs.items())
        more = "".join(f", {name}={value.text}" for name, value in self.settings.items())
        layout = (
            "" if self.layout in ("(B, T, D)", "(B, T)", "(B, T, d)", "(B, T, V)") else f" with inputs {self.layout}"
        )
        return f"called: ({names}{more}){layout}" + (f"; in chunks with {self.protocol.how}" if self.protocol else "")

    def run(self, thing: Any, inputs: Inputs, chunks: Sequence[int] = ()) -> Tensor:
        """The output for inputs in the canonical layout: x (B, T, D); query, key, value (B, H, T, d); ids (B, T).

        A function that turns one tensor is called for all, and their heads are joined, as if it returned both.
        """
        default = torch.get_default_dtype()
        torch.set_default_dtype(next((one.dtype for one in inputs.values() if one.is_floating_point()), default))
        try:
            if self.takes == ("query", "key") and len(self.inputs) == 1:
                each = [{"query": inputs[name]} for name in self.takes]
                return torch.cat([self.output(self.call(thing, one), one) for one in each], dim=1)
            if self.layout in ONE_TEXT and len(inputs[self.takes[0]]) > 1:
                rows = zip(*(x.split(1) for x in inputs.values()))
                return torch.cat([self.run(thing, dict(zip(inputs, row)), chunks) for row in rows])
            if chunks and self.protocol:
                return feed(self, thing, inputs, chunks)
            return self.output(self.call(thing, inputs), inputs)
        finally:
            torch.set_default_dtype(default)

    def call(self, thing: Any, inputs: Inputs, start: int | None = None, more: Mapping[str, Any] | None = None) -> Any:
        """What one call returns. `start`: the position of the first query, by default so that the last is S - 1."""
        first, last = inputs[self.takes[0]], inputs.get("key", inputs[self.takes[0]])
        T = first.shape[axis_of(first)]
        start = last.shape[axis_of(last)] - T if start is None else start
        turn: Any = LAYOUTS[self.layout][0]
        args: dict[str, Any] = {name: turn(inputs[take].clone()).contiguous() for name, take in self.inputs.items()}
        now = Moment(len(first), T, start + T, start, self.sizes, next(iter(args.values())))
        for name in set(args) & set(MODELS):  # a loss calls the model itself
            args[name] = partial(lambda logits, *ids, **more: logits, args[name])
        values = {name: value.make(now) for name, value in self.settings.items() if name not in (more or {})}
        function = getattr(thing, self.protocol.method) if self.protocol and self.protocol.method else thing
        return invoke(function, {**args, **values, **(more or {})}, self.listed)

    def output(self, result: Any, inputs: Inputs) -> Tensor:
        """The output of a call, in the canonical layout, from what it returned. Raises TypeError if there is none."""
        first = inputs[self.takes[0]]
        outputs = [torch.tensor(result, dtype=torch.float64)] if isinstance(result, float) else tensors(result)
        if "targets" in self.takes:
            count = first.shape[0] * first.shape[1]
            each = [y for y in outputs if y.numel() in (count, count - len(first))]
            return one_of([y.reshape(()) for y in outputs[::-1] if y.numel() == 1] or each[::-1], result)
        if first.dim() == 4:
            heads = [y for y in (heads_of(y, self.layout, first) for y in outputs) if y is not None]
            both = len(heads) > 1 and len(self.inputs) == 2 and heads[1].shape[-1] == first.shape[-1]
            return torch.cat(heads[:2], dim=1) if both else one_of(heads, result)
        there, back = LAYOUTS[self.layout]
        if self.takes == ("ids",):
            shape = there(first).shape
            fitting = [y for y in outputs if y.dim() > 1 and y.shape[:-1] in (shape, (first.numel(),))]
            out = one_of(fitting or outputs, result)
            out = out.view(*shape, -1) if out.dim() == 2 and len(out) == first.numel() else out
            return back(out) if out.dim() == len(shape) + 1 else out
        shape, one = there(first).shape, -2 if self.layout in ("(B, D, T)", "(D, T)") else -1
        fitting = [y for y in outputs if y.dim() == len(shape) and all(
            y.shape[axis] == shape[axis] for axis in range(-len(shape), 0) if axis != one)]  # fmt: skip
        out = one_of(fitting or outputs, result)
        out = out[0] if out.dim() == len(shape) + 1 and out.shape[:2] == (1, shape[0]) else out  # a mask adds axes
        return back(out) if out.dim() == len(shape) or self.layout in ("(T, D)", "(D, T)") else out


def one_of(outputs: Sequence[Tensor], result: Any) -> Tensor:
    """The first tensor. Raises TypeError if there is none."""
    if not outputs:
        raise TypeError(f"it returned {type(result).__name__} {[tuple(y.shape) for y in tensors(result)]}")
    return outputs[0]


def heads_of(y: Tensor, layout: str, like: Tensor) -> Tensor | None:
    """(B, H, T, e) from what a function of heads like (B, H, T, d) returned, in any layout; None for other shapes."""
    for turn in (LAYOUTS[layout][1], lambda y: y, lambda y: y.transpose(1, 2),
                   lambda y: y.unflatten(-1, (like.shape[1], -1)).transpose(-3, -2)):  # fmt: skip
        for whole in (y, y[None]):
            with suppress(Exception):  # another number of axes
                if (out := turn(whole)).shape[:3] == like.shape[:3] and out.dim() == 4:
                    return out
    return None


def tensors(result: Any) -> list[Tensor]:
    """All tensors with numbers in what was returned: one, a tuple, a mapping, an object with fields."""
    if isinstance(result, Tensor):
        return [result] if result.is_floating_point() or result.is_complex() else []
    if isinstance(result, Mapping):
        result = list(result.values())
    elif hasattr(result, "__dict__") and not isinstance(result, (tuple, list, nn.Module, type)):
        result = list(vars(result).values())
    return [one for value in result for one in tensors(value)] if isinstance(result, (tuple, list)) else []


def invoke(thing: Any, arguments: Mapping[str, Any], listed: Sequence[inspect.Parameter]) -> Any:
    """What it returns. If types or devices do not fit, it runs again in float64 on the CPU throughout."""
    alone = [entry.name for entry in listed if entry.kind is entry.POSITIONAL_ONLY and entry.name in arguments]
    args = [arguments[name] for name in alone] if listed else [*arguments.values()]
    named = {name: value for name, value in arguments.items() if name not in alone} if listed else {}
    try:
        return thing(*args, **named)
    except (RuntimeError, AssertionError, ValueError) as error:
        if not MIXED.search(str(error)):
            raise
    with Mild():
        return thing(*args, **named)


def is_mask(entry: inspect.Parameter) -> bool:
    """Whether an argument takes a mask; a flag, which is True or False by default, does not."""
    flag = isinstance(entry.default, bool) or entry.annotation in (bool, "bool")
    return bool(MASKS.search(entry.name.lower())) and not PADS.search(entry.name.lower()) and not flag


def constant(value: Any) -> Value:
    """A value that is always the same."""
    return Value(repr(value), lambda now: value)


X, PLACE = Value("the input", lambda now: now.first), Value("0, ..., T - 1", lambda now: now.places())
SHAPES = ("(T, S)", "(1, 1, T, S)", "(1, T, S)", "(B, T, S)", "(B, 1, T, S)", "(T, S, 1)", "(T, S, 1, 1)")
MASK_VALUES = [Value(f"{shape}, {meant}", partial(mask_of, meant, shape)) for shape, meant in product(SHAPES, MEANT)]
USUAL: list[tuple[re.Pattern[str], list[Value]]] = [  # what an argument without a default gets, by its name
    (cached.SWITCHES, [constant(False), constant(True)]), (OFF, [constant(False), constant(True)]),
    (cached.STARTS, [Value("start", lambda now: now.start), PLACE]),
    (cached.PLACES, [PLACE, *(Value(f"{rows} of them", partial(Moment.places, rows=rows)) for rows in (1, B))]),
    (DOCUMENTS, [Value("zeros (B, S)", lambda now: now.full(False).long())]),
    (cached.CACHES, [constant(None), Value("{}", lambda now: {}), Value("[]", lambda now: [])]),
]  # fmt: skip


def values_of(entry: inspect.Parameter, sizes: Mapping[str, int]) -> list[Value | None]:
    """The values that an argument other than an input or a table may get, the likeliest first; None: it is left out."""
    name, needed = entry.name.lower(), entry.default is entry.empty
    out: list[Value | None] = [] if needed else [None]
    if is_mask(entry):
        return [*(out or [constant(None)]), *MASK_VALUES]
    if FLAGS.search(name) and not PADS.search(name):
        return out if entry.default is True else [*out, constant(True), *([constant(False)] if needed else [])]
    if not needed:
        return [None, X] if GIVEN.search(name) and "V" in sizes else [None]
    if PADS.search(name) and "id" not in name:
        return [constant(None), *(Value(f"all {flag}", partial(Moment.full, flag=flag)) for flag in (True, False))]
    if entry.annotation in (bool, "bool"):
        return [constant(False), constant(True)]
    if usual := next((values for words, values in USUAL if words.search(name)), None):
        return list(usual)
    if CONTEXTS.search(name):
        return [X, constant(None)]
    known = {"drop": 0.0, "number": 0, "window": SIZES["window"], "eps": 1e-5, "base": 1e4, "device": "cpu", **sizes}
    if meaning(entry.name) in known:
        value = known[meaning(entry.name)]
        return [constant(value), *([constant((value, 0))] if meaning(entry.name) == "window" else [])]  # (left, right)
    if meaning(entry.name) == "T":
        return [Value("T", lambda now: now.T), Value("S", lambda now: now.S)]
    guesses = [constant(None), X, constant(SIZES["window"]), constant(0), constant(False), PLACE, *MASK_VALUES[:12]]
    return [replace(one, guessed=True) for one in guesses]


def input_maps(listed: list[inspect.Parameter], takes: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Yields which argument gets which input: by first letters for query, key and value, else in order."""
    free = [one for one in listed if not (is_mask(one) or TABLES.search(one.name) or FLAGS.search(one.name.lower()))]
    free = [one for i, one in enumerate(free) if not (i and cached.STARTS.search(one.name.lower()))]
    needed, names = ([one.name for one in some] for some in ([o for o in free if o.default is o.empty], free or listed))
    letters = {name.lower()[0]: name for name in reversed(names[:4])}
    if not names:
        yield {f"*{take}": take for take in takes}
    elif takes[0] in ("x", "ids", "scores") or takes == ("query",):
        first = (needed or names)[0]
        targets = sorted((name for name in names if name != first), key=lambda name: not GIVEN.search(name))
        alone = {first: takes[0]} | ({targets[0]: "targets"} if "targets" in takes and targets else {})
        thrice = {letters[letter]: "x" for letter in "qkv"} if takes == ("x",) and set("qkv") <= set(letters) else {}
        yield from (each for each in ([thrice, alone] if set(thrice) <= set(needed) else [alone, thrice]) if each)
    elif takes[0] == "logits":
        swapped = len(names) > 1 and re.search("logit|pred|score", names[1].lower())
        yield dict(zip(names, takes[::-1] if swapped else takes))
    elif len({letters.get(take[0]) for take in takes} - {None}) == len(takes):
        yield {letters[take[0]]: take for take in takes}
    elif takes == ("query", "key") and len(needed) == 1:
        yield {needed[0]: "query"}
    elif len(names) >= len(takes):
        yield dict(zip(names, takes))
    else:
        raise CannotCall(f"it takes {len(listed)} arguments, expected {', '.join(takes)}")


def choices(thing: Any, others: list[inspect.Parameter], sizes: Mapping[str, int], once: str) -> list[Settings]:
    """The combinations of values for all arguments but the inputs, the likeliest first. `once` gets one value only."""
    turns = [one for one in others
             if TABLES.search(one.name) and not is_mask(one) and not isinstance(one.default, bool)]  # fmt: skip
    needed, axes = [one.name for one in turns if one.default is one.empty], list[list[Settings]]()
    for one in others:
        if one not in turns:
            makes = cached.makers(thing) if one.default is one.empty and cached.CACHES.search(one.name.lower()) else ()
            of_file = [Value("a cache that the file makes", lambda now, make=make: make()) for make in makes]  # type: ignore[misc]
            values = [*of_file, *values_of(one, sizes)][: 1 if one.name == once else None]
            axes.append([{one.name: value} if value else {} for value in values])
    if turns:
        axes.append([*([] if needed else [{}]), *tables(needed or [one.name for one in turns], thing)])
    ranks = ranked(tuple(map(len, axes)))
    return [{name: value for axis, i in zip(axes, rank) for name, value in axis[i].items()} for rank in ranks]


@cache
def ranked(counts: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The places of a value of each of several arguments that have so many: first those in which few are unlikely."""
    each = islice(product(*map(range, counts)), 20_000)
    return sorted(each, key=lambda rank: (sum(place > 0 for place in rank) > 1, sum(rank)))[:MOST_CHOICES]


def forms(thing: Any, takes: tuple[str, ...]) -> Iterator[tuple[Mapping[str, int], str]]:
    """Yields the sizes and layouts of inputs, the likeliest first."""
    usual = {"D": 12, "H": 3, "G": 3, "d": 4, "e": 4, "V": 13}
    several = list(sizes_of(thing)) if isinstance(thing, nn.Module) else [usual]
    if takes == ("x",):
        yield from ((sizes, layout) for layout in OF_TEXTS for sizes in several)
    elif takes[0] == "ids":  # a vocabulary may be smaller than it seems
        few = {**several[0], "V": min(several[0]["V"], usual["V"])}
        yield from ((sizes, layout) for layout in ("(B, T)", "(T, B)", "(T,)") for sizes in (several[0], few))
    elif takes[0] == "logits":
        yield from ((several[0], layout) for layout in ("(B, T, V)", "(N, V)"))
    else:
        for (d, heads), layout in product(given_widths(thing), OF_HEADS):
            counts = [(4, 2), (heads, heads)] if "value" in takes else [(heads, heads)]
            for (H, G), e in product(counts if "H" in layout else [(1, 1)], (d - 2, d) if "value" in takes else (d,)):
                yield {"H": H, "G": G, "d": d, "e": e, "D": H * d}, layout


def raw(thing: Any, takes: tuple[str, ...], chunked: bool) -> Iterator[Way]:
    """Yields the ways that the arguments allow, the simplest first; those to feed it in chunks, if `chunked`."""
    listed = parameters_of(thing)
    for inputs in input_maps(listed, takes):
        left = [one for one in listed if one.name not in inputs]
        once = cache_argument(listed, tuple(inputs)) if chunked else ""
        each = [(j + AGAIN * i, sizes, layout, settings) for i, (sizes, layout) in enumerate(forms(thing, takes))
                for j, settings in enumerate(choices(thing, left, sizes, once))]  # fmt: skip
        for _, sizes, layout, settings in sorted(each, key=lambda entry: entry[0]):
            way = Way(takes, layout, sizes, inputs, settings, None, listed)
            yield from fed(thing, way) if chunked else [way]


def fed(thing: Any, way: Way) -> Iterator[Way]:
    """Yields the ways to feed a text in chunks to what is called in a way."""
    for protocol in protocols(thing, way.listed, tuple(way.inputs)):
        with_cache = replace(way, protocol=protocol)
        start = find(way.listed, cached.STARTS)
        if start and start not in (*way.inputs, *way.settings) and not protocol.method:
            yield from (with_cache, replace(with_cache, settings={**way.settings, start: PLACE}))
            continue
        if protocol.method:
            of_method = parameters_of(getattr(thing, protocol.method))
            with_cache = replace(with_cache, inputs={of_method[0].name: "x"}, settings={}, listed=of_method)
        yield with_cache
        if protocol.token and way.layout in (OF_TEXTS[0], OF_HEADS[1]):
            yield replace(with_cache, layout=cached.ONE_TOKEN[way.layout == OF_HEADS[1]])


def example(takes: tuple[str, ...], sizes: Mapping[str, int], T: int) -> dict[str, Tensor]:
    """Small inputs."""
    drawn, V = torch.Generator().manual_seed(0), sizes.get("V", SIZES["V"])
    D, H, G, d, e = (sizes[axis] for axis in "DHGde")
    shapes = {"x": (B, T, D), "logits": (B, T, V), "scores": (B, H, T, T), "query": (B, H, T, d), "key": (B, G, T, d),
              "value": (B, G, T, e)}  # fmt: skip
    return {name: torch.randn(shapes[name], dtype=torch.float64, generator=drawn) if name in shapes else
            torch.randint(1, V, (B, T), generator=drawn) for name in takes}  # fmt: skip


def trial(way: Way, thing: Any, inputs: Inputs, chunks: Sequence[int] = ()) -> Tensor:
    """The output of a way, without leaving anything behind; what draws random numbers draws the same each time."""
    with torch.no_grad(), fresh(thing), untouched_random():
        torch.default_generator.manual_seed(0)  # torch.manual_seed looks up its callers for three devices
        return way.run(thing, inputs, chunks).detach()


def needless(way: Way, ran: Way, single: bool) -> bool:
    """Whether a way need not be tried, as another one ran. `single`: the program's text says that it takes one text."""
    if way.layout in ONE_TEXT and ran.layout not in ONE_TEXT:
        return not single  # it takes a batch, so that it must be right for a batch
    if way.takes == ("x",) and way.sizes["D"] != ran.sizes["D"]:
        return True  # the width of its input is known by now
    if way.protocol and way.protocol.token and not way.protocol.method and ran.protocol and not ran.protocol.token:
        return way.protocol.argument == ran.protocol.argument  # it takes several tokens at once
    equal, before = ({x for x, y in ("GH", "ed") if one.sizes[x] == one.sizes[y]} for one in (way, ran))
    return way.takes[-1] == "value" and way.layout == ran.layout and before < equal  # fewer key heads, or other widths


def says_one_text(thing: Any) -> bool:
    """Whether the file of a function says that it takes one text, (T, D)."""
    function = getattr(thing, "of", thing)
    with suppress(OSError, TypeError, KeyError):
        return inspect.isroutine(function) and bool(ONE.search(inspect.getsource(sys.modules[place_of(thing)])))
    return False


def alike(way: Way, ran: Way, tables: bool) -> bool:
    """Whether a way hands over what another one did that ran: the same tables, or the same but for tables."""
    if (way.layout, way.sizes, way.inputs) != (ran.layout, ran.sizes, ran.inputs):
        return False
    names = {name for name in {*way.settings, *ran.settings} if bool(TABLES.search(name)) == tables}
    return all(way.settings.get(name) is ran.settings.get(name) for name in names)


def trials(
    thing: Any, takes: tuple[str, ...], chunks: Sequence[int], errors: list[Exception], like: Way | None
) -> Iterator[Way]:
    """Yields the ways that run: with finite numbers and the right shape first, each output once."""
    ran, seen, late, single = list[Way](), list[tuple[object, Tensor]](), list[Way](), says_one_text(thing)
    left: list[tuple[int, Way]] = [(2, way) for way in (fed(thing, like) if like else raw(thing, takes, bool(chunks)))]
    for _ in range(min(MOST_TRIES, len(left))):
        _, way = left.pop(0)
        if any(needless(way, other, single) for other in ran):
            continue
        inputs = example(takes, way.sizes, sum(chunks) or LENGTH)
        try:
            y = trial(way, thing, inputs, chunks)
        except MemoryError:
            raise  # no other way to call it would need less
        except Exception as error:  # the learner's code: anything
            errors.append(error)
            continue
        key = (way.sizes, way.layout if way.layout in OF_HEADS else "")
        if any(key == other and (y.shape, y.dtype) == (z.shape, z.dtype) and y.allclose(z, 1e-9, 1e-12, True)
               for other, z in seen):  # fmt: skip
            continue
        seen.append((key, y))
        first = inputs[takes[0]]
        shape = first.shape[:2] if first.dim() < 4 else (len(first), *y.shape[1:2], first.shape[2])
        right = "targets" in takes or (y.dim() == max(first.dim(), 3) and y.shape[: len(shape)] == shape)
        if right and bool(y.isfinite().all()):
            ran.append(way)
            yield way
            left = [(0 if alike(one, way, False) else min(rank, 1) if rank < 2 or alike(one, way, True) else 2, one)
                    for rank, one in left]  # what hands over the same comes next  # fmt: skip
            left.sort(key=itemgetter(0))
        else:
            late.append(way)
    yield from late


def ways(thing: Any, takes: tuple[str, ...], chunks: bool = False, like: Way | None = None) -> Iterator[Way]:
    """Yields every way to call it that runs on a small input, the simplest first. Raises CannotCall if none does.

    `chunks`: only ways in which a text can be fed in chunks; those whose output is the same as at once come first.
    `like`: the way in which it is called at once, if that is known.
    """
    errors, none = list[Exception](), True
    running = trials(thing, takes, CHUNKS if chunks else (), errors, like)
    for way in islice(equal_first(thing, running) if chunks else running, MOST_WAYS):
        none = False
        yield way
    if none:
        first = errors[0] if errors else TypeError("no argument takes an input")
        raise CannotCall(f"it raises {type(first).__name__}: {next(iter(str(first).splitlines()), '')}") from first


def equal_first(thing: Any, running: Iterator[Way]) -> Iterator[Way]:
    """Those ways first whose output in chunks equals that at once; in the usual layout before others.

    If the batch is taken for the sequence, chunks are apart by themselves.
    """
    late = list[tuple[bool, bool, Way]]()
    for way in running:
        x, equal, usual = example(way.takes, way.sizes, sum(CHUNKS)), False, way.layout[:2] in ("(B", "(H")
        with suppress(Exception):  # the learner's code: anything
            equal = trial(way, thing, x, CHUNKS).allclose(trial(way, thing, x), 1e-6, 1e-8)
        if equal and usual:
            yield way
        else:
            late.append((not usual, not equal, way))
    yield from (way for *_, way in sorted(late, key=lambda entry: entry[:2]))
