"""A shadow for every number: beside each storage lies a second one, which holds the numbers of meanings.

A view of a tensor is the same view of the shadow, so no view needs a rule. The number 0 in a shadow is a constant,
whose value stands in the tensor itself. Complex numbers have two shadows, of the real and the imaginary part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from minigpt.checks.reading.meanings import Const, Meanings

Ids = np.ndarray[Any, np.dtype[np.int64]]


class Shadows:
    """The shadows of all tensors of one reading. Tensors are kept, as memory that is given back is used again."""

    def __init__(self, of: Meanings) -> None:
        self.of = of
        self.storages: dict[int, Tensor] = {}
        self.alive: list[Tensor] = []
        of(Const(0.0))  # its number is 0, which is never written: 0 says "look at the value"

    def has(self, x: Any) -> bool:
        """Whether a tensor has shadows."""
        return isinstance(x, Tensor) and x.layout == torch.strided and x.untyped_storage()._cdata in self.storages

    def make(self, x: Tensor) -> None:
        """Give a tensor's storage shadows, all of them constants."""
        key = x.untyped_storage()._cdata
        if key not in self.storages:
            size = x.element_size() // (2 if x.is_complex() else 1)
            self.storages[key] = torch.zeros(x.untyped_storage().nbytes() // size, dtype=torch.int64)
            self.alive.append(x)

    def at(self, x: Tensor) -> Tensor:
        """The shadows of a tensor, as a view: of its shape, and with a last axis of two for complex numbers."""
        storage = self.storages[x.untyped_storage()._cdata]
        if not x.is_complex():
            return storage.as_strided(x.shape, x.stride(), x.storage_offset())
        stride = tuple(2 * step for step in x.stride())
        return storage.as_strided((*x.shape, 2), (*stride, 1), 2 * x.storage_offset())

    def ids(self, x: Any, like: Tensor | None = None) -> Ids:
        """The meanings of a tensor or of a number, by number; constants are meanings, too."""
        if not isinstance(x, Tensor):
            return self.constants(np.asarray(x))
        values = torch.view_as_real(x.detach().resolve_conj()) if x.is_complex() else x.detach()
        if not self.has(x) or x.is_conj():
            return self.constants(values.to(torch.float64).numpy())
        shadow = self.at(x).numpy()
        if shadow.size and shadow.min() > 0:
            return shadow.copy()
        known = self.constants(np.where(shadow == 0, values.to(torch.float64).numpy(), 0.0))
        return np.where(shadow == 0, known, shadow)

    def constants(self, values: np.ndarray[Any, Any]) -> Ids:
        """The meanings of constants."""
        unique, places = np.unique(values.astype(np.float64), return_inverse=True)
        numbers = np.array([self.of.const(float(value)) for value in unique], dtype=np.int64)
        return numbers[places.reshape(values.shape)] if values.size else np.zeros(values.shape, np.int64)

    def write(self, x: Tensor, ids: Ids) -> None:
        """Say what the numbers of a tensor mean."""
        self.make(x)
        constant = np.frombuffer(bytes(self.of.is_const), np.bool_)
        self.at(x).copy_(torch.from_numpy(np.where(constant[ids], 0, ids).reshape(self.at(x).shape)))

    def values(self) -> dict[int, float]:
        """A value of each meaning that stands in a tensor."""
        values = dict[int, float]()
        for x in self.alive:
            if x.is_floating_point():
                whole = x.detach().new_empty(0).set_(x.untyped_storage()).to(torch.float64)
                shadow = self.storages[x.untyped_storage()._cdata]
                values.update(zip(shadow[: len(whole)].tolist(), whole.tolist()))
        return values
