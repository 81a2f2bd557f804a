"""Precision: in which type a model's matrix products are computed, and the scale of the loss that float16 needs.

    float32    24 bits of precision, as it says
    tf32       float32 that is rounded to 11 bits before each product: NVIDIA's GPUs from A100 on
    bfloat16   8 bits, and the range of float32
    float16    11 bits, and a range from 6e-8 to 65,504: NVIDIA's GPUs before A100 (V100, T4), which have no bfloat16

Weights, sums, norms and the optimizer's state are float32 in any case ("Mixed Precision Training", arXiv 1710.03740).
A gradient below the range of float16 would be 0. So the loss is multiplied by a scale before the backward pass, and
the gradients are divided by it afterwards. If one was beyond the range, nothing is stepped, and the scale is halved.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from minigpt.system.errors import UserError
from minigpt.training import distributed
from minigpt.training.sharding import local

Precision = Literal["auto", "float32", "tf32", "bfloat16", "float16"]

NARROW = 64  # n_embd: in narrower models, casting to bfloat16 takes a CPU about as long as its products save
VOLTA, AMPERE = (7, 0), (8, 0)  # the first compute capabilities with fast products in float16, and in tf32
START = 2.0**16  # the scale at first
GROW_AFTER = 2000  # steps in a row without a skipped one, after which the scale is doubled
LEAST = 2.0**-13  # if a gradient is not finite with this scale, a smaller one would not help


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 in hardware; elsewhere it is emulated, and slower than float32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "mps":  # it depends on the chip and on the system's version: ask it
        try:
            ones = torch.ones(2, 2, dtype=torch.bfloat16, device=device)
            return bool((ones @ ones == 2).all())
        except (RuntimeError, TypeError):
            return False
    if device.type == "cpu" and hasattr(torch.cpu, "get_capabilities"):
        capabilities = torch.cpu.get_capabilities()
        return any(capabilities.get(name, False) for name in ("amx_bf16", "avx512_bf16", "bf16"))
    return False


def product_type(precision: Precision, device: torch.device, n_embd: int) -> torch.dtype:
    """The type of the matrix products of a model that is `n_embd` wide; of tf32, the type of its numbers: float32."""
    if precision != "auto":
        return {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision, torch.float32)
    if has_bfloat16(device) and (device.type != "cpu" or n_embd >= NARROW):
        return torch.bfloat16
    return torch.float16 if device.type == "cuda" and _capability(device) >= VOLTA else torch.float32


def check_precision(precision: Precision, device: torch.device, compiles: bool = False) -> None:
    """Raises UserError for tf32 on a device without it, or with a compiler that cannot be used with it."""
    if precision != "tf32":
        return
    if device.type != "cuda" or _capability(device) < AMPERE:
        problem = f"{device} has no tf32, which NVIDIA's GPUs have from A100 on"
        raise UserError(f"training.precision: {problem}: use auto or float32")
    if compiles and torch.__version__ < "2.11":
        problem = f"the compiler of torch {torch.__version__} asks for tf32 in a way that torch itself refuses"
        raise UserError(f"training.compile: {problem}: leave out compile or tf32, or update torch to 2.11")


def use_float32_products(precision: Precision, device: torch.device) -> None:
    """Set how this process multiplies and convolves float32 on an NVIDIA GPU: in tf32 if the word says so.

    The word float32 means all 24 bits. With other words, products stay exact where they are in float32 at all, and
    convolutions are as torch has them. torch has older switches for the same; it raises if both are used.
    """
    if device.type == "cuda":
        torch.backends.cuda.matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
        torch.backends.cudnn.conv.fp32_precision = "ieee" if precision == "float32" else "tf32"  # type: ignore[attr-defined]


def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


class LossScale:
    """The number by which a loss in float16 is multiplied. It stays on the device: no step waits for it.

    `state` (2,) is all that is to be kept of it: the scale, and how many steps in a row were taken with it.
    """

    def __init__(self, device: torch.device):
        self.state = torch.tensor([START, 0.0], device=device)  # (2,)

    @property
    def scale(self) -> Tensor:
        """The scale now and later: () in the memory of `state`."""
        return self.state[0]

    def unscale(self, gradients: Iterable[Tensor]) -> None:
        """Divide the gradients of a step by the scale, in place; call it once, before they are clipped."""
        torch._foreach_mul_([local(gradient) for gradient in gradients], 1 / self.scale)

    def skips(self, loss: Tensor, norm: Tensor) -> Tensor:
        """(): 1 if in any process the loss or the gradient's norm, () each, is not finite; and always below LEAST."""
        skips = ~(loss + norm).isfinite() | (self.scale < LEAST)  # ()
        return distributed.largest_of(skips.float())

    def update(self, skipped: Tensor) -> None:
        """Halve the scale after a step that was skipped (1 in a ()), or double it after GROW_AFTER other steps."""
        scale, row = self.state  # () each
        row = (row + 1) * (1 - skipped)  # ()
        grows = row >= GROW_AFTER  # ()
        scale = scale * torch.where(skipped == 1, 0.5, torch.where(grows, 2.0, 1.0))  # ()
        self.state.copy_(torch.stack((scale, row.masked_fill(grows, 0.0))))
