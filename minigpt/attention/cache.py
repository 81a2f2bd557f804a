"""What decoding keeps of earlier tokens: nothing (a training pass), keys and values of all of them or of the last few,
those of the layer below, or a state of fixed size.

A cache belongs to the caller, one for each layer (`GPT.make_cache`), and `Attention.forward` fills it.

B batch, G key heads, T new positions, S all positions so far, D model width, d width of a key, e width of a value.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minigpt.system.errors import UserError

SHARES = "a layer shares the keys and values of all positions with the layer below"
INSTEAD = "put a kind that keeps them all below it, such as multi_head"


class Past:
    """No cache: the past of a training pass is empty, and nothing is kept.

    `length` is how many positions came before, which is the position of the first new one. `below` is the past of the
    layer below. `seen` are the keys and values of the new positions, whatever the cache, as `Attention.qkv` made them;
    `kept()` are those of all positions so far. `rotated_by` is the `Position` that rotated these keys. Kinds that share
    keys or values between layers read all three.
    """

    keeps = False

    def __init__(self) -> None:
        self.length = 0
        self.below: Past | None = None
        self.seen: tuple[Tensor, Tensor] | None = None
        self.rotated_by: object = None
        self.batch: int | None = None
        self.tails: dict[str, Tensor] = {}

    def expect(self, batch: int) -> None:
        """Raises ValueError if the batch size is not the one before: broadcasting would hide the mistake."""
        if self.batch not in (None, batch):
            raise ValueError(f"the cache was filled with a batch of {self.batch}, now {batch} came")
        self.batch = batch

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Returns all keys and values so far: without a cache, the new ones."""
        return key, value

    def kept(self) -> tuple[Tensor, Tensor]:
        """The keys (B, G, S, d) and values (B, G, S, e) of all positions so far: in a training pass, the new ones.

        Raises UserError where the cache does not have them.
        """
        if self.seen is None:
            raise UserError("there are no keys and values yet: the layer below has not been called")
        return self.seen

    def before(self, x: Tensor, n: int, of: str = "") -> Tensor:
        """The n vectors that came before x (B, T, D), zeros where there were fewer: (B, n, D).

        A cache then keeps the last n vectors of x for the next pass, so call this once in a pass. `of` names x where a
        layer has several. Raises ValueError for another batch size.
        """
        tail = self.tails.get(of, x.new_zeros(x.shape[0], n, x.shape[2]))  # (B, n, D)
        if self.keeps:
            self.expect(x.shape[0])
            self.tails[of] = torch.cat((tail, x), dim=1)[:, x.shape[1] :].clone()  # (B, n, D)
        return tail


class KVCache(Past):
    """The keys and values of all positions so far, in buffers of `capacity` positions.

    The first append makes the buffers, with the batch size, heads, widths, dtype and device of its keys and values.
    Raises ValueError when more positions arrive than fit, or another batch size.
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
        return self.kept()

    def kept(self) -> tuple[Tensor, Tensor]:
        """Views of the buffers: (B, G, S, d) and (B, G, S, e)."""
        if self.buffers is None:
            return super().kept()
        keys, values = self.buffers
        return keys.narrow(2, 0, self.length), values.narrow(2, 0, self.length)


class CompactCache(KVCache):
    """Keys and values in a form of a kind's own, such as a latent: its `qkv` makes them so for this cache."""


class WindowCache(Past):
    """The keys and values of the last `window` positions, and of the first `sinks`: a fixed size, whatever the past.

    A ring buffer: a position overwrites the one `window` positions before it. `append` returns the kept positions, in
    the order of the text, and then the new ones. A mask that is made from distances stays right, because no new
    position sees a dropped one.
    """

    keeps = True

    def __init__(self, window: int, sinks: int = 0):
        super().__init__()
        self.window, self.sinks = window, sinks
        self.buffers: tuple[Tensor, Tensor] | None = None

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keep key (B, G, T, d) and value (B, G, T, e); returns (B, G, S, d) and (B, G, S, e), the kept ones first."""
        self.expect(key.shape[0])
        window = self.in_order() if self.buffers else ([], [])
        keys, values = torch.cat([*window[0], key], dim=2), torch.cat([*window[1], value], dim=2)
        self.write(key, value)
        return keys, values

    def in_order(self) -> tuple[list[Tensor], list[Tensor]]:
        """The pieces of the buffers, from the first position to the last: of the keys, and of the values."""
        assert self.buffers is not None
        s, n = self.sinks, self.length
        if n <= s + self.window:
            keys, values = ([buffer[:, :, :n]] for buffer in self.buffers)  # (B, G, n, d), (B, G, n, e)
        else:
            oldest = self.slot(n)  # the next position would be written over it
            pieces = slice(s), slice(oldest, None), slice(s, oldest)
            keys, values = ([buffer[:, :, piece] for piece in pieces] for buffer in self.buffers)
        return keys, values

    def slot(self, position: int) -> int:
        """The index in the buffers at which a position is kept."""
        s = self.sinks
        return position if position < s else s + (position - s) % self.window

    def write(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keep key (B, G, T, d) and value (B, G, T, e), each in its slot; returns the buffers, ordered by slot."""
        self.expect(key.shape[0])
        start, end, size = self.length, self.length + key.shape[2], self.sinks + self.window
        if self.buffers is None:
            self.buffers = (
                key.new_empty(*key.shape[:2], size, key.shape[3]),  # (B, G, s + w, d)
                value.new_empty(*value.shape[:2], size, value.shape[3]),  # (B, G, s + w, e)
            )
        first = max(start, self.sinks, end - self.window)  # the first new position that the ring keeps
        turn = max(first, end - (end - self.sinks) % self.window)  # the last one that the ring begins with
        for a, b in ((start, min(self.sinks, end)), (first, turn), (turn, end)):  # those from a to b lie side by side
            for buffer, new in zip(self.buffers, (key, value)):
                if a < b:
                    buffer[:, :, self.slot(a) : self.slot(a) + b - a] = new[:, :, a - start : b - start]
        self.length = end
        keys, values = self.buffers
        return keys[:, :, :end], values[:, :, :end]  # (B, G, at most s + w, d), (B, G, at most s + w, e)

    def kept(self) -> tuple[Tensor, Tensor]:
        """Raises UserError: a window does not have the keys and values of all positions."""
        raise UserError(f"{SHARES}, which keeps a window of them only; {INSTEAD}")


class ChunkCache(WindowCache):
    """The keys and values of the current chunk: a new chunk begins, and the cache is emptied, every `window` positions.

    Whole chunks are dropped, so a mask that is made from chunks stays right too.
    """

    def in_order(self) -> tuple[list[Tensor], list[Tensor]]:
        """The filled part of the buffers: of the keys, and of the values."""
        assert self.buffers is not None
        keys, values = ([buffer[:, :, : self.length % self.window]] for buffer in self.buffers)
        return keys, values  # (B, G, n, d), (B, G, n, e)


class Shared(Past):
    """Keeps its length only: the keys and values are those that the layer below keeps."""

    keeps = True

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Keeps nothing, since the layer below has key (B, G, T, d) and value (B, G, T, e) already.

        Returns those of all positions so far, (B, G, S, d) and (B, G, S, e). Raises UserError where the layer below
        keeps them in another form, such as a latent.
        """
        self.length += key.shape[2]
        old = self.kept()
        if any(new.shape[1::2] != old.shape[1::2] for new, old in zip((key, value), old)):
            raise UserError(f"{SHARES}, which keeps them in a form of its own; {INSTEAD}")
        return old

    def kept(self) -> tuple[Tensor, Tensor]:
        """What the layer below keeps. Raises UserError in the first layer."""
        if self.below is None:
            raise UserError("the first layer has no layer below whose keys and values it could share")
        return self.below.kept()


class State(Past):
    """A state of fixed size, however long the past: the sum of an average, the matrix of a linear attention.

    It is replaced and never changed in place, so a copy of the reference is a snapshot.
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

    def kept(self) -> tuple[Tensor, Tensor]:
        """Raises UserError: a state does not have the keys and values of single positions."""
        raise UserError(f"{SHARES}, which keeps a state of fixed size instead; {INSTEAD}")
