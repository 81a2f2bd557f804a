"""A function, a script or an object of a plain class as a module: the matrices that it uses are the parameters.

The parameters share memory with the tensors, so that they can be followed, and overwritten with known numbers.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.checks.learners.file import File, harmless
from minigpt.checks.learners.sizes import SIZES, meaning

MATRIX, VECTOR = re.compile(r"(?i)^w_?[qkvo\d]*$|^w_|weight|proj|matri"), re.compile(r"(?i)^b_?[qkvo\d]*$|^b_|bias")
SCALES = re.compile(r"(?i)^b|bias|beta|shift|weight|gain|gamma|^g$|scale$")  # vectors of a norm
HOLDS = re.compile(r"(?i)^(p|w|ps|ws)$|param|weight|theta")  # an argument that takes all matrices at once
MAKERS = re.compile("init|make|create|build|new|random|params|weights")
CALLED = ("__call__", "forward", "attend", "apply", "run")  # methods of a plain class that compute its output
DOES = re.compile(r"(?i)rot|rope|atten|attend|mean")  # what else a class without them may do by its only method
CONSTANT = re.compile(r"(?i)mask|tril|triu|(^|_)cos|(^|_)sin|freq|rope|angle|slope|alibi|cache|position")
INPUTS = ("randn", "rand", "ones", "zeros", "normal", "tensor")  # torch's functions that make an input
LINES = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.If)


class Closed(nn.Module):
    """A callable whose matrices are parameters of a module. `place`: the Python module in which it was defined."""

    def __init__(self, function: Callable[..., Any], tensors: Mapping[str, Any], place: str, bare: bool = True):
        super().__init__()
        vars(self).update(of=function, place=place, forward=function)
        for name, value in tensors.items():
            hold(self, name, value, place, bare)


def hold(module: nn.Module, name: str, value: Any, place: str, bare: bool) -> None:
    """Register a tensor, a layer, all in a dict, list or tuple, or in another object of the same file.

    `bare`: every tensor is a parameter, else only what looks learned. A pair with a vector is a weight and its bias.
    """
    name = name.replace(".", "_").strip("_") or "weight"
    name = f"its_{name}" if hasattr(nn.Module, name) else name
    entries: Mapping[Any, Any] = {}
    if isinstance(value, nn.Module):
        module.add_module(name, value)
    elif isinstance(value, Tensor):
        learned = value.is_floating_point() and value.dim() and not CONSTANT.search(name) and (
            value.dim() < 2 or bool(value.isfinite().all() and ((value != 0) & (value != 1)).any()))  # fmt: skip
        if bare or learned:
            module.register_parameter(name, nn.Parameter(value.detach(), requires_grad=value.is_floating_point()))
    elif isinstance(value, Mapping):
        entries = value
    elif type(value) in (tuple, list):
        pair = len(value) == 2 and all(isinstance(one, Tensor) for one in value) and value[1].dim() == 1
        entries = dict(zip(("weight", "bias") if pair else range(len(value)), value))
    elif type(value).__module__ == place:
        entries = fields_of(value)
    inner = nn.Module()
    for key, one in entries.items():
        hold(inner, str(key), one, place, bare)
    if any(True for _ in inner.parameters()):
        module.add_module(name, inner)


def fields_of(value: Any) -> dict[str, Any]:
    """The attributes of an object, or the fields of a named tuple, by name."""
    return dict(getattr(value, "_asdict", lambda: getattr(value, "__dict__", {}))())


def tensors_in(value: Any) -> list[Tensor]:
    """All floating-point tensors in a value; [] if it holds anything else."""
    if isinstance(value, Tensor):
        return [value] if value.is_floating_point() else []
    inside = list(value.values()) if isinstance(value, Mapping) else list(value) if type(value) in (tuple, list) else []
    tensors = [tensors_in(one) for one in inside]
    return [tensor for one in tensors for tensor in one] if all(tensors) else []


def as_module(thing: Any) -> nn.Module | None:
    """A module as it is, an object of a plain class as a module; None for anything else."""
    if isinstance(thing, nn.Module) and type(thing).forward is nn.Module.forward and "forward" not in vars(thing):
        vars(thing).update(forward=getattr(thing, method_of(type(thing)) or "forward"))
    if isinstance(thing, nn.Module) or not (method := method_of(type(thing))):
        return thing if isinstance(thing, nn.Module) else None
    widen(thing, type(thing).__module__)
    module = Closed(getattr(thing, method), fields_of(thing), type(thing).__module__, bare=False)
    numbers = {name: value for name, value in fields_of(thing).items() if type(value) is int
               and not hasattr(module, name)}  # fmt: skip
    vars(module).update(numbers, of=thing)
    return module


def method_of(kind: type) -> str:
    """The method of a class that computes its output: one with a usual name, or the only one that no other calls."""
    usual = [name for name in CALLED if inspect.isfunction(one := getattr(kind, name, None))
             and one is not getattr(nn.Module, name, None)]  # fmt: skip
    own = {name: one for name, one in vars(kind).items() if inspect.isfunction(one) and not name.startswith("_")}
    called = {name for one in own.values() for name in one.__code__.co_names}
    only = [name for name in own if name not in called]
    fits = len(only) == 1 and DOES.search(f"{kind.__name__} {only[0]}")
    return next(iter(usual), only[0] if fits else "")


def widen(value: Any, place: str) -> Any:
    """A value with all its tensors in float64; objects of the file's own classes are changed in place."""
    if isinstance(value, (nn.Module, Tensor)):
        return value.double() if isinstance(value, nn.Module) or value.is_floating_point() else value
    if type(value) in (dict, list, tuple):
        wide = {key: widen(one, place) for key, one in (value.items() if isinstance(value, dict) else enumerate(value))}
        return wide if isinstance(value, dict) else type(value)(wide.values())
    if type(value).__module__ == place and not isinstance(value, (tuple, type)) and hasattr(value, "__dict__"):
        vars(value).update({name: widen(one, place) for name, one in fields_of(value).items()})
    return value


def forms_of(function: Callable[..., Any], file: File) -> Iterator[tuple[nn.Module, str]]:
    """Yields the modules that a function makes with matrices, and where it has them from."""
    defaults = {one.name: one.default for one in inspect.signature(function).parameters.values()
                if one.default is not one.empty}  # fmt: skip
    values = defaults | {name: file.names[name] for name in function.__code__.co_names if name in file.names}
    several = {name: tensors_in(value) for name, value in values.items()}
    holders = {id(values[name]): name for name, each in reversed(several.items()) if any(one.dim() > 1 for one in each)}
    if holders and all(one.element_size() == 8 for name in holders.values() for one in several[name]):
        yield (Closed(function, {name: values[name] for name in holders.values()}, file.module.__name__),
               "with the matrices that it reads")  # fmt: skip
    with suppress(Exception):  # the learner's code: anything
        if module := with_made(function, file):
            yield module, "with the matrices that its file makes"
    if module := with_given(function, file):
        yield module, "with matrices as arguments"


def bound(function: Callable[..., Any], arguments: Mapping[str, Any], tensors: Mapping[str, Any], file: File) -> Closed:
    """A module of a function of which some arguments are given; `forward` takes the others."""
    signature, module = inspect.signature(function), Closed(function, tensors, file.module.__name__)

    def forward(*args: Any, **kwargs: Any) -> Any:
        now = {name: getattr(module, name, value) if isinstance(value, Tensor) else value
               for name, value in arguments.items()}  # fmt: skip
        whole = signature.bind(**{**now, **left.bind(*args, **kwargs).arguments})
        return function(*whole.args, **whole.kwargs)  # torch.vmap maps positional arguments only

    left = signature.replace(parameters=[one for one in signature.parameters.values() if one.name not in arguments])
    vars(forward)["__signature__"] = left
    sizes = {f"n_{name}": value for name, value in arguments.items() if type(value) is int}
    vars(module).update(sizes, forward=forward)
    return module


def with_given(function: Callable[..., Any], file: File) -> nn.Module | None:
    """A function of x and of square matrices, `attend(x, Wq, Wk, Wv, Wo, n_head)`, or a norm of x and of vectors.

    An argument whose default is None gets a vector too, if it has the name of a weight or a bias. None if an argument
    is unknown.
    """
    sizes, drawn = {"D": 24, "H": 4, "d": 6, "window": SIZES["window"]}, torch.Generator().manual_seed(0)
    listed = list(inspect.signature(function).parameters.values())
    needed = [one.name for one in listed if one.default is one.empty]
    square, arguments = sum(bool(MATRIX.search(name)) for name in needed) > 1, dict[str, Any]()
    for one in listed if square else listed[1:]:
        if one.name in needed and square and MATRIX.search(one.name):
            arguments[one.name] = torch.randn(sizes["D"], sizes["D"], dtype=torch.float64, generator=drawn)
        elif (one.name in needed and VECTOR.search(one.name)) or (SCALES.search(one.name) and not square
              and one.default in (None, one.empty)):  # fmt: skip
            arguments[one.name] = torch.ones(sizes["D"], dtype=torch.float64)
        elif one.name in needed and meaning(one.name) in sizes:
            arguments[one.name] = sizes[meaning(one.name)]
    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    left = [name for name in needed if name not in arguments]
    fits = tensors and left and (square or (len(left) == 1 and len(tensors) < 3))
    return bound(function, arguments, tensors, file) if fits else None


def with_made(function: Callable[..., Any], file: File) -> nn.Module | None:
    """A function of x and of the matrices that another function of its file makes, `attend(params, x)`.

    Sizes get usual values by their names, and a seed is 0. None if there is no such function.
    """
    listed, text = inspect.signature(function).parameters.values(), inspect.getsource(function)
    taken = [one.name for one in listed if HOLDS.search(one.name)]
    for maker in [one for name, one in file.own(inspect.isfunction).items() if MAKERS.search(name.lower()) and taken]:
        sizes = file.sizes()
        heads = {one.name: sizes["H"] for one in listed if meaning(one.name) == "H" and one.default is one.empty}
        needed = [name for name, one in inspect.signature(maker).parameters.items() if one.default is one.empty]
        sizes["d"] = sizes["d"] if any(meaning(name) in ("D", "H") for name in needed) else sizes["D"]
        with suppress(Exception), harmless():  # the learner's code: anything
            matrices = maker(**{name: torch.Generator().manual_seed(0) if re.search("^g$|^key$|gen|rng", name.lower())
                            else sizes.get(meaning(name), 0) for name in needed})  # fmt: skip
            own = type(matrices).__module__ == file.module.__name__
            named = fields_of(matrices) if own else matrices if isinstance(matrices, Mapping) else {}
            read = {name: value for name, value in named.items() if name in text}  # others are for other functions
            named = read or named
            several = [tensor for value in named.values() for tensor in tensors_in(value)]
            if several and all(tensor.element_size() == 8 for tensor in several):
                return bound(function, {taken[0]: matrices, **heads}, named, file)
    return None


def script_of(file: File) -> nn.Module | None:
    """The lines behind an input, x = torch.randn(B, T, C) or q, k, v = ..., as a module; None where there are none.

    They run again for every input; B, T and C are then the sizes of that input. Layers and matrices that earlier lines
    make are parameters.
    """
    body, names, inputs = [one.node for one in file.statements], file.names, list[tuple[str, list[str], int]]()
    file.run([one for one in file.statements if ".backward" not in ast.unparse(one.node)])
    for number, line in enumerate(body):
        pairs: list[Any] = [(line.targets[0], line.value)] if isinstance(line, ast.Assign) else []
        if pairs and all(isinstance(one, ast.Tuple) for one in pairs[0]):
            pairs = list(zip(*(one.elts for one in pairs[0])))
        for target, value in pairs:
            x = names.get(getattr(target, "id", ""))
            if isinstance(x, Tensor) and x.dim() > 1 and x.is_floating_point() and isinstance(value, ast.Call) and \
                    ast.unparse(value.func) in [f"torch.{word}" for word in INPUTS]:  # fmt: skip
                inputs.append((target.id, [getattr(one, "id", "") for one in value.args], number))
    letters = {one[0].lower()[0]: one for one in inputs[::-1]}
    entries = [letters[letter] for letter in "qkv"] if set("qkv") <= set(letters) else inputs[:1]
    if not entries:
        return None
    lines: list[ast.stmt] = []
    for line in body[entries[-1][2] + 1 :]:
        layers = any(isinstance(names.get(name), nn.Module) for name in stored(line))
        lines += [line] if isinstance(line, LINES) and not layers and ".backward" not in ast.unparse(line) else []
    x, later = names[entries[0][0]], {name for line in lines for name in stored(line)}
    last = [name for line in lines if isinstance(line, ast.Assign) for name in stored(line) if isinstance(
        y := names.get(name), Tensor) and y.dim() == x.dim() and y.shape[:-1] == x.shape[:-1]]  # fmt: skip
    if not last:
        return None
    code, before = compile(ast.Module(lines, []), str(file.path), "exec"), dict(names)

    def forward(*args: Tensor, **kwargs: Tensor) -> Any:
        namespace = dict(before)
        for (name, sizes, _), one in zip(entries, [*args, *(kwargs[name] for name, *_ in entries[len(args) :])]):
            namespace |= {name: one} | {size: n for size, n in zip(sizes, one.shape) if size}
        exec(code, namespace)
        return namespace[last[-1]]

    vars(forward)["__signature__"] = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name, *_ in entries])  # fmt: skip
    used = {one.id for line in lines for one in ast.walk(line) if isinstance(one, ast.Name)} - later
    held = {name: value for name, value in before.items() if name in used and (isinstance(value, nn.Module) or (
        MATRIX.search(name) and isinstance(value, Tensor) and value.dim() == 2))}  # fmt: skip
    return Closed(forward, held, file.module.__name__)


def stored(line: ast.AST) -> list[str]:
    """The names that a line assigns."""
    return [one.id for one in ast.walk(line) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]
