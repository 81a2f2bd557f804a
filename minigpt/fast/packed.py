"""Linear layers whose weights have another layout in memory, or fewer bits: for writing a token at a time on a CPU.

A token reads every weight once, so memory bandwidth sets the speed.

k inputs, n outputs of a layer.
"""

from __future__ import annotations

import copy
import warnings
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from minigpt.model.sampling import OVERFLOW
from minigpt.system.errors import UserError

Weights = Literal["float32", "bfloat16", "int8"]
LARGE = 2**18  # numbers in a matrix; below it, the overhead of a call sets the speed in float32, not the memory
LANES = 16  # torch's int8 kernel reads this many numbers of a row at a time, past its end if need be
SMALLEST = 1e-30  # keeps a row of zeros from being divided by zero


class Replacement(nn.Linear):
    """The base of replacements of a linear layer; it has the parameters of that layer as attributes."""

    def __init__(self, linear: nn.Linear):
        nn.Module.__init__(self)  # no weights of its own
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias


class RowLinear(Replacement):
    """A linear layer whose weights are stored column by column: a tenth faster for a few rows."""

    def __init__(self, linear: nn.Linear):
        super().__init__(linear)
        self.columns = linear.weight.detach().T.contiguous()  # (k, n)

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.columns  # (..., n): a shorter call than F.linear
        return y if self.bias is None else y + self.bias


class PackedLinear(Replacement):
    """A linear layer whose weights are stored in the blocks that oneDNN uses, in float32 or bfloat16.

    One row times a matrix stored row by row reaches half of the memory bandwidth or less; stored in blocks, all of it.
    Input and output keep the type of the input.
    """

    def __init__(self, linear: nn.Linear, kind: torch.dtype):
        super().__init__(linear)
        self.kind = kind
        self.blocks = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().to(kind), 1)  # best for one row
        self.offset = None if linear.bias is None else linear.bias.detach().to(kind)
        self.product = torch.ops.mkldnn._linear_pointwise.default

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.product(x.to(self.kind), self.blocks, self.offset, "none", [], "")
        return y.to(x.dtype)


class Int8PackedLinear(Replacement):
    """A linear layer in int8: weights are integers from -127 to 127 with one scale a row, and so is each input row.

    FBGEMM multiplies them, which comes with torch on x86. Both are rounded to the nearest integer, so each number is
    off by at most 1/254 of the largest in its row. Rows do not depend on each other.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__(linear)
        self.packed = whole_numbers(linear.weight.detach())
        self.narrow = pairs_overflow()
        self.one_row = torch.ops.quantized.linear_dynamic.default
        self.rows = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default

    def forward(self, x: Tensor) -> Tensor:
        try:
            y = self.product(x)  # (..., n)
        except RuntimeError as error:
            if "ChooseQuantizationParams" not in str(error):
                raise
            raise UserError(OVERFLOW) from None  # the input holds NaN or infinity
        return y if self.bias is None else y + self.bias

    def product(self, x: Tensor) -> Tensor:
        """x (..., k) times the weights: (..., n)."""
        if x.numel() == x.shape[-1]:
            return self.one_row(x, self.packed, self.narrow)
        largest = torch.linalg.vector_norm(x, torch.inf, -1, keepdim=True).clamp(min=SMALLEST)  # (..., 1)
        levels = 63 if self.narrow else 127
        return self.rows(x / largest, 1 / levels, levels + 1, self.packed) * largest  # (..., n)


def whole_numbers(weight: Tensor) -> Any:
    """A matrix (n, k) in int8, packed for FBGEMM, each row with its own scale."""
    scale = (weight.abs().amax(dim=1) / 127).clamp(min=SMALLEST).double()  # (n,)
    with warnings.catch_warnings():  # torch deprecates tensors of this type, and has no other way to pack yet
        warnings.simplefilter("ignore", UserWarning)
        rounded = torch.quantize_per_channel(weight, scale, torch.zeros(len(weight), dtype=torch.long), 0, torch.qint8)
        return torch.ops.quantized.linear_prepack(rounded, None)


@lru_cache(maxsize=1)
def pairs_overflow() -> bool:
    """Whether this processor sums products in pairs of 16 bits, which overflow for the largest numbers.

    Found by a test product. If it overflows, inputs use one bit less."""
    most = torch.ops.quantized.linear_dynamic(torch.ones(1, 64), whole_numbers(torch.ones(8, 64)), False)  # (1, 8)
    return not torch.allclose(most, torch.tensor(64.0), rtol=1e-3)


class Int8Linear(nn.Module):
    """A linear layer whose weights are integers from -127 to 127 with one scale a row, for inputs in bfloat16.

    A weight is off by at most 1/254 of the largest in its row. `in_features` is a multiple of LANES.
    """

    def __init__(self, linear: nn.Linear):
        super().__init__()
        weight = linear.weight.detach().float()  # (n, k)
        scale = (weight.abs().amax(dim=1) / 127).clamp(min=1e-12)  # (n,)
        self.register_buffer("whole", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale.to(torch.bfloat16))
        self.bias = None if linear.bias is None else linear.bias.detach().to(torch.bfloat16)
        self.whole: Tensor
        self.scale: Tensor

    @property
    def weight(self) -> Tensor:
        """The weights (n, k) in bfloat16, for an attention that reads its weights."""
        return self.whole * self.scale[:, None]

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])  # (rows, k)
        y = torch._weight_int8pack_mm(rows, self.whole, self.scale).view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias


def packs(weights: Weights, like: Tensor) -> bool:
    """Whether there are kernels here for such weights in a model whose other parameters are `like` this one."""
    if like.device.type != "cpu" or like.dtype != torch.float32:
        return False
    if weights == "int8":
        return "fbgemm" in torch.backends.quantized.supported_engines
    available = torch.backends.mkldnn.is_available()
    return available and (weights == "float32" or torch.ops.mkldnn._is_mkldnn_bf16_supported())


def exchanged(linear: nn.Linear, weights: Weights, packed: bool) -> nn.Module:
    """The replacement of a linear layer that is fastest here."""
    if weights == "int8" and packed:
        return Int8PackedLinear(linear)
    if weights == "int8" and linear.in_features % LANES == 0:
        return Int8Linear(linear)
    if packed and (weights == "bfloat16" or linear.weight.numel() >= LARGE):
        return PackedLinear(linear, getattr(torch, weights))
    return RowLinear(linear if weights == "float32" else copy.deepcopy(linear).to(torch.bfloat16))
