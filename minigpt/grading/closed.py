"""A function as a module: the matrices that it reads from its default arguments or from its file are the parameters.

The parameters share memory with the tensors, so that the check can overwrite these with known numbers.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.grading.arguments import ARGUMENTS
from minigpt.grading.target import Target


class Closed(nn.Module):
    """A function whose matrices are parameters of a module."""

    def __init__(self, function: Callable[..., Tensor], tensors: Mapping[str, Any]):
        super().__init__()
        for name, value in tensors.items():
            hold(self, name, value)
        self.function = self.forward = function


def hold(module: nn.Module, name: str, value: Any) -> None:
    """Register a tensor, or all in a dict, list or tuple; a pair whose second is a vector is a weight and its bias."""
    name = name.replace(".", "_") or "weight"
    if isinstance(value, Tensor):
        module.register_parameter(name, nn.Parameter(value.detach(), requires_grad=value.is_floating_point()))
        return
    inner = nn.Module()
    pair = isinstance(value, (tuple, list)) and len(value) == 2 and value[1].dim() == 1
    keys = ("weight", "bias") if pair else map(str, range(len(value)))
    for key, held in value.items() if isinstance(value, Mapping) else zip(keys, value):
        hold(inner, str(key), held)
    module.add_module(name, inner)


def tensors_in(value: Any) -> list[Tensor]:
    """All floating-point tensors in a value; [] if it holds anything else."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    held = list(value.values()) if isinstance(value, Mapping) else list(value) if type(value) in (tuple, list) else []
    found = [tensors_in(one) for one in held]
    return [tensor for one in found for tensor in one] if all(found) else []


def read_by(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Yields (name, value) of what a function may read: its default arguments, then the globals that it uses."""
    for entry in inspect.signature(function).parameters.values():
        if entry.default is not entry.empty:
            yield entry.name, entry.default
    code, names = function.__code__, function.__globals__
    yield from ((name, names[name]) for name in code.co_names if name in names)


def closed(function: Callable[..., Any]) -> nn.Module | None:
    """The function as a module; None where it reads no matrix, or one that is made in float32."""
    found, seen = dict[str, Any](), set[int]()
    for name, value in read_by(function):
        tensors = tensors_in(value)
        if any(tensor.dim() > 1 for tensor in tensors) and id(value) not in seen:
            seen.add(id(value))
            found[name] = value
    several = [tensor for value in found.values() for tensor in tensors_in(value)]
    if not several or any(tensor.element_size() != 8 for tensor in several):
        return None
    return Closed(function, found)


WIDTH, HEADS = 24, 4  # sizes for a function that takes its matrices as arguments
MATRIX, VECTOR = re.compile(r"(?i)^w_?[qkvo\d]*$|^w_|weight|proj|matri"), re.compile(r"(?i)^b_?[qkvo\d]*$|^b_|bias")


def given_matrices(function: Callable[..., Any], target: Target) -> nn.Module | None:
    """A function of x and of square matrices, `attend(x, Wq, Wk, Wv, Wo, n_head)`, as a module that holds them.

    None if an argument is unknown.
    """
    known = {"H": HEADS if "H" in target.sizes and target.sizes["H"] > 1 else 1, "D": WIDTH}
    names = {name: known[axis] for axis in known for name in ARGUMENTS[axis]}
    listed = [entry.name for entry in inspect.signature(function).parameters.values() if entry.default is entry.empty]
    tensors = {name: torch.zeros(WIDTH, WIDTH) for name in listed if MATRIX.search(name)}  # (D, D) each
    tensors |= {name: torch.zeros(WIDTH) for name in listed if name not in tensors and VECTOR.search(name)}  # (D)
    numbers = {name: names[name] for name in listed if name not in tensors and name in names and name != "in_features"}
    left = [name for name in listed if name not in tensors and name not in numbers]
    if target.options.window and len(left) == 2:
        numbers[left.pop()] = target.options.window
    if len(left) != 1 or not any(tensor.dim() > 1 for tensor in tensors.values()):
        return None
    module = Closed(function, tensors)
    vars(module)["n_head"] = known["H"]  # `possible_sizes` reads it
    module.forward = lambda x: function(**{left[0]: x}, **dict(module.named_parameters()), **numbers)
    return module


def given_vectors(function: Callable[..., Any]) -> nn.Module | None:
    """A norm as a function of x and of vectors, `layer_norm(x, weight, bias, eps=1e-5)`, as a module that holds them.

    An argument whose default is None gets a vector too, if it has the name of a weight or a bias.
    """
    listed = list(inspect.signature(function).parameters.values())
    vector = re.compile(r"(?i)^b|bias|beta|shift|weight|gain|gamma|^g$")
    more = [entry.name for entry in listed[1:] if entry.default is entry.empty
            or (entry.default is None and vector.search(entry.name))]  # fmt: skip
    if not listed or not 0 < len(more) < 3:
        return None
    module = Closed(function, {name: torch.ones(WIDTH) for name in more})  # (D) each
    first = listed[0].name
    module.forward = lambda x: function(**{first: x}, **dict(module.named_parameters()))
    return module


MAKERS = re.compile("init|make|create|build|new|random|params|weights")


def given_by_file(function: Callable[..., Any], target: Target) -> nn.Module | None:
    """A function of x and of a dict of matrices that another function of its file makes, as a module that holds them.

    For example `attend(params, x)` with `init_params(d_model=32, seed=0)`: arguments with the usual names of sizes get
    these sizes, and a seed is 0. None if there is no such function.
    """
    names = vars(sys.modules[function.__module__]) if function.__module__ in sys.modules else function.__globals__
    makers = [value for name, value in names.items() if inspect.isfunction(value) and value is not function
              and MAKERS.search(name.lower()) and value.__module__ == function.__module__]  # fmt: skip
    listed = list(inspect.signature(function).parameters.values())
    for maker in makers:
        try:
            made = maker(**maker_values(maker))
        except Exception:  # the learner's code: anything
            continue
        several = tensors_in(made)
        if several and isinstance(made, Mapping) and all(tensor.element_size() == 8 for tensor in several):
            taken = [entry for entry in listed if re.search(r"(?i)^(p|w|ps|ws)$|param|weight|theta", entry.name)]
            return Holding(function, taken[0].name, made, target) if taken else None
    return None


def maker_values(maker: Callable[..., Any]) -> dict[str, Any]:
    """Values for the arguments without a default of a function that makes matrices."""
    needed = [name for name, entry in inspect.signature(maker).parameters.items() if entry.default is entry.empty]
    d = WIDTH // HEADS if set(needed) & set(ARGUMENTS["D"]) else WIDTH
    known = {name: size for axis, size in (("d", d), ("D", WIDTH), ("H", HEADS)) for name in ARGUMENTS[axis]}
    drawn = {name: torch.Generator().manual_seed(0) for name in needed if re.search("^g$|gen|rng", name.lower())}
    return {name: drawn.get(name, known.get(name, 0)) for name in needed}


class Holding(Closed):
    """A function that takes all its matrices as one argument, as a module that holds them."""

    def __init__(self, function: Callable[..., Any], name: str, made: Mapping[str, Any], target: Target):
        super().__init__(function, made)
        signature = inspect.signature(function)
        left = [entry for entry in signature.parameters.values() if entry.name != name]
        heads = {entry.name: HEADS for entry in left if entry.name in ARGUMENTS["H"]}

        def forward(**given: Any) -> Any:
            bound = signature.bind(**{name: made}, **given, **heads)
            return function(*bound.args, **bound.kwargs)  # torch.vmap maps positional arguments only

        vars(forward)["__signature__"] = signature.replace(parameters=[e for e in left if e.name not in heads])
        self.forward = forward
        if heads:
            vars(self)["n_head"] = HEADS  # `possible_sizes` reads it


CALLED = ("__call__", "forward", "attend", "apply", "run")  # methods of a plain class that compute its output
TABLES = re.compile(r"(?i)mask|tril|triu|(^|_)cos|(^|_)sin|freq|rope|angle|slope|alibi|cache|position")


class Plain(Closed):
    """An object of a plain class, `SelfAttention(48, 6)` with a `__call__`, as a module that holds its matrices."""

    def __init__(self, thing: Any, method: str):
        super().__init__(getattr(thing, method), {})
        self.kind = type(thing)
        vars(self).update({name: value for name, value in kept_by(thing).items() if type(value) is int})  # its sizes
        for name, value in kept_by(thing).items():
            keep(self, name, value, self.kind.__module__)


def method_of(kind: type) -> str:
    """The method of a plain class that computes its output; "" where there is none."""
    return next((name for name in CALLED if inspect.isfunction(getattr(kind, name, None))), "")


def as_module(thing: Any) -> nn.Module | None:
    """A module as it is, an object of a plain class as a module; None for anything else."""
    if isinstance(thing, nn.Module):
        return thing
    method = method_of(type(thing))
    return Plain(widened(thing, type(thing).__module__), method) if method else None


def widened(value: Any, place: str) -> Any:
    """A value with all its tensors in float64; objects of classes of the file `place` are changed in place."""
    if isinstance(value, nn.Module):
        return value.double()
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if type(value) in (dict, list, tuple):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        made = {key: widened(held, place) for key, held in entries}
        return made if isinstance(value, dict) else type(value)(made.values())
    if type(value).__module__ == place and not isinstance(value, tuple):
        vars(value).update({name: widened(held, place) for name, held in kept_by(value).items()})
    return value


def kept_by(value: Any) -> dict[str, Any]:
    """The attributes of an object, or the fields of a named tuple, by name."""
    return dict(getattr(value, "_asdict", lambda: getattr(value, "__dict__", {}))())


def keep(module: nn.Module, name: str, value: Any, place: str) -> None:
    """Register what an attribute holds: a matrix, a layer, several of them, or another object of the same file."""
    name = name.replace(".", "_").strip("_") or "weight"
    name = f"its_{name}" if hasattr(nn.Module, name) else name
    if isinstance(value, nn.Module):
        module.add_module(name, value)
    if isinstance(value, (nn.Module, Tensor)):
        if isinstance(value, Tensor) and is_matrix(name, value):
            module.register_parameter(name, nn.Parameter(value.detach()))
        return
    entries: dict[str, Any] = {}
    if isinstance(value, Mapping):
        entries = {str(key): held for key, held in value.items()}
    elif type(value) in (tuple, list):
        pair = len(value) == 2 and all(isinstance(held, Tensor) for held in value) and value[1].dim() == 1
        entries = dict(zip(("weight", "bias") if pair else map(str, range(len(value))), value))
    elif type(value).__module__ == place:
        entries = kept_by(value)
    inner = nn.Module()
    for key, held in entries.items():
        keep(inner, key, held, place)
    if [*inner.parameters()]:
        module.add_module(name, inner)


def is_matrix(name: str, value: Tensor) -> bool:
    """Whether a tensor looks learned: not a mask, a table or a constant."""
    if not value.is_floating_point() or value.element_size() != 8 or not value.dim() or TABLES.search(name):
        return False
    return value.dim() < 2 or bool(value.isfinite().all() and ((value != 0) & (value != 1)).any())
