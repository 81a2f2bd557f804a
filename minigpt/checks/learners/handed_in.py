"""What a file hands in: everything in it that can be checked, the likeliest first.

    for candidate in candidates(Path("mine.py"), "multi_head"):
        for way in ways(candidate.thing, ("x",)): ...

In this order: a usual name (`attention = MyAttention(48, 6)`), other instances at the top level, classes, functions,
lines at the top level. Every class and function is offered; what is looked for only decides on the order.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from torch import nn

from minigpt.checks.learners.build import Candidate, builds, finished
from minigpt.checks.learners.closed import as_module, forms_of, method_of, script_of
from minigpt.checks.learners.file import MOST, SMALL, File, TooLarge, base, is_wide
from minigpt.checks.learners.sizes import meaning
from minigpt.system.errors import UserError

ANNOUNCED = ("attention", "answer", "model", "attn", "mine", "solution", "module", "layer", "mha")
LAYERS = (nn.Linear, nn.Embedding, nn.Dropout, nn.LayerNorm, nn.Softmax, nn.ReLU, nn.GELU)  # torch's, no whole answer
WANTED = {  # what a name of a class or function has in it, the surest first
    "multi_head": ("multi|mha", "self_?att|causal|grouped|gqa", "att"), "grouped_query": ("group|gqa|mqa|kv", "att"),
    "single_head": ("single|one_?head|^head", "att|head"), "block": ("block|layer(?!_?norm)|decoder",),
    "gpt": ("gpt|transformer|model|lm$",), "mlp": ("mlp|feed|ffn?|swiglu|gated",), "norm": ("norm",),
    "loss": ("loss|entropy|nll",), "running_mean": ("average|mean",), "dot_product": ("dot", "score", "att"),
    "attention_weights": ("weight", "att"), "attend": ("attend", "att|sdpa|dot_?product"),
    "rotary": ("rot|rope", "pos"),
    "linear_attention": (r"linear(?!$)|lin_?att|kernel|efficient|retention|delta|recurrent", "att"),
}  # fmt: skip
FUNCTIONS = ("running_mean", "dot_product", "attention_weights", "attend", "loss", "rotary", "norm", "linear_attention")
RUNS = re.compile(
    r"^(main|train|test|run(?!ning)|demo|check|plot|load|eval|generate|download|bench|sample|get_batch|fit|show)"
)
MOST_BUILDS = 40


def candidates(path: Path, wants: str = "", only: str = "") -> Iterator[Candidate]:
    """Yields what a file hands in, best first. Raises UserError, or what the file raised, if there is nothing.

    `wants`: what is looked for, as for `check.py --as`; it decides on the order. First each thing in its likeliest way,
    with the file's own sizes made small if they are large; then in other ways; last what is large. `only`: the name of
    one thing, which may be imported.
    """
    none, large, errors = True, False, list[Exception]()
    for small, most in ((True, SMALL), (False, SMALL), (False, MOST)):
        if (small and not is_wide(path)) or (most == MOST and not large):
            continue
        file = File(path, small)
        late = list[Iterator[Candidate]]()
        for ways in one_thing(file, only, wants, most) if only else things(file, wants, most):
            try:
                first = list(islice(ways, 1))
            except Exception as error:  # the learner's code: anything
                large = large or isinstance(error, TooLarge)
                errors.append(error)
                continue
            none = none and not first
            yield from first
            late += [ways] * len(first)
        for ways in late:
            with suppress(Exception):  # the learner's code: anything
                yield from islice(ways, MOST_BUILDS // len(late) + 1)
    if none:
        raise next(iter([*errors, *file.errors.values()]), UserError(
            "nothing to check was found: end the file with a line like `attention = MyAttention(48, 6)`"))  # fmt: skip


def things(file: File, wants: str, most: int) -> Iterator[Iterator[Candidate]]:
    """Yields, for each thing of a file, the ways to build it."""
    names = [name for name in file.assigned() if not name.startswith("_")]
    first = [name for name in (wants.split(",")[0], *ANNOUNCED) if name in names]
    functions = file.own(inspect.isfunction)
    classes = file.own(lambda value: inspect.isclass(value)
                       and (issubclass(value, nn.Module) or bool(method_of(value))))  # fmt: skip
    modules = {name: one for name, one in classes.items() if issubclass(one, nn.Module)}
    plain = {name: one for name, one in classes.items() if name not in modules}
    offered = sorted(ordered(functions, wants), key=lambda name: not makes(functions[name]))
    of_functions = [of_function(file, name, wants) for name in offered]
    before = not modules or (wants.split(",")[0] in FUNCTIONS and any(named(name, wants) for name in functions))
    yield from (instance(file, name, most) for name in first)
    yield from (instance(file, name, most) for name in names[::-1] if name not in first
                and made_by(file, name, {*classes, "nn"}))  # fmt: skip
    yield from of_functions if before else ()
    for some in (modules, plain):
        yield from (builds(some[name], file, wants, most) for name in ordered(some, wants))
    yield from () if before else of_functions
    yield of_script(file)


def one_thing(file: File, name: str, wants: str, most: int) -> Iterator[Iterator[Candidate]]:
    """Yields the ways to build the thing of a name. Raises UserError if the file has none."""
    if name in file.errors:
        raise file.errors[name]
    if (value := file.names.get(name)) is None:
        names = list(dict.fromkeys([*file.own(inspect.isclass), *file.own(inspect.isfunction), *file.assigned()]))
        near = "".join(f" (did you mean {one}?)" for one in get_close_matches(name, names, 1))
        raise UserError(f"{file.path.name} has no {name}{near}; it has: {', '.join(names) or 'nothing'}")
    if inspect.isclass(value):
        yield builds(value, file, wants, most)
    else:
        yield of_function(file, name, wants) if inspect.isfunction(value) else instance(file, name, most)


def named(name: str, wants: str) -> int:
    """How well a name fits what is looked for: the larger the better, 0 for not at all."""
    words = WANTED.get(wants.split(",")[0], ())
    plain = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return next((len(words) - i for i, one in enumerate(words) if re.search(one, plain)), 0)


def ordered(things: dict[str, Any], wants: str) -> list[str]:
    """The names of classes or functions, best first. If all fit alike, small ones come first, or last for a whole."""
    texts = dict.fromkeys(things, "")
    for name, thing in things.items():
        with suppress(OSError, TypeError):
            texts[name] = inspect.getsource(thing)
    uses = {name: {other for other in things if other != name and re.search(rf"\b{other}\b", texts[name])}
            for name in things}  # fmt: skip
    small = list[str]()
    while len(small) < len(things):
        left = [name for name in things if name not in small]
        small += [name for name in left if uses[name] <= set(small)] or left
    cached = {name for name, text in texts.items() if "cache" in wants and re.search("cache|past", text.lower())}
    step = 1 if wants.split(",")[0] in ("", "mlp", "norm", "single_head") else -1
    inner = {name for name in small if wants and name.startswith("_")}
    return sorted(
        small[::step], key=lambda name: (bool(cached) and name not in cached, -named(name, wants), name in inner)
    )


def made_by(file: File, name: str, classes: set[str]) -> bool:
    """Whether a name is assigned what one of these classes makes."""
    each = [one.node for one in file.statements if name in one.binds
            and isinstance(one.node, (ast.Assign, ast.AnnAssign))]  # fmt: skip
    return any(node.value is not None and base(node.value) in classes for node in each)


def instance(file: File, name: str, most: int) -> Iterator[Candidate]:
    """Yields an instance that the file itself builds. Raises TooLarge."""
    value, how = file.value(name, most), f"checked: `{name}` as the file built it"
    if value is None and name in file.errors:
        raise file.errors[name]
    own = type(value).__module__ == file.module.__name__ and method_of(type(value))
    if (isinstance(value, nn.Module) and not isinstance(value, LAYERS)) or own:
        if sum(one.numel() for one in getattr(as_module(value), "parameters", list)()) > most:
            raise TooLarge(name)
        yield finished(lambda: value, f"{how}, {type(value).__name__}", name, file, False, most)


def needs(function: Callable[..., Any]) -> list[str]:
    """The arguments of a function that have no default."""
    return [name for name, one in inspect.signature(function).parameters.items() if one.default is one.empty]


def makes(function: Callable[..., Any]) -> bool:
    """Whether a function needs at most sizes, and calls a class."""
    body = inspect.getsource(function).split(":", 1)[1]
    sized = all(len(name) > 1 and meaning(name) in tuple("DHGdTVL") for name in needs(function))
    return sized and bool(re.search(r"\b(nn\.)?[A-Z]\w+\(", body))


def of_function(file: File, name: str, wants: str) -> Iterator[Candidate]:
    """Yields what a function is: a maker of a module, a module with the matrices that it uses, or itself."""
    function, sizes, how = file.names[name], file.sizes(), f"checked: the function {name}"
    if RUNS.search(name.lower()) and not named(name, wants):
        return
    if makes(function):
        with suppress(Exception):  # the learner's code: anything
            arguments = {one: sizes[meaning(one)] for one in needs(function)}
            yield finished(lambda: function(**arguments), f"built: {name}()", name, file, False)
            return
    if not inspect.signature(function).parameters:
        return
    for module, form in forms_of(function, file):
        yield Candidate(module.eval(), f"{how}, {form}", name, file.path, guessed=True, float32=file.float32)
    yield Candidate(function, how, name, file.path, float32=file.float32)


def of_script(file: File) -> Iterator[Candidate]:
    """Yields the lines at the top level that compute something from an input."""
    if re.search(r"(?m)^\w[\w, ]*= *torch\.", file.text) and (module := script_of(file)):
        yield Candidate(module.eval(), "checked: the lines behind its input", "", file.path, float32=file.float32)
