"""The model as decoding wants it: a token at a time reads every weight once, so their bytes are its time.

    fast = prepare(run.model, "int8")
    for token in generate(fast, ids, config): ...

Whatever the attention, its linear layers are what is large, so it is they that are exchanged, from outside.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.model import GPT, MLP, Block
from minigpt.norm import RMSNorm
from minigpt.side_by_side import joinable, joined_weights

Weights = Literal["float32", "bfloat16", "int8"]
LARGE = 2**18  # numbers in a matrix from which the threads are worth sharing it out
LANES = 16  # torch's kernel for int8 reads so many numbers of a row at a time, past its end if need be


class Direct(nn.Module):
    """What is called without torch's detour by its hooks, of which there are none: it takes half the time."""

    def __call__(self, *arguments: Any) -> Any:
        return self.forward(*arguments)


PARTS: tuple[type[nn.Module], ...] = (GPT, Block, MLP, RMSNorm, nn.LayerNorm, nn.Embedding, nn.Identity)
DIRECT = {part: type(part.__name__, (Direct, part), {"__module__": part.__module__}) for part in PARTS}


class RowLinear(Direct, nn.Linear):
    """A linear layer, with the same parameters as another one, that multiplies one row with all threads.

    torch multiplies a matrix by a vector at half the speed at which memory gives it. Cut into as many parts as there
    are threads, and multiplied as a batch, the same matrix comes nearly twice as fast, with nothing copied.
    """

    def __init__(self, linear: nn.Linear):
        nn.Module.__init__(self)  # no weights of its own
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.parts = torch.get_num_threads()
        n, k = linear.weight.shape
        shared = n * k >= LARGE and self.parts > 1 and linear.weight.device.type == "cpu"
        self.shared = shared and linear.weight.dtype == torch.float32

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        if not self.shared or x.numel() != self.in_features:
            return F.linear(x, weight, bias)
        n, k, parts = self.out_features, self.in_features, self.parts
        even = n - n % parts
        pieces = weight[:even].view(parts, -1, k).mT  # (parts, k, n / parts)
        y = torch.bmm(x.reshape(1, 1, k).expand(parts, 1, k), pieces).view(even)
        if even < n:
            y = torch.cat((y, F.linear(x.view(k), weight[even:])))
        return (y if bias is None else y + bias).view(*x.shape[:-1], n)


class Nothing(Direct):
    """Dropout, when nothing is dropped."""

    def forward(self, x: Tensor) -> Tensor:
        return x


class Int8Linear(Direct):
    """A linear layer whose weights are whole numbers from -127 to 127, each row with a scale of its own.

    They are rounded to the nearest, so a weight is off by at most 1/254 of the largest in its row. `in_features` is a
    multiple of LANES.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        weight = linear.weight.detach().float()  # (n, k)
        scale = (weight.abs().amax(dim=1) / 127).clamp(min=1e-12)  # (n,)
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale.to(torch.bfloat16))
        self.bias = None if linear.bias is None else linear.bias.detach().to(torch.bfloat16)
        self.weight: Tensor
        self.scale: Tensor

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])  # (rows, k)
        y = torch._weight_int8pack_mm(rows, self.weight, self.scale).view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias


@torch.no_grad()
def prepare(model: GPT, weights: Weights = "float32") -> GPT:
    """A model for decoding that writes as `model` does. In float32 it shares the parameters of `model`, but that small
    layers of one input are copied, side by side.

    "bfloat16" and "int8" (with everything but the weights of linear layers in bfloat16) read a half and a quarter of
    the bytes, and change the logits a little: `Run.loss_with` measures what that costs.
    """
    if weights == "float32":
        made = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    else:
        made = copy.deepcopy(model).to(torch.bfloat16)
    originals = dict(model.named_modules())
    for name, module in list(made.named_modules()):
        if type(module) is nn.Linear:
            made.set_submodule(name, exchanged(cast(nn.Linear, originals[name]), module, weights))
        elif type(module) is nn.Dropout:
            made.set_submodule(name, Nothing())
    for name, module in originals.items():
        layers = [getattr(module, part) for part in getattr(module, "together", ()) if hasattr(module, part)]
        if len(layers) > 1 and joinable(layers) and sum(layer.weight.numel() for layer in layers) <= LARGE:
            joined = as_one(layers)
            lighter = joined if weights == "float32" else copy.deepcopy(joined).to(torch.bfloat16)
            first = made.get_submodule(f"{name}.{module.together[0]}")
            vars(first)["joined"] = exchanged(joined, lighter, weights)
    for module in made.modules():
        vars(module).update(module._modules, **module._parameters)  # where they are found without a search
        module.__class__ = DIRECT.get(type(module), type(module))
    return made.eval()


def exchanged(linear: nn.Linear, lighter: nn.Linear, weights: Weights) -> Direct:
    """What takes the place of a linear layer, of which `lighter` is the same in the type of everything else."""
    if weights == "int8" and linear.in_features % LANES == 0:
        return Int8Linear(linear)
    return RowLinear(lighter)


def as_one(layers: Sequence[nn.Linear]) -> nn.Linear:
    """One layer that makes what several make of the same input, one beside the other."""
    weight, bias = joined_weights(layers)
    one = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    one.weight = nn.Parameter(weight, requires_grad=False)
    one.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)  # type: ignore[assignment]
    return one
