"""Runs the learner's file once, in float64, and finds in it what is checked.

In this order: a usual name (`attention = MyAttention(48, 6)`), an `nn.Module` at module level, a function if the target
has no parameters, a class (a kind for minigpt, for example), a function, lines at the top level. A class is built with
a table of the usual names of arguments. The report says what was checked.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from minigpt.attention import Attention
from minigpt.grading.arguments import CONTEXT, axis_of, value_of
from minigpt.grading.clock import Clock
from minigpt.grading.closed import as_module, closed, given_by_file, given_matrices, given_vectors, method_of
from minigpt.grading.configs import config_argument, configs_for, hidden_widths, is_config, most_configs
from minigpt.grading.lines import Float32
from minigpt.grading.script import script
from minigpt.grading.shown_calls import examples
from minigpt.grading.target import Target
from minigpt.model.config import ModelConfig
from minigpt.system.errors import UserError

ANNOUNCED = ("attention", "answer", "model", "attn", "mine", "solution", "module", "layer")
FUNCTIONS = {
    "running_mean": ("average", "running_mean", "mean", "causal_average"),
    "dot_product": ("dot_product", "attend", "attention"),
    "attention_weights": ("attention_weights", "weights", "attention"),
    "attend": ("attend", "attention", "scaled_dot_product_attention", "sdpa"),
    "norm": ("norm", "layer_norm", "layernorm", "rms_norm", "rmsnorm", "LayerNorm", "RMSNorm"),
    "loss": ("loss", "loss_fn", "cross_entropy", "lm_loss"),
    "linear_attention": ("linear_attention", "linear_attend", "attend", "attention"),
}
ORDER = (
    "D",
    "H",
    "G",
    "d",
    "W",
)  # the sizes for arguments with unknown names, in this order: MyAttention(48, 6)
WIDTHS = (60, 56, 48, 72)  # widths D that are tried for a kind that fails with the target's
FIRST = 70  # width D of the first input of a lazy module, which makes its parameters then
FLOAT32 = "__float32__"  # a key among the names of a file: whether running it made float32 tensors


@dataclass
class Answer:
    """What is checked: a function or a module."""

    thing: Any
    how: str
    """How it was built, for the report."""
    path: Path | None = None
    guessed: bool = False
    """Whether an argument with an unknown name got a guessed size: then it is only wrong if its bug has a name."""
    others: tuple[Callable[[], Answer], ...] = ()
    """Other ways to build it, if it cannot be called when it is built in this way."""
    float32: bool = False
    """Whether float32 tensors were made when it was built; tables of angles often are."""
    clock: Clock = field(default_factory=Clock)
    """The processor time of its check; by default it starts when the answer is built."""
    kept: dict[tuple[object, ...], Any] = field(default_factory=dict)
    """Cached facts about its parameters, which hold for other targets too."""

    @property
    def numbers(self) -> Mapping[str, int]:
        """The whole numbers that the file gives to its constructor, by name."""
        shown = examples(type(self.thing)) if isinstance(self.thing, nn.Module) else []
        return shown[0].numbers if shown and self.how.startswith("checked") else {}


def run_file(path: Path) -> dict[str, Any]:
    """The names that a learner's file defines, and FLOAT32. Raises whatever the file raises: `confined` catches it.

    The source is compiled each time: Python would use the cached bytecode of an earlier check if the file was changed
    within the same second and kept its length.
    """
    name = f"learner_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path}: not a Python file (its name must end in .py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    watch = Float32()
    try:
        with watch:
            exec(compile(path.read_bytes(), str(path), "exec", dont_inherit=True), module.__dict__)
    finally:
        torch.set_default_dtype(default)
    return dict(vars(module)) | {FLOAT32: watch.seen}


def own(value: Any, names: dict[str, Any]) -> bool:
    """Whether a function or class was defined in the learner's file."""
    return getattr(value, "__module__", None) == names.get("__name__")


def find_answer(names: dict[str, Any], target: Target, path: Path | None = None) -> Answer:
    """What the file defines for this target. Raises UserError if there is nothing."""
    answer = offered(names, target, path)
    answer.float32 |= bool(names.get(FLOAT32))
    return answer


def offered(names: dict[str, Any], target: Target, path: Path | None) -> Answer:
    """The first in the order of the module's docstring. Raises UserError if there is nothing."""
    wanted = (*FUNCTIONS.get(target.name, ()), target.name, *ANNOUNCED)
    for name in wanted:
        thing = names.get(name)
        if isinstance(thing, nn.Module):
            complete(thing)
            return Answer(thing, f"checked: `{name}` as the file built it, {type(thing).__name__}", path)
        if own(type(thing), names) and (module := as_module(thing)):
            return Answer(module, f"checked: `{name}` as the file built it, {type(thing).__name__}", path)
    modules = {name: thing for name, thing in names.items() if isinstance(thing, nn.Module) and not layer(thing)}
    if modules and target.roles:
        name, thing = list(modules.items())[-1]
        return Answer(thing, f"checked: `{name}` as the file built it, {type(thing).__name__}", path)
    functions = {name: thing for name, thing in names.items() if inspect.isfunction(thing) and own(thing, names)}
    own_things: list[Any] = [thing for thing in names.values() if inspect.isclass(thing) and own(thing, names)]
    classes = [thing for thing in own_things if issubclass(thing, nn.Module)]
    if not target.roles and (found := choose_function(functions, wanted, target)):
        return Answer(functions[found], f"checked: the function {found}", path)
    if classes and target.roles and (made := made_by_function(functions, classes, target, path)):
        return made
    plain = [] if classes else [thing for thing in own_things if method_of(thing)]
    if plain and not any(named_like(name, target) for name in functions):
        classes = plain
    if classes:
        return build(choose_class(classes, target), target.module or target, path)
    if target.roles and (found := choose_function(functions, wanted, target)):
        own_matrices = with_matrices(functions[found], target)
        how = f"checked: the function {found}" + (", with matrices as its parameters" if own_matrices else "")
        return Answer(own_matrices or functions[found], how, path)
    lines = script(names, path.read_text(encoding="utf-8")) if path and target.takes == ("x",) else None
    if lines is not None and any(True for _ in lines.parameters()) == bool(target.roles):
        return Answer(lines if target.roles else lines.forward, "checked: the lines behind its input", path)
    last = f"{ANNOUNCED[0]} = MyAttention(48, 6)" if target.roles else f"def {wanted[0]}({', '.join(target.takes)})"
    raise UserError(f"nothing to check was found: end the file with a line like `{last}`")


def named_like(name: str, target: Target) -> bool:
    """Whether a function's name is a usual one for the target."""
    return name in (*FUNCTIONS.get(target.name, ()), *ANNOUNCED) or target.name.split("_")[-1] in name.lower()


def layer(thing: nn.Module) -> bool:
    """Whether a module is a single layer of torch, as a script has them at its top level: not a whole answer."""
    return isinstance(thing, (nn.Linear, nn.Embedding, nn.Dropout, nn.LayerNorm, nn.Softmax, nn.ReLU, nn.GELU))


def made_by_function(functions: Mapping[str, Any], classes: list[type[nn.Module]], target: Target,
                     path: Path | None) -> Answer | None:  # fmt: skip
    """The module that a function with the target's name makes, `def block(D=32, H=4): return nn.Sequential(...)`.

    None if a class has that name, or if an argument of the function has no default.
    """
    word = target.name.replace("_", "")
    if any(word in kind.__name__.lower() for kind in classes):
        return None
    for name, function in functions.items():
        optional = all(entry.default is not entry.empty for entry in inspect.signature(function).parameters.values())
        if word in name.lower().replace("_", "") and optional:
            with suppress(Exception):  # the learner's code: anything
                made = in_float64(function)
                if isinstance(made, nn.Module):
                    return Answer(made, f"built: {name}()", path)
    return None


def with_matrices(function: Callable[..., Any], target: Target) -> nn.Module | None:
    """The function as a module that holds the matrices which it reads or takes; None if it has none."""
    if target.name == "norm":
        return given_vectors(function)
    read = partial(given_by_file, function, target)
    return closed(function) or in_float64(read) or given_matrices(function, target)


def choose_function(functions: Mapping[str, Any], wanted: tuple[str, ...], target: Target) -> str:
    """The name of the function to check: a usual one, else the last that takes enough arguments; "" if none does."""
    for name in wanted:
        if name in functions:
            return name
    least = 1 if target.name == "rotary" else len(target.takes)  # takes one of query and key, or both
    fitting = [name for name, thing in functions.items() if not name.startswith("_")
               and len(inspect.signature(thing).parameters) >= least]  # fmt: skip
    whole = [name for name in fitting if target.name == "multi_head" and re.search("(?i)multi|mha", name)]  # not a head
    named = [name for name in fitting if target.name.split("_")[-1] in name.lower()]
    return (whole or named or fitting or [""])[-1]


def choose_class(classes: list[type[nn.Module]], target: Target) -> type[nn.Module]:
    """The class to build: one named like the target, else the last attention; for a block or a model see `wholes`."""
    words = target.name.replace("_", "")
    for kind in classes:
        if words in kind.__name__.lower().replace("_", ""):
            return kind
    if target.name in ("block", "gpt"):
        layers = [kind for kind in classes if re.search("(?i)layer(?!_?norm)", kind.__name__)]
        return (layers if target.name == "block" and layers else wholes(classes) or classes)[-1]
    attentions = [kind for kind in classes if "att" in kind.__name__.lower()]
    return (attentions or classes)[-1]


def wholes(classes: list[type[nn.Module]]) -> list[type[nn.Module]]:
    """The classes that the source of no other class mentions."""
    texts = dict[type[nn.Module], str]()
    for kind in classes:
        with suppress(OSError, TypeError):
            texts[kind] = inspect.getsource(kind)
    return [kind for kind in classes if not any(
        re.search(rf"\b{kind.__name__}\b", text) for other, text in texts.items() if other is not kind)]  # fmt: skip


def build(kind: type[nn.Module], target: Target, path: Path | None) -> Answer:
    """An instance of a class, built by the names of its constructor's arguments. Raises UserError for an unknown name.

    `Answer.others` builds it with another config, with the numbers of the file itself, or with other sizes.
    """
    if issubclass(kind, Attention):
        with_default = partial(build_kind, kind, target, path)
        return in_float64(with_default)
    shown = [partial(as_shown, kind, path, example.text, example.make) for example in examples(kind)]
    try:
        given, guessed = constructor_values(kind, target)
    except UserError:
        if not shown:
            raise
        return shown[0]()
    if guessed and shown:
        return shown[0]()
    names = vars(sys.modules.get(kind.__module__, kind))
    own_numbers = {name: names[name] for name in given if type(names.get(name)) is int}
    optional = [name for name, entry in inspect.signature(kind).parameters.items() if entry.default is not entry.empty]
    few = {name: value for name, value in {**given, **own_numbers}.items() if name not in optional}
    others = [one for one in ({**given, **own_numbers}, few) if one != given and not guessed]
    configs = [constructor_values(kind, target, number)[0] for number in range(1, most_configs(kind, target))]
    wide = [constructor_values(kind, one)[0] for one in resized(target)]
    ways: list[Callable[[], Answer]] = []
    ways += [partial(instance, kind, values, path, guessed) for values in (given, *configs, *others)]
    ways += [*shown, *(partial(instance, kind, values, path, guessed, True) for values in wide)]
    return first_built(kind, ways)


def first_built(kind: type[nn.Module], ways: list[Callable[[], Answer]]) -> Answer:
    """The first instance of a class that can be made, with the other ways to make one. Raises the first error."""
    errors = list[Exception]()
    for number, way in enumerate(ways):
        try:
            made = way()
        except Exception as error:  # the learner's code: anything
            errors.append(error)
            continue
        made.others = tuple(ways[number + 1 :])
        return made
    if any(config_argument(entry) for entry in inspect.signature(kind).parameters.values()):
        raise UserError(f"{kind.__name__} cannot be built with the config of the check, {type(errors[0]).__name__}: "
                        f"{errors[0]}; end the file with a line like `{ANNOUNCED[0]} = {kind.__name__}(config)`"
                        )  # fmt: skip
    raise errors[0]


def resized(target: Target) -> list[Target]:
    """The target with other sizes, for answers that cannot have its own: d / 4 even, or D and d powers of two."""
    if "H" not in target.sizes or target.sizes["H"] == 1 or not target.roles:
        return []
    shared = target.sizes["G"] < target.sizes["H"]
    found = [(10, 5, 16), (8, 2, 32)] if shared else [(5, 5, 16), (4, 4, 32)]
    return [replace(target, sizes={**target.sizes, "D": H * d, "H": H, "G": G, "d": d, "e": d}) for H, G, d in found]


def as_shown(kind: type[nn.Module], path: Path | None, text: str, make: Callable[[], Any]) -> Answer:
    """A module built as a line of its file builds it, `MyAttention(48, 6)` under `__main__`."""
    return finished(make, f"built: {text}, as the file does", path)


def instance(kind: Callable[..., nn.Module], given: dict[str, Any], path: Path | None, guessed: bool = False,
             tried: bool = False) -> Answer:  # fmt: skip
    """A module made with these arguments, in float64; a lazy one is called once, which makes its parameters.

    `tried`: the sizes are not the check's. As with guessed sizes, the answer is only wrong if its bug has a name.
    """
    shown = ", ".join(f"{name}={'Config(...)' if is_config(value) else value}" for name, value in given.items())
    by = "by the order of its arguments" if guessed else "by the names of its arguments" if given else "as it is"
    return finished(lambda: kind(**given), f"built: {kind.__name__}({shown}), {by}", path, guessed or tried)


def finished(make: Callable[[], Any], how: str, path: Path | None, guessed: bool = False) -> Answer:
    """The answer that `make` builds, with all parameters. Raises UserError for an object that cannot be called."""
    watch = Float32()
    with watch:
        made = as_module(in_float64(make))
    if made is None:
        raise UserError("an object that cannot be called was built: give it a method `__call__` that takes x")
    complete(made)
    return Answer(made, how, path, guessed, float32=watch.seen)


def complete(module: nn.Module) -> None:
    """Call a lazy module once: it makes its parameters in its first call."""
    if any(isinstance(one, UninitializedParameter) for one in module.parameters()) or not [*module.parameters()]:
        with suppress(Exception):  # the learner's code: anything
            in_float64(lambda: module(torch.randn(2, 3, FIRST)))  # (2, 3, D)


def in_float64(make: Callable[[], Any]) -> Any:
    """Call `make` while float64 is the default type of new tensors."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return make()
    finally:
        torch.set_default_dtype(default)


def build_kind(kind: type[Attention], target: Target, path: Path | None) -> Answer:
    """A kind for minigpt, with the target's sizes."""
    sizes, options = target.sizes, dict[str, Any]()
    names = set(getattr(kind.Config, "__dataclass_fields__", {}))
    for name, axis in (("n_head", "H"), ("n_kv_head", "G"), ("window", "window")):
        if name in names and axis in sizes:
            options[name] = sizes[axis]
    if "window" in options and target.options.window:
        options["window"] = target.options.window
    from minigpt.attention import Position

    position = "rotary" if target.options.rotary else "alibi" if target.options.alibi else "none"
    config = kind.Config(**options)
    shown = "".join(f", {name}={value}" for name, value in options.items())
    chosen = Position.kinds[position].Config()

    def made(D: int) -> Attention:
        return kind(config, ModelConfig(n_embd=D, block_size=CONTEXT, position=chosen, attention=config))

    width = sizes["D"]
    for D in (sizes["D"], *WIDTHS):  # a kind with a fixed number of heads does not fit every width
        with suppress(Exception):  # the learner's code: anything
            made(D).eval()(torch.randn(2, 3, D))  # (2, 3, D)
            width = D
            break
    return Answer(made(width), f"built: the kind {kind.__name__} with n_embd={width}{shown}, position {position}", path)


def constructor_values(kind: Callable[..., Any], target: Target, number: int = 0) -> tuple[dict[str, Any], bool]:
    """A value for each argument of a constructor, and whether one was guessed from the order of the arguments.

    `number` chooses among the configs, for an argument that takes one. Raises UserError for unknown arguments without a
    default whose values cannot be guessed.
    """
    values, unknown, known = dict[str, Any](), list[str](), set[str]()
    listed = inspect.signature(kind).parameters
    for name, parameter in listed.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        needed = parameter.default is parameter.empty
        found, value = value_of(name, target, needed)
        if found and not config_argument(parameter):
            values[name] = value
            known |= {axis_of(name)}
        elif needed:
            configs = configs_for(kind, parameter, target)
            if configs:
                values[name] = configs[min(number, len(configs) - 1)]
            else:
                unknown.append(name)
    values |= hidden_widths(values, target)
    left = [axis for axis in ORDER if target.sizes.get(axis, 0) > 1 and axis not in known and (
        axis != "G" or target.sizes["G"] < target.sizes["H"])]  # fmt: skip
    if unknown and target.roles and len(unknown) <= min(len(left), 2):
        guessed = dict(zip(unknown, (target.sizes[axis] for axis in left)))
        return {name: {**guessed, **values}[name] for name in listed if name in {**guessed, **values}}, True
    if unknown:
        raise UserError(
            f"{kind.__name__} asks for {', '.join(unknown)}: end the file with a line like "
            f"`{ANNOUNCED[0]} = {kind.__name__}(48, 6)`, so that nothing has to be guessed"
        )
    return values, False


def matrix_shape(parameter: Tensor) -> tuple[int, ...]:
    """The shape (rows, columns): axes of length 1 at the end, as a convolution of width one has, are left out."""
    shape = tuple(parameter.shape)
    while len(shape) > 2 and shape[-1] == 1:
        shape = shape[:-1]
    return shape
