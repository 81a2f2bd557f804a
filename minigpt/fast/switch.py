"""The switch: `make_fast` puts faster forms into one model, from outside, or takes them out again."""

from __future__ import annotations

from collections.abc import Collection
from types import MethodType
from typing import Literal, TypeVar

from torch import nn

from minigpt.attention import Attention
from minigpt.fast import (  # noqa: F401 (they register their forms)
    channels,
    convolution,
    kernels,
    levels,
    parts,
    recurrence,
    rewriting,
    rotary,
    running_sum,
    windows,
)
from minigpt.fast.allocator import keep_memory
from minigpt.fast.guard import FORMS, METHODS, fitting, set_on
from minigpt.fast.joined import IN_TRAINING, forms_in_training
from minigpt.fast.threads import share_cpus
from minigpt.system.errors import package

Model = TypeVar("Model", bound=nn.Module)
MEMORY, SHARING = "kept memory", "shared CPUs"  # these apply to the process, not to one model
KERNELS = "kernels of a GPU"  # torch compiles them when they are first used
OF_FORMS = dict.fromkeys(form.trick for form in FORMS.values())
TRICKS = (*OF_FORMS, IN_TRAINING, KERNELS, MEMORY, SHARING)  # all that can be turned off by name


def make_fast(model: Model, fast: bool | Literal["own", "fla"] = True, without: Collection[str] = ()) -> Model:
    """Give every module of the model, each instance by itself, the fastest form that is right for its class.

    `fast` false gives every module its plain form; own leaves KERNELS out, and fla adds those of fla-core. `without`
    names TRICKS to leave out. Returns the model. Only its methods change: parameters, and what is computed, stay as
    they are (float32 results move in the last bits). Raises UserError if fla-core is wanted, and missing.
    """
    if fast == "own":
        return make_fast(model, True, (*without, KERNELS))
    if fast == "fla":
        package("fla", "training.fast: fla needs", "gpu")
    if fast and MEMORY not in without:
        keep_memory()
    if fast and SHARING not in without:
        share_cpus()
    for module in model.modules():
        make_plain(module)
        cls = type(module)
        on_instance = set_on(module)
        if isinstance(module, Attention):
            changes = on_instance | set_on(getattr(module, "position", module))
            forms = {method: fitting(type(module), method, bool(fast), without, changes) for method in METHODS}
        else:
            own_forms = {method: form for (owner, method), form in FORMS.items() if owner is cls}
            forms = {method: form.function for method, form in own_forms.items() if fast and form.trick not in without}
        if fast and IN_TRAINING not in without:
            forms |= forms_in_training(module)
        other = "own" if KERNELS in without else "fla" if fast == "fla" else ""
        forms = {method: getattr(form, other, form) for method, form in forms.items()}
        replaced = {n: form for n, form in forms.items() if form is not getattr(cls, n) and n not in on_instance}
        vars(module).update({method: MethodType(form, module) for method, form in replaced.items()})
        vars(module)["faster"] = tuple(replaced)
    return model


def make_plain(module: nn.Module) -> None:
    """Remove the faster forms from one module."""
    for method in vars(module).pop("faster", ()):
        vars(module).pop(method, None)
