"""Builds a stranger's class: by the names of its arguments, with a config in any form, or as its file builds it.

A config is the file's own class or dict with small sizes, or an object that answers to every usual name; what else the
constructor asks of it is tried by its name, and by the values with which the file compares it.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from minigpt.attention import Attention, Position
from minigpt.checks.learners.closed import MATRIX, as_module
from minigpt.checks.learners.file import SMALL, File, harmless
from minigpt.checks.learners.sizes import CONSTANTS, OTHERS, SIZES, meaning, sizes
from minigpt.model.config import ModelConfig
from minigpt.system.errors import UserError

CONFIGS = re.compile(r"(?i)conf|cfg|args|param|hps|setting|options|spec")  # in names of arguments and of classes
USUAL = ("D", "H", "T", "V", "L", "d", "W", "drop", "bias")  # what a config answers to at once
SWITCHES = re.compile(r"^(use|is|has|do|enable|with|return|output)_|flash|tie|verbose|debug|compile|fast|checkpoint")
LAYERS = ("att", "mlp|feed|ff", "norm", "emb")  # arguments that take a layer, and classes that are one
TYPES = {"Optional|None": None, "Callable": nn.functional.gelu, "float": 1.0, "dtype": torch.float64, "str": "",
         "bool": False}  # fmt: skip
PLAIN = (ast.Constant, ast.Name, ast.Dict, ast.List, ast.Tuple, ast.keyword, ast.Call, ast.BinOp, ast.UnaryOp,
         ast.operator, ast.unaryop, ast.expr_context)  # fmt: skip
MISSING = inspect.Parameter.empty
Maker = Callable[..., Any]  # a class or a function
Attempt = tuple[Callable[[], Any], str, bool]  # what makes it, words for it, whether a size is guessed


@dataclass
class Candidate:
    """Something of a file that can be checked."""

    thing: Any
    """A module in float64 and evaluation mode, or a function."""
    how: str
    name: str
    path: Path
    guessed: bool = False
    """Whether a size had to be guessed from the order of arguments."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """The whole numbers that the file itself gives to its constructor, by name."""
    float32: bool = False
    """Whether float32 tensors would have been made when it was made."""


class Config(dict[str, Any]):
    """A config that answers to the usual names; `asked` is the last name that it could not answer to."""

    def __init__(self, known: Mapping[str, Any], own: Mapping[str, Any]):
        super().__init__(own)
        self.__dict__.update(known=known, asked="")

    def __missing__(self, name: str) -> Any:
        if meaning(name) not in self.known:
            self.__dict__["asked"] = name
            raise KeyError(name)
        return self.setdefault(name, self.known[meaning(name)])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or (name not in self and self.__dict__.update(asked=name) is None):
            raise AttributeError(f"the config of the check has no {name!r}")
        return self[name]

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or meaning(str(name)) in self.known

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401  (it may be missing, and known)

    __setattr__ = dict.__setitem__


def typed_as(annotation: Any) -> str:
    """The name of the class that an argument is said to have."""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")


def signature(kind: Maker) -> inspect.Signature:
    """The arguments of a function or a constructor; of one that hands all on, those of the class above it."""
    for one in [kind, *getattr(kind, "__mro__", ())[1:]]:
        arguments = inspect.signature(one)
        entries = list(arguments.parameters.values())
        if {entry.kind for entry in entries} != {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
            return arguments
    return inspect.signature(kind)


@dataclass(frozen=True)
class Builder:
    """Builds classes of one file with the same sizes. `wants`: words that say what is looked for."""

    file: File
    sizes: Mapping[str, int]
    wants: str = ""

    @property
    def known(self) -> dict[str, Any]:
        """The value for each meaning of a name."""
        return {**CONSTANTS, **self.sizes, "causal": "full" not in self.wants}

    def axis(self, name: str, others: set[str]) -> str:
        """What an argument means among others."""
        axis, wide = meaning(name), [one for one in others - {name} if meaning(one) == "D"]
        if axis == "d" and len(name) == 1 and not {meaning(one) for one in others} & {"D", "H"} and "D" not in {
            meaning(one) for one, value in self.file.names.items() if type(value) is int
        }:  # fmt: skip
            return "D"  # MLP(d), where there are no heads
        if axis == "D" and wide and "hid" in name.lower():
            return "W"
        return "" if axis == "D" and len(name) == 1 and any(len(one) > 1 for one in wide) else axis

    def sets(self, entry: inspect.Parameter) -> bool:
        """Whether an argument with a default is set all the same: a size, not a feature that is off."""
        axis = meaning(entry.name)
        if "Module" in str(entry.annotation) or isinstance(entry.default, str):
            return False
        if axis in ("G", "window", "d"):
            asked = {"G": "group", "window": "window"}.get(axis, "-") in self.wants
            return asked or (type(entry.default) is int and entry.default > 0)
        return axis in ("D", "H", "T", "V", "L", "W", "drop", "bias", "causal", "B")

    def arguments(self, kind: Maker, optional: bool = True, number: int = 0) -> tuple[dict[str, Any], list[str]]:
        """A value for each argument that is known, and the needed ones that are not. `number`: of the config."""
        values, unknown, listed = dict[str, Any](), list[str](), signature(kind).parameters
        constants = dict[str, Any]()
        for node in (node for node in self.file.nodes if isinstance(node, ast.Call)):
            for name, constant in ((one.arg or "", one.value) for one in node.keywords):
                value = getattr(constant, "value", MISSING) if isinstance(constant, ast.Constant) else MISSING
                flag = type(value) is bool and name in listed and type(listed[name].default) is bool
                if flag or (value is not MISSING and getattr(node.func, "id", "") == kind.__name__):
                    constants[name] = value
        for name, entry in listed.items():
            if entry.kind in (entry.VAR_POSITIONAL, entry.VAR_KEYWORD):
                continue
            needed, axis = entry.default is MISSING, self.axis(name, set(listed))
            if needed and (configs := self.configs(entry)):
                values[name] = next(self.working(configs[min(number, len(configs) - 1) :]))
            elif axis in self.known and (needed or (optional and self.sets(entry))):
                values[name] = self.known[axis]
            elif name in constants and (needed or optional):  # by another class of the file, Attention(nx, scale=True)
                values[name] = constants[name]
            elif optional and entry.default is False and "scale" in name:
                values[name] = True  # the scores are scaled if it is asked for, as in Attention(nx, scale=False)
            elif needed and (value := self.guess(name, entry.annotation)) is not MISSING:
                values[name] = value
            elif needed:
                unknown.append(name)
        return values, unknown

    def configs(self, entry: inspect.Parameter) -> list[Callable[[], Any]]:
        """The ways to make the config that an argument takes, the likeliest first; [] where it takes none."""
        typed = typed_as(entry.annotation)
        own = [one for one in self.file.own(inspect.isclass).values() if not issubclass(one, nn.Module)]
        takes = any(CONFIGS.search(text) for text in (entry.name, typed)) and not meaning(entry.name)
        classes = [one for one in own if one.__name__ == typed]
        classes = classes or [one for one in own if takes and CONFIGS.search(one.__name__)]
        if takes and not classes and inspect.isclass(entry.annotation) and CONFIGS.search(typed):
            classes = [entry.annotation]  # of another file
        dicts = [value for value in self.file.names.values() if type(value) is dict and not classes
                 and any(meaning(str(key)) in ("D", "H") for key in value)]  # fmt: skip
        small = [{key: self.sizes.get(meaning(str(key)), value) if type(value) is int else value
                  for key, value in one.items()} for one in dicts]  # fmt: skip
        more = [axis for axis, word in (("window", "window"), ("G", "group")) if word in self.wants]
        usual = {axis: self.known[axis] for axis in (*USUAL, *more)}
        makers: list[Callable[[], Any]] = [*(partial(self.own_config, one) for one in classes),
                                         *(partial(Config, usual, one) for one in (*small, {}))]  # fmt: skip
        return makers if classes or takes else []

    def working(self, makers: list[Callable[[], Any]]) -> Iterator[Any]:
        """Yields the configs that can be made."""
        for make in makers:
            with suppress(Exception):  # the learner's code: anything
                yield make()

    def own_config(self, kind: type) -> Any:
        """The file's own config, with small values for the sizes."""
        listed = inspect.signature(kind).parameters.values()
        if any(one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) for one in listed):
            values, unknown = self.arguments(kind)
            return kind(**values, **dict.fromkeys(unknown))
        config = kind()
        for name in [one for holder in (kind, config) for one in vars(holder) if not one.startswith("_")]:
            if type(getattr(config, name)) is int and meaning(name) in self.sizes:
                with suppress(AttributeError):
                    setattr(config, name, self.sizes[meaning(name)])
        return config

    def guess(self, name: str, annotation: Any = "") -> Any:
        """A value for what has no usual name, by the file's classes and comparisons, and by types; or MISSING."""
        typed, plain = typed_as(annotation), name.lower()
        classes = {key: one for key, one in self.file.own(inspect.isclass).items() if issubclass(one, nn.Module)}
        words = next((words for words in LAYERS if re.search(words, plain)), None) if not meaning(name) else None
        for key, one in reversed(classes.items()):
            if key == typed or (words and re.search(words, key.lower()) and typed not in ("int", "float")):
                with suppress(Exception):  # the learner's code: anything
                    return one(**self.arguments(one)[0])
        if typed == "Module" and (layer := re.search(r"^(q|k|v|o)[a-z]*_?(proj\w*|linear|layer)?$", plain)):
            D, d = self.sizes["D"], self.sizes["d"]
            inner = d * self.sizes["G" if layer[1] in "kv" else "H"]
            return nn.Linear(inner, D, bias=False) if layer[1] == "o" else nn.Linear(D, inner, bias=False)
        if typed == "Module":
            return nn.Identity()
        for node in self.file.nodes:
            left = node.left if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is | ast.IsNot) else node
            if left is not node and name == getattr(left, "attr", getattr(left, "id", "")):
                return None
        if SWITCHES.search(plain):
            return False
        if MATRIX.search(name) and typed in ("", "_empty", "Tensor"):
            return torch.randn(self.sizes["D"], self.sizes["D"])
        for node in self.file.nodes:  # config.kind == "rope"
            sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            if name in [getattr(one, "attr", getattr(one, "id", "")) for one in sides]:
                for one in [inner for side in sides for inner in ast.walk(side)]:
                    if isinstance(one, ast.Constant) and isinstance(one.value, (str, float)):
                        return one.value
        return next((value for words, value in TYPES.items() if re.search(words, f"{annotation} {typed}")), MISSING)

    def make(self, kind: Maker, values: Mapping[str, Any]) -> Any:
        """An instance. Where a config lacks what the constructor asks for, it is guessed, and tried again."""
        configs = [value for value in values.values() if isinstance(value, Config)]
        for _ in range(12):
            try:
                return kind(**values)
            except (AttributeError, KeyError):
                if not configs or not (asked := configs[0].__dict__["asked"]):
                    raise
                value = self.known.get(meaning(asked), self.guess(asked))
                usual = 2 if re.search(r"^(n|num|max)_", asked) else 1.0 if re.search("scale|factor", asked) else False
                configs[0][asked] = usual if value is MISSING else value
                configs[0].__dict__["asked"] = ""
        return kind(**values)


def builds(kind: type, file: File, wants: str = "", most: int = SMALL) -> Iterator[Candidate]:
    """Yields the instances of a class that can be made, the likeliest first. Raises the first error if none can."""
    errors, is_built, seen = list[Exception](), False, set[str]()
    for make, how, guessed in of_ours(kind, wants) if issubclass(kind, Attention) else attempts(kind, file, wants):
        if how not in seen:
            seen.add(how)
            try:
                yield finished(make, how, kind.__name__, file, guessed, most)
                is_built = True
            except Exception as error:  # the learner's code: anything
                errors.append(error)
    if not is_built and errors:
        if isinstance(errors[0], TypeError | KeyError | AttributeError) and not isinstance(errors[0], UserError):
            problem = f"{kind.__name__} could not be built ({type(errors[0]).__name__}: {errors[0]})"
            example = f"end the file with a line like `attention = {kind.__name__}(48, 6)`"
            raise UserError(f"{problem}: {example}") from errors[0]
        raise errors[0]


def attempts(kind: type, file: File, wants: str) -> Iterator[Attempt]:
    """Yields the ways to make an instance."""
    usual = Builder(file, file.sizes(), wants)
    if "multi" in wants:
        usual = Builder(file, {**usual.sizes, "G": usual.sizes["H"]}, wants)
    values, unknown = usual.arguments(kind)

    def by_names(builder: Builder, optional: bool = True, number: int = 0, guesses: Mapping[str, int] = {}) -> Attempt:
        values = {**builder.arguments(kind, optional, number)[0], **guesses}
        plain = {name: value if isinstance(value, (int, float, str)) else f"{type(value).__name__}(...)"
                 for name, value in values.items()}  # fmt: skip
        listing = ", ".join(f"{name}={value}" for name, value in plain.items())
        how = f"built: {kind.__name__}({listing})" + (", guessed" if guesses else "")
        return partial(builder.make, kind, values), how, bool(guesses)

    in_file = [(make, f"built: {text}, as the file does", False) for text, make, _ in examples(kind, file)]
    if not unknown:
        configs = max((len(usual.configs(one)) for one in signature(kind).parameters.values()), default=0)
        yield from (by_names(usual, number=number) for number in range(max(configs, 1)))
    yield from in_file[:4]
    if not unknown:
        yield by_names(usual, optional=False)
        without = {axis: size for axis, size in usual.sizes.items() if axis != "window"}
        yield by_names(Builder(file, without, wants)) if "window" not in wants else by_names(usual, optional=False)
        yield from (by_names(Builder(file, {**usual.sizes, **sizes(*other)}, wants)) for other in OTHERS)
    axes = [axis for axis in "DHGdT" if axis not in {meaning(name) for name in values}]
    for order in (axes, [*axes[1:2], *axes[:1], *axes[2:]]) if 0 < len(unknown) <= 3 else ():
        for number in range(max(1, *(len(usual.configs(one)) for one in signature(kind).parameters.values()))):
            yield by_names(usual, number=number, guesses=dict(zip(unknown, (usual.sizes[axis] for axis in order))))
    if len(unknown) > 3 and not in_file:
        raise UserError(f"{kind.__name__} asks for {', '.join(unknown)}: end the file with a line like "
                        f"`attention = {kind.__name__}(48, 6)`, so that nothing has to be guessed")  # fmt: skip


def finished(make: Callable[[], Any], how: str, name: str, file: File, guessed: bool, most: int = SMALL) -> Candidate:
    """A candidate: what `make` builds, in float64 and evaluation mode. A lazy module is called for its parameters."""
    with harmless(most, file.path.resolve().parent) as mild:
        module = as_module(make())
    if module is None:
        raise UserError("an object that cannot be called was built: give it a method `__call__` that takes x")
    if any(isinstance(one, UninitializedParameter) for one in module.parameters()) or not [*module.parameters()]:
        with suppress(Exception), harmless():  # the learner's code: anything
            module(torch.randn(2, 3, SIZES["D"]))  # (2, 3, D)
    calls = examples(type(getattr(module, "of", module)), file)
    return Candidate(module.double().eval(), how, name, file.path, guessed, calls[0][2] if calls else {},
                     mild.float32 or file.float32)  # fmt: skip


def of_ours(kind: type[Attention], wants: str) -> Iterator[Attempt]:
    """Yields the ways to build a kind for minigpt; one with a fixed number of heads does not fit every width."""
    position = next((one for one in ("rotary", "alibi") if one in wants), "none")
    window = re.search(r"window=(\d+)", wants)

    def make(options: Mapping[str, Any], D: int) -> Attention:
        config = kind.Config(**options)
        of_position = Position.kinds[position].Config()
        attention = kind(config, ModelConfig(n_embd=D, block_size=SIZES["T"], position=of_position, attention=config))
        attention.eval()(torch.randn(2, 3, D))  # (2, 3, D)
        return attention

    for D, H, G in ((48, 6, 3 if "group" in wants else 6), *OTHERS, (60, 5, 5), (56, 7, 7), (72, 6, 6)):
        known = {"n_head": H, "n_kv_head": G, "window": int(window[1]) if window else 0}
        names = getattr(kind.Config, "__dataclass_fields__", {})
        options = {name: value for name, value in known.items() if name in names and value}
        listing = "".join(f", {name}={value}" for name, value in options.items())
        how = f"built: the kind {kind.__name__} with n_embd={D}{listing}, position {position}"
        yield partial(make, options, D), how, False


def examples(kind: type, file: File) -> list[tuple[str, Callable[[], Any], Mapping[str, int]]]:
    """The calls of a class in its file, `MyAttention(48, 6)`, also below `__main__`, the last first.

    Each with what makes the instance, and the whole numbers that it is given, by the names of arguments and the keys of
    dicts. Only calls that hold nothing but numbers, dicts and names of the file.
    """
    names, calls = dict(file.names), list[tuple[str, Callable[[], Any], Mapping[str, int]]]()
    for statement in statements(file.tree.body) if f"{kind.__name__}(" in file.text else ():
        for call in ast.walk(statement):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == kind.__name__ and plain(call, names):
                taken = list[tuple[Any, Any]]()
                with suppress(Exception), harmless(SMALL):  # the learner's code: anything
                    noting = partial(lambda taken, *args, **more: taken.append((args, more)), taken)
                    eval(compile(ast.Expression(call), "<example>", "eval"), {**names, kind.__name__: noting})
                    arguments = inspect.signature(kind).bind(*taken[0][0], **taken[0][1]).arguments
                    numbers = {str(key): number for name, value in arguments.items() for key, number in (
                        value if isinstance(value, dict) else getattr(value, "__dict__", {name: value})).items()
                        if type(number) is int}  # fmt: skip
                    calls.append((ast.unparse(call), partial(kind, *taken[0][0], **taken[0][1]), numbers))
        if isinstance(statement, ast.Assign) and statement not in file.tree.body and plain(statement.value, names):
            with suppress(Exception), harmless(SMALL):  # the learner's code: anything
                exec(compile(ast.Module([statement], []), "<example>", "exec"), names)
    return calls[::-1]


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements outside of functions and classes, and those in functions without arguments (`main`)."""
    for one in body:
        if isinstance(one, (ast.If, ast.With, ast.For, ast.Try)):
            yield from statements(one.body)
        elif isinstance(one, ast.FunctionDef):
            yield from statements(one.body) if not one.args.args else ()
        elif not isinstance(one, ast.ClassDef):
            yield one


def plain(value: ast.expr, names: Mapping[str, Any]) -> bool:
    """Whether an expression holds only numbers, dicts, lists, names, and calls of classes that the file knows."""
    called = [getattr(node.func, "id", "") for node in ast.walk(value) if isinstance(node, ast.Call)]
    known = all(name in ("dict", "SimpleNamespace", "Namespace") or inspect.isclass(names.get(name)) for name in called)
    return known and all(isinstance(node, PLAIN) for node in ast.walk(value))
