"""What decoding keeps of earlier tokens: nothing (a training pass), keys and values, or a state of fixed size.

A cache belongs to the caller, one a layer (`GPT.make_cache`), and is filled by `Attention.forward`.

B batch, G key heads, T new positions, S all positions so far, d width of a key, e width of a value.
"""

from __future__ import annotations

from torch import Tensor


class Past:
    """No cache: the past of a training pass is empty, and nothing is kept.

    `length` is how many positions came before, which is the position of the first new one; `below` is the past of the
    layer below, and `seen` the keys and values of the pass under way, for kinds that share them between layers.
    """

    keeps = False

    def __init__(self) -> None:
        self.length = 0
        self.below: Past | None = None
        self.seen: tuple[Tensor, Tensor] | None = None
        self.batch: int | None = None

    def expect(self, batch: int) -> None:
        """Refuse another batch size than before, with ValueError: broadcasting would be silent."""
        if self.batch not in (None, batch):
            raise ValueError(f"the cache was filled with a batch of {self.batch}, now {batch} came")
        self.batch = batch

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values so far: with nothing before them, the new ones."""
        return key, value


class KVCache(Past):
    """The keys and values of all positions so far, in buffers of `capacity` positions.

    The buffers are made at the first append, from what arrives: its batch, heads, widths, type and device. Raises
    ValueError when more positions arrive than fit, or another batch size.
    """

    keeps = True

    def __init__(self, capacity: int):
        super().__init__()
        self.capacity = capacity
        self.buffers: tuple[Tensor, Tensor] | None = None

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keep key (B, G, T, d) and value (B, G, T, e); returns (B, G, S, d) and (B, G, S, e)."""
        self.expect(key.shape[0])
        start, T = self.length, key.shape[2]
        end = start + T
        if end > self.capacity:
            raise ValueError(f"the cache holds {self.capacity} positions, and {end} have come: make a larger one")
        if self.buffers is None:
            self.buffers = (
                key.new_empty(*key.shape[:2], self.capacity, key.shape[3]),  # (B, G, capacity, d)
                value.new_empty(*value.shape[:2], self.capacity, value.shape[3]),  # (B, G, capacity, e)
            )
        keys, values = self.buffers
        keys.narrow(2, start, T).copy_(key)
        values.narrow(2, start, T).copy_(value)
        self.length = end
        self.seen = keys.narrow(2, 0, end), values.narrow(2, 0, end)  # (B, G, S, d), (B, G, S, e)
        return self.seen


class State(Past):
    """A state of fixed size, however long the past: the sum of an average, the matrix of a linear attention.

    It is replaced and never written in place, so a copy of the reference is a snapshot.
    """

    keeps = True

    def __init__(self) -> None:
        super().__init__()
        self.tensors: tuple[Tensor, ...] = ()

    def replace(self, tensors: tuple[Tensor, ...], T: int) -> None:
        """The state after T more positions. Raises ValueError if its shapes are not those of the state before."""
        before, after = [tuple(t.shape) for t in self.tensors], [tuple(t.shape) for t in tensors]
        if before and before != after:
            raise ValueError(f"the state was of shapes {before}, now {after} came")
        self.tensors = tensors
        self.length += T
