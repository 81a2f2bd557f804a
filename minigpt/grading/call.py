"""How an answer is called: which argument gets what, in which layout, with which mask.

A mask that the answer takes as an argument is tried in every usual meaning and shape; the output shows which one the
answer expects. `Call.how` describes the call in the report.

B batch, T query positions, S key positions, D model width, H heads.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minigpt.grading import chunks
from minigpt.grading.target import Probe, Target
from minigpt.grading.targets.loss import PADS
from minigpt.grading.targets.scores import allowed

CAUSAL_FLAGS = ("causal", "is_causal", "use_causal", "causal_mask", "apply_mask", "use_mask", "masked", "mask")
MASK_SHAPES = ("(T, S)", "(1, 1, T, S)", "(1, T, S)", "(B, T, S)", "(B, 1, T, S)", "(T, S, 1)", "(T, S, 1, 1)")
MEANINGS = ("true keeps", "true hides", "added, 0 and -inf", "1 keeps, 0 hides")
MODELS = ("model", "net", "network", "gpt", "lm", "language_model")  # arguments that hold a model of ids
NOTES = {"(T, B, D)": "the sequence is the first axis: x is (T, B, D)", 
         "(D, T)": "each column of x is a token: x is (D, T)",
         "(B, D, T)": "each column of x is a token: x is (B, D, T)"}  # fmt: skip
ALONE = ("mlp", "norm")  # targets that compute every token on its own: no axis of the input is the sequence
POSITIONS = "0, ..., T - 1"  # stands for torch.arange(T)
TIME_FIRST = re.compile(r"(?i)\b[TLS]\s*[,x]\s*[BN]\b|\b(time|seq\w*|len\w*|tokens)\s*(x|,)\s*batch|"
                        r"\b(time|sequence|seq|length)[ -]first|\(\w+, ?batch\w*, ?\w+\)")  # fmt: skip
MASKS = re.compile("mask|masque|mascar|maschera")  # in names of arguments
MIXED_TYPES = re.compile("dtype|scalar type")  # in torch's errors


@dataclass(frozen=True)
class Call:
    """One way to call an answer with a probe's inputs; the result is a tensor in the target's layout."""

    how: str
    run: Callable[[Any, Probe], Tensor]
    note: str = ""
    """Not empty: a convention that the report mentions, like (T, B, D)."""
    layout: str = "(B, T, D)"
    protocol: str = ""
    """How the cache is passed, for an input in chunks: a key of `chunks.PROTOCOLS`; "" otherwise."""
    mask: str = ""
    """The meaning of the causal mask that is passed as an argument, one of `MEANINGS`; "" if none is passed."""

    plain: bool = False
    """Whether only the target's inputs are passed, so that nothing is guessed."""

    @property
    def masked(self) -> bool:
        """Whether a causal mask is passed as an argument."""
        return bool(self.mask)


class CannotCall(Exception):
    """No way to call the answer was found; the text says why."""


def parameters_of(thing: Any) -> list[inspect.Parameter]:
    """The parameters of a function or of a module's forward, without *args and **kwargs."""
    own_call = isinstance(thing, nn.Module) and type(thing).__call__ is not nn.Module.__call__
    function = thing.forward if isinstance(thing, nn.Module) and not own_call else thing
    listed = inspect.signature(function).parameters.values()
    return [entry for entry in listed if entry.kind not in (entry.VAR_KEYWORD, entry.VAR_POSITIONAL)]


def input_names(listed: list[inspect.Parameter], takes: tuple[str, ...]) -> dict[str, str]:
    """Which argument gets which input: by first letters for query, key and value, else in order."""
    names = [entry.name for entry in listed]
    letters = {name.lower()[0]: name for name in reversed(names[:4]) if name}
    if takes == ("x",):
        if all(letter in letters for letter in "qkv"):
            return {letters[letter]: "x" for letter in "qkv"}
        return {names[0]: "x"} if names else {}
    if takes == ("logits", "targets") and len(names) > 1 and re.search("logit|pred|score", names[1].lower()):
        return {names[1]: "logits", names[0]: "targets"}
    wanted = [take[0] for take in takes]
    if all(letter in letters for letter in wanted):
        return {letters[take[0]]: take for take in takes}
    return dict(zip(names, takes))


def is_mask(entry: inspect.Parameter) -> bool:
    """Whether an argument takes a mask; a flag, which is True or False by default, does not."""
    name = entry.name.lower()
    return MASKS.search(name) is not None and "pad" not in name and not isinstance(entry.default, bool)


def fixed_arguments(listed: list[inspect.Parameter], target: Target) -> dict[str, Any]:
    """The arguments that have only one right value, with it. Raises CannotCall for an unknown one without a default."""
    values: dict[str, Any] = {}
    for entry in listed:
        name = entry.name.lower()
        if target.name == "loss" and PADS.search(name):
            values[entry.name] = 0
        elif name in CAUSAL_FLAGS and not is_mask(entry):
            values[entry.name] = not target.options.full
        elif name in ("window", "window_size", "sliding_window") and target.options.window:
            values[entry.name] = target.options.window
        elif name in chunks.STARTS and entry.default is entry.empty:
            values[entry.name] = 0
        elif name in chunks.PLACES and entry.default is entry.empty:
            values[entry.name] = POSITIONS
        elif name in chunks.SWITCHES and entry.default is entry.empty:
            values[entry.name] = False
        elif name in ("dropout", "dropout_p", "p") and entry.default is entry.empty:
            values[entry.name] = 0.0
        elif name in chunks.CACHES and entry.default is entry.empty:
            values[entry.name] = None
        elif entry.default is entry.empty and not is_mask(entry):
            raise CannotCall(
                f"it asks for an argument `{entry.name}`, which the check does not know: give it a default"
            )
    return values


def calls(thing: Any, target: Target) -> Iterator[Call]:
    """Every way to call an answer, the simplest first. Raises CannotCall."""
    listed = parameters_of(thing)
    inputs = input_names(listed, target.takes)
    if len(inputs) < len(target.takes):
        raise CannotCall(f"it takes {len(listed)} arguments, expected {', '.join(target.takes)}")
    others = [entry for entry in listed if entry.name not in inputs]
    fixed = fixed_arguments(others, target)
    masks = [entry for entry in others if is_mask(entry)]
    for layout, mask in product(layouts(thing, target), mask_forms(masks, target)):
        whole = make_call(inputs, fixed, mask, layout, target)
        if not target.options.cache:
            yield whole
        elif layout == "(B, T, D)":
            for protocol in chunks.protocols(thing, listed):
                yield in_chunks(whole, protocol, listed, list(inputs), mask, target)


def in_chunks(
    whole: Call, protocol: str, listed: list[inspect.Parameter], inputs: list[str], mask: tuple[str, str, str] | None,
    target: Target,
) -> Call:  # fmt: skip
    """The call `whole`, except that a probe with chunks is given in chunks, with a cache."""

    def run(thing: Any, probe: Probe) -> Tensor:
        if not probe.chunks and protocol != "token":
            return whole.run(thing, probe)
        x = probe.inputs["x"]  # (B, T, D)

        def mask_of(T: int, S: int) -> Mapping[str, Any]:
            return (
                {mask[0]: make_mask(mask[1], mask[2], x.shape[0], T, S, target.options.window, False)} if mask else {}
            )

        return chunks.run_chunks(thing, protocol, listed, inputs, x, probe.chunks, mask_of, pick)

    how = f"{whole.how}; in chunks with {chunks.PROTOCOLS[protocol]}"
    return Call(how, run, whole.note, whole.layout, protocol, whole.mask, whole.plain and protocol == "kind")


def mask_forms(masks: list[inspect.Parameter], target: Target) -> list[tuple[str, str, str] | None]:
    """None (no mask is given), then (argument, meaning, shape)."""
    forms: list[tuple[str, str, str] | None] = [None] if not masks or masks[0].default is not masks[0].empty else []
    if masks and not target.options.full:
        forms += [(masks[0].name, meaning, shape) for shape, meaning in product(MASK_SHAPES, MEANINGS)]
    elif masks and not forms:
        forms += [(masks[0].name, meaning, "(T, S)") for meaning in MEANINGS]
    return forms


def make_mask(meaning: str, shape: str, B: int, T: int, S: int, window: int, full: bool) -> Tensor:
    """The causal mask in one of `MEANINGS` and of `MASK_SHAPES`; with `full` it hides nothing."""
    seen = allowed("full" if full else "right", T, S, window)  # (T, S)
    hidden = torch.zeros(T, S, dtype=torch.float64).masked_fill(~seen, -torch.inf)
    mask = {"true keeps": seen, "true hides": ~seen, "added, 0 and -inf": hidden, "1 keeps, 0 hides": seen.double()}[
        meaning
    ]
    if shape.startswith("(T, S, "):
        return mask.reshape(T, S, *[1] * shape.count("1")).clone()
    first = {"(T, S)": (), "(1, 1, T, S)": (1, 1), "(1, T, S)": (1,), "(B, T, S)": (B,), "(B, 1, T, S)": (B, 1)}[shape]
    return mask.expand(*first, T, S).clone()


def layouts(thing: Any, target: Target) -> list[str]:
    """The layouts of inputs and outputs that are tried, the target's own first."""
    if target.takes == ("ids",):
        return ["(B, T)"]
    if target.takes == ("logits", "targets"):
        return ["(B, T, D)"] if target.sizes["own"] else ["(B, T, D)", "(N, V)"]
    if target.takes == ("x",) and target.roles:
        turned = [] if target.name in ALONE else ["(T, B, D)"]
        return ["(B, T, D)", *turned, "(T, D)", "(D, T)", "(B, D, T)"]
    usual = ["(B, T, D)", "(B, H, T, D)", "(B, T, H, D)", "(T, D)"]
    return ["(T, B, D)", *usual] if says_time_first(thing) else usual


def says_time_first(thing: Any) -> bool:
    """Whether the source of an answer says that the sequence is the first axis and the batch the second."""
    try:
        return TIME_FIRST.search(inspect.getsource(thing if inspect.isfunction(thing) else type(thing))) is not None
    except (OSError, TypeError):
        return False


def make_call(inputs: Mapping[str, str], fixed: Mapping[str, Any], mask: tuple[str, str, str] | None, layout: str,
              target: Target) -> Call:  # fmt: skip
    """The call with these inputs, other arguments, mask and layout."""

    def run(thing: Any, probe: Probe) -> Tensor:
        first = next(iter(probe.inputs.values()))  # (B, T, ...)
        B, T, S = first.shape[0], first.shape[1], list(probe.inputs.values())[min(1, len(probe.inputs) - 1)].shape[1]
        given: dict[str, Any] = {
            name: torch.arange(T) if value is POSITIONS else value for name, value in fixed.items()
        }
        if mask:
            given[mask[0]] = make_mask(mask[1], mask[2], B, T, S, target.options.window, target.options.full)
        arranged: dict[str, Any] = {n: arrange(probe.inputs[take].clone(), layout) for n, take in inputs.items()}
        for name in set(arranged) & set(MODELS):  # a loss calls the model itself
            arranged[name] = partial(same, arranged[name])
        if layout in ("(T, D)", "(D, T)"):
            rows = [
                pick(result(thing, {n: x[b] for n, x in arranged.items()} | given)) for b in range(B)
            ]  # B of (T, D)
            return torch.stack(rows) if layout == "(T, D)" else torch.stack(rows).mT
        found = pick(result(thing, arranged | given))
        spread = not target.roles and layout == "(B, T, D)" and found.dim() == first.dim() + 1 == 4
        return arrange_back(found[0] if spread and len(found) == 1 else found, layout)  # a mask (1, 1, T, S) adds axes

    given = "".join(f", {name}={value}" for name, value in fixed.items())
    if mask:
        given += f", {mask[0]}={mask[2]}, {mask[1]}"
    names = ", ".join(name if name == take else f"{name}={take}" for name, take in inputs.items())
    how = f"called: ({names}{given})" + ("" if layout == "(B, T, D)" else f" with inputs {layout}")
    note = NOTES.get(layout, "")
    plain = not fixed and not mask and layout == "(B, T, D)"
    return Call(how, run, note, layout, mask=mask[1] if mask else "", plain=plain)


def same(logits: Tensor, *ids: Tensor, **others: Any) -> Tensor:
    """A model that returns these logits (B, T, V) for any ids."""
    return logits


def result(thing: Any, arguments: Mapping[str, Any]) -> Any:
    """What the answer returns for float64. If `.float()` makes types differ, it runs again in float64 throughout."""
    try:
        return thing(**arguments)
    except RuntimeError as error:
        if not MIXED_TYPES.search(str(error)):
            raise
    with Doubled():
        return thing(**arguments)


class Doubled(TorchFunctionMode):
    """Replaces float32 by float64 in every torch call."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        func = torch.Tensor.double if func is torch.Tensor.float else func
        named = {name: doubled(value) for name, value in (kwargs or {}).items()}
        return func(*map(doubled, args), **named)


def doubled(value: Any) -> Any:
    """float64 for float32, complex128 for complex64, and any other argument as it is."""
    if isinstance(value, torch.dtype):
        return {torch.float32: torch.float64, torch.complex64: torch.complex128}.get(value, value)
    return value


def arrange(x: Tensor, layout: str) -> Tensor:
    """(B, T, D) -> the answer's layout."""
    ways = {"(T, B, D)": lambda: x.transpose(0, 1).contiguous(), "(B, H, T, D)": lambda: x[:, None],
            "(B, T, H, D)": lambda: x[:, :, None], "(N, V)": lambda: x.flatten(0, 1),
            "(D, T)": lambda: x.mT.contiguous(), "(B, D, T)": lambda: x.mT.contiguous()}  # fmt: skip
    return ways[layout]() if layout in ways else x


def arrange_back(x: Tensor, layout: str) -> Tensor:
    """The answer's layout -> (B, T, D)."""
    if layout == "(T, B, D)" and x.dim() >= 2:
        return x.transpose(0, 1)
    if layout == "(B, D, T)" and x.dim() == 3:
        return x.mT
    if layout == "(B, H, T, D)" and x.dim() == 4 and x.shape[1] == 1:
        return x[:, 0]
    if layout == "(B, T, H, D)" and x.dim() == 4 and 1 in x.shape[1:3]:  # weights come as (B, H, T, S)
        return x[:, :, 0] if x.shape[2] == 1 else x[:, 0]
    return x


def pick(result: Any) -> Tensor:
    """The output: the tensor, or the first one in a tuple, a list or a dict. Raises TypeError if there is none."""
    if isinstance(result, Tensor):
        return result if torch.is_grad_enabled() else result.detach()
    values = list(result.values()) if isinstance(result, Mapping) else result
    if isinstance(values, (tuple, list)):
        for value in values:
            if isinstance(value, Tensor):
                return value if torch.is_grad_enabled() else value.detach()
    raise TypeError(f"it returned {type(result).__name__}, expected a tensor")
