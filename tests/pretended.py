"""A second device in a process that has only a CPU: torch and minigpt see tensors of the device "pretend".

    import pretended    # registers the device, for good: torch cannot forget one, so use a process of its own
    model.to("pretend")

Each of these tensors holds a tensor of the CPU, with which `computed` does what torch asks for. So results are those of
the CPU, up to rounding where torch divides an operation in another way, and what a real device would not do is seen:

    WrongDevice     an operation gets tensors of two devices, a device's generator and another device's tensor, or, with
                    `float64` false, a type that Apple's GPUs do not have; the error ends with the line of minigpt
    `waits`         the lines of minigpt at which the host waits for the device: copies in both directions, and
                    operations whose result decides how much memory the next one needs

Of CPU tensors, numbers of shape () and indices are taken, as CUDA does. Not seen: autocast, which casts nothing here.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils import backend_registration

import minigpt

NAME = "pretend"
COPIES = {"copy_", "_to_copy", "_copy_from"}
INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"}
WAITING = {
    *("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "bincount"),
    *("_unique2", "unique_dim", "unique_consecutive", "_linalg_check_errors"),
}
STRICT = {*COPIES, "where", "cat", "stack"}  # these copy even a number of the CPU, or do not take it

waits: list[str] = []
float64 = True  # whether the device has it
PACKAGE = str(Path(minigpt.__file__).parent)


class WrongDevice(RuntimeError):
    """What a device would refuse."""


class Backend(backend_registration._DummyBackendModule):
    """What `torch.pretend` is."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=Backend())
DEVICE, CPU = torch.device(NAME, 0), torch.device("cpu")
torch.__future__.set_swap_module_params_on_conversion(True)  # `Module.to` then keeps weights that are tied


class Held(torch.Tensor):
    """A tensor of the device, of the shape, strides and type of the one that it holds."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> Held:
        form = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, device=DEVICE, **form)

    def __init__(self, held: Tensor):
        self.held = held

    # torch has none of these for subclasses

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __format__(self, form: str) -> str:
        return format(self.item() if self.dim() == 0 else self.cpu(), form)

    def __repr__(self) -> str:
        return f"{self.held}, held"

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(op, *args, **(kwargs or {}))


class Generator(torch.Generator):
    """A generator of the CPU; those that were made for the device are remembered."""

    of_device: ClassVar[set[int]] = set()  # by the place of what torch hands to an operation

    def __new__(cls, device: Any = "cpu") -> Generator:
        made = super().__new__(cls, "cpu")
        (cls.of_device.add if torch.device(device).type == NAME else cls.of_device.discard)(made._cdata)
        return made


torch.Generator = Generator


def computed(op: Any, *args: Any, **kwargs: Any) -> Any:
    """What an operation returns: computed on the CPU, and held where the result belongs to the device."""
    name, is_composite, is_view = facts_of(op)
    if is_composite:  # in inference mode torch has not yet replaced it by what it consists of
        return op.decompose(*args, **kwargs)
    tensors, target = list[Tensor](), kwargs.get("device")

    def plain(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
        return leaf.held if isinstance(leaf, Held) else leaf

    inputs, named = mapped(plain, args), {key: mapped(plain, value) for key, value in kwargs.items()}
    stays = target is None or torch.device(target).type == NAME
    outside = [each for each in tensors if not isinstance(each, Held) and (each.dim() or name in STRICT)]
    numbers = not any(each.dim() for each in outside)
    taken = name in COPIES or (name == "where" and numbers) or (name in INDEXING and isinstance(args[0], Held))
    if outside and not taken:
        raise WrongDevice(f"{op} got a tensor {tuple(outside[0].shape)} of the CPU. {line()}")
    generator = kwargs.get("generator")
    if generator is not None and generator._cdata not in Generator.of_device:
        raise WrongDevice(f"{op} got a generator of the CPU. {line()}")
    if taken and (outside or not stays):
        comes = not stays or (name == "copy_" and not isinstance(args[0], Held))
        waits.append(f"copy {'from' if comes else 'to'} the device: {line()}")
    elif name in WAITING or (name in INDEXING and chooses(*args)):
        waits.append(f"{name}: {line()}")
    if stays and target is not None:
        named["device"] = CPU
    out = op(*inputs, **named)
    if not stays:
        return out
    known = {id(each.held if isinstance(each, Held) else each): each for each in tensors}  # of what works in place

    def placed(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or id(leaf) in known:
            return known.get(id(leaf), leaf)
        if leaf.dtype in (torch.float64, torch.complex128) and not float64:
            raise WrongDevice(f"{op} makes {leaf.dtype}. {line()}")
        return Held(leaf.resolve_conj().resolve_neg())  # a wrapper does not know that its numbers are to be turned

    if torch.is_inference_mode_enabled() and is_view and not args[0].is_inference():
        with torch.inference_mode(False):  # as torch does it with a view of a tensor from outside
            return mapped(placed, out)
    return mapped(placed, out)


@cache
def facts_of(op: Any) -> tuple[str, bool, bool]:
    """An operation's name, whether it consists of others on every device, and whether it returns a view."""
    is_composite = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    is_view = any(result.alias_info and not result.alias_info.is_write for result in op._schema.returns)
    return op.overloadpacket.__name__, is_composite, is_view


def mapped(function: Any, value: Any) -> Any:
    """A value, or the parts of a tuple or a list, each through a function."""
    return type(value)([mapped(function, v) for v in value]) if isinstance(value, (tuple, list)) else function(value)


def chooses(x: Tensor, indices: Any, value: Tensor | None = None, *rest: Any) -> bool:
    """Whether an index says by true and false which elements are meant, so that their number must be known."""
    masks = [index for index in indices if index is not None and index.dtype in (torch.bool, torch.uint8)]
    fills = value is not None and value.numel() == 1  # torch fills a mask with one number without counting
    return bool(masks) and not fills


def line() -> str:
    """The innermost line of minigpt that runs; in a backward pass of torch's own, which one."""
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            path, number = frame.f_code.co_filename, frame.f_lineno
            return f"{Path(path).relative_to(PACKAGE).as_posix()}:{number}: {linecache.getline(path, number).strip()}"
        frame = frame.f_back
    node = torch._C._current_autograd_node()
    return f"in the backward pass, {node.name()}" if node else "outside of minigpt"


@contextmanager
def counted() -> Iterator[list[str]]:
    """The waits inside the `with`."""
    before = len(waits)
    inside: list[str] = []
    yield inside
    inside += waits[before:]


EVERY, SOME = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")  # gone, they take all back
EVERY.fallback(computed, "PrivateUse1")  # of what has no tensor, such as torch.empty(3, device="pretend")
EVERY.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
SOME.impl(
    "_copy_from",  # torch.tensor([1, 2], device="pretend")
    lambda source, target, non_blocking=False: computed(torch.ops.aten.copy_.default, target, source),
    "PrivateUse1",
)
