"""Linear layers whose weights lie otherwise, or in fewer bits: for writing a token at a time on a CPU.

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
LARGE = 2**18  # numbers in a matrix from which memory, and not the call, is what float32 waits for
LANES = 16  # torch's kernel for int8 reads so many numbers of a row at a time, past its end if need be
SMALLEST = 1e-30  # keeps a row of zeros from being divided by zero


class Exchanged(nn.Linear):
    """What takes the place of a linear layer, and shows its parameters."""

    def __init__(self, linear: nn.Linear):
        nn.Module.__init__(self)  # no weights of its own
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias


class RowLinear(Exchanged):
    """A linear layer whose weights lie column by column, which is a tenth faster for a row or a few."""

    def __init__(self, linear: nn.Linear):
        super().__init__(linear)
        self.columns = linear.weight.detach().T.contiguous()  # (k, n)

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.columns  # (..., n); asked for plainly, it comes sooner than by F.linear
        return y if self.bias is None else y + self.bias


class PackedLinear(Exchanged):
    """A linear layer whose weights lie in blocks, as oneDNN wants them, in float32 or bfloat16.

    A row times a matrix that lies row by row takes half of what memory gives, or less; in blocks it takes all of it.
    What goes in and comes out has a type of its own.
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


class Int8PackedLinear(Exchanged):
    """A linear layer whose weights are whole numbers from -127 to 127, each row with a scale of its own, and so is,
    while it is multiplied, each row that comes in. By FBGEMM, which torch brings along on x86.

    Both are rounded to the nearest: off by at most 1/254 of the largest in the row. Rows do not depend on each other.
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
            raise UserError(OVERFLOW) from None  # what comes in are no numbers
        return y if self.bias is None else y + self.bias

    def product(self, x: Tensor) -> Tensor:
        """x (..., k) times the weights: (..., n)."""
        if x.numel() == x.shape[-1]:
            return self.one_row(x, self.packed, self.narrow)
        largest = torch.linalg.vector_norm(x, torch.inf, -1, keepdim=True).clamp(min=SMALLEST)  # (..., 1)
        levels = 63 if self.narrow else 127
        return self.rows(x / largest, 1 / levels, levels + 1, self.packed) * largest  # (..., n)


def whole_numbers(weight: Tensor) -> Any:
    """A matrix (n, k) in int8 as FBGEMM wants it, each row with its own scale."""
    scale = (weight.abs().amax(dim=1) / 127).clamp(min=SMALLEST).double()  # (n,)
    with warnings.catch_warnings():  # torch means to give up tensors of this type, and has no other way in yet
        warnings.simplefilter("ignore", UserWarning)
        rounded = torch.quantize_per_channel(weight, scale, torch.zeros(len(weight), dtype=torch.long), 0, torch.qint8)
        return torch.ops.quantized.linear_prepack(rounded, None)


@lru_cache(maxsize=1)
def pairs_overflow() -> bool:
    """Whether this processor adds the products up in pairs of 16 bits, which the largest numbers overflow: then what
    is multiplied must do with a bit less. Found out by trying."""
    most = torch.ops.quantized.linear_dynamic(torch.ones(1, 64), whole_numbers(torch.ones(8, 64)), False)  # (1, 8)
    return not torch.allclose(most, torch.tensor(64.0), rtol=1e-3)


class Int8Linear(nn.Module):
    """A linear layer whose weights are whole numbers from -127 to 127, each row with a scale of its own.

    They are rounded to the nearest, so a weight is off by at most 1/254 of the largest in its row. `in_features` is a
    multiple of LANES.
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
        """The weights (n, k) in bfloat16, for an attention that reads them itself."""
        return self.whole * self.scale[:, None]

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])  # (rows, k)
        y = torch._weight_int8pack_mm(rows, self.whole, self.scale).view(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias


def packs(weights: Weights, like: Tensor) -> bool:
    """Whether there are kernels here for linear layers of such weights among other parameters like this one."""
    if like.device.type != "cpu" or like.dtype != torch.float32:
        return False
    if weights == "int8":
        return "fbgemm" in torch.backends.quantized.supported_engines
    available = torch.backends.mkldnn.is_available()
    return available and (weights == "float32" or torch.ops.mkldnn._is_mkldnn_bf16_supported())


def exchanged(linear: nn.Linear, weights: Weights, packed: bool) -> nn.Module:
    """What takes the place of a linear layer."""
    if weights == "int8" and packed:
        return Int8PackedLinear(linear)
    if weights == "int8" and linear.in_features % LANES == 0:
        return Int8Linear(linear)
    if packed and (weights == "bfloat16" or linear.weight.numel() >= LARGE):
        return PackedLinear(linear, getattr(torch, weights))
    return RowLinear(linear if weights == "float32" else copy.deepcopy(linear).to(torch.bfloat16))
