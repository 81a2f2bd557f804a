"""The config that a learner's class takes: the file's own config with the check's sizes, the file's own config as it
is, or an object that has every usual name.

D model width, W hidden width of an MLP.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from torch import nn

from minigpt.grading.arguments import ARGUMENTS, CONSTANTS, axis_of, value_of
from minigpt.grading.target import Target

CONFIGS = re.compile(r"(?i)conf|cfg|args|param|hps|setting|options|spec")  # in names of arguments and of classes


class AnyConfig(dict[str, Any]):
    """A dict whose keys are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the config of the check has no {name!r}") from None


def is_config(value: Any) -> bool:
    """Whether the value of an argument is a config, not a number, a string or None."""
    return not isinstance(value, (int, float, str, bool, type(None)))


def config_argument(parameter: inspect.Parameter) -> bool:
    """Whether an argument takes a config, as its name or its type says."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return False
    typed = parameter.annotation if isinstance(parameter.annotation, str) else getattr(
        parameter.annotation, "__name__", "")  # fmt: skip
    return any(CONFIGS.search(text) for text in (parameter.name, typed))


def configs_for(kind: Callable[..., Any], parameter: inspect.Parameter, target: Target) -> list[Any]:
    """The configs that an argument may be given, the likeliest first; [] where it takes none."""
    own = own_classes(kind, parameter)
    if not own and not config_argument(parameter):
        return []
    made = list[Any]()
    for one in own:
        with suppress(Exception):  # the learner's code: anything
            made.append(with_sizes(one, target))
        with suppress(Exception):
            made.append(one())
    file = vars(sys.modules[kind.__module__]) if kind.__module__ in sys.modules else {}
    dicts = [value for name, value in file.items() if type(value) is dict and not name.startswith("_")
             and any(axis_of(str(key)) for key in value)]  # fmt: skip
    for numbers in dicts if not own else ():
        made += [AnyConfig({**numbers, **known(list(numbers), target)}), AnyConfig(numbers)]
    return [*made, any_config(target)]


def most_configs(kind: Callable[..., Any], target: Target) -> int:
    """The largest number of configs that there are for one argument of a constructor."""
    needed = [entry for entry in inspect.signature(kind).parameters.values() if entry.default is entry.empty]
    return max((len(configs_for(kind, entry, target)) for entry in needed), default=0)


def own_classes(kind: Callable[..., Any], parameter: inspect.Parameter) -> list[type]:
    """The class of the file that an argument's type names; else the classes whose own names look like a config's."""
    module = sys.modules.get(kind.__module__)
    own = [value for value in vars(module).values() if inspect.isclass(value) and not issubclass(value, nn.Module)
           and value.__module__ == kind.__module__] if module else []  # fmt: skip
    typed = parameter.annotation
    named = [one for one in own if one is typed or one.__name__ == typed]
    return named or ([one for one in own if CONFIGS.search(one.__name__)] if config_argument(parameter) else [])


def with_sizes(kind: type, target: Target) -> Any:
    """The file's own config, with the check's value for every size whose name is known."""
    listed = inspect.signature(kind).parameters
    if any(entry.kind in (entry.POSITIONAL_OR_KEYWORD, entry.KEYWORD_ONLY) for entry in listed.values()):
        return kind(**known(list(listed), target))
    made = kind()
    for name, value in known([name for name in vars(kind) if not name.startswith("_")], target).items():
        if isinstance(getattr(kind, name), (int, float)):
            setattr(made, name, value)
    return made


def known(names: list[str], target: Target) -> dict[str, Any]:
    """The check's value for each name that is known."""
    found = {name: value for name in names for there, value in [value_of(name, target)] if there}
    return found | hidden_widths(found, target)


def hidden_widths(values: Mapping[str, Any], target: Target) -> dict[str, Any]:
    """Where several arguments are widths, those with "hid" in their names get the width W of the MLP."""
    wide = [name for name in values if axis_of(name) == "D"]
    inner = [name for name in wide if "hid" in name.lower()]
    return dict.fromkeys(inner, target.sizes["W"]) if len(inner) < len(wide) and "W" in target.sizes else {}


def any_config(target: Target) -> AnyConfig:
    """A config that answers to every usual name."""
    usual = [name for names in (*ARGUMENTS.values(), tuple(CONSTANTS)) for name in names]
    return AnyConfig({name: value for name in usual for there, value in [value_of(name, target)] if there})
