"""The most exact numbers that a device has: float64 on CPUs and NVIDIA's GPUs, float32 on Apple's GPUs."""

from __future__ import annotations

import torch

WITHOUT_FLOAT64 = ("mps",)  # Metal Shading Language Specification, 2.1: "Metal does not support the double" type


def exact(device: torch.device) -> torch.dtype:
    """The type for numbers that must be as exact as a device can hold them: float64, or float32 where there is none."""
    return torch.float32 if device.type in WITHOUT_FLOAT64 else torch.float64
