"""The model as decoding wants it: a token at a time reads every weight once, so their bytes are its time.

    fast = prepare(run.model, "int8")
    for token in generate(fast, ids, config): ...

Whatever the attention, its linear layers are what is large, so it is they that are exchanged, from outside.
"""

from __future__ import annotations

import copy
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.model import GPT

Weights = Literal["float32", "bfloat16", "int8"]
LARGE = 2**18  # numbers in a matrix from which the threads are worth sharing it out
LANES = 16  # torch's kernel for int8 reads so many numbers of a row at a time, past its end if need be


class Direct(nn.Module):
    """A layer that is called without torch's detour by its hooks, of which there are none: it takes half the time."""

    def __call__(self, *arguments: Tensor) -> Tensor:
        return self.forward(*arguments)


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
        self.matrix = vars(self)["_parameters"]  # where they are found without a search

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.matrix["weight"], self.matrix.get("bias")
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
    """A model for decoding that writes as `model` does; in float32 it shares the parameters of `model`.

    "bfloat16" and "int8" (with everything but the weights of linear layers in bfloat16) read a half and a quarter of
    the bytes, and change the logits a little: `Run.loss_with` measures what that costs.
    """
    if weights == "float32":
        made = copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})
    else:
        made = copy.deepcopy(model).to(torch.bfloat16)
    originals = dict(model.named_modules())
    for name, module in list(made.named_modules()):
        if type(module) is nn.Linear and weights == "int8" and module.in_features % LANES == 0:
            made.set_submodule(name, Int8Linear(cast(nn.Linear, originals[name])))
        elif type(module) is nn.Linear:
            made.set_submodule(name, RowLinear(module))
        elif type(module) is nn.Dropout:
            made.set_submodule(name, Nothing())
    return made.eval()
